"""The ops on a lane's stream: accumulators, which run in the lane's own thread and make every decision about the order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self, TypeVar

from zephon.errors import ConfigError
from zephon.ops.balance import EnsureMixture, WeightBy
from zephon.ops.pack import Groups, Homogeneity, PackFlat, PackSequences
from zephon.ops.records import SampleRecord
from zephon.ops.shuffle import Algorithm, Shuffle
from zephon.ops.transform import StatefulTransform
from zephon.pipeline.chain import Chain
from zephon.spec.fields import Packing, named_options
from zephon.types import Payload
from zephon.work import MixtureSpec

State = TypeVar("State")


class LaneOps(Chain):
    """One method for each accumulator."""

    @named_options
    def stateful_transform(
        self,
        name: str,
        *,
        init_state: Callable[[], State],
        push: Callable[[State, list[SampleRecord]], tuple[State, Sequence[SampleRecord | Payload]]],
        flush: Callable[[State], Sequence[SampleRecord | Payload]] | None = None,
        should_flush: Callable[[State], bool] | None = None,
        transform: Callable[[Payload], Payload | None] | None = None,
        parallelism: int | None = 1,
        version: str | None = None,
    ) -> Self:
        """User code with one state per lane, fresh after each flush sentinel, so that it never has to be saved.

        Args:
            name: for errors and the fingerprint.
            init_state: makes a state.
            push: (state, records) to (state, records or dicts to emit).
            flush: state to a list of what is still held; called at each sentinel and when ``should_flush`` says so.
            should_flush: asked after each push.
            transform: dict to dict or None, applied to everything emitted.
            parallelism: no effect: each lane has one state and one thread.
            version: as of `map_transform`.
        """
        return self._add(
            StatefulTransform(
                label=name,
                init_state=init_state,
                push=push,
                flush=flush,
                should_flush=should_flush,
                transform=transform,
                parallelism=parallelism,
                version=version,
            )
        )

    @named_options
    def pack_flat(
        self,
        max_length: int | None = None,
        *,
        context_length: int | None = None,
        algorithm: Packing = "wrap",
        num_bins: int | None = None,
        max_sequences_per_bin: int | None = None,
        drop_oversized: bool | None = None,
        min_sequence_length: int = 1,
        pad_token_id: int | None = None,
        emit_positions: bool = True,
        homogeneity: Homogeneity = "none",
        groups: Groups | None = None,
        parallelism: int | None = None,
    ) -> Self:
        """Documents into rows of exactly ``max_length`` tokens, with all fields that have one value a token beside them.

        With labels a row gives one input less than it has tokens: ``pack_flat(2048)`` and ``to_training(return_labels=True)``
        give 2,047 inputs and labels. ``pack_flat(context_length=2048)`` gives 2,048 of each, from rows of 2,049 tokens, as
        ``pipeline.context_length`` of an experiment does.

        Args:
            max_length: tokens of a row, or
            context_length: inputs and labels of a row, one less than its tokens.
            algorithm: "wrap" (a stream that is cut; nothing is padded or dropped), "best_fit_wrap" (the longest that fits,
                one split to fill each row), "first_fit", "best_fit" (whole documents, padded; longer ones are dropped).
            num_bins: open bins, or candidates of best_fit_wrap; None is 64.
            max_sequences_per_bin: documents of a row, at most.
            drop_oversized: documents longer than a row are dropped and counted (None, True) or are an error (False);
                with the wrap algorithms they are split unless it is True.
            min_sequence_length: shorter documents are dropped and counted.
            pad_token_id: None is 0; padding is known by position, never by id.
            emit_positions: whether batches have ``positions``.
            homogeneity: "full" keeps datasets apart, "group" groups of them.
            groups: {group: [dataset, ...]} or {dataset: group}.
            parallelism: no effect: each lane packs in one thread, which decides the order.
        """
        return self._add(
            PackFlat(
                max_length=_row_length(max_length, context_length),
                algorithm=algorithm,
                num_bins=num_bins,
                max_sequences_per_bin=max_sequences_per_bin,
                drop_oversized=drop_oversized,
                min_sequence_length=min_sequence_length,
                pad_token_id=pad_token_id,
                emit_positions=emit_positions,
                homogeneity=homogeneity,
                groups=groups,
                parallelism=parallelism,
            )
        )

    @named_options
    def pack_sequences(
        self,
        max_length: int,
        *,
        algorithm: Packing = "first_fit",
        num_bins: int | None = None,
        max_sequences_per_bin: int | None = None,
        drop_oversized: bool | None = None,
        min_sequence_length: int = 1,
        homogeneity: Homogeneity = "none",
        groups: Groups | None = None,
        length_fn: Callable[[Payload], int] | None = None,
        pack_payloads: bool = True,
        parallelism: int | None = None,
        version: str | None = None,
    ) -> Self:
        """Documents that fit together, unpadded, as ``{"packed_samples": [payload, ...]}``.

        Args:
            max_length, algorithm, num_bins, max_sequences_per_bin, drop_oversized, min_sequence_length, homogeneity, groups,
                parallelism: as of `pack_flat`.
            length_fn: payload to length; None counts ``input_ids``.
            pack_payloads: whole payloads, or with False only their ``input_ids``.
            version: of ``length_fn``, as of `map_transform`.
        """
        return self._add(
            PackSequences(
                max_length=max_length,
                algorithm=algorithm,
                num_bins=num_bins,
                max_sequences_per_bin=max_sequences_per_bin,
                drop_oversized=drop_oversized,
                min_sequence_length=min_sequence_length,
                homogeneity=homogeneity,
                groups=groups,
                length_fn=length_fn,
                pack_payloads=pack_payloads,
                parallelism=parallelism,
                version=version,
            )
        )

    @named_options
    def shuffle(self, buffer_size: int = 256, *, seed: int = 0, algorithm: Algorithm = "streaming") -> Self:
        """Mixes the order of what passes, per lane, within each flush interval.

        Args:
            buffer_size: elements that wait. A flush interval is long enough for as many packed rows, see `explain`.
            seed: of the order.
            algorithm: see `zephon.ops.shuffle`.
        """
        return self._add(Shuffle(buffer_size=buffer_size, seed=seed, algorithm=algorithm))

    @named_options
    def ensure_mixture(
        self,
        *,
        max_buffer_size: int | None = 1000,
        weight_by: WeightBy = "auto",
        warn_tolerance: float | None = None,
        mixture: Mapping[str, float] | MixtureSpec | None = None,
    ) -> Self:
        """Reorders each lane within a bounded buffer towards the mixture.

        Args:
            max_buffer_size: elements that may wait; None lets nothing wait and drops what is too much (counted).
            weight_by: "auto" is by tokens where there are any, else by samples.
            warn_tolerance: warn when a dataset's share of a flush interval is further off than this.
            mixture: instead of the source's.
        """
        weights = mixture.weights if isinstance(mixture, MixtureSpec) else mixture
        op = EnsureMixture(max_buffer_size=max_buffer_size, weight_by=weight_by, warn_tolerance=warn_tolerance, mixture=weights)
        return self._add(op)


def _row_length(max_length: int | None, context_length: int | None) -> int:
    if (max_length is None) == (context_length is None):
        raise ConfigError(
            f"pack_flat(max_length={max_length}, context_length={context_length})",
            remedy="give one: context_length=2048 for 2,048 inputs and labels, max_length=2048 for rows of 2,048 tokens",
        )
    return max_length if max_length is not None else (context_length or 0) + 1
