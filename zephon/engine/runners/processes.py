"""The process runner: child processes read chunks and run the stages, for transforms that hold the interpreter lock.

Each child has a thread here that keeps two groups of chunks under way in it. A chunk is a function of its position alone,
so the next child does a group that was lost with its child again; the second loss ends the run with the chunks' addresses.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import pickle
import threading
import weakref
from concurrent.futures import Future

from zephon.engine.program import ChunkGroup, ChunkResult, Program
from zephon.engine.runners.base import Pending
from zephon.engine.runners.child import Child, pack
from zephon.engine.runners.transport import Channel, Closed
from zephon.errors import WorkerDied

Results = list[ChunkResult | Exception]
_DEPTH = 2
_TRIES = 2


@dataclasses.dataclass(frozen=True)
class _Serve:
    """What a worker child does."""

    program: Program

    def __call__(self, channel: Channel) -> None:
        while True:
            group, slot = channel.receive()[0]
            results: Results | Exception
            try:
                results = self.program.work(group)
            except Exception as error:  # noqa: BLE001 - raised where the result is asked for
                results = portable(error)
            channel.send(results, slot)


@dataclasses.dataclass(eq=False)
class _Job:
    group: ChunkGroup
    future: Future[Results] = dataclasses.field(default_factory=Future)
    tries: int = 0


class _Shared:
    """What the threads hold, and not the runner, so that a forgotten runner can be collected."""

    def __init__(self, task: bytes, program: Program) -> None:
        self.task, self.program = task, program
        self.jobs: collections.deque[_Job] = collections.deque()
        self.changed = threading.Condition()
        self.closed = False
        self.children: list[Child | None] = []
        self.owner = os.getpid()

    def serve(self, index: int) -> None:
        under_way: dict[int, _Job] = {}
        while True:
            job = self._take(wait=not under_way) if len(under_way) < _DEPTH else None
            if self.closed:
                return
            child = self.children[index]
            try:
                if child is None:
                    raise Closed
                if job is not None:
                    slot = next(i for i in range(_DEPTH) if i not in under_way)
                    under_way[slot] = job
                    child.channel.send((job.group, slot))
                else:
                    results, slot = child.channel.receive()
                    done = under_way.pop(slot).future
                    if isinstance(results, Exception):
                        done.set_exception(results)
                    else:
                        done.set_result(results)
            except Closed:
                self._replace(index, under_way)
                under_way = {}

    def _take(self, *, wait: bool) -> _Job | None:
        with self.changed:
            while wait and not self.jobs and not self.closed:
                self.changed.wait()
            return self.jobs.popleft() if self.jobs and not self.closed else None

    def _replace(self, index: int, lost: dict[int, _Job]) -> None:
        """Starts another child for a dead one; its chunks are done again, once."""
        with self.changed:
            if self.closed:
                return
            child, self.children[index] = self.children[index], None
        status = None
        if child is not None:
            status = child.status
            child.close()
        for job in reversed(lost.values()):
            job.tries += 1
            if job.tries >= _TRIES:
                job.future.set_exception(self._died(job, status))
            else:
                with self.changed:
                    self.jobs.appendleft(job)
        fresh = Child(self.task, _DEPTH)
        with self.changed:
            if not self.closed:
                self.children[index] = fresh
                return
        fresh.close()

    def _died(self, job: _Job, status: int | None) -> WorkerDied:
        lane, first, quarantined = job.group
        chunks = [self.program.plan.chunk(lane, first + i) for i, ids in enumerate(quarantined) if ids is not None]
        shards = dict.fromkeys(
            f"shard {dataset.shards[part.shard]!r} of dataset {dataset.name!r}, {part.start} to {part.stop}"
            for chunk in chunks
            if chunk is not None
            for dataset in [self.program.datasets[chunk.dataset]]
            for part in chunk.ranges
        )
        listed = "; ".join(list(shards)[:6])
        return WorkerDied(
            f"two worker processes died one after the other (last exit status {status}) on the chunks at positions {first} to "
            f"{first + len(quarantined) - 1} of lane {lane}: {listed}",
            follows="their documents would be missing",
            remedy="run with runner='inline' to see which document kills it, or give the workers more memory",
        )


class ProcessRunner:
    """A fixed number of child processes, each of which has the program and does its `Program.work`."""

    def __init__(self, workers: int, program: Program) -> None:
        self.workers = workers
        shared = self._shared = _Shared(pack(_Serve(program), "runner='process'"), program)
        try:
            for _ in range(workers):
                shared.children.append(Child(shared.task, _DEPTH))
        except BaseException:
            _end(shared, [])
            raise
        self._threads = [
            threading.Thread(target=shared.serve, args=(i,), name=f"zephon-process-{i}", daemon=True) for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()
        self._finalizer = weakref.finalize(self, _end, shared, self._threads)

    def submit(self, item: ChunkGroup) -> Pending[Results]:
        job = _Job(item)
        with self._shared.changed:
            self._shared.jobs.append(job)
            self._shared.changed.notify()
        return job.future

    def close(self) -> None:
        self._finalizer()


def _end(shared: _Shared, threads: list[threading.Thread]) -> None:
    if os.getpid() != shared.owner:
        return  # a fork's copy: the children are not ours
    with shared.changed:
        shared.closed = True
        shared.jobs.clear()
        shared.changed.notify_all()
        children = [child for child in shared.children if child is not None]
    for child in children:
        child.channel.hang_up()
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()
    for last in shared.children:
        if last is not None:
            last.close()


def portable(error: Exception) -> Exception:
    """The error, or one that says the same when it cannot travel."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - a user's exception class may do anything
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", []):
            plain.add_note(note)
        return plain
    return error
