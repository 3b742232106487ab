"""What the first rank writes of a run that TorchTitan trains, and what such a run needs."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from zephon.errors import ConfigError
from zephon.run import checkpoints, ledger, metrics
from zephon.run.checkpoints import Marker, Meta, SavedFile
from zephon.run.directory import RunDir
from zephon.run.metrics import MetricsFile
from zephon.run.mirror import Mirror
from zephon.run.progress import Progress, write_progress
from zephon.spec.experiment import RunSpec


class RunRecords:
    """What the first rank writes into the run directory: ledger, metrics, progress, and the marker of each checkpoint.

    Args:
        run, spec, attempt: of which.
        fence: raises Superseded where a newer generation exists.
    """

    def __init__(self, run: RunDir, spec: RunSpec, attempt: int, fence: Callable[[], None]) -> None:
        self._run, self._spec, self._attempt, self._fence = run, spec, attempt, fence
        self._generation = int(os.environ.get("ZEPHON_GENERATION", "0"))
        self._mirrors = [Mirror(run, ledger.FILE), Mirror(run, metrics.FILE)]
        self.ledger = str(self._mirrors[0].path)
        self._metrics = MetricsFile(self._mirrors[1].path, attempt)
        self._began: int | None = None
        self._last = time.monotonic()
        self._told = 0.0
        self._tokens = 0

    def step(self, step: int, digest: bytes, tokens: Mapping[str, int], values: Mapping[str, float]) -> Mapping[str, object]:
        """One step, counted from 0. Returns what its line in the ledger says beside the digest."""
        self._fence()
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        if self._began is None:
            self._began = step
        count = sum(tokens.values())
        self._tokens += count
        world = dist.get_world_size()
        same: dict[str, Any] = {"world_size": world, "generation": self._generation, "loss": values.get("loss")}
        rest = {"digest": digest.hex(), "tokens": count, "tokens_per_s": count / seconds, "seconds": {"step": seconds}}
        self._metrics.write(step, {**same, **values, **rest})
        if now - self._told > 0.1 or step + 1 == self._spec.trainer.steps:
            self._told = now
            write_progress(self._run, self._attempt, self._progress(step + 1, seconds, digest, values, count / seconds))
        return {"attempt": self._attempt, **same}

    def begin(self, step: int) -> None:
        """Before a checkpoint: the run directory has every step so far, and a folder that says what it will be."""
        self._fence()
        for mirror in self._mirrors:
            mirror.push()
        pinned, guarded = self._spec.fields_of("pinned"), self._spec.fields_of("guarded")
        meta = Meta(step=step, tokens=self._tokens, loader={}, pinned=pinned, guarded=guarded, rng={})
        checkpoints.begin(self._run, meta)

    def complete(self, step: int, folder: Path) -> None:
        """After a checkpoint of all ranks: its marker."""
        files = {str(file.relative_to(folder)): file for file in sorted(folder.rglob("*")) if file.is_file()}
        saved = {name: SavedFile(file.stat().st_size, _sha256(file)) for name, file in files.items()}
        checkpoints.write_marker(self._run, Marker(step=step, world_size=dist.get_world_size(), files=saved))

    def close(self) -> None:
        self._metrics.close()
        for mirror in self._mirrors:
            mirror.close()

    def _progress(self, done: int, seconds: float, digest: bytes, values: Mapping[str, float], speed: float) -> Progress:
        return Progress(
            step=done,
            steps=self._spec.trainer.steps,
            time=time.time(),
            generation=self._generation,
            world_size=dist.get_world_size(),
            began=self._began,
            step_s=seconds,
            pace_s=seconds,
            loss=values.get("loss"),
            tokens_per_s=speed,
            lr=values.get("lr"),
            digest=digest.hex(),
        )


def check(run: RunDir, spec: RunSpec) -> None:
    """What this trainer cannot do. Raises ConfigError."""
    if not run.local:
        raise ConfigError(
            f"trainer=torchtitan with the run directory {run.url}",
            follows="TorchTitan's checkpoints could not be marked as complete there",
            remedy="use a directory that every node sees, as a shared file system gives",
        )
    if not Path(spec.tokenizer.id).exists():
        raise ConfigError(
            f"trainer=torchtitan with tokenizer.id={spec.tokenizer.id!r}, which is no folder",
            follows="TorchTitan would load another tokenizer from its hf_assets_path",
            remedy="give the folder of the model's assets, tokenizer.json among them: tokenizer.id=assets/hf/NAME",
        )


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
