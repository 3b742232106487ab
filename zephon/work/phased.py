"""A source whose mixture changes over the run, by phases. A far position of its plan costs what a near one costs.

A dataset may join or leave at a phase, and its passes go on where its last phase left them. The first phase alone is the plan
of `StaticMixtureWorkSource`, so that a run with one mixture can be given phases later. Nothing of a later phase changes a chunk
before it: a dataset's chunks get their length in the phase in which it joins.
"""

from __future__ import annotations

import functools
import html
from collections.abc import Iterable, Sequence
from fractions import Fraction

from zephon.io.dataset import Dataset
from zephon.seeds import derive
from zephon.types import Chunk, Counts, Json
from zephon.work.chunks import ChunkOrder
from zephon.work.mixture import Interleaving, MixtureSpec, refuse_what_cannot_be_mixed
from zephon.work.phases import Phase, Stretch, check_phases, exact_shares, stretches
from zephon.work.segments import Segment, SegmentedPlan
from zephon.work.source import StaticMixtureWorkSource
from zephon.work.tokens import TokenEstimation, tokens_per_byte


class PhasedPlan(SegmentedPlan):
    """See `PhasedMixtureWorkSource`; made by its ``plan``.

    Args:
        begins: the first token of each segment, as planned.
        phases: the number of the phase of each segment.
        shares: of the datasets in each segment, in order.
    """

    def __init__(
        self,
        orders: Sequence[ChunkOrder],
        segments: Sequence[Segment],
        lanes: int,
        key: int,
        begins: Sequence[Fraction],
        phases: Sequence[int],
        shares: Sequence[Sequence[Fraction]],
    ) -> None:
        super().__init__(orders, segments, lanes, key)
        self.begins, self.phases, self.shares = begins, phases, shares

    def mixture_at(self, position: int) -> Sequence[Fraction]:
        """See `zephon.work.source.Plan`."""
        return self.shares[self.segment_at(position)]


