"""What the first rank writes of a run that TorchTitan trains, and what such a run needs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist

from zephon.errors import ConfigError
from zephon.run import checkpoints, ledger, metrics
from zephon.run.checkpoints import Marker, Meta, SavedFile, sha256_of
from zephon.run.directory import RunDir
from zephon.run.metrics import MetricsFile, StepValues
from zephon.run.mirror import Mirror
from zephon.spec.experiment import RunSpec
from zephon.train.metrics import ProgressFile, Sink


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
        self._sinks: list[Sink] = [MetricsFile(self._mirrors[1].path, attempt), ProgressFile(run, attempt, spec.trainer.steps)]
        self._last = time.monotonic()
        self._tokens = 0

    def step(self, step: int, digest: bytes, tokens: Mapping[str, int], values: Mapping[str, float]) -> Mapping[str, object]:
        """One step, counted from 0. Returns what its line in the ledger says beside the digest."""
        self._fence()
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        count = sum(tokens.values())
        self._tokens += count
        world = dist.get_world_size()
        same: dict[str, Any] = {"world_size": world, "generation": self._generation, "loss": values.get("loss")}
        rest = {"digest": digest.hex(), "tokens": count, "tokens_per_s": count / seconds, "seconds": {"step": seconds}}
        rest["time"] = time.time()
        line = cast(StepValues, {"lr": None, **same, **values, **rest})  # TorchTitan measures less than our trainer
        for sink in self._sinks:
            sink.write(step, line)
        return {"attempt": self._attempt, **same}

    def begin(self, step: int) -> None:
        """Before a checkpoint: the run directory has every step so far, and a folder that says what it will be."""
        self._fence()
        for mirror in self._mirrors:
            mirror.push()
        pinned, guarded = self._spec.fields_of("pinned"), self._spec.fields_of("guarded")
        meta = Meta(step=step, tokens=self._tokens, loader={}, pinned=pinned, guarded=guarded, rng={})
        checkpoints.begin(self._run, meta)

    def complete(self, step: int) -> None:
        """After a checkpoint of all ranks: its marker."""
        folder = Path(checkpoints.path_of(self._run, step))
        names = [str(file.relative_to(folder)) for file in sorted(folder.rglob("*")) if file.is_file()]
        paths = {name: str(folder / name) for name in names}
        files = {name: SavedFile(self._run.fs.size(path), sha256_of(self._run, path)) for name, path in paths.items()}
        checkpoints.write_marker(self._run, Marker(step=step, world_size=dist.get_world_size(), files=files))

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
        for mirror in self._mirrors:
            mirror.close()


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
