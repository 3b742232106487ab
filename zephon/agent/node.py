"""One node: torch's elastic agent over our coordinator and our fork server.

``torch.distributed.elastic`` gives the loop (rendezvous, start, monitor, restart) and two seams, and we fill both: a
``RendezvousHandler`` that takes its generations from the coordinator, and the four abstract methods of
``SimpleElasticAgent`` that start, stop, watch and end workers, here through a fork server (workers.py). Its restart limit is
never reached: the coordinator decides whether a crash is forgiven, because only it sees all nodes. A worker that can stay lives
through a change of members: it leaves its process group, waits, and gets the environment of its next place.

Every generation gets a new TCPStore, hosted by the agent of its rank 0, so nothing of an old generation can be read by a
new one, and no worker's end takes the store away from the others.
"""

from __future__ import annotations

import dataclasses
import logging
import signal
import socket
import threading
import time
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from zephon.agent.fork_messages import Start
from zephon.agent.forkserver import ForkServer
from zephon.agent.killed import OutOfMemory
from zephon.agent.link import Link
from zephon.agent.membership import STALLED
from zephon.agent.messages import Assign, Exited, Leaving, Ready, WorkerError
from zephon.agent.stage_runner import OrderedStages
from zephon.agent.worker_logs import last_error, mark_start, stuck_frame
from zephon.agent.workers import End, Workers
from zephon.exits import PLANNED, Exit

log = logging.getLogger("zephon.agent")

_LOST_GRACE_S = 2.0
_STACKS_GRACE_S = 1.0
_RELEASE_S = 5.0
_STANDBY_S = 0.5
_UNREACHED = 1 << 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """What one agent needs to know.

    Args:
        run: URL of the run directory.
        attempt: number of this start.
        node: this node's identity.
        procs: workers on this node.
        worker: module that each worker runs.
        log_dir: directory of the workers' logs; None leaves them on the agent's own output.
        drain_s: how long workers may take to finish their step and save.
        join_timeout_s: how long to wait for the coordinator.
    """

    run: str
    attempt: int
    node: str
    procs: int
    worker: str
    log_dir: str | None
    drain_s: float
    join_timeout_s: float


def listening_store(address: str) -> TCPStore:
    """A store that listens on one address of this machine: TCPStore itself listens on all of them, and asks nobody's name."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family)
    port = listener.getsockname()[1]
    waits = timedelta(seconds=60)
    return TCPStore(address, port, is_master=True, wait_for_workers=False, timeout=waits, master_listen_fd=listener.detach())


class CoordinatedRendezvous(RendezvousHandler):
    """Generations as the coordinator assigns them."""

    def __init__(
        self, link: Link, config: NodeConfig, leaving: threading.Event, stages: OrderedStages | None, workers: Workers
    ) -> None:
        self.link, self.config, self.leaving, self.stages, self._workers = link, config, leaving, stages, workers
        self.generation = 0
        self._store: TCPStore | None = None

    def get_backend(self) -> str:
        return "zephon"

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Announces this node as ready and waits for its generation.

        Raises:
            RendezvousGracefulExitError: this node was asked to leave.
            RendezvousClosedError: the job has finished or the coordinator is gone.
        """
        if self.leaving.is_set():
            self._workers.dismiss(self.config.drain_s)
            if self.stages is not None:
                self.stages.leave()
            if self._store is not None:  # peers may still need it, until all of them have left this generation
                self.link.send(Leaving())  # again, for the request may have come when the workers had already ended
                self.link.released.wait(_RELEASE_S)
            raise RendezvousGracefulExitError("asked to leave")
        address = self.link.wait_address(self.config.join_timeout_s)
        if not address:
            raise RendezvousClosedError(self.link.failed or "the coordinator was not reached")
        # A store that nobody joins costs a socket; having it ready saves a round trip in every resize.
        store = listening_store(address)
        host = f"[{address}]" if ":" in address else address
        self.link.send(Ready(f"{host}:{store.port}"))
        assigned = self.stages.wait_assignment() if self.stages else self._wait_assignment()
        if assigned is None:
            self._workers.dismiss(self.config.drain_s)
            if self.leaving.is_set():
                raise RendezvousGracefulExitError("asked to leave")
            raise RendezvousClosedError(self.link.failed or "the job has finished")
        self._store = store  # kept for the whole generation; the previous one closes here, after all its users
        self.generation = assigned.generation
        master, _, port = assigned.store.rpartition(":")
        info = RendezvousStoreInfo(master.strip("[]"), int(port))
        return RendezvousInfo(store, assigned.rank, assigned.nodes, info)

    def _wait_assignment(self) -> Assign | None:
        """The next assignment. Where a generation forms without this node, the workers that wait for a place end."""
        while (assigned := self.link.wait_assignment(_STANDBY_S, self.leaving)) is None:
            if self.leaving.is_set() or self.link.finished or self.link.failed:
                return None
            if self.link.standby:
                self._workers.dismiss(self.config.drain_s)
        return assigned

    def is_closed(self) -> bool:
        return self.link.finished is not None

    def set_closed(self) -> None:
        """Only the coordinator closes a job."""

    def num_nodes_waiting(self) -> int:
        return int(self.leaving.is_set() or self.link.rerendezvous(self.generation) is not None)

    def get_run_id(self) -> str:
        return f"{self.config.run}#{self.config.attempt}"

    def shutdown(self) -> bool:
        return True


