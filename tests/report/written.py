"""Run directories as their real writers leave them, without a training."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tests.train.synthetic import spec as small
from zephon.run import checkpoints, ledger, metrics
from zephon.run.calibration import write_calibration
from zephon.run.checkpoints import Marker, Meta, SavedFile
from zephon.run.contract_file import Contract, write_contract
from zephon.run.directory import RunDir
from zephon.run.environment import environment, write_environment
from zephon.run.events import EventLog
from zephon.run.ledger import Ledger
from zephon.run.metrics import MetricsFile, StepValues
from zephon.run.mirror import Mirror
from zephon.run.specs import new_attempt
from zephon.types import Sampled

DATASETS = {"web": {"path": "web.jsonl", "weight": 3.0}, "code": {"path": "code.jsonl", "weight": 1.0}}
TOKENS = 1_024  # a step


def write_run(
    url: str,
    legs: Sequence[tuple[int, int, int]],
    *,
    bad: int | None = None,
    changed: int | None = None,
    digests: bool = True,
    **changes: Any,
) -> RunDir:
    """A run of several legs, each an attempt: (first step, step after the last one, ranks).

    Args:
        bad: a step whose loss is far from its neighbours.
        changed: a step with another digest in each attempt.
        digests: whether it has a ledger.
    """
    rundir = RunDir(url)
    steps = max(last for _, last, _ in legs)
    spec = small(name=url.rsplit("/", 1)[-1], data__datasets=DATASETS, trainer__steps=steps, **changes)
    sources = {"trainer.steps": "command line", "data.datasets": "conf/data/two.yaml", "model": "conf/model/tiny.yaml"}
    for attempt, (first, last, size) in enumerate(legs, 1):
        assert new_attempt(rundir, spec) == attempt
        write_environment(rundir, attempt, environment(["conf=two"], {"data": "two"}, sources))
        log = EventLog(rundir, attempt, "supervisor")
        log.write("start", nodes=size, resumed_at=first, sha256=spec.sha256())
        _write_steps(rundir, attempt, range(first, last), size, bad, changed, digests)
        log.write("node_hello", node="node-0", pid=7, host="here")
    write_contract(
        rundir, Contract(pinned={}, guarded={}, files={n: {"files": 1, "size": 10_000, "sha256": ""} for n in DATASETS})
    )
    write_calibration(rundir, {"web": Sampled(250, 1000), "code": Sampled(500, 1000)})
    _write_checkpoint(rundir, steps)
    return rundir


def write_resize(rundir: RunDir, attempt: int, step: int, generation: int) -> None:
    """An order to go from 4 to 2 nodes, as the coordinator writes it."""
    EventLog(rundir, attempt, "coordinator").write(
        "resized",
        reason="rescale",
        generation=generation,
        nodes_before=4,
        nodes=2,
        step_before=step,
        step_after=step + 1,
        lost_steps=0,
        stall_s=1.5,
        parts_s={"drain": 0.1, "save": 0.2, "membership": 0.3, "restore": 0.4, "first_step": 0.5},
    )


def _write_steps(
    rundir: RunDir, attempt: int, steps: range, size: int, bad: int | None, changed: int | None, digests: bool
) -> None:
    mirrors = [Mirror(rundir, name) for name in (ledger.FILE, metrics.FILE)]
    lines = MetricsFile(mirrors[1].path, attempt)
    apart = changed is not None and attempt > 1  # a ledger that knows the step refuses another digest
    path = mirrors[0].path.with_suffix(".apart") if apart else mirrors[0].path
    known = Ledger(str(path))
    for step, values in zip(steps, _values(steps, attempt, size, bad), strict=True):
        digest = hashlib.sha256(f"{step} {attempt if step == changed else ''}".encode()).digest()
        tokens = {"web": round(TOKENS * values["shares"]["web"]), "code": round(TOKENS * values["shares"]["code"])}
        dropped = {"quarantined: no text": {"count": 1, "first": [["web", "web.jsonl", 4096 + step]]}} if step % 50 == 7 else {}
        rest = {"attempt": attempt, "generation": attempt, "world_size": size, "loss": values["loss"], "tokens": tokens}
        if digests:
            known.append(step=step, digest=digest, lanes=[digest], **rest, **({"dropped": dropped} if dropped else {}))
        lines.write(step, {**values, "digest": digest.hex()})
    lines.close()
    known.close()
    if apart:
        with mirrors[0].path.open("ab") as file:
            file.write(path.read_bytes())
        path.unlink()
    for mirror in mirrors:
        mirror.close()


def _values(steps: range, attempt: int, size: int, bad: int | None) -> Iterator[StepValues]:
    for step in steps:
        noise = math.sin(step * 12.9898) * 0.5 + math.sin(step * 78.233) * 0.5
        loss = 2.0 + 4.0 * math.exp(-step / 400) + 0.08 * noise + (9.0 if step == bad else 0.0)
        web = 0.75 + 0.05 * noise
        values: StepValues = {
            "time": time.time(),
            "world_size": size,
            "generation": attempt,
            "loss": loss,
            "digest": "",
            "grad_norm": 0.8 + 0.3 * abs(noise) + (40.0 if step == bad else 0.0),
            "lr": 0.003 * min(1.0, (step + 1) / 100),
            "tokens": TOKENS,
            "total_tokens": (step + 1) * TOKENS,
            "tokens_per_s": 9_000.0 * size * (1 + 0.1 * noise),
            "skipped": "loss is not finite" if step == 33 else None,
            "dropped": 0,
            "shares": {"web": web, "code": 1 - web},
            "dataset_loss": {"web": loss + 0.2, "code": loss - 0.6},
            "dataset_tokens": {"web": round(TOKENS * web), "code": TOKENS - round(TOKENS * web)},
            "packed": {"rows": 16, "segments": 40 + step % 9, "padding": step % 5},
            "seconds": {
                "step": 0.11,
                "data": 0.004 + 0.01 * (step % 40 == 0),
                "forward": 0.03,
                "backward": 0.05,
                "optimizer": 0.01,
            },
            "memory": {"host": 1 << 30},
        }
        if step % 100 == 99:
            values["eval_loss"], values["eval_tokens"] = loss + 0.1, 4_096
        yield values


def _write_checkpoint(rundir: RunDir, step: int) -> None:
    checkpoints.begin(rundir, Meta(step=step, tokens=step * TOKENS, loader={}, pinned={}, guarded={}, rng={}))
    rundir.write_bytes("checkpoints", checkpoints.name_of(step), "__0_0.distcp", data=b"x" * 3_000_000)
    checkpoints.write_marker(rundir, Marker(step=step, world_size=2, files={"__0_0.distcp": SavedFile(3_000_000, "")}))