class PhasedMixtureWorkSource:
    """Datasets in a mixture that changes over the run.

    Args:
        datasets: at least one, with different names, each in at least one phase.
        phases: in order; see `Phase`. The last one goes on until the run ends.
        seed: of the order.
        shuffle_shards: visit the chunks of each pass in a permuted order.
        shuffle_within_shard: permute the documents inside each chunk.
        exhausted_policy: "repeat" (never ends), "stop" (ends when a dataset cannot supply its next chunk) or "redistribute"
            (the other datasets of the phase take over its share; ends when those of the last phase are used up).
        reshuffle_on_repeat: whether each pass has an order of its own.
        max_repeats: ends when a dataset would need more than this many repeats after its first pass.
        token_estimation: where tokens per byte come from.
        chunk_bytes: length of a chunk, in bytes of stored text. None lets it follow from the mixture, see `chunk_lengths`.

    Raises:
        ConfigError: phases that do not fit each other or the datasets, contradictory settings, or one dataset given twice.
    """

    def __init__(
        self,
        datasets: Sequence[Dataset],
        phases: Iterable[Phase],
        seed: int = 0,
        shuffle_shards: bool = True,
        shuffle_within_shard: bool = True,
        exhausted_policy: str = "repeat",
        reshuffle_on_repeat: bool = True,
        max_repeats: int | None = None,
        token_estimation: TokenEstimation | None = None,
        chunk_bytes: int | None = None,
    ) -> None:
        self.phases = tuple(phases)
        check_phases(self.phases, [dataset.name for dataset in datasets])
        joined = sorted(datasets, key=lambda dataset: self._joins(dataset.name))
        self._estimation = token_estimation or TokenEstimation()
        self._static = functools.partial(
            StaticMixtureWorkSource,
            seed=seed,
            shuffle_shards=shuffle_shards,
            shuffle_within_shard=shuffle_within_shard,
            exhausted_policy=exhausted_policy,
            reshuffle_on_repeat=reshuffle_on_repeat,
            max_repeats=max_repeats,
            token_estimation=self._estimation,
            chunk_bytes=chunk_bytes,
        )
        self._all = self._static(joined)  # in proportion to size: only what belongs to the datasets is asked of it
        self.datasets = self._all.datasets
        self.chunk_bytes = self._all.chunk_bytes
        self.permutes_documents = shuffle_within_shard
        self._policy, self._max_repeats = exhausted_policy, max_repeats
        self._seed, self._shuffle_chunks, self._reshuffle = seed, shuffle_shards, reshuffle_on_repeat

    def _joins(self, name: str) -> int:
        """The number of the first phase that a dataset is in."""
        return next(number for number, phase in enumerate(self.phases) if name in phase.weights)

    def __repr__(self) -> str:
        return f"PhasedMixtureWorkSource({'; '.join(map(str, self.phases))}; seed={self._seed})"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"

    @property
    def mixture(self) -> MixtureSpec | None:
        """None: there is no single one. See ``phases``."""
        return None

    @property
    def estimation(self) -> TokenEstimation | None:
        needed = (len(self.datasets) > 1 or len(self.phases) > 1) and self._estimation.measures
        return self._estimation if needed else None

    def describe(self) -> Json:
        return {**self._all.describe(), "phases": [phase.describe() for phase in self.phases]}

    def sample(self, dataset: int, count: int) -> list[Chunk]:
        """See `WorkSource.sample`."""
        return self._all.sample(dataset, count)

    def chunk_bytes_of(self, dataset: int, lanes: int, measured: Counts | None = None, batch_tokens: int | None = None) -> int:
        """Of the ``dataset`` with this number; ``lanes``, ``measured`` and ``batch_tokens`` as of `plan`."""
        return self.chunk_lengths(lanes, measured, batch_tokens)[dataset]

    def chunk_lengths(self, lanes: int, measured: Counts | None = None, batch_tokens: int | None = None) -> list[int]:
        """Bytes of a chunk of each dataset, as the phase in which it joins needs them; no later phase changes them.

        The datasets of the first phase have the chunks of `StaticMixtureWorkSource`, and so has one that joins later: of its
        share of the phase in which it does.

        Args:
            lanes, measured, batch_tokens: as of `plan`.
        """
        first = [dataset for dataset in self.datasets if self._joins(dataset.name) == 0]
        lengths = self._static(first, self._mixture_of(0)).chunk_lengths(lanes, measured, batch_tokens)
        for dataset in self.datasets[len(first) :]:
            phase = self._joins(dataset.name)
            own = [of for of in self.datasets if of.name in self.phases[phase].weights]
            joined = self._static(own, self._mixture_of(phase)).chunk_lengths(lanes, measured, batch_tokens)
            lengths.append(joined[own.index(dataset)])
        return lengths

    def _mixture_of(self, phase: int) -> MixtureSpec | None:
        weights = self.phases[phase].weights
        return MixtureSpec(weights) if len(weights) > 1 else None

    def chunks_before(
        self, token: Fraction, lanes: int, measured: Counts | None = None, batch_tokens: int | None = None
    ) -> int:
        """How many global chunks begin before a ``token`` of the stream, as planned; the rest as of `plan`."""
        names, tokens = self._tokens_of(self._orders(lanes, measured, batch_tokens), measured)
        chunks = Fraction(0)
        for stretch in stretches(self.phases, batch_tokens):
            if stretch.begin < token:
                end = token if stretch.end is None else min(token, stretch.end)
                chunks += (end - stretch.begin) * sum(_frequencies(stretch, names, tokens))
        return round(chunks)

    def token_of(self, chunk: int, lanes: int, measured: Counts | None = None, batch_tokens: int | None = None) -> Fraction:
        """The token of the stream at which a global chunk begins, as planned: the inverse of `chunks_before`."""
        names, tokens = self._tokens_of(self._orders(lanes, measured, batch_tokens), measured)
        left = Fraction(chunk)
        for stretch in stretches(self.phases, batch_tokens):
            rate = sum(_frequencies(stretch, names, tokens))
            length = None if stretch.end is None else (stretch.end - stretch.begin) * rate
            if length is None or left <= length:
                return stretch.begin + left / rate
            left -= length
        raise AssertionError("unreachable: the last stretch has no end")

    def plan(self, lanes: int, measured: Counts | None = None, batch_tokens: int | None = None) -> PhasedPlan:
        """The source calibrated and assigned to lanes.

        Args:
            lanes: how many.
            measured: what calibration counted, or None to use the primer.
            batch_tokens: of one global batch; needed where a phase ends at a step.

        Raises:
            ConfigError: a weight that chunks cannot represent, or a phase that ends before it begins.
        """
        orders = self._orders(lanes, measured, batch_tokens)
        names, tokens = self._tokens_of(orders, measured)
        for phase in self.phases:
            mixed = {name: share / tokens[names.index(name)] for name, share in exact_shares(phase).items()}
            if len(mixed) > 1:
                refuse_what_cannot_be_mixed(list(mixed), list(mixed.values()))
        parts = [_chunks_of(stretch, names, tokens) for stretch in stretches(self.phases, batch_tokens)]
        limits = None
        if self._policy != "repeat" or self._max_repeats is not None:
            repeats = 0 if self._policy == "redistribute" else self._max_repeats or 0
            limits = [order.count * (1 + repeats) for order in orders]
        laid = _laid_out(parts, limits, redistribute=self._policy == "redistribute")
        segments = [segment for segment, _ in laid]
        parts_of = [stretch for _, stretch in laid]
        return PhasedPlan(
            orders,
            segments,
            lanes,
            derive(self._seed, "lanes"),
            [stretch.begin for stretch in parts_of],
            [stretch.phase for stretch in parts_of],
            [[stretch.shares.get(name, Fraction(0)) for name in names] for stretch in parts_of],
        )

    def _orders(self, lanes: int, measured: Counts | None, batch_tokens: int | None) -> list[ChunkOrder]:
        lengths = self.chunk_lengths(lanes, measured, batch_tokens)
        return [
            ChunkOrder(
                dataset,
                index=index,
                chunk_bytes=length,
                seed=self._seed,
                shuffle_chunks=self._shuffle_chunks,
                shuffle_documents=self.permutes_documents,
                reshuffle=self._reshuffle,
            )
            for index, (dataset, length) in enumerate(zip(self.datasets, lengths, strict=True))
        ]

    def _tokens_of(self, orders: Sequence[ChunkOrder], measured: Counts | None) -> tuple[list[str], list[Fraction]]:
        """(names, tokens of a chunk) of the datasets."""
        names = [order.dataset.name for order in orders]
        rates = [tokens_per_byte(name, measured, self._estimation) for name in names]
        return names, [rate * Fraction(order.dataset.size, order.count) for rate, order in zip(rates, orders, strict=True)]


