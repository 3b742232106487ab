"""TorchTitan's Trainer as the trainer of a run: it leaves when it is asked to, between two steps, with everything saved."""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.config import ConfigManager

from zephon.errors import ConfigError
from zephon.integrations.torchtitan.loader import ZephonDataLoader
from zephon.integrations.torchtitan.run_records import RunRecords, check
from zephon.integrations.torchtitan.trainer import ZephonTrainer, with_zephon
from zephon.run import specs
from zephon.run.checkpoints import SavedFile, folder_of, name_of, newest_checkpoint
from zephon.run.directory import RunDir
from zephon.spec.experiment import RunSpec
from zephon.train.checkpoint import own_files


class RunCheckpoints(CheckpointManager):  # type: ignore[misc]
    """TorchTitan's checkpoints under the names of a run's, marked as complete when all ranks have saved.

    A folder without the marker is an interrupted save, and never loaded.
    """

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(CheckpointManager.Config):  # type: ignore[misc]
        """TorchTitan's own."""

    run: RunDir  # set before anything is loaded or saved, as the next two
    group: dist.ProcessGroup | None = None
    records: RunRecords | None = None
    saved: int = -1

    def save(self, curr_step: int, last_step: bool = False) -> bool:
        if curr_step == self.saved or not self._should_save(curr_step, last_step):
            return False
        if self.records is not None:
            self.records.begin(curr_step)
        dist.barrier()
        super().save(curr_step, last_step)
        self.saved = curr_step
        written = own_files(self.run, curr_step, dist.get_rank())
        parts: list[Mapping[str, SavedFile] | None] | None = [None] * dist.get_world_size() if self.records else None
        dist.gather_object(written, parts, dst=0, group=self.group)
        if self.records is not None and parts is not None:
            self.records.complete(curr_step, [part for part in parts if part is not None])
        dist.barrier()
        return True

    def _find_load_step(self, folder: str = "") -> int:
        return newest_checkpoint(self.run)

    def _create_checkpoint_id(self, step: int, folder: str = "") -> str:
        return posixpath.join(folder or self.folder, name_of(step))


class RunTrainer(ZephonTrainer):
    """Args:
    config: see `config_of`.
    run: the run directory, of any file system.
    records: where the first rank writes; None on the others.
    leaving: whether this process was asked to leave; all ranks then save the same step and leave.
    """

    def __init__(
        self, config: ZephonTrainer.Config, *, run: RunDir, records: RunRecords | None, leaving: Callable[[], bool]
    ) -> None:
        self._run, self._records, self._leaving = run, records, leaving
        self._values: dict[str, float] = {}
        super().__init__(config)
        self.checkpointer.run, self.checkpointer.group, self.checkpointer.records = run, self.group, records
        self._log, self.metrics_processor.log = self.metrics_processor.log, self._logged

    def ledger_path(self) -> str:
        assert self._records is not None
        return self._records.ledger

    def newest_checkpoint(self) -> int:
        return newest_checkpoint(self._run)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if self._records is not None:
            self._records.resume(self.step)

    def recorded(self, step: int, digest: bytes, tokens: Mapping[str, int]) -> Mapping[str, object]:
        assert self._records is not None
        return self._records.step(step, digest, tokens, self._values)

    def should_continue_training(self) -> bool:
        if not super().should_continue_training():
            return False
        if self.agree(self._leaving()):
            self.checkpointer.save(self.step, last_step=True)
            return False
        return True

    def _logged(self, step: int, loss: float, worst: float, norm: float, **more: Any) -> None:
        rates = [value for name, value in (more.get("extra_metrics") or {}).items() if name.startswith("lr")]
        self._values = {"loss": loss, "grad_norm": norm, **({"lr": float(rates[0])} if rates else {})}
        self._log(step, loss, worst, norm, **more)


def config_of(run: RunDir, attempt: int, spec: RunSpec, *, own_files: str) -> ZephonTrainer.Config:
    """TorchTitan's configuration as its own command line makes it, with what the experiment decides.

    Args:
        own_files: a folder of this machine for what TorchTitan writes beside checkpoints: profiles, TensorBoard.

    Raises:
        ConfigError: no such configuration, or a run that this trainer cannot train.
    """
    check(spec)
    titan = spec.torchtitan
    try:
        theirs = ConfigManager().parse_args(["--module", titan.module, "--config", titan.config, *titan.overrides])
    except (ImportError, ValueError, SystemExit) as error:
        raise ConfigError(
            f"torchtitan.module={titan.module} torchtitan.config={titan.config} {' '.join(titan.overrides)}: {error}",
            remedy="give what TorchTitan's own command takes after --module and --config, and further arguments as a list",
        ) from error
    recipe = posixpath.join(run.url, *RunDir.in_attempt(attempt, specs.FILE))
    config = with_zephon(theirs, recipe=recipe, lanes=spec.lanes.count)
    training, trainer = config.training, spec.trainer
    training.global_batch_size, training.local_batch_size = spec.global_batch_size, trainer.microbatch_size
    training.seq_len, training.steps = spec.pipeline.context_length, trainer.steps
    config.hf_assets_path, config.dump_folder = spec.tokenizer.id, own_files
    config.metrics.log_freq = 1
    saving = config.checkpoint
    mode = getattr(saving, "async_mode", type(saving).__qualname__)  # another manager of checkpoints has no such field
    if mode != "disabled":
        raise ConfigError(
            f"--checkpoint.async_mode {mode} with trainer=torchtitan",
            follows="a checkpoint would be marked as complete before its files are written",
            remedy="set --checkpoint.async_mode disabled, with TorchTitan's CheckpointManager",
        )
    fields = {field.name: getattr(saving, field.name) for field in dataclasses.fields(CheckpointManager.Config)}
    ours = {"enable": True, "folder": folder_of(run), "interval": spec.checkpoint.every, "last_save_model_only": False}
    config.checkpoint = RunCheckpoints.Config(**{**fields, **ours, "keep_latest_k": max(2, spec.checkpoint.keep_last)})
    config.validator.enable = trainer.eval_every is not None
    if trainer.eval_every is not None:
        config.validator.freq, config.validator.steps = trainer.eval_every, -1
        config.validator.dataloader = ZephonDataLoader.Config(recipe=recipe, held_out=True, infinite=False)
    return config
