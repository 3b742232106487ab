"""Chaos: one run of the real trainer, and any number of random events; its ledger must be that of a run nobody disturbed.

    python -m tests.chaos --events 200 --seed 7 [--store s3]

A seed decides the order of events and whom they strike; when they strike depends on the machine. What the ledger must say is
checked by code of this file alone: lines, digests and who wrote them are read and computed here, from the design's words.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.agent.objects import serving, variables
from tests.agent.toy import Toy
from zephon.errors import ConfigError, ZephonError
from zephon.launch import control
from zephon.launch import start as session
from zephon.launch.config.compose import compose
from zephon.ops.tokenizers import load_tokenizer
from zephon.pipeline.experiment import pipeline
from zephon.run.calibration import read_calibration
from zephon.run.generation import Generation, claim, newest_claim
from zephon.spec.experiment import RunSpec

SIZES = (1, 2, 4)
SETTINGS = [
    *("conf=bytes", "name=disturbed", "nodes=2", "pipeline.context_length=16", "global_batch_size=8", "trainer.steps=1000000"),
    *("model.layers=1", "model.dim=16", "trainer.tensorboard=false", "checkpoint.every=10"),
    *("elastic.heartbeat_s=2.0", "elastic.failure_budget=1000", "elastic.nodes_max=4"),
]


class Real(Toy):
    """A run of the real trainer, as small as it gets."""

    def __init__(self, runs: str) -> None:
        self.spec = compose([*SETTINGS, f"runs={runs}"]).spec
        self.rundir, self.settings = session.rundir_of(self.spec), {}

    def start(self) -> Real:
        session.start(self.spec)
        return self

    def resume(self, *overrides: str) -> Real:
        session.resume(self.rundir, overrides)
        return self

    def settled(self, limit_s: float = 90.0) -> None:
        self.wait(lambda now: now.state == "TRAINING", limit_s)


class Chaos:
    """Events on one run. Each method of EVENTS is one; it says what it did, and leaves a run that trains or has ended."""

    def __init__(self, run: Real, seed: int, *, disk: Path | None = None, store: subprocess.Popen[str] | None = None) -> None:
        self.run, self.chance, self.disk, self.store = run, random.Random(seed), disk, store
        self.story: list[str] = []
        self.may_fail = False

    def disturb(self, events: int) -> None:
        possible = [event for event in EVENTS if self._possible(event)]
        for number in range(events):
            event = self.chance.choice(possible)
            self.may_fail = False
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

    def _possible(self, event: Callable[[Chaos], str]) -> bool:
        if event is Chaos.full_disk:
            return self.disk is not None
        if event is Chaos.store_away:
            return self.store is not None
        return self.run.rundir.local or event not in (Chaos.torn_files, Chaos.damaged_checkpoint)

    def rescale(self) -> str:
        sizes = [size for size in SIZES if size != self.run.status().target]
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
        self.run.agent(index).kill()
        return f"kill agent {index}"

    def drain_agent(self) -> str:
        index = self._node()
        os.kill(self.run.agent(index).pid, signal.SIGTERM)
        return f"drain agent {index}"

    def kill_workers(self) -> str:
        index = self._node()
        for worker in self.run.workers(index):
            worker.kill()
        return f"kill workers of {index}"

    def freeze(self) -> str:
        index, seconds = self._node(), self.chance.random() * 2
        agent = self.run.agent(index)
        with frozen([agent, *agent.children(recursive=True)]):
            time.sleep(seconds)
        return f"freeze node {index} for {seconds:.1f} s"

    def stop(self) -> str:
        self.run.settled()
        stopped = control.stop(self.run.rundir)
        assert stopped.state == "STOPPED", f"{stopped}\n{self.run.story()}"
        assert stopped.checkpoint == stopped.step, "a step was lost by a stop"
        self.run.resume(f"nodes={self.chance.choice(SIZES)}")
        return f"stop at {stopped.step} and resume"

    def kill_everything(self) -> str:
        self._kill_supervisor()
        self.run.resume()
        return "kill the supervisor and resume"

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
        before = len(lines_of(self.run))
        ended = self.run.wait_end(60)
        assert ended.state == "FAILED", ended
        assert f"attempt {attempt + 1} trains this run now" in ended.message, ended
        assert len(lines_of(self.run)) <= before + 1, "it wrote on"  # one line may have been on its way
        self.run.resume()
        return f"attempt {attempt} superseded"

    def torn_files(self) -> str:
        """The machine loses power: what was written last is cut, or zeros."""
        self._kill_supervisor()
        root = Path(self.run.rundir.root)
        kept = max(self.run.status().checkpoint or 0, 0)
        ledger = (root / "ledger.jsonl").read_bytes()
        whole = sum(map(len, ledger.splitlines(keepends=True)[: self._line_of(ledger, kept)]))
        cut(root / "ledger.jsonl", self.chance.randint(whole, len(ledger)), zeros=self.chance.choice((0, 512)))
        for name in ("events.jsonl", "metrics.jsonl"):
            size = (root / name).stat().st_size
            cut(root / name, size - self.chance.randint(0, 60), zeros=self.chance.choice((0, 512)))
        self.run.resume()
        return "kill the supervisor, tear ledger, events and metrics, and resume"

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
        refused = self.run.wait_end(90)
        assert (refused.state, refused.status) == ("FAILED", 65), f"{refused}\n{self.run.story()}"
        assert "checkpoint.resume=last_good" in f"{refused.message} {refused.error}", refused
        self.run.resume("checkpoint.resume=last_good")
        self.run.settled()
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

    def store_away(self) -> str:
        assert self.store is not None
        seconds = self.chance.random() * 4
        with frozen([psutil.Process(self.store.pid)]):
            time.sleep(seconds)
        return f"store away for {seconds:.1f} s"

    def _node(self) -> int:
        self.run.settled()
        return self.chance.randrange(self.run.status().target)

    def _kill_supervisor(self) -> None:
        self.run.settled()
        os.kill(self.run.supervisor_pid(), signal.SIGKILL)
        self.run.wait(lambda now: now.state == "FAILED", 60)

    @staticmethod
    def _line_of(ledger: bytes, steps: int) -> int:
        """How many lines the ledger had when ``steps`` steps were done for the last time."""
        numbers = [json.loads(line)["step"] for line in ledger.split(b"\n")[:-1]]
        return max((i + 1 for i, step in enumerate(numbers) if step < steps), default=0)


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
    Chaos.store_away,
)


@contextlib.contextmanager
def frozen(processes: list[psutil.Process]) -> Iterator[None]:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


def cut(path: Path, size: int, *, zeros: int) -> None:
    data = path.read_bytes()[: max(0, size)]
    path.write_bytes(data + bytes(zeros))


def lines_of(run: Real) -> list[dict[str, Any]]:
    """The ledger's lines as they lie there. A torn one is an error here: the next writer has to mend it."""
    text: bytes = run.rundir.fs.cat_file(run.rundir.path("ledger.jsonl"))
    return [json.loads(line) for line in text.split(b"\n") if line]


