"""Pipeline: a definition that can be iterated over, saved and restored. Threads live only while an iterator does.

pipeline = Pipeline(source).tokenize(tokenizer_id="gpt2", field="text").pack_flat(2048, algorithm="wrap").batch(8)
for batch in pipeline:                     # starts threads, from the state where the last iterator was left
    train_step(batch.to_training())
state = pipeline.checkpoint()              # after the last batch received, whatever was read ahead
"""

from __future__ import annotations

import contextlib
import html
import itertools
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Self

from zephon.batch import SampleBatch, TrainingOptions
from zephon.cursor import RankState, SavedState, merge_states, with_skip
from zephon.engine.isolated import Isolated
from zephon.engine.lane import AFTER_LAST_STEP
from zephon.engine.meters import Meters, Snapshot
from zephon.engine.remainder import dropped_at_end
from zephon.engine.running import Engine, Running
from zephon.errors import StateError
from zephon.io.watch import Watch
from zephon.pipeline.agreed_end import AgreedEnd, agreed_end_of
from zephon.pipeline.definition import Definition
from zephon.pipeline.document_ops import DocumentOps
from zephon.pipeline.drops import Drops
from zephon.pipeline.explain import explain
from zephon.pipeline.lane_ops import LaneOps
from zephon.pipeline.ranks import confirm
from zephon.pipeline.state import flat, initial, nested, reassigned, restored, saved
from zephon.pipeline.validate import Validation, before_running, validate, warn_of_few_documents, warn_of_unequal_ends
from zephon.spec.fields import named_options
from zephon.types import Counts, DropSummary, Json, sum_by_reason
from zephon.work import WorkSource
from zephon.world import World

if TYPE_CHECKING:
    from zephon.pipeline.torch_dataset import PipelineDataset


