"""One attempt at a time, on a real control plane: whatever lives of a run is found before a new attempt is sent.

No kubelet runs here. A pod lives until the test says that its machine has ended it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.conftest import Plane, until
from zephon.errors import ConfigError
from zephon.launch import start as launcher
from zephon.launch.backends.kubernetes.client import Cluster
from zephon.launch.backends.kubernetes.errors import ClusterError, Conflict, NoAnswer
from zephon.launch.control import stop
from zephon.launch.status import status_of
from zephon.run.directory import RunDir
from zephon.run.events import read_events
from zephon.run.placement import read_placement
from zephon.run.specs import new_attempt
from zephon.spec.experiment import RunSpec

pytestmark = pytest.mark.kubernetes
OURS = "app.kubernetes.io/managed-by=zephon"


class Person:
    """Somebody who submits a run on two nodes to one namespace."""

    def __init__(self, plane: Plane, namespace: str, runs: Path, *, kubeconfig: str = "", **options: Any) -> None:
        self.plane, self.namespace = plane, namespace
        runs.mkdir(exist_ok=True)
        self.spec = RunSpec.from_dict(
            {
                "name": "exp1",
                "runs": str(runs),
                "nodes": 2,
                "global_batch_size": 16,
                "data": {"datasets": {"docs": {"path": "stdlib://docs"}}},
                "pipeline": {"context_length": 32},
                "trainer": {"steps": 9},
                "scheduler": {
                    "name": "kubernetes",
                    "options": {
                        "namespace": namespace,
                        "kubeconfig": kubeconfig or plane.kubeconfig(),
                        "volumes": {"runs": {"mount": str(runs), "empty_dir": "1Gi"}},
                        "request_timeout_s": 5.0,
                        **options,
                    },
                },
            }
        )

    @property
    def rundir(self) -> RunDir:
        return launcher.rundir_of(self.spec)

    def start(self) -> launcher.Started:
        return launcher.start(self.spec)

    def state(self) -> tuple[str, str]:
        found = status_of(self.rundir)
        return found.state, found.message

    def until_state(self, state: str, message: str = "") -> None:
        until(f"{state} {message}", self.state, holds=lambda seen: seen[0] == state and message in seen[1])

    def ended(self) -> list[dict[str, Any]]:
        """What is still there after the machines have confirmed all deletions."""
        self.plane.ends_deleted_pods(self.namespace)
        return self.plane.find(self.namespace, "Job", "Pod", "Service", "ConfigMap", "Deployment", "Secret", labels=OURS)

    def delete(self, cascade: str) -> None:
        self.plane.kubectl("delete", "job", "exp1-1", "-n", self.namespace, f"--cascade={cascade}", "--wait=false")


@pytest.fixture
def person(plane: Plane, tmp_path: Path) -> Person:
    return Person(plane, plane.namespace(), tmp_path / "runs")


def test_pods_that_were_orphaned_are_the_run_until_a_stop_has_ended_them(person: Person) -> None:
    person.start()
    person.plane.bound(person.namespace, 2)
    person.delete("orphan")
    person.until_state("STARTING", "deleted without its pods: 2 pods (exp1-1-")
    for again in (person.start, lambda: launcher.resume(person.rundir)):
        with pytest.raises(ConfigError, match="attempt 1"):
            again()
    assert person.rundir.attempts() == [1]
    stop(person.rundir, wait_s=0)
    assert person.state()[0] == "DRAINING"
    with pytest.raises(ConfigError, match="under way"):
        person.start()
    until("nothing is left", person.ended, holds=lambda left: not left)
    person.until_state("GONE")
    assert launcher.resume(person.rundir).attempt == 2


@pytest.mark.parametrize("cascade", ["background", "foreground"])
def test_a_deleted_jobs_pods_count_until_they_have_ended_and_then_resume_starts_anew(person: Person, cascade: str) -> None:
    person.start()
    person.plane.bound(person.namespace, 2)
    person.delete(cascade)
    person.until_state("DRAINING", "2 pods")
    with pytest.raises(ConfigError, match="DRAINING"):
        person.start()
    until("nothing is left", person.ended, holds=lambda left: not left)
    person.until_state("GONE")
    assert launcher.resume(person.rundir).attempt == 2


def test_a_failed_job_that_its_time_to_live_removed_is_resumed_and_its_cause_stays(
    person: Person,
) -> None:
    person.start()
    (pod, _) = person.plane.bound(person.namespace, 2)
    person.plane.play_kubelet(person.namespace, pod["metadata"]["name"], phase="Failed", exit_code=65, reason="Error")
    person.plane.ends_deleted_pods(person.namespace)

    def failed() -> str:
        person.plane.ends_deleted_pods(person.namespace)
        return person.state()[0]

    until("the job has failed", failed, holds=lambda state: state == "FAILED")
    cause = "exit code 65 (configuration or contract error)"
    assert cause in status_of(person.rundir).message
    assert [event.kind for event in read_events(person.rundir)].count("node_ended") == 1, "written once, however often asked"
    live = '{"spec":{"ttlSecondsAfterFinished":1}}'  # until now it was a day
    person.plane.kubectl("patch", "job", "exp1-1", "-n", person.namespace, "--type=merge", "-p", live)
    until("its time to live has removed it", person.ended, holds=lambda left: not left)
    found = status_of(person.rundir)
    assert found.state == "GONE"
    assert cause in found.error
    assert launcher.resume(person.rundir).attempt == 2


def test_a_second_machine_that_has_no_record_of_the_run_finds_its_job(person: Person, tmp_path: Path) -> None:
    """Its launcher sees an empty run directory of the same URL: another mount of the volume, or a record of its own."""
    person.start()
    person.plane.bound(person.namespace, 2)
    (tmp_path / "runs").rename(tmp_path / "first")
    (tmp_path / "runs").mkdir()
    with pytest.raises(ConfigError, match=r"still lives in namespace .*: Job exp1-1 is STARTING"):
        person.start()
    assert person.rundir.attempts() == [], "nothing was made"
    person.delete("orphan")
    until("the Job is gone", lambda: person.plane.find(person.namespace, "Job"), holds=lambda jobs: not jobs)
    with pytest.raises(ConfigError, match=r"its Job was deleted without its pods: 2 pods"):
        person.start()


def test_two_directories_with_one_name_are_two_runs(person: Person, tmp_path: Path) -> None:
    person.start()
    other = Person(person.plane, person.namespace, tmp_path / "others")
    with pytest.raises(Conflict, match=r"belongs to another run: .*/runs/exp1"):
        other.start()
    assert other.rundir.attempts() == [], "nothing was made"
    new_attempt(other.rundir, other.spec)
    other.until_state("UNSUBMITTED", "resume starts it")
    assert launcher.resume(other.rundir).attempt == 2, "only the name of attempt 1 is taken"
    services = {item["metadata"]["name"]: item["spec"]["selector"] for item in person.plane.find(person.namespace, "Service")}
    assert services["exp1-1"]["zephon/run-id"] != services["exp1-2"]["zephon/run-id"]
    assert person.state()[0] == other.state()[0] == "STARTING"


def test_a_job_of_the_same_name_that_somebody_made_anew_is_not_the_attempt(person: Person) -> None:
    person.start()
    stored = person.plane.get("Job", "exp1-1", person.namespace)
    person.delete("background")
    until("nothing is left", person.ended, holds=lambda left: not left)
    template = stored["spec"]["template"]
    own = template["metadata"]["labels"]
    template["metadata"]["labels"] = {key: own[key] for key in own if "controller-uid" not in key and "job-name" not in key}
    labels = {"zephon/run-id": stored["metadata"]["labels"]["zephon/run-id"], "zephon/attempt": "1"}
    spec = {"template": template, "suspend": True}
    metadata = {"name": "exp1-1", "namespace": person.namespace, "labels": labels}
    person.plane.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})
    assert person.state()[0] == "GONE"


SUBMIT = """
import json, os, sys
from zephon.launch import start as launcher
from zephon.launch.backends.kubernetes.client import Cluster
from zephon.spec.experiment import RunSpec
kind, how = sys.argv[2:]
real = Cluster.create
def create(cluster, document, *, dry_run=False, **given):
    found = real(cluster, document, dry_run=dry_run, **given)
    if not dry_run and document["kind"] == kind:
        if how == "killed":
            os._exit(9)
        if how == "interrupted":
            raise KeyboardInterrupt
    return found