def faults(lines: list[dict[str, Any]], digests: list[str]) -> list[str]:
    """What is wrong with a ledger whose step i must have digest i; empty where nothing is."""
    found, seen, writer, expected = [], set[int](), (0, 0), 0
    for number, line in enumerate(lines, 1):
        step, by = line["step"], (line["attempt"], line["generation"])
        if by < writer:
            found.append(f"line {number}: {by} wrote after {writer}")
        elif by == writer and step != expected:
            found.append(f"line {number}: step {step} after step {expected - 1}")
        elif by > writer and step > max(seen, default=-1) + 1:
            found.append(f"line {number}: {by} begins at step {step}, and steps before it were never trained")
        if step >= len(digests) or line["digest"] != digests[step]:
            found.append(f"line {number}: step {step} has another digest than the undisturbed run")
        seen.add(step)
        writer, expected = max(writer, by), step + 1
    return found + [f"step {step} is missing" for step in range(max(seen, default=0)) if step not in seen]


def undisturbed(spec: RunSpec, run: Real, steps: int) -> list[str]:
    """The digest of each step of a run at one rank, as the design defines it."""
    feed = pipeline(spec, load_tokenizer(spec.tokenizer.id), dp_rank=0, dp_size=1)
    feed.calibrate(read_calibration(run.rundir))
    found = []
    for batches in itertools.islice(feed.steps(), steps):
        rows = [row for batch in batches for row in np.asarray(batch.fields["input_ids"])]
        sequences = [hashlib.sha256(row.astype("<i4").tobytes()).digest() for row in rows]
        share = len(sequences) // spec.lanes.count
        lanes = [sequences[i : i + share] for i in range(0, len(sequences), share)]
        digests = [hashlib.sha256(b"".join(lane)).digest() for lane in lanes]
        found.append(hashlib.sha256(b"".join(digests)).hexdigest())
    feed.close()
    return found


def chaos(runs: str, *, events: int, seed: int, disk: Path | None = None, store: subprocess.Popen[str] | None = None) -> str:
    """Starts a run, disturbs it, stops it and reads its ledger; one line of what was seen. Raises AssertionError."""
    run = Real(runs)
    try:
        run.start()
        run.wait_step(3, 120)
        made = Chaos(run, seed, disk=disk, store=store)
        made.disturb(events)
        run.settled()
        reached = run.status().step
        run.wait_step(reached + 2)
        stopped = control.stop(run.rundir)
        assert stopped.state == "STOPPED", run.story()
        lines = lines_of(run)
        wrong = faults(lines, undisturbed(run.spec, run, 1 + max(line["step"] for line in lines)))
        assert not wrong, "\n".join([*wrong[:20], *made.story])
        assert max(line["step"] for line in lines) + 1 == stopped.step == stopped.checkpoint
        kinds = len({text.split(" ")[0] for text in made.story})
        seen = f"{len(lines)} lines of {stopped.step} steps in {stopped.attempt} attempts"
        return f"{events} events of {kinds} kinds, {seen}: as undisturbed"
    finally:
        run.end()


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A file system of 64 MiB at ``folder``; None where this user may not mount one, and the folder is a plain one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def bucket(port: int) -> str:
    """The URL of an empty bucket of a server that every process from now on finds."""
    os.environ.update(variables(port))
    import s3fs

    s3fs.S3FileSystem().mkdir("chaos")
    return "s3://chaos"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--events", type=int, default=30)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--store", choices=("files", "s3"), default="files", help="where the run is")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    try:
        with contextlib.ExitStack() as owned:
            runs, given = str(folder / "runs"), {"events": chosen.events, "seed": chosen.seed}
            if chosen.store == "files":
                print(chaos(runs, **given, disk=owned.enter_context(small_disk(Path(runs)))))
            else:
                server, port = owned.enter_context(serving())
                print(chaos(bucket(port), **given, store=server))
    except (AssertionError, ZephonError) as error:
        print(f"seed {chosen.seed}: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
