"""The plan: lane and position in, chunk out. Nothing is enumerated and nothing is remembered.

Global chunk g belongs to a dataset by a closed form (`Interleaving`), and is that dataset's n-th visit, n being the
number of its chunks before g. The visits of each dataset are assigned to the lanes, see `zephon.work.segments`.
"""

from __future__ import annotations

import html
import math
from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction
from typing import Protocol

from zephon.errors import ConfigError, nearest
from zephon.io.dataset import Dataset
from zephon.seeds import derive
from zephon.types import Chunk, Counts, Json, Sampled
from zephon.work.chunks import ChunkOrder, ranges_between
from zephon.work.fair import fair_tokens, refuse_unfair
from zephon.work.mixture import MixtureSpec, refuse_what_cannot_be_mixed
from zephon.work.phases import Phase
from zephon.work.plan import StaticMixturePlan
from zephon.work.tokens import TokenEstimation, tokens_per_byte

SAMPLE_BYTES = 1 << 18
CHUNKS_A_LANE = 4  # of a dataset that has too few of the usual size
LONGEST = 1 << 18  # bytes of a chunk
FINEST = 1 << 10  # bytes: no chunk becomes smaller for the sake of the mixture
DOCUMENTS = 2  # nor than so many documents
POLICIES = ("repeat", "stop", "redistribute")


class Plan(Protocol):
    """A source, calibrated and assigned to a number of lanes."""

    def chunk(self, lane: int, position: int) -> Chunk | None:
        """The chunk at a position of a lane; None when the lane has ended. Costs the same at every position."""
        ...

    @property
    def total(self) -> int | None:
        """Chunks, over all lanes, until the source ends; None when it never does."""
        ...

    def reach(self, lane: int, position: int) -> int:
        """How many chunks, over all lanes, there are up to the last of a lane's first ``position`` chunks."""
        ...

    def mixture_at(self, position: int) -> Sequence[Fraction] | None:
        """Shares of the datasets in tokens at a position of a lane; None for shares in proportion to their sizes."""
        ...

    @property
    def first_pass(self) -> int:
        """Chunks, over all lanes, until every dataset has been visited completely once."""
        ...


class WorkSource(Protocol):
    """What a pipeline reads from."""

    @property
    def datasets(self) -> Sequence[Dataset]: ...

    @property
    def chunk_bytes(self) -> int:
        """Length of a chunk, in bytes of stored text; the longest there may be where it follows from other settings."""
        ...

    def chunk_bytes_of(self, dataset: int, lanes: int, measured: Counts | None = None, batch_tokens: int | None = None) -> int:
        """The same of one dataset, which may have shorter ones; see `plan` for the parameters."""
        ...

    @property
    def mixture(self) -> MixtureSpec | None:
        """Weights of the datasets in tokens; None for shares in proportion to their sizes, and where there are phases."""
        ...

    @property
    def phases(self) -> Sequence[Phase]:
        """The mixtures over the run; empty where there is one mixture."""
        ...

    @property
    def permutes_documents(self) -> bool:
        """Whether the documents inside a chunk are permuted."""
        ...

    @property
    def estimation(self) -> TokenEstimation | None:
        """What must be measured before planning; None when nothing must be."""
        ...

    def describe(self) -> Json:
        """All that defines the order, as plain values: part of the stream's fingerprint."""
        ...

    def sample(self, dataset: int, count: int) -> list[Chunk]:
        """Up to this many pieces to measure a dataset on, spread over it, the same everywhere and in stored order.

        Fewer only where they are the whole dataset. Those of half the number are among them, with the same ``index``.
        """
        ...

    def plan(self, lanes: int, measured: Counts | None = None, batch_tokens: int | None = None) -> Plan:
        """The source calibrated and assigned to lanes.

        Args:
            lanes: how many.
            measured: what calibration counted, or None to use the primer.
            batch_tokens: of one global batch, where it is known.
        """
        ...


