"""Runs a function on N ranks: real processes, forked from a server that has imported torch, meeting through a file.

def work(meet, rank, ...):          # at module level, so that another process finds it
    membership = meet()                  # all N ranks; or meet(rank=.., size=.., name="second", parallel="fsdp")
    return something picklable
first, second = on_ranks(work, 2, ...)
"""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from zephon.train.distributed import Membership, ProcessInfo, join

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["torch", "torch.distributed", "torch._dynamo", "tests.train.ranks", "zephon.train.session"])


class Meet:
    """Joins memberships that are named, so that one process can go through several."""

    def __init__(self, rank: int, size: int, folder: str) -> None:
        self.rank, self.size, self.folder = rank, size, folder

    def __call__(self, *, rank: int | None = None, size: int | None = None, name: str = "first", **options: Any) -> Membership:
        size = size or self.size
        local = options.pop("local_size", size)
        timeout_s = options.pop("timeout_s", 60.0)
        process = ProcessInfo(rank=self.rank if rank is None else rank, size=size, local_size=local)
        store = torch.distributed.FileStore(f"{self.folder}/{name}", size)
        return join(process, device=torch.device("cpu"), timeout_s=timeout_s, store=store, **options)


class RankFailed(AssertionError):
    """A rank raised, died or took too long."""


class Ranks:
    """``function(meet, rank, *args)`` on every rank, while the ``with`` lasts; no process outlives it."""

    def __init__(self, function: Callable[..., Any], size: int, *args: Any) -> None:
        self._function, self._size, self._args = function, size, args

    def __enter__(self) -> Ranks:
        self._folder = tempfile.TemporaryDirectory()
        pipes = [_server.Pipe(duplex=False) for _ in range(self._size)]
        self._reads = [read for read, _ in pipes]
        self._processes = [
            _server.Process(
                target=_child, args=(self._function, Meet(rank, self._size, self._folder.name), self._args, write), daemon=True
            )
            for rank, (_, write) in enumerate(pipes)
        ]
        for process, (_, write) in zip(self._processes, pipes, strict=True):
            process.start()
            write.close()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()

    def kill(self, rank: int) -> None:
        self._processes[rank].kill()

    def terminate(self, rank: int) -> None:
        self._processes[rank].terminate()

    def wait_all(self, *, timeout: float) -> None:
        """Until every process has ended, however."""
        until = time.monotonic() + timeout
        for rank, process in enumerate(self._processes):
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                raise RankFailed(f"rank {rank} did not end")

    def results(self, *, timeout: float, of: Sequence[int] | None = None) -> list[Any]:
        """What each rank, or each of some ranks, returned."""
        until = time.monotonic() + timeout
        found = [_receive(rank, read, until) for rank, read in enumerate(self._reads) if of is None or rank in of]
        broken = [text for good, text in found if not good]
        if broken:
            raise RankFailed("\n".join(broken))
        return [value for _, value in found]


def on_ranks(function: Callable[..., Any], size: int, *args: Any, timeout: float = 120.0) -> list[Any]:
    """``function(meet, rank, *args)`` of every rank, by rank. All processes are gone when this returns."""
    with Ranks(function, size, *args) as ranks:
        return ranks.results(timeout=timeout)


def _receive(rank: int, read: Connection, until: float) -> tuple[bool, Any]:
    if not read.poll(max(0.0, until - time.monotonic())):
        return False, f"rank {rank} took too long"
    try:
        return read.recv()
    except EOFError:
        return False, f"rank {rank} died"


def _child(function: Callable[..., Any], meet: Meet, args: tuple[Any, ...], write: Connection) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: the forkserver ends with the tests
    torch.set_num_threads(1)
    try:
        write.send((True, function(meet, meet.rank, *args)))
    except BaseException:
        write.send((False, f"rank {meet.rank}: {traceback.format_exc()}"))
        raise
