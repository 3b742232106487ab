"""TorchTitan: the loader as its ``(input_dict, labels)`` iterator with state per lane.

``TitanFeed`` does all the work and needs no TorchTitan; `dataloader_class` gives it TorchTitan's base class, whose module
changes between versions: it is looked for in each known module, whatever the version number.

    class Config(...):  config.dataloader = dataloader_class().Config(...)      # in your config_registry
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from zephon.cursor import SavedState
from zephon.errors import ConfigError
from zephon.pipeline.pipeline import Pipeline
from zephon.types import Json

if TYPE_CHECKING:
    from torch import Tensor

_BASES = ("torchtitan.components.dataloader", "torchtitan.components.dataloader.base")


class TitanFeed:
    """Yields ``({"input": int64[B, T], "positions": int64[B, T]}, labels int64[B, T])`` for one data-parallel rank.

    Args:
        build: called as ``build(dp_degree=..., dp_group_id=..., microbatch_size=...)``, returns a pipeline that packs
            with ``pack_flat(context_length=seq_len)``: inputs and labels both have ``seq_len`` tokens.
        dp_world_size, dp_rank: of the data-parallel mesh only; tensor, pipeline and context peers pass the same rank.
        local_batch_size: sequences of one forward.
        global_batch_size: must be given; TorchTitan's default follows the number of GPUs and would change the data.

    Raises:
        ConfigError: at construction, when the numbers cannot give the same global batch at every size.
    """

    def __init__(
        self,
        build: Callable[..., Pipeline],
        *,
        dp_world_size: int,
        dp_rank: int,
        local_batch_size: int,
        global_batch_size: int,
        seq_len: int,
        **_: object,
    ) -> None:
        if global_batch_size < 1:
            raise ConfigError(
                f"training.global_batch_size={global_batch_size} follows the number of GPUs",
                follows="every GPU count would train on other global batches",
                remedy="set training.global_batch_size to the number of sequences in one optimizer step",
            )
        self._pipeline = build(dp_degree=dp_world_size, dp_group_id=dp_rank, microbatch_size=local_batch_size)
        self._seq_len = seq_len
        world = self._pipeline.world
        if world.global_batch_size != global_batch_size:
            raise ConfigError(
                f"training.global_batch_size={global_batch_size}, but the pipeline delivers {world.global_batch_size}",
                follows="TorchTitan would end its optimizer steps in the middle of the loader's",
                remedy="give both the same number",
            )
        shares = [batch.last - batch.first for batch in world.microbatches(dp_rank, local_batch_size)]
        if any(rows != local_batch_size for rows in shares):
            raise ConfigError(
                f"{world.per_lane} sequences a lane cannot be cut into forwards of {local_batch_size}",
                follows="TorchTitan would count short forwards as whole ones",
                remedy=f"use a local batch size that divides {world.per_lane}",
            )

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        for batch in self._pipeline:
            tensors = batch.to_training(return_labels=True)
            length = tensors["input_ids"].shape[1]
            if length != self._seq_len:
                raise ConfigError(
                    f"the pipeline packs rows of {length + 1} tokens, training.seq_len is {self._seq_len}",
                    follows="the model would train on another context length than its configuration says",
                    remedy=f"use pack_flat(context_length={self._seq_len})",
                )
            yield {"input": tensors["input_ids"], "positions": tensors["positions"].long()}, tensors["labels"]

    def state_dict(self) -> Json:
        """One flat key per lane; a fresh loader answers too, without reading anything."""
        return self._pipeline.state_dict()

    def load_state_dict(self, state: SavedState) -> None:
        if state:
            self._pipeline.load_state_dict(state)


def dataloader_class() -> type:
    """`TitanFeed` as a subclass of TorchTitan's BaseDataLoader.

    Raises:
        ConfigError: TorchTitan is not installed, or its base class is in none of the known modules.
    """
    for name in _BASES:
        try:
            base = getattr(importlib.import_module(name), "BaseDataLoader", None)
        except ImportError:
            continue
        if base is not None:
            return type("ZephonDataLoader", (TitanFeed, base), {"__doc__": TitanFeed.__doc__})
    raise ConfigError(
        "TorchTitan's BaseDataLoader was not found",
        follows="its trainer could not use the loader",
        remedy="install torchtitan (it needs its own, newer torch), or use zephon's trainer",
    )
