"""The workers of one node, over generations: those that stay and get a new place, and those that are forked.

A worker that can stay (zephon/handover.py) is asked over its line to leave its process group, and counts as ended in this
generation when it says that it has. All others end by SIGTERM.
"""

from __future__ import annotations

import dataclasses
import logging
import signal
import time
from typing import NamedTuple

from zephon.agent.fork_messages import Start
from zephon.agent.forkserver import ForkServer
from zephon.exits import Exit
from zephon.handover import CanStay, LeaveGroup, Parked, Place, decode, encode

log = logging.getLogger("zephon.agent")

_UNKILLABLE_S = 10.0  # such a process is reported as running, and waited for no longer


class End(NamedTuple):
    """How a worker's part in a generation ended, and when (unix time)."""

    status: int
    when: float


@dataclasses.dataclass
class _Worker:
    handle: int
    can_stay: bool = False
    parked: Parked | None = None
    parked_at: float = 0.0


class Workers:
    """Workers by local rank."""

    def __init__(self, server: ForkServer) -> None:
        self.server = server
        self.stayed = 0
        """how many workers have kept their process in the newest generation"""
        self._workers: dict[int, _Worker] = {}

    def __len__(self) -> int:
        return len(self._workers)

    def begin(self) -> None:
        """A new generation: only those that are parked are still there."""
        self.poll()
        self._workers = {rank: w for rank, w in self._workers.items() if w.parked and w.handle not in self.server.exits}
        self.stayed = 0

    def start(self, rank: int, process: Start) -> None:
        """Gives a parked worker its new place, or forks one with the same environment."""
        if rank in self._workers:
            worker = self._workers[rank]
            worker.parked = None
            self.stayed += 1
            self.server.tell(worker.handle, encode(Place({k: v for k, v in process.env.items() if v is not None})))
        else:
            self._workers[rank] = _Worker(self.server.start(dataclasses.replace(process, line=True)))

    def poll(self) -> None:
        """Reads what the fork server and the workers report; never blocks."""
        self.server.poll()
        for rank, worker in self._workers.items():
            for line in self.server.said.pop(worker.handle, ()):
                try:
                    message = decode(line)
                except ValueError as error:
                    log.warning("worker %d: %s", rank, error)
                    continue
                if isinstance(message, CanStay):
                    worker.can_stay = True
                elif isinstance(message, Parked):
                    worker.parked, worker.parked_at = message, time.time()

    def ends(self) -> dict[int, End]:
        """Of the workers that have ended or left this generation."""
        found: dict[int, End] = {}
        for rank, worker in self._workers.items():
            if worker.handle in self.server.exits:
                found[rank] = End(*self.server.exits[worker.handle])
            elif worker.parked is not None:
                found[rank] = End(Exit.LOST_PEER if worker.parked.lost is not None else Exit.DRAINED, worker.parked_at)
        return found

    def all_ended(self) -> bool:
        return len(self.ends()) == len(self._workers)

    def handle(self, rank: int) -> int:
        return self._workers[rank].handle

    def pid(self, rank: int) -> int:
        return self.server.pids.get(self._workers[rank].handle, 0)

    def peak(self, rank: int) -> int:
        """The most memory that it held, in bytes; 0 while it lives."""
        return self.server.peaks.get(self._workers[rank].handle, 0)

    def lost(self, rank: int) -> str | None:
        """The error by which a parked worker noticed that a peer was lost."""
        parked = self._workers[rank].parked
        return parked.lost if parked is not None else None

    def order(self, *, stay: bool) -> None:
        """Asks every worker to finish its step; with ``stay`` those that can keep their process."""
        for worker in self._workers.values():
            if not (stay and worker.can_stay):
                self.server.kill(worker.handle, signal.SIGTERM)
            elif worker.parked is None:
                self.server.tell(worker.handle, encode(LeaveGroup()))

    def send(self, sig: signal.Signals) -> None:
        """Signals every worker that has not left the generation."""
        ended = self.ends()
        for rank, worker in self._workers.items():
            if rank not in ended:
                self.server.kill(worker.handle, sig)

    def dismiss(self, grace_s: float) -> None:
        """Ends all workers, also parked ones, which then may save what only they hold."""
        deadline = time.monotonic() + grace_s
        self.order(stay=False)
        while not self._all_gone():
            if time.monotonic() > deadline:
                for worker in self._workers.values():
                    self.server.kill(worker.handle, signal.SIGKILL)
                if time.monotonic() > deadline + _UNKILLABLE_S:
                    return
            time.sleep(0.01)

    def _all_gone(self) -> bool:
        self.poll()
        return all(worker.handle in self.server.exits for worker in self._workers.values())
