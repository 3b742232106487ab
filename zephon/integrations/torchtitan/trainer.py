"""TorchTitan's Trainer with this loader: what it must refuse is refused before the model is built, and each step is on record.

The ledger is ``ledger.jsonl`` in ``--dump_folder``: `zephon verify A B` compares it with that of any other run.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemReader
from torchtitan.distributed import ParallelDims
from torchtitan.tools import filesystem
from torchtitan.trainer import Trainer

from zephon.errors import ConfigError
from zephon.integrations.torchtitan.checks import LOADER, check_saved, check_saving, check_validation
from zephon.integrations.torchtitan.loader import Delivered, ZephonDataLoader
from zephon.run import ledger
from zephon.run.ledger import Ledger, step_digest

_STEP = re.compile(r"step-(\d+)")  # a checkpoint's folder


class ZephonTrainer(Trainer):  # type: ignore[misc]
    """Refuses on every rank, before the model is built, what would change the data; records the SHA-256 of each global batch.

    Raises:
        ConfigError: numbers that do not fit together, checkpoints that could not be resumed, another loader.
        StateError: a checkpoint whose loader state is another one.
        LedgerMismatch: a step was trained before with other data.
    """

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):  # type: ignore[misc]
        """TorchTitan's own, with this loader."""

        dataloader: ZephonDataLoader.Config = dataclasses.field(default_factory=ZephonDataLoader.Config)

    def __init__(self, config: Config) -> None:
        _check(config)
        super().__init__(config)
        self._tell_metrics_the_tokens()
        self.group = dist.new_group(backend="gloo")  # so that digests never wait for a device
        self._ledger = Ledger(self.ledger_path()) if dist.get_rank() == 0 else None

    def ledger_path(self) -> str:
        """Where the first rank records each step."""
        return os.path.join(self.config.dump_folder, ledger.FILE)

    def recorded(self, step: int, digest: bytes, tokens: Mapping[str, int]) -> Mapping[str, object]:
        """What else a step's line in the ledger says; called on the first rank."""
        return {"world_size": dist.get_world_size()}

    def agree(self, answer: bool) -> bool:
        """Whether any rank says so; every rank asks at the same place."""
        flag = torch.tensor(int(answer))
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=self.group)
        return bool(flag)

    def train(self) -> None:
        self._check_checkpoint()
        super().train()

    def train_step(self, data_iterator: Any) -> None:
        super().train_step(data_iterator)
        delivered = self.dataloader.delivered
        assert delivered is not None
        parts: list[Delivered | None] | None = [None] * dist.get_world_size() if self._ledger is not None else None
        dist.gather_object(delivered, parts, dst=0, group=self.group)
        if self._ledger is not None and parts is not None:
            self._record([part for part in parts if part is not None])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._tell_metrics_the_tokens()

    def close(self) -> None:
        super().close()
        for part in (getattr(self, "_ledger", None), getattr(self, LOADER, None)):  # as far as it was built
            if part is not None:
                part.close()

    def _record(self, parts: list[Delivered]) -> None:
        digests: dict[int, bytes] = {}
        tokens: dict[str, int] = {}
        for part in parts:
            if part.digests.keys() <= digests.keys():  # a tensor, pipeline or context peer: the same rows
                continue
            digests |= part.digests
            for name, count in part.tokens.items():
                tokens[name] = tokens.get(name, 0) + count
        step = parts[0].step
        digest, lanes = step_digest([digests[slot] for slot in sorted(digests)], self.dataloader.lanes)
        assert self._ledger is not None
        self._ledger.append(step=step, digest=digest, lanes=lanes, tokens=tokens, **self.recorded(step, digest, tokens))

    def _tell_metrics_the_tokens(self) -> None:
        """TorchTitan sums what each rank has counted since its own start, which is wrong after a change of degree."""
        training = self.config.training
        mesh = self.parallel_dims.get_optional_mesh("loss")
        self.ntokens_seen = self.step * training.global_batch_size * training.seq_len // (mesh.size() if mesh else 1)

    def newest_checkpoint(self) -> int:
        """The step from which TorchTitan goes on where none is named; -1 where there is none."""
        return max(_saved(self.checkpointer.folder), default=-1)

    def _check_checkpoint(self) -> None:
        saving = self.config.checkpoint
        step = self.newest_checkpoint() if saving.load_step == -1 else saving.load_step
        folder = _saved(self.checkpointer.folder).get(step)
        if step == -1 and not saving.initial_load_model_only:
            folder = saving.initial_load_path
        if folder is not None and not self.config.dataloader.fork:
            check_saved(_keys(folder), lanes=self.dataloader.lanes, where=folder)


def _saved(folder: str) -> dict[int, str]:
    """Checkpoints by their steps, on a disk or in an object store."""
    names = filesystem.listdir(folder) if filesystem.isdir(folder) else []
    by_step = {int(match[1]): filesystem.join(folder, name) for name in names if (match := _STEP.fullmatch(name))}
    return {step: path for step, path in by_step.items() if filesystem.isfile(filesystem.join(path, ".metadata"))}


def _keys(folder: str) -> Mapping[str, object]:
    if not filesystem.is_remote(folder):
        return FileSystemReader(folder).read_metadata().state_dict_metadata
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

    return FsspecReader(folder).read_metadata().state_dict_metadata


def with_zephon(config: Trainer.Config, **loader: Any) -> ZephonTrainer.Config:
    """A configuration of TorchTitan's with this loader.

    Args:
        config: what a ``config_registry`` function of TorchTitan returns.
        loader: fields of `ZephonDataLoader.Config`; the command line may set them too.
    """
    fields: Mapping[str, Any] = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return ZephonTrainer.Config(**{**fields, LOADER: ZephonDataLoader.Config(**loader)})


def _check(config: ZephonTrainer.Config) -> None:
    if not isinstance(config.dataloader, ZephonDataLoader.Config):
        raise ConfigError(
            f"dataloader is a {type(config.dataloader).__qualname__}",
            follows="ZephonTrainer could not tell which global batches it trains on",
            remedy="use ZephonDataLoader.Config, or TorchTitan's own Trainer",
        )
    saving = config.checkpoint
    check_saving(
        enabled=saving.enable,
        last_save_model_only=saving.last_save_model_only,
        excluded=saving.exclude_from_loading,
        fork=config.dataloader.fork,
    )
    size = config.training.global_batch_size
    config.dataloader.global_batch_size = size
    loaders = [config.dataloader]
    if config.validator.enable and isinstance(config.validator.dataloader, ZephonDataLoader.Config):
        check_validation(steps=config.validator.steps)
        config.validator.dataloader.global_batch_size = size
        config.validator.dataloader.held_out = True
        loaders.append(config.validator.dataloader)
    dims = ParallelDims.from_config(config.parallelism, int(os.environ.get("WORLD_SIZE", "1")))
    for loader in loaders:
        loader.check(replicas=dims.dp_replicate * dims.dp_shard, local_batch_size=config.training.local_batch_size)