class StaticMixtureWorkSource:
    """Datasets in a fixed mixture.

    Args:
        datasets: at least one, with different names.
        mixture: relative weights in tokens, a `MixtureSpec` or a mapping; None means in proportion to size.
        seed: of the order.
        shuffle_shards: visit the chunks of each pass in a permuted order.
        shuffle_within_shard: permute the documents inside each chunk.
        exhausted_policy: "repeat" (never ends), "stop" (ends when any dataset cannot supply its next chunk) or
            "redistribute" (ends when all are used up). Without it and the next two, the source ends when every dataset
            has completed one pass, the others repeating meanwhile.
        reshuffle_on_repeat: whether each pass has an order of its own.
        max_repeats: ends when a dataset would need more than this many repeats after its first pass.
        stop_after_passes: ends when every dataset has completed this many passes.
        token_estimation: where tokens per byte come from.
        chunk_bytes: length of a chunk, in bytes of stored text. None lets it follow from mixture, lanes and global batch, see
            `chunk_lengths`.

    Raises:
        ConfigError: contradictory or unknown settings, names that differ between mixture and datasets, or one
            dataset given twice under different names.
    """

    def __init__(
        self,
        datasets: Sequence[Dataset],
        mixture: MixtureSpec | Mapping[str, float] | None = None,
        seed: int = 0,
        shuffle_shards: bool = True,
        shuffle_within_shard: bool = True,
        exhausted_policy: str | None = None,
        reshuffle_on_repeat: bool = True,
        max_repeats: int | None = None,
        stop_after_passes: int | None = None,
        token_estimation: TokenEstimation | None = None,
        chunk_bytes: int | None = None,
    ) -> None:
        self.datasets = tuple(datasets)
        names = [dataset.name for dataset in self.datasets]
        _check_datasets(self.datasets)
        _check_policy(exhausted_policy, max_repeats, stop_after_passes)
        if chunk_bytes is not None and chunk_bytes < 1:
            raise ConfigError(f"chunk_bytes={chunk_bytes}", remedy="leave it out, or use 262144")
        self.mixture = mixture if isinstance(mixture, MixtureSpec) or mixture is None else MixtureSpec(mixture)
        self._weights = self.mixture.for_datasets(names) if self.mixture else None
        self.chunk_bytes = chunk_bytes or LONGEST
        self._given = chunk_bytes is not None
        self.permutes_documents = shuffle_within_shard
        self._policy = exhausted_policy
        self._passes = stop_after_passes
        self._max_repeats = max_repeats
        self._seed = seed
        self._estimation = token_estimation or TokenEstimation()
        self._shuffle_chunks = shuffle_shards
        self._reshuffle = reshuffle_on_repeat
        self.phases: Sequence[Phase] = ()
        self._described = {
            "seed": seed,
            "shuffle_chunks": shuffle_shards,
            "shuffle_documents": shuffle_within_shard,
            "exhausted": exhausted_policy,
            "reshuffle_on_repeat": reshuffle_on_repeat,
            "max_repeats": max_repeats,
            "stop_after_passes": stop_after_passes,
            "chunk_bytes": chunk_bytes,
        }

    def __repr__(self) -> str:
        shares = {} if self.mixture is None else self.mixture.normalized
        names = [f"{of.name} {shares[of.name]:.1%}" if shares else of.name for of in self.datasets]
        return f"StaticMixtureWorkSource({', '.join(names)}; seed={self._seed})"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"

    @property
    def estimation(self) -> TokenEstimation | None:
        needed = self._weights is not None and len(self.datasets) > 1 and self._estimation.measures
        return self._estimation if needed else None

    def describe(self) -> Json:
        mixture = None if self.mixture is None else {name: str(Fraction(w)) for name, w in self.mixture.weights.items()}
        datasets = {dataset.name: dataset.identity for dataset in self.datasets}
        return {**self._described, "datasets": datasets, "order": list(datasets), "mixture": mixture}

    def sample(self, dataset: int, count: int) -> list[Chunk]:
        """Up to ``count`` pieces of `SAMPLE_BYTES`, evenly spread over the dataset with this number."""
        of = self.datasets[dataset]
        pieces = -(-of.size // SAMPLE_BYTES)
        indexes = [i * pieces // count for i in range(count)] if count < pieces else list(range(pieces))
        return [Chunk(dataset, 0, i, ranges_between(of, i * SAMPLE_BYTES, (i + 1) * SAMPLE_BYTES)) for i in indexes]

    def chunk_bytes_of(self, dataset: int, lanes: int, measured: Counts | None = None, batch_tokens: int | None = None) -> int:
        """Of the ``dataset`` with this number; ``lanes``, ``measured`` and ``batch_tokens`` as of `plan`."""
        return self.chunk_lengths(lanes, measured, batch_tokens)[dataset]

    def chunk_lengths(self, lanes: int, measured: Counts | None = None, batch_tokens: int | None = None) -> list[int]:
        """Bytes of a chunk of each dataset: ``chunk_bytes`` where it was given, else `LONGEST` or what the mixture needs.

        Either way a dataset with fewer chunks than its share of the lanes is cut finer.

        Args:
            lanes, measured, batch_tokens: as of `plan`.
        """
        lengths = [self._enough_for(lanes, index) for index in range(len(self.datasets))]
        if self._weights is None or len(lengths) == 1 or self._given:
            return lengths
        per_byte = [self._tokens_per_byte(index, measured) for index in range(len(lengths))]
        if batch_tokens is None:  # of documents nobody knows how many a batch has: all chunks have equally many tokens
            fair = [float(min(length * rate for length, rate in zip(lengths, per_byte, strict=True)))] * len(lengths)
        else:
            whole = sum(self._weights)
            fair = [fair_tokens(float(weight / whole), lanes, batch_tokens) for weight in self._weights]
        sampled = [(measured or {}).get(dataset.name, Sampled(0, 0)) for dataset in self.datasets]
        # Of chunks shorter than documents it is chance which of them have one.
        least = [max(FINEST, int(DOCUMENTS * of.document_size)) for of in sampled]
        wanted = [max(few, int(tokens / rate)) for few, tokens, rate in zip(least, fair, per_byte, strict=True)]
        # Of equal length in each dataset: a short one at its end would count as much as the others.
        cut = [-(-of.size // min(length, most)) for of, length, most in zip(self.datasets, lengths, wanted, strict=True)]
        return [-(-of.size // count) for of, count in zip(self.datasets, cut, strict=True)]

    def _enough_for(self, lanes: int, dataset: int) -> int:
        """``chunk_bytes``, or less for a dataset that would have fewer chunks than its share of the lanes.

        It then has `CHUNKS_A_LANE` for each of these lanes: otherwise lanes would have nothing to read or, where it repeats,
        several would read the same chunk at once.
        """
        sizes = [of.size for of in self.datasets]
        shares: Sequence[Fraction | int] = sizes if self._weights is None else self._weights
        needed = math.ceil(lanes * Fraction(shares[dataset]) / sum(shares))
        count = -(-sizes[dataset] // self.chunk_bytes)
        return self.chunk_bytes if count >= needed else max(1, sizes[dataset] // (CHUNKS_A_LANE * needed))

    def plan(self, lanes: int, measured: Counts | None = None, batch_tokens: int | None = None) -> StaticMixturePlan:
        """The source calibrated and assigned to lanes.

        Args:
            lanes: how many.
            measured: what calibration counted, or None to use the primer.
            batch_tokens: of one global batch, where it is known: with the mixture it bounds the length of chunks.

        Raises:
            ConfigError: a weight that chunks cannot represent.
        """
        orders = [
            ChunkOrder(
                dataset,
                index=index,
                chunk_bytes=length,
                seed=self._seed,
                shuffle_chunks=self._shuffle_chunks,
                shuffle_documents=self.permutes_documents,
                reshuffle=self._reshuffle,
            )
            for index, (dataset, length) in enumerate(
                zip(self.datasets, self.chunk_lengths(lanes, measured, batch_tokens), strict=True)
            )
        ]
        frequencies = [self._frequency(order, measured) for order in orders]
        if self._weights is not None:
            refuse_what_cannot_be_mixed([dataset.name for dataset in self.datasets], frequencies)
            if self._given and batch_tokens is not None and len(orders) > 1:
                for order, weight in zip(orders, self._weights, strict=True):
                    share, rate = weight / sum(self._weights), self._tokens_per_byte(order.index, measured)
                    refuse_unfair(order.dataset.name, share, batch_tokens, order.chunk_bytes, rate)
        key, weights = derive(self._seed, "lanes"), self._weights
        return StaticMixturePlan(orders, frequencies, lanes, key, self._policy, self._passes, self._max_repeats, weights)

    def _frequency(self, order: ChunkOrder, measured: Counts | None) -> Fraction:
        dataset = order.dataset
        if self._weights is None or len(self.datasets) == 1:
            return Fraction(order.count)
        tokens_a_chunk = self._tokens_per_byte(order.index, measured) * Fraction(dataset.size, order.count)
        return self._weights[order.index] / tokens_a_chunk

    def _tokens_per_byte(self, index: int, measured: Counts | None) -> Fraction:
        return tokens_per_byte(self.datasets[index].name, measured, self._estimation)


def _check_policy(policy: str | None, max_repeats: int | None, passes: int | None) -> None:
    if policy is not None and policy not in POLICIES:
        raise ConfigError(
            f"exhausted_policy={policy!r} is not a policy",
            remedy=nearest(policy, POLICIES),
        )
    if passes is not None and (policy == "stop" or max_repeats is not None):
        raise ConfigError(
            f"stop_after_passes={passes} together with " + ("exhausted_policy='stop'" if policy == "stop" else "max_repeats"),
            follows="two rules would each decide when the source ends",
            remedy="keep one of them",
        )


def _check_datasets(datasets: Sequence[Dataset]) -> None:
    if not datasets:
        raise ConfigError("no dataset was given", remedy="give at least one Dataset")
    names = [dataset.name for dataset in datasets]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"the name {twice[0]!r} stands for {names.count(twice[0])} datasets",
            follows="mixture weights and errors could not tell them apart",
            remedy="give each dataset a name of its own",
        )
    places: dict[tuple[str, str, int], str] = {}
    for dataset in datasets:
        place = (dataset.identity, dataset.root, id(dataset.memory) if dataset.memory else 0)
        if place in places:
            raise ConfigError(
                f"{places[place]!r} and {dataset.name!r} are the same data",
                follows="every document would count twice in the mixture, unseen",
                remedy="list it once with the sum of the weights",
            )
        places[place] = dataset.name
    _refuse_shared_files(datasets)


def _refuse_shared_files(datasets: Sequence[Dataset]) -> None:
    """Of one file two datasets may have documents only where their selections have none in common."""
    before: dict[Hashable, list[tuple[Dataset, int]]] = {}
    for dataset in datasets if len(datasets) > 1 else ():
        for shard, file in enumerate(dataset.files):
            owners = before.setdefault(file, [])
            for other, number in owners:
                if other is not dataset and not other.selection.disjoint(dataset.selection):
                    both = f"{other.path(number)!r} of {other.name!r} and {dataset.path(shard)!r} of {dataset.name!r}"
                    raise ConfigError(
                        f"{both} are the same file",
                        follows="its documents would count in both datasets, unseen",
                        remedy="take it out of one of them with a glob, move it to another folder, or divide it by fraction",
                    )
            owners.append((dataset, shard))