class Pipeline(DocumentOps, LaneOps):
    """A chain that can be iterated over, saved and restored. Each op method returns the pipeline itself.

    Args:
        source: what it reads, and in which order.
    """

    def __init__(self, source: WorkSource) -> None:
        super().__init__(source)
        self._state: RankState | None = None
        self._meters = Meters(tuple(self._definition.names))
        self._drops = Drops(self._meters)
        self._iterator: _Iterator | None = None
        self._used_up: RankState | None = None  # where the data ended
        self._said_used_up = False
        self._lost = False  # whether batches are delivered elsewhere, nobody knows which

    # ---- what it is

    def __repr__(self) -> str:
        return repr(self._definition).replace("Definition", "Pipeline", 1)

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"

    @property
    def definition(self) -> Definition:
        """The source, ops, batching and options so far, as a frozen value."""
        return self._definition

    @property
    def world(self) -> World:
        """The division of the global batch. Raises ConfigError when the numbers do not fit each other."""
        return self._definition.world

    @property
    def fingerprint(self) -> str:
        """SHA-256 of `describe`. Measures first when the mixture needs it."""
        return self._definition.fingerprint

    def describe(self) -> Json:
        """All that defines the stream, as plain values; what the fingerprint is made from."""
        return self._definition.describe()

    def calibrate(self, counts: Counts | None = None) -> Counts:
        """Tokens and bytes of each dataset's sample and their standard error, measured once for this pipeline.

        Args:
            counts: what the run has measured before; a dataset that it does not name is measured now.
        """
        with Watch():
            if counts is not None:
                self._definition = self._definition.calibrated(counts)
            self._definition = self._definition.calibrated(self._definition.counts)
        return self._definition.counts

    @named_options
    def validate(self, *, strict: bool = False) -> Validation:
        """Checks the configuration and a sample of each dataset.

        Args:
            strict: also that every op gives the same result twice.
        """
        return validate(self._definition, strict=strict)

    def explain(self) -> str:
        """The plan and the execution graph as text: what really runs, limits in bytes, the price of the division, and which
        of the given settings have no effect."""
        return explain(self._definition)

    # ---- running

    def __iter__(self) -> Iterator[SampleBatch]:
        """Batches from the current state on. One iterator at a time: a new one ends the one before.

        A stream that has ended gives nothing more, and says so once.
        """
        self.close()
        confirm(self._definition.division, self._definition.options)
        with Watch():
            agreed_end, engine = self._before_running()
        self._iterator = _Iterator(
            engine, self._meters, self._received, self._ended, agreed_end, isolated=self._definition.options.isolated
        )
        return self._iterator

    def _before_running(self) -> tuple[AgreedEnd | None, Engine]:
        """Looks at the data as far as that is needed."""
        if self._current().step == 0:
            before_running(self._definition, self._definition.options.auto_validation)
            warn_of_few_documents(self._definition)
        agreed_end = agreed_end_of(self._definition, self._current())
        if agreed_end is None and self._current().step == 0:
            warn_of_unequal_ends(self._definition)
        return agreed_end, self._engine()

    def steps(self) -> Iterator[Iterator[SampleBatch]]:
        """The same by optimizer step: yields an iterator over this rank's microbatches of each step."""
        batches = iter(self)
        for first in batches:
            microbatches = _step(first, batches)
            yield microbatches
            for _ in microbatches:  # those that the loop did not take, so that the next step begins with its first
                pass

    def close(self) -> None:
        """Ends the running iterator and its threads, if there is one."""
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None

    def metrics_snapshot(self) -> Snapshot:
        """What has been read, delivered and waited for since this pipeline was made, as plain values.

        ``tokens``, ``documents`` and ``bytes`` by dataset; ``padding`` in tokens; ``dropped`` by reason; ``waiting`` and
        ``working`` in seconds by stage; ``bottleneck``, one line that says who waits for whom.
        """
        return self._meters.snapshot()

    def dropped_at_end(self) -> list[tuple[int, DropSummary]]:
        """What a stream that ends drops after the current state, by lane: nothing is delivered, the state stays.

        Asked after the last batch, it names the documents that are in no batch, and counts the whole sequences behind the last
        full step, with their tokens. Each lane is reported by the rank that has its first slot, so that all ranks together name
        each document once.

        Raises:
            ConfigError: the stream never ends.
        """
        self.close()
        return dropped_at_end(self._definition.program(), self._definition.delivery(), self._current())

    # ---- state

    def checkpoint(self) -> Json:
        """This rank's state after the last batch received: one plain dict, see `zephon.pipeline.state.CheckedState`."""
        return dict(saved(self._definition, self._current()))

    def restore(self, state: SavedState | Iterable[SavedState]) -> Self:
        """Goes on from a state.

        Args:
            state: what `checkpoint` gave, or a list of what it gave on all ranks of a run of any size.

        Raises:
            StateError: of another stream, torn, damaged, or without a lane that this rank owns.
        """
        merged = state if isinstance(state, Mapping) else merge_states(state)
        return self._go_on(restored(self._definition, merged))

    def state_dict(self) -> Json:
        """`checkpoint` with one flat key per lane, for torch.distributed.checkpoint to shard."""
        return flat(saved(self._definition, self._current()))

    def load_state_dict(self, state: SavedState) -> None:
        """Goes on from a flat state.

        Args:
            state: what `state_dict` gave, possibly with more lanes than this rank owns.

        Raises:
            StateError: as of `restore`; also where ranks saved together were at different steps.
        """
        self._go_on(restored(self._definition, nested(state)))

    @named_options
    def skip(self, *, steps: range | tuple[int, int] | None = None, documents: Iterable[tuple[str, str, int]] = ()) -> Self:
        """Skips the data of a range of steps, or drops documents, from the current state on.

        The rule is part of the state: it changes only what has not been delivered, and every later resume follows
        it. All ranks must be given the same one. A step range is exact. A document is dropped from every chunk that a lane
        has not consumed yet; one that already waits in a buffer of the current flush interval is still delivered.

        Args:
            steps: first and end of the steps, as the run would number them without this call.
            documents: addresses, (dataset, shard, row); `zephon.Address` is one.

        Raises:
            StateError: steps that have begun already.
            ConfigError: an address whose dataset or shard does not exist.
        """
        self.close()
        self._state = with_skip(self._current(), steps, [self._definition.locate(address) for address in documents])
        return self

    @named_options
    def reassign(self, dp_degree: int, dp_group_id: int, states: Iterable[SavedState] = ()) -> Self:
        """Goes on as another rank of another size, between two steps: the same as `checkpoint` and `restore` there.

        Args:
            dp_degree: the new data-parallel size.
            dp_group_id: this rank in it.
            states: `checkpoint` of the other ranks before the change; needed for lanes that this rank did not own.

        Raises:
            ConfigError: the lanes cannot be divided so; nothing has changed then.
            StateError: in the middle of a step, ranks at different steps, or a lane that is in no state.
        """
        return self._go_on(
            reassigned(self._definition, dp_degree, dp_group_id, saved(self._definition, self._current()), states)
        )

    @named_options
    def to_torch_dataset(self, stateful: bool = True, *, to_training: TrainingOptions | None = None) -> PipelineDataset:
        """A ``torch.utils.data.IterableDataset`` of this pipeline's batches as tensors, for DataLoaders.

        Args:
            stateful: whether its `state_dict` and `load_state_dict` carry the pipeline's state.
            to_training: options of `SampleBatch.to_training`, such as ``{"return_labels": True}``.
        """
        from zephon.pipeline.torch_dataset import PipelineDataset

        confirm(self._definition.division, self._definition.options)  # looked up here: a worker process knows no ranks
        return PipelineDataset(self, stateful=stateful, to_training=to_training or {})

    def follow(self, state: RankState | None) -> None:
        """Goes on to where a copy of this pipeline is that delivers for it from another process.

        Args:
            state: after the batch that the loop has received; None where nobody can tell which that is.
        """
        self._lost = state is None
        self._state = state or self._state

    # ---- inside

    def _current(self) -> RankState:
        if self._lost:
            raise StateError(
                "a DataLoader's worker delivers for this pipeline, and a thread that pins memory takes batches ahead of "
                "the loop",
                follows="nobody knows which batch the loop has, and a restart would lose or repeat some",
                remedy="use DataLoader(num_workers=0), since the pipeline has workers of its own; or pin_memory=False; or "
                "torchdata's StatefulDataLoader and its state_dict",
            )
        if self._state is None:
            self._state = initial(self._definition)
        return self._state

    def _received(self, batch: SampleBatch) -> None:
        self._state = batch.state
        batch.decode, batch.address = self._definition.decode, self._definition.address
        if batch.dropped:
            self._drops.note(batch.dropped)

    def _ended(self, delivered: int, left: tuple[DropSummary, ...]) -> None:
        """The data has ended, after an iterator has delivered so many batches."""
        state, loop_tells = self._current(), self._definition.options.last_step == "own"
        again, self._used_up = self._used_up is state, state
        if delivered:
            self._drops.end(left)
        elif state.step == state.microbatch == 0 and not again:
            if loop_tells:
                return
            world = self._definition.world
            warnings.warn(
                f"the data ends before the first step: it is not enough for {world.global_batch_size} sequences, "
                f"{world.per_lane} of each of {world.lanes} lanes. Use smaller batches, fewer lanes, more data, or "
                "exhausted_policy='repeat'",
                stacklevel=3,
            )
            self._drops.end(left)
        elif (again or not loop_tells) and not self._said_used_up:
            self._said_used_up = True
            warnings.warn(
                f"this pipeline is used up: its data ended before step {state.step}, and nothing more comes. For another "
                "pass build it again, or give its source stop_after_passes= or exhausted_policy='repeat'; what is in no batch "
                "is named by dropped_at_end()",
                stacklevel=3,
            )

    def _go_on(self, start: tuple[Definition, RankState]) -> Self:
        self.close()
        self._lost = False
        self._definition, self._state = start
        return self

    def _engine(self) -> Engine:
        return self._definition.engine(self._current())


