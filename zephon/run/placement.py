"""``attempts/NNNN/placement.json``: the cluster to which an attempt is submitted, and which Job there is the attempt's.

Written before the first object is created, without the Job's UID, and again with it when all objects are there. So a submit
that was cut off anywhere is found by the next command, and a Job of the same name in another cluster is no one's attempt.
"""

from __future__ import annotations

import dataclasses

from zephon.run.directory import RunDir
from zephon.run.plain import as_record

_FILE = "placement.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
    """Where an attempt was sent.

    Args:
        app_id: ``NAMESPACE:JOB``.
        server: the API server's address, as the submitting machine had it.
        cluster: identity of the cluster whatever its address; empty where it could not be read.
        submission: identifies the submit; its objects carry it.
        job: UID of the Job; empty until all of its objects are there.
    """

    app_id: str
    server: str
    cluster: str
    submission: str
    job: str = ""

    def elsewhere(self, server: str, cluster: str) -> bool:
        """Whether a cluster is another one: by its identity, or by its address where an identity is not known."""
        return cluster != self.cluster if cluster and self.cluster else server != self.server


def read_placement(rundir: RunDir, attempt: int) -> Placement | None:
    """None where no submit to a cluster has begun."""
    return as_record(Placement, rundir.find_json(*RunDir.in_attempt(attempt, _FILE)))


def write_placement(rundir: RunDir, attempt: int, placement: Placement) -> None:
    rundir.write_json(*RunDir.in_attempt(attempt, _FILE), data=dataclasses.asdict(placement))
