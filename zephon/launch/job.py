"""A job is a value: all that any backend needs for one attempt.

    RunSpec, run directory, attempt  ->  Job  ->  argv of agent and coordinator, TorchX AppDef, request of a backend

Everything a backend sends is made from a job; nothing is read back out of an argument list.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Self

from zephon.spec.experiment import RunSpec

AGENT_MODULE = "zephon.agent"
COORDINATOR_MODULE = "zephon.agent.coordinator"
DEFAULT_WORKER = "zephon.train"
TORCHTITAN_WORKER = "zephon.integrations.torchtitan.worker"
BUILT_IN = (DEFAULT_WORKER,)  # workers whose needs the launcher knows


def worker_of(spec: RunSpec) -> str:
    """The module that each worker of an experiment runs, where nobody names another."""
    return TORCHTITAN_WORKER if spec.torchtitan.module else DEFAULT_WORKER


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One attempt of a run.

    Args:
        spec: the resolved experiment; its nodes and ``elastic`` section say how many agents with how many workers.
        run: URL of the run directory, as every node sees it.
        attempt: number of this start, from 1.
        worker: module that each worker runs with ``--run URL --attempt N``.
        image: container image of the nodes; the backend's own default when None. Unused on this machine.
        endpoint: ``host:port`` of the coordinator, where it is known beforehand.
    """

    spec: RunSpec
    run: str
    attempt: int
    worker: str = DEFAULT_WORKER
    image: str | None = None
    endpoint: str | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError: ``nodes`` lies outside ``elastic.nodes_min..nodes_max``."""
        self.spec.check_nodes()

    def agent(self) -> list[str]:
        """Arguments of ``python -m zephon.agent``, the same on every node."""
        arguments = ["--run", self.run, "--attempt", str(self.attempt), "--procs", str(self.spec.elastic.procs_per_node)]
        if self.endpoint is not None:
            arguments += ["--endpoint", self.endpoint]
        if self.worker != DEFAULT_WORKER:
            arguments += ["--worker", self.worker]
        return arguments

    def coordinator(self, *, port: int) -> list[str]:
        """Arguments of ``python -m zephon.agent.coordinator`` where a cluster starts it again whenever it exits."""
        arguments = ["--run", self.run, "--attempt", str(self.attempt), "--nodes", str(self.spec.nodes)]
        return [*arguments, "--linger", "--host", "0.0.0.0", "--port", str(port)]

    def to_json(self) -> str:
        """Canonical JSON, from which ``from_json`` makes an equal job."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return json.dumps({**fields, "spec": json.loads(self.spec.canonical_json())}, sort_keys=True, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        fields = json.loads(text)
        return cls(**{**fields, "spec": RunSpec.from_dict(fields["spec"])})