class _Iterator(Iterator[SampleBatch]):
    """The iterator of a pipeline: reports the state of each batch that it hands over."""

    def __init__(
        self,
        engine: Engine,
        meters: Meters,
        received: Callable[[SampleBatch], None],
        ended: Callable[[int, tuple[DropSummary, ...]], None],
        agreed_end: AgreedEnd | None,
        *,
        isolated: bool,
    ) -> None:
        meters.began = time.perf_counter()
        self._received, self._ended, self._agreed_end = received, ended, agreed_end
        self._closed = False
        self._delivered = 0
        self._steps = engine.state.step  # begun on every rank
        self.running = Isolated(engine, meters) if isolated else Running(engine, meters)

    def __next__(self) -> SampleBatch:
        try:
            batch = next(self.running)
        except StopIteration:
            if not self._closed:
                if self._agreed_end is not None:
                    self._agreed_end.ended(self._steps)
                self._ended(self._delivered, self.running.left)
            raise
        if self._agreed_end is not None and batch.step >= self._steps:
            if not self._agreed_end.has(batch.step):
                left = self._run_out(batch)
                self.close()
                self._ended(self._delivered, left)
                raise StopIteration
            self._steps = batch.step + 1
        self._delivered += 1
        self._received(batch)
        return batch

    def _run_out(self, first: SampleBatch) -> tuple[DropSummary, ...]:
        """What this rank drops since others have no more steps: from a batch on, to the end of its own lanes."""
        sequences = tokens = 0
        dropped: list[DropSummary] = []
        with contextlib.suppress(Exception):  # nothing of it is delivered
            for batch in itertools.chain([first], self.running):
                sequences, tokens = sequences + batch.real_rows, tokens + sum(batch.tokens.values())
                dropped += batch.dropped
        return sum_by_reason([DropSummary(AFTER_LAST_STEP, sequences, (), tokens), *dropped, *self.running.left])

    def close(self) -> None:
        self._closed = True
        self.running.close()


def _step(first: SampleBatch, batches: Iterator[SampleBatch]) -> Iterator[SampleBatch]:
    batch = first
    yield batch
    while batch.microbatch[0] + 1 < batch.microbatch[1]:
        batch = next(batches)
        yield batch
