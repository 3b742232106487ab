"""The whole engine in one child process, so that the training loop's own Python does not compete with it.

The child runs the same engine and hands finished batches over through shared memory. The parent grants as many batches
ahead as there are slots; a slot is granted again when its batch has been taken out. States travel with the batches.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import time
import weakref
from collections.abc import Iterator
from typing import Any

from zephon.batch import SampleBatch
from zephon.engine.child import Child, pack
from zephon.engine.meters import Meters
from zephon.engine.processes import portable
from zephon.engine.running import Engine
from zephon.engine.transport import Channel, Closed
from zephon.errors import WorkerDied

_REPORT_SECONDS = 0.25


@dataclasses.dataclass(frozen=True)
class _Serve:
    """What the child does: a batch for each slot it is granted."""

    engine: Engine
    names: tuple[str, ...]

    def __call__(self, channel: Channel) -> None:
        meters = Meters(self.names)
        running = self.engine.start(meters)
        reported = 0.0
        try:
            while True:
                slot = channel.receive()[0]
                kind, value = _next(running)
                spent = None
                if time.perf_counter() - reported > _REPORT_SECONDS or kind != "batch":
                    reported = time.perf_counter()
                    # The child's own loop waits for batches all the time; only the parent's waiting counts.
                    spent = (meters.documents, meters.bytes, {**meters.waiting, "loop": 0.0}, meters.working)
                channel.send((kind, value, spent), slot)
                if kind != "batch":
                    running.close()
                    while True:  # until the parent has read it and hangs up
                        channel.receive()
        finally:
            running.close()


def _next(running: Iterator[SampleBatch]) -> tuple[str, Any]:
    try:
        return "batch", next(running)
    except StopIteration:
        return "end", None
    except Exception as error:  # noqa: BLE001 - raised in the parent
        return "error", portable(error)


class Isolated(Iterator[SampleBatch]):
    """The parent's side: the same batches as `Running` gives."""

    def __init__(self, engine: Engine, meters: Meters) -> None:
        self._meters = meters
        ahead = max(1, engine.settings.prefetch_batches)
        self._child = Child(pack(_Serve(engine, meters.names), "isolated=True"), ahead)
        self._finalizer = weakref.finalize(self, _end, self._child, os.getpid())
        try:
            for slot in range(ahead):
                self._child.channel.send(slot)
        except Closed:
            self._died()

    def __next__(self) -> SampleBatch:
        begun = time.perf_counter()
        if not self._finalizer.alive:
            raise StopIteration
        try:
            (kind, value, spent), slot = self._child.channel.receive()
            if kind == "batch":
                self._child.channel.send(slot)
        except (Closed, EOFError, pickle.UnpicklingError):
            self._died()
        except BaseException:
            self.close()
            raise
        if spent is not None:
            documents, sizes, waiting, working = spent
            self._meters.documents, self._meters.bytes, self._meters.working = documents, sizes, working
            self._meters.waiting.update(workers=waiting["workers"], room=waiting["room"])
        if kind != "batch":
            self.close()
            raise StopIteration if kind == "end" else value
        batch: SampleBatch = value
        self._meters.batch(batch, time.perf_counter() - begun)
        return batch

    def _died(self) -> None:
        status = self._child.process.wait()
        self.close()
        raise WorkerDied(
            f"the isolated engine's process ended with exit status {status}"
            + (f" (killed by signal {-status})" if status < 0 else ""),
            follows="no more batches would come",
            remedy="restore from the last state; if it was killed for memory, lower prefetch_bytes or max_workers",
        ) from None

    def close(self) -> None:
        self._finalizer()


def _end(child: Child, owner: int) -> None:
    if os.getpid() == owner:
        child.close()
