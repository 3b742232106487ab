"""What a run shows of each step: metrics.jsonl always, other sinks where the spec asks for them, progress.json for watchers."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from zephon.run.directory import TENSORBOARD, RunDir
from zephon.run.metrics import StepValues
from zephon.run.progress import Progress, write_progress
from zephon.spec.experiment import RunSpec
from zephon.train.trackers import Scalars, mlflow, wandb

PROGRESS_INTERVAL_S, FAR_PROGRESS_INTERVAL_S = 0.1, 3.0
PACE_STEPS = 32  # the time left follows from as many of the newest steps


class Sink(Protocol):
    """Receives the metrics of each step, counted from 0."""

    def write(self, step: int, values: StepValues) -> None: ...

    def close(self) -> None: ...


class ProgressFile:
    """The attempt's progress, replaced at most ten times a second (far storage: every 3 s) and once at the end.

    ``recorded`` is how many steps the ledger had when this process began.
    """

    def __init__(self, run: RunDir, attempt: int, steps: int, *, recorded: int = 0) -> None:
        self._run, self._attempt, self._steps, self._recorded = run, attempt, steps, recorded
        self._interval = PROGRESS_INTERVAL_S if run.local else FAR_PROGRESS_INTERVAL_S
        self._began: int | None = None
        self._seconds: deque[float] = deque(maxlen=PACE_STEPS)
        self._latest: Progress | None = None
        self._written = 0.0

    def go_on(self, recorded: int) -> None:
        """Another generation begins, with ``recorded`` steps in the ledger."""
        self._recorded, self._began, self._written = recorded, None, 0.0
        self._seconds.clear()

    def write(self, step: int, values: StepValues) -> None:
        if self._began is None:
            self._began = step
        elif self._began + 1 == step:
            self._seconds.clear()  # the first step also imports, compiles and measures
        last = values["seconds"]["step"]
        self._seconds.append(last)
        self._latest = Progress(
            step=step + 1,
            steps=self._steps,
            time=time.time(),
            generation=values["generation"],
            world_size=values["world_size"],
            began=self._began,
            recorded=self._recorded,
            step_s=last,
            save_s=values.get("save_s"),
            pace_s=sum(self._seconds) / len(self._seconds),
            loss=values["loss"],
            tokens_per_s=values["tokens_per_s"],
            lr=values["lr"],
            digest=values["digest"],
            realized=values.get("realized", {}),
            targets=values.get("targets", {}),
            tokens=values.get("total_tokens", 0),
            dropped=values.get("dropped_so_far", {}),
        )
        if time.monotonic() - self._written >= self._interval:
            self._flush(self._latest)

    def close(self) -> None:
        if self._latest is not None:
            self._flush(self._latest)

    def _flush(self, progress: Progress) -> None:
        write_progress(self._run, self._attempt, progress)
        self._written = time.monotonic()


class Console:
    """One live line on a terminal; elsewhere a plain line with its time every ``every`` steps, to standard output."""

    def __init__(self, steps: int, every: int) -> None:
        self._steps, self._every, self._live = steps, every, sys.stdout.isatty()

    def write(self, step: int, values: StepValues) -> None:
        if not self._live and (step + 1) % self._every and step + 1 != self._steps:
            return
        line = (
            f"step {step + 1}/{self._steps}  loss {values['loss']:.4f}  norm {values['grad_norm']:.3f}  "
            f"lr {values['lr']:.2e}  {values['tokens_per_s']:,.0f} tokens/s  {values['digest'][:12]}"
        )
        if "eval_loss" in values:
            line += f"  held-out loss {values['eval_loss']:.4f}"
        now = time.time()
        stamp = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))},{int(now * 1000) % 1000:03d} "
        print(f"\r\033[K{line}" if self._live else stamp + line, end="" if self._live else "\n", flush=True)

    def close(self) -> None:
        if self._live:
            print(flush=True)


class Clock:
    """Seconds by phase within one step: ``with clock("data"): ...``."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = time.perf_counter()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - began

    def lap(self) -> tuple[float, dict[str, float]]:
        """(seconds since the last lap, seconds by phase), and starts over."""
        now, phases = time.perf_counter(), self.seconds
        total, self._began, self.seconds = now - self._began, now, {}
        return total, phases


def sinks(run: RunDir, spec: RunSpec, attempt: int, *, recorded: int = 0) -> list[Sink]:
    """What rank 0 writes to beside metrics.jsonl, in the order of writing; ``recorded`` steps are in the ledger already.

    Raises:
        ConfigError: a tracker is configured and its package is not installed.
    """
    trainer = spec.trainer
    chosen: list[Sink] = [
        ProgressFile(run, attempt, trainer.steps, recorded=recorded),
        Console(trainer.steps, trainer.log_every),
    ]
    if trainer.tensorboard and importlib.util.find_spec("tensorboard") is not None:
        chosen.append(_tensorboard(run))
    if trainer.wandb is not None:
        chosen.append(wandb(trainer.wandb, spec))
    if trainer.mlflow is not None:
        chosen.append(mlflow(trainer.mlflow, spec))
    return chosen


def _tensorboard(run: RunDir) -> Sink:
    from torch.utils.tensorboard.writer import SummaryWriter

    writer = SummaryWriter(run.path(TENSORBOARD) if run.local else f"{run.url.rstrip('/')}/{TENSORBOARD}")

    def put(numbers: dict[str, float], step: int) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)

    return Scalars(put, writer.close)
