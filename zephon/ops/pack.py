"""pack_flat and pack_sequences: documents into rows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np

from zephon.errors import ConfigError, DataError
from zephon.ops.block import Block
from zephon.ops.functions import identity_of
from zephon.ops.op import Accumulator, AccumulatorOp, LaneContext, free
from zephon.ops.packing.bins import Bins, Planner, Splitting
from zephon.ops.packing.fitting import Fitting
from zephon.ops.packing.pool import Pool
from zephon.ops.packing.router import CarryingRouter, LengthFilter, Router, group_numbers
from zephon.ops.packing.wrap import Wrap
from zephon.ops.records import payloads
from zephon.spec.fields import Packing, Positive
from zephon.types import IntArray, Json, Ragged

WHOLE = ("first_fit", "best_fit")
Homogeneity = Literal["none", "group", "full"]
Groups = Mapping[str, str | Sequence[str]]
BINS = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pack(AccumulatorOp):
    """What both have in common. See `Pipeline.pack_flat` for the parameters."""

    max_length: Positive
    algorithm: Packing = "first_fit"
    num_bins: Positive | None = None
    max_sequences_per_bin: Positive | None = None
    drop_oversized: bool | None = None
    min_sequence_length: Positive = 1
    homogeneity: Homogeneity = "none"
    groups: Groups | None = None
    parallelism: Positive | None = free()

    @property
    def reorders(self) -> bool:
        return self.algorithm != "wrap"

    @property
    def carries(self) -> bool:
        return self.algorithm == "wrap"

    @property
    def joins(self) -> bool:
        return self.algorithm == "wrap"

    def describe(self) -> Json:
        own = super().describe()
        if self.algorithm == "wrap":
            del own["num_bins"], own["max_sequences_per_bin"]
        elif self.num_bins is None:
            own["num_bins"] = BINS
        return own

    def check(self) -> None:
        super().check()
        if self.algorithm == "wrap" and self.max_sequences_per_bin is not None:
            raise ConfigError(
                f"max_sequences_per_bin={self.max_sequences_per_bin} with algorithm='wrap'",
                follows="rows would have to be padded, and wrap pads none",
                remedy="use best_fit_wrap, first_fit or best_fit",
            )
        if self.min_sequence_length > self.max_length:
            raise ConfigError(
                f"min_sequence_length={self.min_sequence_length} is above max_length={self.max_length}",
                follows="every document would be dropped",
                remedy="lower it",
            )
        if (self.homogeneity == "group") != (self.groups is not None):
            raise ConfigError(
                f"homogeneity={self.homogeneity!r} with groups={self.groups!r}",
                follows="it would be unknown which documents may share a row",
                remedy="give homogeneity='group' and groups={'group name': ['dataset', ...]} together",
            )

    def check_source(self, names: Sequence[str]) -> None:
        """Raises ConfigError when the groups and the datasets differ."""
        if self.homogeneity == "group":
            labels = self._labels()
            if set(labels) != set(names):
                raise ConfigError(
                    f"groups name the datasets {sorted(labels)}, the source has {sorted(names)}",
                    follows="a dataset would have no group, or a group no dataset",
                    remedy="put every dataset into exactly one group",
                )

    def _labels(self) -> dict[str, str]:
        """Dataset to group, also where ``groups`` maps each group to its datasets."""
        labels: dict[str, str] = {}
        for name, value in (self.groups or {}).items():
            for dataset, group in [(name, value)] if isinstance(value, str) else [(dataset, name) for dataset in value]:
                if dataset in labels:
                    raise ConfigError(
                        f"dataset {dataset!r} is in the groups {labels[dataset]!r} and {group!r}",
                        follows="its documents would be packed in both",
                        remedy="put every dataset into exactly one group",
                    )
                labels[dataset] = group
        return labels

    def length_filter(self) -> LengthFilter:
        """Which documents are packed at all."""
        oversized = "error" if self.drop_oversized is False else "dropped"
        if self.algorithm not in WHOLE and not self.drop_oversized:
            oversized = "kept"
        return LengthFilter(self.name, self.max_length, self.min_sequence_length, oversized)

    def _groups(self, context: LaneContext) -> list[int]:
        return group_numbers(context.names or [""] * context.datasets, self.homogeneity, self._labels())

    def _planner(self) -> Planner:
        count = self.num_bins or BINS
        if self.algorithm == "best_fit_wrap":
            return Splitting(self.max_length, count, self.max_sequences_per_bin)
        best = self.algorithm == "best_fit"
        return Bins(self.max_length, count, self.max_sequences_per_bin, self.min_sequence_length, best=best)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackFlat(Pack):
    """See `Pipeline.pack_flat`."""

    name: ClassVar[str] = "pack_flat"

    algorithm: Packing = "wrap"
    pad_token_id: int | None = None
    emit_positions: bool = True

    def check(self) -> None:
        super().check()
        if self.max_length < 2:
            raise ConfigError(
                f"pack_flat(max_length={self.max_length}) is below 2",
                follows="a row would have no token to predict",
                remedy="give at least 2",
            )

    def open(self, context: LaneContext) -> Accumulator:
        pad, groups = self.pad_token_id or 0, self._groups(context)
        count = max(groups) + 1
        if self.algorithm == "wrap":
            streams = [Wrap(self.max_length, pad, context.datasets) for _ in range(count)]
            return CarryingRouter(self.length_filter(), token_lengths, groups, streams, context)
        pools = [Pool(self.max_length, pad, context.datasets) for _ in range(count)]
        packers = [Fitting(self._planner, pool, pool.rows) for pool in pools]
        return Router(self.length_filter(), token_lengths, groups, packers, context)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackSequences(Pack):
    """See `Pipeline.pack_sequences`."""

    name: ClassVar[str] = "pack_sequences"

    length_fn: Callable[[Json], int] | None = None
    pack_payloads: bool = True
    version: str | None = None

    def describe(self) -> Json:
        own = super().describe()
        if self.length_fn is not None:
            own["length_fn"] = self._identity
        return own

    @functools.cached_property
    def _identity(self) -> Json:
        assert self.length_fn is not None
        return identity_of(self.length_fn, self.version, where="pack_sequences(length_fn)")

    def check(self) -> None:
        super().check()
        if self.algorithm == "wrap" or (self.algorithm == "best_fit_wrap" and self.length_fn is not None):
            raise ConfigError(
                f"pack_sequences(algorithm={self.algorithm!r}) would have to split documents "
                + ("into a stream" if self.algorithm == "wrap" else "measured by length_fn"),
                follows="a sample would no longer be a document",
                remedy="use first_fit or best_fit, or pack_flat for a stream of tokens",
            )
        self.describe()

    def open(self, context: LaneContext) -> Accumulator:
        groups = self._groups(context)
        pools = [Pool(self.max_length, 0, context.datasets) for _ in range(max(groups) + 1)]
        packers = [Fitting(self._planner, pool, functools.partial(pool.groups, whole=self.pack_payloads)) for pool in pools]
        lengths = token_lengths if self.length_fn is None else self._measured
        return Router(self.length_filter(), lengths, groups, packers, context)

    def _measured(self, block: Block) -> IntArray:
        assert self.length_fn is not None
        return np.array([int(self.length_fn(payload)) for payload in payloads(block)], np.int64)


def token_lengths(block: Block) -> IntArray:
    """int64[n]: tokens of each document. Raises DataError for documents without any."""
    for part in block.parts:
        if not isinstance(part.fields.get("input_ids"), Ragged):
            raise DataError(
                f"documents have no token ids to pack; they have {sorted(part.fields)}",
                remedy="put .tokenize(...) before packing, or store token ids as 'input_ids'",
            )
    return block.used()
