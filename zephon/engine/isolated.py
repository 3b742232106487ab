"""The whole engine in one child process, so that the training loop's own Python does not compete with it.

The child runs the same engine and sends finished batches through shared memory, as many at a time as are ready, because
each message interrupts the child's threads. The parent grants a slot for each group of batches, and grants it again when it
has copied the group out. States travel with the batches.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import time
import weakref
from collections.abc import Iterator
from typing import NamedTuple

from zephon.batch import SampleBatch
from zephon.engine.meters import Meters
from zephon.engine.runners.child import Child, pack, portable
from zephon.engine.runners.processes import unreadable_result
from zephon.engine.runners.transport import Channel, Closed, Unreadable
from zephon.engine.running import Engine, Running
from zephon.errors import WorkerDied
from zephon.types import DropSummary

_REPORT_SECONDS = 0.25
_SLOTS = 2  # one group on its way and one being made


class _Spent(NamedTuple):
    """The child's meters, but for the waiting of its loop: only the parent's waiting for batches counts."""

    documents: collections.Counter[str]
    bytes: collections.Counter[str]
    working: dict[str, float]
    workers: float
    backpressure: float


class _Group(NamedTuple):
    """What the child sends: batches, how the stream ended after them if it did, what it left, and now and then its meters."""

    batches: list[SampleBatch]
    ended: bool
    error: Exception | None
    spent: _Spent | None
    left: tuple[DropSummary, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Serve:
    """What the child does: a group of at most ``most`` batches for each slot it is granted."""

    engine: Engine
    names: tuple[str, ...]
    most: int

    def __call__(self, channel: Channel) -> None:
        meters = Meters(self.names)
        try:
            running = self.engine.start(meters)
        except Exception as failed:  # noqa: BLE001 - a user's init_state, say: raised in the parent
            channel.send(_Group([], True, portable(failed), None), channel.receive()[0])
            while True:  # until the parent has read it and hangs up
                channel.receive()
        reported = 0.0
        try:
            while True:
                slot = channel.receive()[0]
                batches, ended, error = _taken(running, self.most)
                spent = None
                if time.perf_counter() - reported > _REPORT_SECONDS or ended:
                    reported = time.perf_counter()
                    workers, backpressure = meters.waiting["workers"], meters.waiting["backpressure"]
                    spent = _Spent(meters.documents, meters.bytes, meters.working, workers, backpressure)
                channel.send(_Group(batches, ended, error, spent, running.left), slot)
                if ended:
                    running.close()
                    while True:  # until the parent has read it and hangs up
                        channel.receive()
        finally:
            running.close()


def _taken(running: Running, most: int) -> tuple[list[SampleBatch], bool, Exception | None]:
    """One batch, for which it waits, and those that are ready after it; whether the stream has ended, and the error."""
    batches: list[SampleBatch] = []
    try:
        batches.append(next(running))
        while len(batches) < most and running.ready:
            batches.append(next(running))
    except StopIteration:
        return batches, True, None
    except Exception as error:  # noqa: BLE001 - raised in the parent
        return batches, True, portable(error)
    return batches, False, None


class Isolated(Iterator[SampleBatch]):
    """The parent's side: the same batches as `Running` gives."""

    def __init__(self, engine: Engine, meters: Meters) -> None:
        self._meters = meters
        self._ready: collections.deque[SampleBatch] = collections.deque()
        self._end: BaseException | None = None
        self.left: tuple[DropSummary, ...] = ()
        most = max(1, engine.settings.prefetch_batches // _SLOTS)
        self._child = Child(pack(_Serve(engine, meters.names, most), "isolated=True"), _SLOTS)
        self._finalizer = weakref.finalize(self, _end, self._child, os.getpid())
        try:
            for slot in range(_SLOTS):
                self._child.channel.send(slot)
        except Closed:
            self._died()

    def __next__(self) -> SampleBatch:
        begun = time.perf_counter()
        if not self._finalizer.alive:
            raise StopIteration
        if not self._ready and self._end is None:
            self._receive()
        if not self._ready:
            assert self._end is not None
            self.close()
            raise self._end
        batch = self._ready.popleft()
        self._meters.batch(batch, time.perf_counter() - begun)
        return batch

    def _receive(self) -> None:
        try:
            received, slot = self._child.channel.receive()
            group = _Group([], True, received, None) if isinstance(received, Exception) else received
            if not group.ended:
                self._child.channel.send(slot)
        except Closed:
            self._died()
        except Unreadable as error:
            self.close()
            raise unreadable_result("isolated=True", error) from error
        except BaseException:
            self.close()
            raise
        if group.spent is not None:
            spent = group.spent
            self._meters.documents, self._meters.bytes, self._meters.working = spent.documents, spent.bytes, spent.working
            self._meters.waiting.update(workers=spent.workers, backpressure=spent.backpressure)
        self._ready.extend(group.batches)
        if group.ended:
            self.left = group.left
            self._end = group.error or StopIteration()

    def _died(self) -> None:
        death = self._child.death()
        self.close()
        raise WorkerDied(
            f"the isolated engine's process {death.how}",
            follows="no more batches would come",
            remedy=f"{death.remedy}, then restore from the last state",
        ) from None

    def close(self) -> None:
        self._finalizer()


def _end(child: Child, owner: int) -> None:
    if os.getpid() == owner:
        child.close()
