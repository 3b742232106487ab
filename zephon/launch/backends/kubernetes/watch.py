"""Writes down why pods end while nobody asks: ``scheduler.options.watch=true`` puts it beside the coordinator.

    python -m zephon.launch.backends.kubernetes.watch --run URL --attempt N --job NAMESPACE/NAME

A pod's own state goes with the pod, the API server's events within an hour or so, and nothing in a training pod may ask for
either. This process may: it has the token of a service account that reads pods, Jobs and events (k8s/components/watch) and
nothing else. It asks every two seconds and adds what ``status`` would add. Where it cannot ask it tries again; it decides
nothing, and a run goes on without it.
"""

from __future__ import annotations

import argparse
import sys
import time

from zephon.launch.backends.kubernetes.client import Cluster
from zephon.launch.backends.kubernetes.errors import ClusterError, NotFound
from zephon.launch.backends.kubernetes.history import record_causes, record_gone, warnings_of
from zephon.launch.backends.kubernetes.living import labels_of
from zephon.launch.backends.kubernetes.status import summarize
from zephon.run.directory import RunDir
from zephon.run.events import EventReader

MODULE = "zephon.launch.backends.kubernetes.watch"
ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
POLL_S = 2.0
_REPORT_S = 60.0


def watch(cluster: Cluster, rundir: RunDir, attempt: int, *, namespace: str, name: str) -> None:
    """Follows one attempt's Job until it is gone.

    Raises:
        ClusterError: no answer, or no right.
    """
    events = EventReader(rundir)
    while True:
        try:
            job = cluster.get("Job", namespace, name)
        except NotFound:
            return
        pods = cluster.find("Pod", namespace, labels=labels_of(job))
        so_far = events.of_attempt(attempt)
        summary = summarize(job, pods, warnings=warnings_of(cluster, job, pods))
        record_causes(rundir, attempt, summary, so_far, who="watcher")
        record_gone(cluster, namespace, rundir, attempt, {pod["metadata"]["uid"] for pod in pods}, so_far, who="watcher")
        time.sleep(POLL_S)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", allow_abbrev=False)
    parser.add_argument("--run", required=True, help="URL of the run directory")
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--job", required=True, help="NAMESPACE/NAME of the attempt's Job")
    arguments = parser.parse_args(argv)
    namespace, _, name = arguments.job.partition("/")
    rundir, told = RunDir(arguments.run), -_REPORT_S
    cluster = Cluster(timeout_s=10.0, retry_s=10.0)
    while True:
        try:
            watch(cluster, rundir, arguments.attempt, namespace=namespace, name=name)
            return 0
        except (ClusterError, OSError) as error:
            if time.monotonic() - told >= _REPORT_S:
                told = time.monotonic()
                print(f"causes are not written down meanwhile: {error}", file=sys.stderr, flush=True)
            time.sleep(POLL_S)


if __name__ == "__main__":
    sys.exit(main())
