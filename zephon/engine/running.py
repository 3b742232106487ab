"""A running engine: a rank's lanes on workers, delivered a bounded number of batches ahead of the loop that takes them."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator

from zephon.batch import SampleBatch
from zephon.cursor import Cursor, RankState
from zephon.engine.chunk_queue import GROUP
from zephon.engine.delivery import Delivery
from zephon.engine.ends import OtherLanes
from zephon.engine.lane import Lane
from zephon.engine.meters import Meters
from zephon.engine.program import Program
from zephon.engine.readahead import ReadAhead
from zephon.engine.remainder import left_in
from zephon.engine.runners.make import ChunkRunner, make_runner
from zephon.engine.runners.threads import Abandoned
from zephon.errors import StoreFailed
from zephon.io.watch import Watch
from zephon.types import DropSummary


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Performance settings of an engine; see `zephon.pipeline.options.Options`. ``chunk_bytes`` is the source's.

    ``ahead`` is how many chunks a lane may be ahead, where a user says so. ``looks_at_others`` is whether this rank reads the
    lanes of the others too, to end with them; ``counts_left`` whether what lies after the last full step is counted.
    """

    runner: str
    workers: int | None
    prefetch_batches: int
    prefetch_bytes: int
    chunk_bytes: int
    ahead: int | None = None
    looks_at_others: bool = False
    counts_left: bool = True

    def window(self, program: Program, workers: int, lanes: int) -> int:
        """Chunks ahead of each lane: enough to keep all workers busy, few enough to stay within ``prefetch_bytes``."""
        if not workers:
            return GROUP
        # Three groups a worker: one under way, one waiting for it, one being packed.
        wanted = self.ahead or max(GROUP, program.flush_every, -(-3 * GROUP * workers // lanes))
        # A quarter to a half token a byte, four bytes a token: what is ready is about as large as the text it came from.
        return max(1, min(wanted, self.prefetch_bytes // (2 * self.chunk_bytes * lanes)))


@dataclasses.dataclass(frozen=True, eq=False)
class Engine:
    """What runs: a program and its delivery from a state on. Plain data until `start`."""

    program: Program
    delivery: Delivery
    state: RankState
    settings: Settings

    def start(self, meters: Meters) -> Running:
        return Running(self, meters)


class Running(Iterator[SampleBatch]):
    """Owns the workers and the delivery thread; both end with `close`, at the end of the data, and with an error."""

    def __init__(self, engine: Engine, meters: Meters) -> None:
        self._owner = os.getpid()
        self._meters = meters
        self._delivery, self._counts_left = engine.delivery, engine.settings.counts_left
        self.left: tuple[DropSummary, ...] = ()
        """What the stream drops after its last step, once it has ended."""
        self._closed = False
        self._stuck: StoreFailed | None = None
        settings, state = engine.settings, engine.state
        runner = self._runner = make_runner(settings.runner, settings.workers, engine.program)
        try:
            count = engine.delivery.world.lanes if settings.looks_at_others else len(state.lanes)
            window = settings.window(engine.program, runner.workers, count)
            lanes = {n: Lane(n, engine.program, runner, cursor, window, meters) for n, cursor in state.lanes.items()}
            others = _other_lanes(engine, runner, window) if settings.looks_at_others else None
            self.lanes = lanes
        except BaseException:
            runner.close()
            raise
        self._ahead: ReadAhead[SampleBatch] | None = None
        if settings.prefetch_batches and settings.runner != "inline" and settings.workers != 0:
            self._ahead = ReadAhead(
                lambda: engine.delivery.batches(lanes, state, others),
                settings.prefetch_batches,
                most=settings.prefetch_bytes // 4,
                size=size_of,
                waited=meters.backpressure,
            )
            self._batches: Iterator[SampleBatch] = self._ahead
        else:
            self._batches = engine.delivery.batches(lanes, state, others)
        self._watch = Watch(self._give_up)

    def __next__(self) -> SampleBatch:
        begun = time.perf_counter()
        try:
            batch = next(self._batches)
        except (StopIteration, Abandoned) as end:
            if self._stuck is not None:
                raise self._stuck from None
            if self._counts_left and not self._closed and isinstance(end, StopIteration):
                self.left = left_in(self.lanes, self._delivery)
            self.close()
            raise
        except Exception:
            self.close()
            raise
        except BaseException:  # Ctrl-C or an exit: the loop gets control now, whatever user functions still do
            self._abandon()
            raise
        self._meters.batch(batch, time.perf_counter() - begun)
        return batch

    @property
    def ready(self) -> int:
        """Batches that can be taken now without waiting."""
        return 0 if self._ahead is None else len(self._ahead)

    def _give_up(self, error: StoreFailed) -> None:
        """A read does not return: the loop gets the error, and the thread that waits for the bytes is left to itself."""
        self._stuck = error
        self._abandon()

    def _abandon(self) -> None:
        self._runner.abandon()
        if self._ahead is not None:
            self._ahead.abandon()

    def close(self) -> None:
        if os.getpid() != self._owner:
            return  # a fork's copy: the threads and processes stayed with the parent
        self._closed = True
        self._watch.close()
        if self._ahead is not None:
            self._ahead.close()
        self._runner.close()


def _other_lanes(engine: Engine, runner: ChunkRunner, window: int) -> OtherLanes:
    """From the start of the stream, with what was said to be skipped where nothing has been delivered yet."""
    state = engine.state
    number, own = next(iter(state.lanes.items()))
    start = own if state.step == 0 and not state.microbatch else Cursor()
    lanes = {n: Lane(n, engine.program, runner, start, window) for n in range(engine.delivery.world.lanes)}
    again = lanes[number]
    return OtherLanes({n: lane for n, lane in lanes.items() if n not in state.lanes}, (number, again))


def size_of(batch: SampleBatch) -> int:
    """Bytes of a batch's arrays."""
    return sum(getattr(column, "nbytes", 0) for column in batch.fields.values())