Part = tuple[Stretch, tuple[Fraction, ...], Fraction | None]
Laid = tuple[Segment, Stretch]


def _frequencies(stretch: Stretch, names: Sequence[str], tokens: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Chunks of each dataset for each token of the stretch."""
    return tuple(stretch.shares.get(name, Fraction(0)) / size for name, size in zip(names, tokens, strict=True))


def _chunks_of(stretch: Stretch, names: Sequence[str], tokens: Sequence[Fraction]) -> Part:
    """(stretch, frequency of each dataset, its length in chunks, which need not be a whole number)."""
    frequencies = _frequencies(stretch, names, tokens)
    length = None if stretch.end is None else (stretch.end - stretch.begin) * sum(frequencies)
    if len(stretch.shares) == 1:
        frequencies = tuple(Fraction(frequency > 0) for frequency in frequencies)
    return stretch, frequencies, length


def _laid_out(parts: Sequence[Part], limits: Sequence[int] | None, *, redistribute: bool) -> list[Laid]:
    """Stretches as segments of whole chunks, in which no dataset is visited more often than its limit.

    A dataset at its limit ends the source, or with ``redistribute`` the others of its phase go on without it.
    """
    laid: list[Laid] = []
    start, place = 0, Fraction(0)
    base = [0] * len(parts[0][1])
    for stretch, wanted, length in parts:
        place = place if length is None else place + length
        stop = None if length is None else round(place)
        while stop is None or start < stop:
            frequencies = wanted
            if limits is not None and redistribute:
                frequencies = tuple(f if base[d] < limits[d] else Fraction(0) for d, f in enumerate(wanted))
                if not any(frequencies):
                    break
            interleaving = _interleaving(frequencies)
            end = stop
            if limits is not None:
                visits = [(d, limits[d] - base[d]) for d, frequency in enumerate(frequencies) if frequency]
                if redistribute:
                    used_up = start + min(interleaving.place(left - 1, d) + 1 for d, left in visits)
                else:
                    used_up = start + min(interleaving.place(left, d) for d, left in visits)
                end = used_up if stop is None else min(stop, used_up)
            if end is None or end > start:
                laid.append((Segment(start, end, interleaving, tuple(base)), stretch))
            if end is None:
                return laid
            base = [before + interleaving.before(end - start, d) for d, before in enumerate(base)]
            start = end
            if limits is not None and not redistribute and end == used_up:
                return laid
    return laid


@functools.lru_cache(maxsize=128)
def _interleaving(frequencies: tuple[Fraction, ...]) -> Interleaving:
    """Held, because the plans of all ranks and of a restart ask for the same ones."""
    return Interleaving(frequencies)
