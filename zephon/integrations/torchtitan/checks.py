"""What must hold before a model is built, said in TorchTitan's own words: pure functions of numbers and names."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from zephon.cursor import LANE_KEY
from zephon.errors import ConfigError, StateError
from zephon.world import World

LOADER = "dataloader"  # the name of the loader's part in TorchTitan's checkpoints


def check_division(*, global_batch_size: int, lanes: int, replicas: int, local_batch_size: int) -> None:
    """The global batch divides by the lanes, the lanes over the replicas, and a replica's rows by its forwards.

    Raises:
        ConfigError: any of them does not.
    """
    if global_batch_size < 1:
        raise ConfigError(
            f"--training.global_batch_size {global_batch_size} follows the number of GPUs",
            follows="every number of GPUs would train on other global batches",
            remedy="set --training.global_batch_size to the sequences of one optimizer step",
        )
    if lanes < 1 or global_batch_size % lanes:
        raise ConfigError(
            f"--training.global_batch_size {global_batch_size} is not a multiple of --dataloader.lanes {lanes}",
            follows="lanes would deliver different numbers of sequences in a step and drift apart",
            remedy=f"set --dataloader.lanes to one of {_divisors(global_batch_size)}, or another global batch",
        )
    if lanes % replicas:
        raise ConfigError(
            f"--dataloader.lanes {lanes} does not divide over {replicas} data-parallel replicas",
            follows="replicas would read the same lane, or different numbers of sequences",
            remedy=f"run {', '.join(map(str, World(lanes, global_batch_size).allowed()))} replicas, or begin with other lanes",
        )
    rows = global_batch_size // replicas
    if local_batch_size < 1 or rows % local_batch_size:
        raise ConfigError(
            f"{rows} sequences a replica cannot be cut into forwards of --training.local_batch_size {local_batch_size}",
            follows="TorchTitan would count short forwards as whole ones",
            remedy=f"set --training.local_batch_size to one of {_divisors(rows)}",
        )


def check_saving(*, enabled: bool, last_save_model_only: bool, excluded: Collection[str], fork: bool) -> None:
    """A run can be resumed with its data where it was.

    Raises:
        ConfigError: it could not.
    """
    if not enabled:
        raise ConfigError(
            "--checkpoint.enable is off",
            follows="an interrupted run would begin its data anew",
            remedy="set --checkpoint.enable",
        )
    if last_save_model_only:
        raise ConfigError(
            "--checkpoint.last_save_model_only is on, as it is by default",
            follows="the last checkpoint would hold no loader state, and more steps could never follow it",
            remedy="set --checkpoint.no-last-save-model-only",
        )
    if LOADER in excluded and not fork:
        raise ConfigError(
            f"--checkpoint.exclude_from_loading names {LOADER!r}",
            follows="the data would begin anew and rows be trained twice",
            remedy="take it out; to begin the data anew on purpose, add --dataloader.fork",
        )
    if fork and LOADER not in excluded:
        raise ConfigError(
            "--dataloader.fork without --checkpoint.exclude_from_loading dataloader",
            follows="the data would go on where the checkpoint left it, and not begin anew",
            remedy="give both, or neither",
        )


def check_validation(*, steps: int) -> None:
    """Validation sees the same rows at every degree.

    Raises:
        ConfigError: a number of steps counts batches of one replica.
    """
    if steps != -1:
        raise ConfigError(
            f"--validator.steps {steps} counts batches of each replica",
            follows="another number of replicas would validate on other rows, and its loss could not be compared",
            remedy="set --validator.steps -1: this loader ends at the same step on every rank; bound the rows in the recipe",
        )


def check_saved(keys: Iterable[str], *, lanes: int, where: str) -> None:
    """A checkpoint's keys, before it is loaded.

    Args:
        keys: all of its metadata.
        lanes: of the run that loads it.
        where: the checkpoint, for the message.

    Raises:
        StateError: it holds no loader state, another loader's, or other lanes.
    """
    own = {key.removeprefix(f"{LOADER}.") for key in keys if key.startswith(f"{LOADER}.")}
    anew = "to begin the data anew on purpose, set --dataloader.fork and --checkpoint.exclude_from_loading dataloader"
    if not own:
        raise StateError(
            f"{where} holds no loader state",
            follows="the data would begin anew and rows be trained twice",
            remedy=f"load a full checkpoint; {anew}",
        )
    saved = {int(key.removeprefix(LANE_KEY)) for key in own if key.startswith(LANE_KEY)}
    if not saved:
        raise StateError(
            f"{where} holds the state of another loader: {', '.join(sorted(own)[:4])}",
            follows="nobody could say which rows have been trained",
            remedy=anew,
        )
    if saved != set(range(lanes)):
        raise StateError(
            f"{where} was saved with {len(saved)} lanes, and --dataloader.lanes is {lanes}",
            follows="lanes would start from zero or be lost: other global batches",
            remedy=f"set --dataloader.lanes {len(saved)}; {anew}",
        )


def _divisors(number: int) -> str:
    return ", ".join(str(i) for i in range(1, number + 1) if number % i == 0)
