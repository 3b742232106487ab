"""The process runner: child processes read chunks and run the stages, for transforms that hold the interpreter lock.

Each child has a thread here that keeps two groups of chunks under way in it. A chunk is a function of its position alone,
so when a child dies another one does its groups again; the second death on a group ends the run with its chunks' addresses.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import threading
import weakref
from concurrent.futures import Future

from zephon.engine.program import ChunkGroup, ChunkResult, Program
from zephon.engine.runners.base import Pending
from zephon.engine.runners.child import Child, Death, pack, portable
from zephon.engine.runners.transport import Channel, Closed, Unreadable
from zephon.errors import DataError, WorkerDied
from zephon.io.watch import Watch

Results = list[ChunkResult | Exception]
_DEPTH = 2
_TRIES = 2


@dataclasses.dataclass(frozen=True)
class _Serve:
    """What a worker child does."""

    program: Program

    def __call__(self, channel: Channel) -> None:
        with Watch():  # the reads are here
            self._serve(channel)

    def _serve(self, channel: Channel) -> None:
        while True:
            group, slot = channel.receive()[0]
            results: Results | Exception
            try:
                results = [portable(result) if isinstance(result, Exception) else result for result in self.program.work(group)]
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
        self.error: BaseException | None = None  # what ended a thread here: no job is done after it
        self.children: list[Child | None] = []
        self.owner = os.getpid()

    def serve(self, index: int) -> None:
        """The thread of one child."""
        under_way: dict[int, _Job] = {}  # by slot
        try:
            while not self.closed:
                self._exchange(index, under_way)
        except BaseException as error:  # noqa: BLE001 - raised where results are asked for: nobody would give them any more
            self._fail(error, under_way)

    def _exchange(self, index: int, under_way: dict[int, _Job]) -> None:
        """Sends the child a job, or receives a result when it has enough of them."""
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
                return
            results, slot = child.channel.receive()
            future = under_way.pop(slot).future
            if isinstance(results, Exception):
                future.set_exception(results)
            else:
                future.set_result(results)
        except Unreadable as error:
            job = under_way.pop(error.slot)
            unreadable = unreadable_result("runner='process'", error)
            unreadable.add_note(f"in {self._place(job.group)}")
            job.future.set_exception(unreadable)
        except Closed:
            self._replace(index, under_way)

    def add(self, job: _Job) -> None:
        with self.changed:
            if self.error is None:
                self.jobs.append(job)
                self.changed.notify()
                return
        job.future.set_exception(self.error)

    def _fail(self, error: BaseException, under_way: dict[int, _Job]) -> None:
        """Ends all jobs that would wait for this thread."""
        with self.changed:
            self.error = error
            jobs = [*under_way.values(), *self.jobs]
            self.jobs.clear()
        for job in jobs:
            if not job.future.done():
                job.future.set_exception(error)

    def _take(self, *, wait: bool) -> _Job | None:
        with self.changed:
            while wait and not self.jobs and not self.closed:
                self.changed.wait()
            return self.jobs.popleft() if self.jobs and not self.closed else None

    def _replace(self, index: int, lost: dict[int, _Job]) -> None:
        """Starts another child for a dead one. Its jobs are done again, once."""
        with self.changed:
            if self.closed:
                return
            child, self.children[index] = self.children[index], None
        death = None
        if child is not None:
            death = child.death()
            child.close()
        for job in reversed(lost.values()):
            job.tries += 1
            if job.tries >= _TRIES:
                job.future.set_exception(self._died(job, death))
            else:
                with self.changed:
                    self.jobs.appendleft(job)
        lost.clear()
        fresh = Child(self.task, _DEPTH)
        with self.changed:
            if not self.closed:
                self.children[index] = fresh
                return
        fresh.close()

    def _place(self, group: ChunkGroup) -> str:
        lane, first, quarantined = group
        chunks = [self.program.plan.chunk(lane, first + i) for i, ids in enumerate(quarantined) if ids is not None]
        shards = dict.fromkeys(
            f"shard {dataset.shards[part.shard]!r} of dataset {dataset.name!r}, {part.start} to {part.stop}"
            for chunk in chunks
            if chunk is not None
            for dataset in [self.program.datasets[chunk.dataset]]
            for part in chunk.ranges
        )
        listed = "; ".join(list(shards)[:6])
        return f"the chunks at positions {first} to {first + len(quarantined) - 1} of lane {lane}: {listed}"

    def _died(self, job: _Job, death: Death | None) -> WorkerDied:
        how = "" if death is None else f"; the last {death.how}"
        return WorkerDied(
            f"two worker processes died one after the other on {self._place(job.group)}{how}",
            follows="their documents would be missing",
            remedy="run with runner='inline' to see which document does it" + ("" if death is None else f"; {death.remedy}"),
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
        self._shared.add(job)
        return job.future

    def close(self) -> None:
        self._finalizer()

    def abandon(self) -> None:
        self.close()  # children are killed, whatever they do


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


def unreadable_result(option: str, error: Unreadable) -> DataError:
    """The error that a child's message cannot be unpickled here."""
    cause = error.__cause__
    return DataError(
        f"with {option} a result of the child process cannot be read here: {type(cause).__name__}: {cause}",
        follows="its documents would be missing",
        remedy="let your functions return plain values (numbers, text, arrays, lists, dicts), or use runner='threads'",
    )
