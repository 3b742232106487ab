"""pack_flat and pack_sequences: documents into rows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from zephon.errors import ConfigError, DataError
from zephon.ops.block import Block
from zephon.ops.functions import identity_of
from zephon.ops.op import Accumulator, AccumulatorOp, LaneContext, free
from zephon.ops.packing.bins import Bins, Planner, Splitting
from zephon.ops.packing.fitting import Admission, Fitting, group_numbers
from zephon.ops.packing.gate import Gate
from zephon.ops.packing.pool import Pool
from zephon.ops.packing.wrap import Wrap
from zephon.ops.records import payloads
from zephon.spec.fields import Packing, Positive
from zephon.types import IntArray, Ragged

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
    def reorders(self) -> bool:  # type: ignore[override]
        return self.algorithm != "wrap"

    @property
    def carries(self) -> bool:  # type: ignore[override]
        return self.algorithm == "wrap"

    @property
    def joins(self) -> bool:  # type: ignore[override]
        return self.algorithm == "wrap"

    def describe(self) -> dict[str, Any]:
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
                follows="every document would be left out",
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
        """Dataset to group. Given the other way round, as lists of datasets, it is turned."""
        labels: dict[str, str] = {}
        for name, value in (self.groups or {}).items():
            for dataset, group in [(name, value)] if isinstance(value, str) else [(dataset, name) for dataset in value]:
                if dataset in labels:
                    raise ConfigError(
                        f"dataset {dataset!r} is in the groups {labels[dataset]!r} and {group!r}",
                        follows="its documents would have two places",
                        remedy="put every dataset into exactly one group",
                    )
                labels[dataset] = group
        return labels

    def _gate(self, context: LaneContext, lengths: Callable[[Block], IntArray], open_one: Callable[[], Any]) -> Gate:
        groups = group_numbers(context.names or [""] * context.datasets, self.homogeneity, self._labels())
        oversized = {None: "dropped", True: "dropped", False: "error"}[self.drop_oversized]
        if self.algorithm not in WHOLE and not self.drop_oversized:
            oversized = "kept"
        admission = Admission(self.name, self.max_length, self.min_sequence_length, oversized)
        return Gate(admission, lengths, groups, open_one, context)

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
        pad = self.pad_token_id or 0

        def one() -> Accumulator:
            if self.algorithm == "wrap":
                return Wrap(self.max_length, pad, context.datasets)
            pool = Pool(self.max_length, pad, context.datasets)
            return Fitting(self._planner, pool, token_lengths, pool.rows)

        return self._gate(context, token_lengths, one)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackSequences(Pack):
    """See `Pipeline.pack_sequences`."""

    name: ClassVar[str] = "pack_sequences"

    length_fn: Callable[[dict[str, Any]], int] | None = None
    pack_payloads: bool = True
    version: str | None = None

    def describe(self) -> dict[str, Any]:
        own = super().describe()
        if self.length_fn is not None:
            own["length_fn"] = self._identity
        return own

    @functools.cached_property
    def _identity(self) -> dict[str, Any]:
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
        lengths = token_lengths if self.length_fn is None else self._measured

        def one() -> Accumulator:
            pool = Pool(self.max_length, 0, context.datasets)
            return Fitting(self._planner, pool, lengths, lambda rows: pool.groups(rows, whole=self.pack_payloads))

        return self._gate(context, lengths, one)

    def _measured(self, block: Block) -> IntArray:
        assert self.length_fn is not None
        return np.array([int(self.length_fn(payload)) for payload in payloads(block)], np.int64)


def token_lengths(block: Block) -> IntArray:
    """int64[n]: tokens of each document. Raises DataError for documents without any."""
    for part in block.parts:
        if not isinstance(part.fields.get("input_ids"), Ragged):
            raise DataError(
                f"documents have no token ids to pack; they have {sorted(part.fields)}",
                follows="there would be nothing to put into a row",
                remedy="put .tokenize(...) before packing, or store token ids as 'input_ids'",
            )
    return block.used()
