"""What the first rank writes of a run that TorchTitan trains, and what such a run needs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist

from zephon.errors import ConfigError
from zephon.run import checkpoints, ledger, metrics
from zephon.run.checkpoints import Marker, Meta, SavedFile
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
        self._mirrors = [Mirror(run, name, fence=fence) for name in (ledger.FILE, metrics.FILE)]
        self.ledger = str(self._mirrors[0].path)
        self._sinks: list[Sink] = [MetricsFile(self._mirrors[1].path, attempt), ProgressFile(run, attempt, spec.trainer.steps)]
        self._last = time.monotonic()
        self._tokens = 0

    def resume(self, step: int) -> None:
        """Tokens are counted from step 0 on: those before ``step``, where the run goes on, are its checkpoint's."""
        self._tokens = checkpoints.read_meta(self._run, step).tokens if step else 0

    def step(self, step: int, digest: bytes, tokens: Mapping[str, int], values: Mapping[str, float]) -> Mapping[str, object]:
        """One step, counted from 0. Returns what its line in the ledger says beside the digest."""
        self._fence()
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        count = sum(tokens.values())
        self._tokens += count
        world = dist.get_world_size()
        same: dict[str, Any] = {"world_size": world, "generation": self._generation, "loss": values.get("loss")}
        counted = {"tokens": count, "total_tokens": self._tokens, "tokens_per_s": count / seconds}
        rest = {"digest": digest.hex(), **counted, "seconds": {"step": seconds}, "time": time.time()}
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

    def complete(self, step: int, parts: Iterable[Mapping[str, SavedFile]]) -> None:
        """After a checkpoint of all ranks: its marker, with the files that each of them has written."""
        self._fence()
        files = {name: file for part in parts for name, file in part.items()}
        checkpoints.write_marker(self._run, Marker(step=step, world_size=dist.get_world_size(), files=files))

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
        for mirror in self._mirrors:
            mirror.close()


def check(spec: RunSpec) -> None:
    """What this trainer cannot do. Raises ConfigError."""
    if not Path(spec.tokenizer.id).exists():
        raise ConfigError(
            f"trainer=torchtitan with tokenizer.id={spec.tokenizer.id!r}, which is no folder",
            follows="TorchTitan would load another tokenizer from its hf_assets_path",
            remedy="give the folder of the model's assets, the same on every node: tokenizer.id=assets/hf/NAME",
        )
