"""Pipeline: a chain of ops over a source, as a value. Threads live only while an iterator does.

pipeline = Pipeline(source).tokenize(tokenizer_id="gpt2", field="text").pack_flat(2048, algorithm="wrap").batch(8)
for batch in pipeline:                     # starts threads, from the state where the last iterator was left
    train_step(batch.to_training())
state = pipeline.checkpoint()              # after the last batch received, whatever was read ahead
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from zephon.batch import SampleBatch
from zephon.cursor import (
    VERSION,
    Cursor,
    RankState,
    canonical,
    fingerprint_of,
    merge_states,
    refuse_different_skips,
    refuse_other_stream,
    with_skip,
)
from zephon.engine.isolated import Isolated
from zephon.engine.leftover import dropped_at_end
from zephon.engine.meters import Meters
from zephon.engine.running import Engine, Running, Settings
from zephon.errors import StateError
from zephon.pipeline.definition import Chain
from zephon.pipeline.explain import explain
from zephon.pipeline.validate import Report, before_running, validate
from zephon.types import DropSummary
from zephon.work import WorkSource


class Pipeline(Chain):
    """A chain that can be iterated over, saved and restored. Each op method returns the pipeline itself."""

    def __init__(self, source: WorkSource) -> None:
        super().__init__(source)
        self._state: RankState | None = None
        self._meters = Meters(tuple(dataset.name for dataset in source.datasets))
        self._iterator: _Iterator | None = None
        self._kept: tuple[Any, str, str] | None = None

    # ---- running

    def __iter__(self) -> Iterator[SampleBatch]:
        """Batches from the current state on. One iterator at a time: a new one ends the one before."""
        self.close()
        if self._current().step == 0:
            before_running(self, self._options.auto_validation)
        self._iterator = _Iterator(self)
        return self._iterator

    def steps(self) -> Iterator[Iterator[SampleBatch]]:
        """The same by optimizer step: yields an iterator over this rank's microbatches of each step."""
        batches = iter(self)
        for first in batches:
            rest = _step(first, batches)
            yield rest
            for _ in rest:  # what the loop left of the step is passed over, so that the next one is whole
                pass

    def metrics_snapshot(self) -> dict[str, Any]:
        """What has been read, delivered and waited for since this pipeline was made, as plain values.

        ``tokens``, ``documents`` and ``bytes`` by dataset; ``padding`` in tokens; ``dropped`` by reason; ``waiting`` and
        ``working`` in seconds by stage; ``bottleneck``, one line that says who waits for whom.
        """
        return self._meters.snapshot()

    def validate(self, *, strict: bool = False) -> Report:
        """Checks configuration and a sample of each dataset; strictly, that every op gives the same result twice."""
        return validate(self, strict=strict)

    def explain(self) -> str:
        """The plan and the execution graph as text, with limits in bytes and the price of the division."""
        return explain(self)

    def close(self) -> None:
        """Ends the running iterator and its threads, if there is one."""
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None

    def dropped_at_end(self) -> list[tuple[int, DropSummary]]:
        """What a stream that ends leaves out behind the current state, by lane: nothing is delivered, the state stays.

        After the last batch this is what no batch could tell. Each lane is told of by the rank that has its first slot, so
        that all ranks together name each document once.

        Raises:
            ConfigError: the stream never ends.
        """
        self.close()
        return dropped_at_end(self._engine())

    # ---- state

    def checkpoint(self) -> dict[str, Any]:
        """This rank's state after the last batch received; see docs/loader.md."""
        state = self._current()
        text, fingerprint = self._stream()
        saved: dict[str, Any] = {
            "version": VERSION,
            "fingerprint": fingerprint,
            "stream": text,
            "step": state.step,
            "microbatch": state.microbatch,
            "lanes": {lane: cursor.encode() for lane, cursor in sorted(state.lanes.items())},
        }
        if state.microbatch:
            saved["dp"] = [self._options.dp_degree, self._options.dp_group_id]
        return saved

    def restore(self, state: Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> Self:
        """Goes on from a state, or from those of all ranks of a run of any size.

        Raises:
            StateError: of another stream, torn, damaged, or without a lane that this rank owns.
        """
        merged = dict(state) if isinstance(state, Mapping) else merge_states(state)
        self._restore(merged)
        return self

    def skip(self, *, steps: range | tuple[int, int] | None = None, documents: Iterable[tuple[str, str, int]] = ()) -> Self:
        """Passes over the data of a range of steps, or leaves documents out, from the current state on.

        The instruction is part of the state: it changes only what has not been delivered, and every later resume follows
        it. All ranks must be given the same one. A step range is exact. A document is left out of every chunk that a lane
        has not taken up yet; one that already waits in a buffer of the current flush interval is still delivered.

        Args:
            steps: first and end of the steps, as the run would number them without this instruction.
            documents: addresses, (dataset, shard, row); `zephon.types.Address` is one.

        Raises:
            StateError: steps that have begun already.
            ConfigError: an address whose dataset or shard does not exist.
        """
        self.close()
        self._state = with_skip(self._current(), steps, [self._locate(document) for document in documents])
        return self

    def reassign(self, dp_degree: int, dp_group_id: int, states: Iterable[Mapping[str, Any]] = ()) -> Self:
        """Goes on as another rank of another size, between two steps: the same as `checkpoint` and `restore` there.

        Args:
            dp_degree: the new data-parallel size.
            dp_group_id: this rank in it.
            states: `checkpoint` of the other ranks before the change; needed for lanes that this rank did not own.

        Raises:
            ConfigError: the lanes cannot be divided so; nothing has changed then.
            StateError: in the middle of a step, ranks at different steps, or a lane that nobody brought.
        """
        own = self.checkpoint()
        if own["microbatch"]:
            raise StateError(
                f"reassign in the middle of step {own['step']}, after microbatch {own['microbatch']}",
                follows="a part of the step would be lost or trained twice",
                remedy="finish the step on all ranks first",
            )
        merged = merge_states([own, *(state for state in states if state != own)])
        before = self._options
        self.options(dp_degree=dp_degree, dp_group_id=dp_group_id)
        try:
            if before.canonical_replicas is None and before.dp_degree != dp_degree:
                self.options(canonical_replicas=before.dp_degree)  # lanes are what they were when the run began
            self._restore(merged)
        except BaseException:
            self._options = before
            raise
        return self

    def to_torch_dataset(self, stateful: bool = True, **to_training: Any) -> Any:
        """A ``torch.utils.data.IterableDataset`` of ``batch.to_training(**to_training)``, for DataLoaders.

        See `zephon.pipeline.torch_dataset.PipelineDataset`.
        """
        from zephon.pipeline.torch_dataset import PipelineDataset

        return PipelineDataset(self, stateful=stateful, to_training=to_training)

    def state_dict(self) -> dict[str, Any]:
        """`checkpoint` with one flat key per lane, for torch.distributed.checkpoint to shard."""
        state = self.checkpoint()
        lanes = state.pop("lanes")
        return {**state, **{f"lane.{lane}": cursor for lane, cursor in lanes.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes what `state_dict` gave, possibly with more lanes than this rank owns."""
        lanes = {int(key.removeprefix("lane.")): value for key, value in state.items() if key.startswith("lane.")}
        self._restore({**{k: v for k, v in state.items() if not k.startswith("lane.")}, "lanes": lanes})

    def _restore(self, state: Mapping[str, Any]) -> None:
        missing = [key for key in ("version", "stream", "step", "lanes") if key not in state]
        if missing or state["version"] != VERSION:
            raise StateError(
                f"not a state of version {VERSION}: " + (f"{missing} missing" if missing else f"version {state['version']}"),
                follows="its numbers would be misread",
                remedy="restore it with the version of zephon that saved it"
                if "lanes" in state or not any(str(key).startswith("lane.") for key in state)
                else "it is of state_dict: give it to load_state_dict",
            )
        then = json.loads(state["stream"])
        # The run's own measurement travels with its state: it is part of the order, not to be taken again.
        if self._source.estimation is not None:
            self.calibrate({name: (pair[0], pair[1]) for name, pair in then.get("tokens_per_byte", {}).items()})
        refuse_other_stream(then, self.describe())
        if state.get("microbatch") and list(state.get("dp", [])) != [self._options.dp_degree, self._options.dp_group_id]:
            raise StateError(
                f"this state was taken in the middle of step {state['step']} by data-parallel rank and size {state.get('dp')}",
                follows="another rank or size would repeat or lose a part of the step",
                remedy="save between steps, or restore at the same size",
            )
        lanes = {int(lane): cursor for lane, cursor in state["lanes"].items()}
        refuse_different_skips(lanes)
        own = [share.lane for share in self.world.shares(self._options.dp_group_id)]
        lost = [lane for lane in own if lane not in lanes]
        if lost:
            raise StateError(
                f"the state has no cursor for lane {', '.join(map(str, lost))}; it has {sorted(lanes)}",
                follows="these lanes would start from zero, silently",
                remedy="restore from the states of all ranks: restore([state_of_rank_0, state_of_rank_1, ...])",
            )
        cursors = {lane: Cursor.decode(lanes[lane], lane=lane) for lane in own}
        self.close()
        self._state = RankState(int(state["step"]), int(state.get("microbatch", 0)), cursors)

    # ---- inside

    def _stream(self) -> tuple[str, str]:
        """Canonical description and fingerprint, kept while nothing that they are made from changes."""
        key = (tuple(self._ops), self._batching, len(self._batch_maps), self._options, self._measured is None)
        if self._kept is None or self._kept[0] != key:
            stream = self.describe()
            self._kept = ((*key[:-1], self._measured is None), canonical(stream), fingerprint_of(stream))
        return self._kept[1:]

    def _current(self) -> RankState:
        if self._state is None:
            own = [share.lane for share in self.world.shares(self._options.dp_group_id)]
            self._state = RankState(0, 0, {lane: Cursor() for lane in own})
        return self._state

    def _engine(self) -> Engine:
        options = self._options
        settings = Settings(
            runner=options.runner,
            workers=self._workers,
            prefetch_batches=options.prefetch_batches,
            prefetch_bytes=options.prefetch_bytes,
            ahead=self._prefetch,
            chunk_bytes=getattr(self._source, "chunk_bytes", 1 << 18),
        )
        return Engine(self._program(), self._delivery(), self._current(), settings)


class _Iterator(Iterator[SampleBatch]):
    """The iterator of a pipeline: moves the pipeline's state with each batch it hands over."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        pipeline._meters.began = time.perf_counter()
        start = Isolated if pipeline._options.isolated else Running
        self._running = start(pipeline._engine(), pipeline._meters)

    def __next__(self) -> SampleBatch:
        batch = next(self._running)
        self._pipeline._state = batch.state
        return batch

    def close(self) -> None:
        self._running.close()


def _step(first: SampleBatch, batches: Iterator[SampleBatch]) -> Iterator[SampleBatch]:
    batch = first
    yield batch
    while batch.microbatch[0] + 1 < batch.microbatch[1]:
        batch = next(batches)
        yield batch