class NodeAgent(SimpleElasticAgent):
    """Starts, watches and stops this node's workers; ``stages`` carries out stages where there are others than training."""

    def __init__(
        self, config: NodeConfig, link: Link, server: ForkServer, leaving: threading.Event, stages: OrderedStages | None = None
    ) -> None:
        self.config, self.link, self.server, self.leaving, self.stages = config, link, server, leaving, stages
        self.workers = Workers(server)
        self.rendezvous = CoordinatedRendezvous(link, config, leaving, stages, self.workers)
        self._reported = True
        self._stalled = False
        self._killed = False  # whether this agent has killed workers
        self._cut = False  # and did because the time for a drain was over
        self._memory = OutOfMemory()
        self._first_exit: float | None = None
        spec = WorkerSpec(
            role="node",
            local_world_size=config.procs,
            rdzv_handler=self.rendezvous,
            entrypoint=config.worker,
            max_restarts=_UNREACHED,
            monitor_interval=0.015,
        )
        super().__init__(spec)

    def _assign_worker_ranks(self, store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec) -> list[Worker]:
        """Every node runs the same number of workers, so ranks are arithmetic and need no exchange."""
        procs, world = spec.local_world_size, group_world_size * spec.local_world_size
        first = group_rank * procs
        return [
            Worker(i, global_rank=first + i, role_rank=first + i, world_size=world, role_world_size=world) for i in range(procs)
        ]

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._reported, self._first_exit = False, None
        self._killed = self._cut = False
        self._memory = OutOfMemory()
        self.workers.begin()
        for worker in worker_group.workers:
            env = self._worker_env(worker_group, worker)
            log_file = self._log_file(worker.local_rank)
            if log_file:
                generation = self.rendezvous.generation
                mark_start(log_file, generation=generation, rank=worker.global_rank, world_size=worker.world_size)
            argv = ["--run", self.config.run, "--attempt", str(self.config.attempt)]
            process = Start(module=self.config.worker, argv=argv, env=env, log=log_file)
            self.workers.start(worker.local_rank, process)
        stayed = self.workers.stayed
        log.info(
            "generation %d: %d workers started, %d of them in the process that they had",
            self.rendezvous.generation,
            len(self.workers),
            stayed,
        )
        return {worker.local_rank: self.workers.handle(worker.local_rank) for worker in worker_group.workers}

    def _worker_env(self, group: WorkerGroup, worker: Worker) -> dict[str, str]:
        env = {
            "RANK": worker.global_rank,
            "WORLD_SIZE": worker.world_size,
            "LOCAL_RANK": worker.local_rank,
            "LOCAL_WORLD_SIZE": group.spec.local_world_size,
            "GROUP_RANK": group.group_rank,
            "GROUP_WORLD_SIZE": group.group_world_size,
            "MASTER_ADDR": group.master_addr,
            "MASTER_PORT": group.master_port,
            "TORCHELASTIC_RUN_ID": self.rendezvous.get_run_id(),
            "TORCHELASTIC_USE_AGENT_STORE": True,
            "TORCHELASTIC_RESTART_COUNT": self.rendezvous.generation,
            "TORCHELASTIC_MAX_RESTARTS": _UNREACHED,
            "ZEPHON_GENERATION": self.rendezvous.generation,
            "ZEPHON_NODE": self.config.node,
        }
        return {name: str(value) for name, value in env.items()}

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """HEALTHY while anything runs or others still work; then FAILED (re-rendezvous), or SUCCEEDED when the job is done."""
        self.workers.poll()
        ends = self.workers.ends()
        base = worker_group.workers[0].global_rank
        if any(end.status != Exit.DONE for end in ends.values()) and len(ends) < len(self.workers):
            self._first_exit = self._first_exit or time.monotonic()
            planned = all(end.status in PLANNED for end in ends.values())
            if time.monotonic() - self._first_exit > (self.config.drain_s if planned else _LOST_GRACE_S):
                self._end(cut=planned)
            return RunResult(state=WorkerState.HEALTHY)
        if len(ends) < len(self.workers):
            return RunResult(state=WorkerState.HEALTHY)
        self._report()
        if all(end.status == Exit.DONE for end in ends.values()):
            if self.link.finished is None and self.link.failed is None:
                if self.stages is not None:
                    self.stages.poll()
                return RunResult(state=WorkerState.HEALTHY)
            return RunResult(state=WorkerState.SUCCEEDED, return_values={base + rank: None for rank in ends})
        failures = {
            base + rank: ProcessFailure(rank, self.workers.pid(rank), end.status, "")
            for rank, end in ends.items()
            if end.status != Exit.DONE
        }
        return RunResult(state=WorkerState.FAILED, failures=failures)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """Drains the workers, or has them leave soon when a peer is lost and no step can be completed."""
        if not len(self.workers):
            return
        order = self.link.rerendezvous(self.rendezvous.generation)
        drain = order is None or order.drain or self.leaving.is_set()
        self._stalled = order is not None and order.reason.startswith(STALLED)
        if self._stalled:
            self.workers.send(signal.SIGUSR1)  # every worker writes the stacks of its threads to its log
            time.sleep(_STACKS_GRACE_S)
        if self.leaving.is_set():
            self.link.send(Leaving())
        self.workers.order(stay=not (self._stalled or self.leaving.is_set()))
        self._await_ends(self.config.drain_s if drain else _LOST_GRACE_S)
        self._report()

    def _await_ends(self, grace: float) -> None:
        deadline = time.monotonic() + grace
        generation, left = self.rendezvous.generation, self.leaving.is_set()
        while not self.workers.all_ended():
            order = self.link.rerendezvous(generation)
            if order is not None and not order.drain:
                deadline = min(deadline, time.monotonic() + _LOST_GRACE_S)
            if self.leaving.is_set() and not left:
                left = True
                self.workers.order(stay=False)  # those that were asked to stay leave too
            if time.monotonic() > deadline:
                self._end(cut=order is None or order.drain)
                deadline = time.monotonic() + 10.0  # an unkillable process is reported as running, and waited for no longer
                if grace < 0:
                    return
                grace = -1.0
            time.sleep(0.005)
            self.workers.poll()

    def _end(self, *, cut: bool) -> None:
        """Kills the workers that are left; ``cut``: they had their time for a drain."""
        self._killed, self._cut = True, self._cut or cut
        self.workers.send(signal.SIGKILL)

    def _report(self) -> None:
        """Tells the coordinator how this generation's workers ended, once, with the error that explains most."""
        if self._reported:
            return
        self._reported = True
        base, running = self._worker_group.workers[0].global_rank, End(-signal.SIGKILL, time.time())
        ends = self.workers.ends()
        # A worker that could not be killed counts as killed now. One that got SIGTERM before it had a handler has nothing to
        # save: it counts as drained.
        exits = {base + worker.local_rank: ends.get(worker.local_rank, running) for worker in self._worker_group.workers}
        statuses = {rank: Exit.LEFT if end.status == -signal.SIGTERM else end.status for rank, end in exits.items()}
        failed = sorted((end.when, rank) for rank, end in exits.items() if statuses[rank] not in PLANNED)
        errors = [self._error_of(rank, when, statuses[rank], rank - base) for when, rank in failed]
        stuck = [error for error in errors if error.stuck]
        error = next(iter([*stuck, *errors]), None)
        self.link.send(Exited(self.rendezvous.generation, statuses, error))

    def _error_of(self, rank: int, when: float, status: int, local_rank: int) -> WorkerError:
        log_file = self._log_file(local_rank)
        frame = stuck_frame(log_file) if log_file and self._stalled else ""
        cut = self._cut and status == -signal.SIGKILL
        message = frame or self.workers.lost(local_rank) or (last_error(log_file) if log_file else "")
        if cut:
            message = f"the drain took longer than elastic.drain_s={self.config.drain_s:g} s"
        elif status < 0 and not self._killed:
            message = self._memory.explain(-status, peak=self.workers.peak(local_rank), said=message)
        elif status == -signal.SIGKILL and not frame:
            message = f"did not leave its process group within {_LOST_GRACE_S:g} s and was killed"
        node = self.config.node
        return WorkerError(time=when, rank=rank, node=node, status=status, message=message, stuck=bool(frame), cut=cut)

    def _log_file(self, local_rank: int) -> str | None:
        return f"{self.config.log_dir}/rank-{local_rank}.log" if self.config.log_dir else None

    def _exit_barrier(self) -> None:
        """The coordinator has said that all nodes are done; there is nothing more to wait for."""

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        self.workers.dismiss(0.0)