Cluster.create = create
launcher.start(RunSpec.from_dict(json.loads(sys.argv[1])))
"""


@pytest.mark.parametrize("kind", ["Job", "ConfigMap", "Service"])
@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_a_submit_that_is_cut_off_is_undone_by_itself_or_by_the_next_start(person: Person, kind: str, how: str) -> None:
    spec = json.dumps(person.spec.to_dict())
    done = subprocess.run([sys.executable, "-c", SUBMIT, spec, kind, how], capture_output=True, text=True)
    assert done.returncode == (9 if how == "killed" else -signal.SIGINT if done.returncode < 0 else 1), done.stderr
    placement = read_placement(person.rundir, 1)
    assert placement is not None
    assert placement.job == ""
    if how == "interrupted":
        until("it is undone", person.ended, holds=lambda left: not left)
    person.until_state("UNSUBMITTED", "cut off")
    assert _with_kubelet(person, lambda: launcher.resume(person.rundir)).attempt == 2
    jobs = person.plane.find(person.namespace, "Job", labels=OURS)
    assert [job["metadata"]["name"] for job in jobs] == ["exp1-2"]
    assert person.state()[0] == "STARTING"


def test_a_submit_whose_last_answer_was_lost_is_taken_up(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Cluster.create

    def create(cluster: Cluster, document: dict[str, Any], *, dry_run: bool = False, **given: Any) -> dict[str, Any]:
        found = real(cluster, document, dry_run=dry_run, **given)
        if document["kind"] == "Deployment" and not dry_run:
            monkeypatch.setattr(Cluster, "get", away)
            raise NoAnswer("cut", follows="-", remedy="-")
        return found

    def away(*_: object) -> dict[str, Any]:
        raise NoAnswer("cut", follows="-", remedy="-")

    monkeypatch.setattr(Cluster, "create", create)
    with pytest.raises(ClusterError):
        person.start()
    monkeypatch.undo()
    assert person.state()[0] == "STARTING"
    placement = read_placement(person.rundir, 1)
    assert placement is not None
    assert placement.job == person.plane.get("Job", "exp1-1", person.namespace)["metadata"]["uid"]
    with pytest.raises(ConfigError, match="under way"):
        person.start()


def test_a_cluster_that_is_away_is_no_reason_to_start_a_second_attempt(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    person.start()

    def away(*_: object, **__: object) -> dict[str, Any]:
        raise NoAnswer("the API server did not answer", follows="-", remedy="try again")

    monkeypatch.setattr(Cluster, "request", away)
    person.until_state("UNKNOWN", "the cluster does not answer: the API server did not answer")
    for again in (person.start, lambda: launcher.resume(person.rundir)):
        with pytest.raises(ConfigError, match=r"whether attempt 1 of .* still runs is not known: the cluster does not answer"):
            again()
    assert person.rundir.attempts() == [1]
    Path(person.rundir.path("attempts", "0001", "placement.json")).unlink()  # as the error says, for a cluster that is no more
    assert person.state()[0] == "UNSUBMITTED"


def _with_kubelet(person: Person, act: Callable[[], launcher.Started]) -> launcher.Started:
    """Runs something while the machines confirm all deletions."""
    import threading

    over = threading.Event()

    def confirm() -> None:
        while not over.wait(0.2):
            person.plane.ends_deleted_pods(person.namespace)

    thread = threading.Thread(target=confirm)
    thread.start()
    try:
        return act()
    finally:
        over.set()
        thread.join()
