"""Chaos: one run of the real trainer, and any number of random events; its ledger must be that of a run nobody disturbed.

    python -m tests.chaos --events 200 --seed 7 [--store s3]

A seed decides the order of events and whom they strike; when they strike depends on the machine. What the ledger must say is
checked by code of chaos_ledger.py alone: lines, digests and who wrote them are read and computed there, from the design's
words. The same events strike a run on real nodes (kubernetes/nodes_chaos.py).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import psutil

from tests.agent.objects import serving
from tests.agent.toy import Toy
from tests.chaos_ledger import faults, line_of, lines_of, undisturbed
from tests.chaos_places import bucket, cut, frozen, small_disk
from zephon.errors import ConfigError, ZephonError
from zephon.launch import control
from zephon.launch import start as session
from zephon.launch.config.compose import compose
from zephon.launch.status import LIVE, RunStatus
from zephon.run.directory import RunDir
from zephon.run.generation import Generation, claim, newest_claim
from zephon.spec.experiment import RunSpec

Away = Callable[[], contextlib.AbstractContextManager[None]]
"""Takes a service away for the length of a block."""
OVER = threading.Event()  # Ctrl-C: no further event, and the ledger is read

SETTINGS = [
    *("conf=bytes", "name=disturbed", "nodes=2", "pipeline.context_length=16", "global_batch_size=8", "trainer.steps=1000000"),
    *("model.layers=1", "model.dim=16", "trainer.tensorboard=false", "checkpoint.every=10"),
    *("elastic.heartbeat_s=2.0", "elastic.failure_budget=1000", "elastic.nodes_max=4"),
]


class Disturbed(Protocol):
    """A run that trains somewhere, and what can be done to it there."""

    spec: RunSpec
    rundir: RunDir
    sizes: tuple[int, ...]

    def start(self) -> None: ...

    def resume(self, *overrides: str) -> None: ...

    def status(self) -> RunStatus: ...

    def settled(self) -> None:
        """Waits until it trains, at whatever size it can have now."""

    def wait(self, test: Callable[[RunStatus], bool], limit_s: float = 60.0) -> RunStatus: ...

    def node(self, chance: random.Random) -> int:
        """The number of a node that may be struck."""

    def kill_agent(self, index: int) -> None: ...

    def drain_agent(self, index: int) -> None: ...

    def kill_workers(self, index: int) -> None: ...

    def freeze(self, index: int, seconds: float) -> None: ...

    def kill_everything(self) -> None:
        """Ends all of it without a word, until nothing of it lives and a new attempt may begin."""

    def story(self) -> str: ...

    def end(self) -> None: ...


class Real(Toy):
    """A run of the real trainer on this machine, as small as it gets."""

    sizes = (1, 2, 4)

    def __init__(self, runs: str) -> None:
        self.spec = compose([*SETTINGS, f"runs={runs}"]).spec
        self.rundir, self.settings = session.rundir_of(self.spec), {}

    def start(self) -> None:
        session.start(self.spec)

    def resume(self, *overrides: str) -> None:
        session.resume(self.rundir, overrides)

    def settled(self) -> None:
        self.wait(lambda now: now.state == "TRAINING", 90)

    def node(self, chance: random.Random) -> int:
        return chance.randrange(self.status().target)

    def kill_agent(self, index: int) -> None:
        self.agent(index).kill()

    def drain_agent(self, index: int) -> None:
        os.kill(self.agent(index).pid, signal.SIGTERM)

    def kill_workers(self, index: int) -> None:
        for worker in self.workers(index):
            worker.kill()

    def freeze(self, index: int, seconds: float) -> None:
        agent = self.agent(index)
        with frozen([agent, *agent.children(recursive=True)]):
            time.sleep(seconds)

    def kill_everything(self) -> None:
        os.kill(self.supervisor_pid(), signal.SIGKILL)
        self.wait(lambda now: now.state == "FAILED")


class Chaos:
    """Events on one run. Each method of EVENTS is one; it says what it did, and leaves a run that trains or has ended."""

    def __init__(self, run: Disturbed, seed: int, *, disk: Path | None, away: Away | None) -> None:
        self.run, self.chance, self.disk, self.away = run, random.Random(seed), disk, away
        self.story: list[str] = []
        self.kinds = set[str]()
        self.may_fail = False

    def disturb(self, events: int) -> int:
        """Makes so many events, or fewer where Ctrl-C ends them; returns how many."""
        possible = [event for event in EVENTS if self._possible(event)]
        for number in range(events):
            if OVER.is_set():
                return number
            event = self.chance.choice(possible)
            self.may_fail = False
            self.kinds.add(event.__name__)
            try:
                self.story.append(event(self))
            except psutil.NoSuchProcess:
                self.story.append(f"{event.__name__}: gone already")
            print(f"{number + 1}/{events} {self.story[-1]}", flush=True)
            time.sleep(self.chance.random() * 1.5)
            now = self.run.status()
            if now.state == "FAILED" and self.may_fail:
                self.run.resume()
            elif now.state in ("FAILED", "DONE", "STOPPED"):
                raise AssertionError(f"{now}\n{self.story}\n{self.run.story()}")
        return events

    def _possible(self, event: Callable[[Chaos], str]) -> bool:
        if event is Chaos.full_disk:
            return self.disk is not None
        if event is Chaos.service_away:
            return self.away is not None
        return self.run.rundir.local or event not in (Chaos.torn_files, Chaos.damaged_checkpoint)

    def rescale(self) -> str:
        sizes = [size for size in self.run.sizes if size != self.run.status().target]
        size = self.chance.choice(sizes)
        try:
            control.rescale(self.run.rundir, size, wait_s=0)
        except ConfigError as error:
            if "has not settled" not in str(error) and "took longer" not in str(error):
                raise
            return f"rescale to {size}: refused"
        return f"rescale to {size}"

    def kill_agent(self) -> str:
        index = self._node()
        self.run.kill_agent(index)
        return f"kill agent {index}"

    def drain_agent(self) -> str:
        index = self._node()
        self.run.drain_agent(index)
        return f"drain agent {index}"

    def kill_workers(self) -> str:
        index = self._node()
        self.run.kill_workers(index)
        return f"kill workers of {index}"

    def freeze(self) -> str:
        index, seconds = self._node(), self.chance.random() * 2
        self.run.freeze(index, seconds)
        return f"freeze node {index} for {seconds:.1f} s"

    def stop(self) -> str:
        self.run.settled()
        stopped = control.stop(self.run.rundir)
        assert stopped.state == "STOPPED", f"{stopped}\n{self.run.story()}"
        assert stopped.checkpoint == stopped.step, "a step was lost by a stop"
        self.run.resume(f"nodes={self.chance.choice(self.run.sizes)}")
        return f"stop at {stopped.step} and resume"

    def kill_everything(self) -> str:
        self._kill_everything()
        self.run.resume()
        return "kill everything and resume"

    def second_start(self) -> str:
        self.run.settled()
        try:
            session.start(self.run.spec)
        except ConfigError as error:
            return f"second start refused: {error.what[:40]}..."
        raise AssertionError("a second attempt was started beside the first")

    def superseded(self) -> str:
        """An attempt of somewhere else claims the run, and dies."""
        self.run.settled()
        attempt, generation = newest_claim(self.run.rundir)
        claim(
            self.run.rundir,
            Generation(attempt=attempt + 1, generation=generation + 1, nodes=("other",), world_size=1, time=time.time()),
        )
        before = len(lines_of(self.run.rundir))
        ended = self.run.wait(lambda now: now.state not in LIVE)
        assert ended.state == "FAILED", ended
        said = " ".join([ended.message, ended.error, *ended.also])
        assert f"attempt {attempt + 1} trains this run now" in said, f"{ended}\n{self.run.story()}"
        wrote = len(lines_of(self.run.rundir)) - before
        assert wrote <= 1, f"it wrote {wrote} lines on"  # one line may have been on its way
        self.run.resume()
        return f"attempt {attempt} superseded"

    def torn_files(self) -> str:
        """The machine loses power: what was written last is cut, or zeros."""
        self._kill_everything()
        root = Path(self.run.rundir.root)
        kept = max(self.run.status().checkpoint or 0, 0)
        ledger = (root / "ledger.jsonl").read_bytes()
        whole = sum(map(len, ledger.splitlines(keepends=True)[: line_of(ledger, kept)]))
        cut(root / "ledger.jsonl", self.chance.randint(whole, len(ledger)), zeros=self.chance.choice((0, 512)))
        for name in ("events.jsonl", "metrics.jsonl"):
            size = (root / name).stat().st_size
            cut(root / name, size - self.chance.randint(0, 60), zeros=self.chance.choice((0, 512)))
        self.run.resume()
        return "tear ledger, events and metrics after a kill of everything, and resume"

    def damaged_checkpoint(self) -> str:
        self.run.settled()
        control.stop(self.run.rundir)
        step = self.run.status().checkpoint
        steps = sorted(Path(self.run.rundir.root, "checkpoints").glob("*/COMPLETE"))
        if len(steps) < 2:
            self.run.resume()
            return "stop and resume: one checkpoint is not damaged"
        victim = self.chance.choice(sorted(steps[-1].parent.glob("*.distcp")))
        victim.write_bytes(victim.read_bytes()[: -self.chance.randint(1, 20)])
        self.run.resume()
        refused = self.run.wait(lambda now: now.state not in LIVE, 90)
        assert refused.state == "FAILED", f"{refused}\n{self.run.story()}"
        assert "checkpoint.resume=last_good" in f"{refused.message} {refused.error}", refused
        self.run.resume("checkpoint.resume=last_good")
        self.run.wait(lambda now: (now.checkpoint or 0) > step, 120)  # the word was for this attempt alone
        return f"damage the checkpoint of step {step} and go back"

    def full_disk(self) -> str:
        assert self.disk is not None
        self.run.settled()
        fill = self.disk / "fill"
        with contextlib.suppress(OSError), open(fill, "wb", buffering=0) as file:
            while file.write(b"0" * 65536):
                pass
        self.may_fail = True
        time.sleep(2.0)
        fill.unlink()
        self.run.wait(lambda now: now.state in ("TRAINING", "FAILED"), 90)
        return "full disk for 2 s"

    def service_away(self) -> str:
        """The store that the run is in, or the API server of its cluster."""
        assert self.away is not None
        seconds = self.chance.random() * 4
        with self.away():
            time.sleep(seconds)
        return f"away for {seconds:.1f} s: the service that it needs"

    def _node(self) -> int:
        self.run.settled()
        return self.run.node(self.chance)

    def _kill_everything(self) -> None:
        self.run.settled()
        self.run.kill_everything()


EVENTS: tuple[Callable[[Chaos], str], ...] = (
    Chaos.rescale,
    Chaos.rescale,
    Chaos.kill_agent,
    Chaos.drain_agent,
    Chaos.kill_workers,
    Chaos.freeze,
    Chaos.stop,
    Chaos.kill_everything,
    Chaos.second_start,
    Chaos.superseded,
    Chaos.torn_files,
    Chaos.damaged_checkpoint,
    Chaos.full_disk,
    Chaos.service_away,
)


def chaos(run: Disturbed, *, events: int, seed: int, disk: Path | None = None, away: Away | None = None) -> str:
    """Starts a run, disturbs it, stops it and reads its ledger; one line of what was seen. Raises AssertionError."""
    try:
        run.start()
        run.wait(lambda now: now.step >= 3 or now.state not in LIVE, 180)
        made = Chaos(run, seed, disk=disk, away=away)
        events = made.disturb(events)
        run.settled()
        reached = run.status().step
        run.wait(lambda now: now.step >= reached + 2 or now.state not in LIVE)
        stopped = control.stop(run.rundir)
        assert stopped.state == "STOPPED", run.story()
        lines = lines_of(run.rundir)
        wrong = faults(lines, undisturbed(run.spec, run.rundir, 1 + max(line["step"] for line in lines)))
        assert not wrong, "\n".join([*wrong[:20], *made.story])
        assert max(line["step"] for line in lines) + 1 == stopped.step == stopped.checkpoint
        seen = f"{len(lines)} lines of {stopped.step} steps in {stopped.attempt} attempts"
        return f"{events} events of {len(made.kinds)} kinds, {seen}: as undisturbed"
    finally:
        run.end()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--events", type=int, default=30)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--store", choices=("files", "s3"), default="files", help="where the run is")
    chosen = parser.parse_args()
    signal.signal(signal.SIGINT, lambda *_: OVER.set())
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    try:
        with contextlib.ExitStack() as owned:
            runs, given = str(folder / "runs"), {"events": chosen.events, "seed": chosen.seed}
            if chosen.store == "files":
                print(chaos(Real(runs), **given, disk=owned.enter_context(small_disk(Path(runs)))))
            else:
                server, port = owned.enter_context(serving())
                away = functools.partial(frozen, [psutil.Process(server.pid)])
                print(chaos(Real(bucket(port)), **given, away=away))
    except (AssertionError, ZephonError) as error:
        print(f"seed {chosen.seed}: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
