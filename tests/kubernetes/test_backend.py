"""A run on Kubernetes in the words of the launcher's verbs, against a real control plane."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import pytest

from tests.kubernetes.conftest import Plane, until
from tests.run.samples import RESIZED
from zephon.errors import ConfigError
from zephon.launch.backends.kubernetes.backend import KubernetesBackend
from zephon.launch.job import Job
from zephon.launch.status import status_of
from zephon.run.attempt_stages import AttemptStages, write_attempt_stages
from zephon.run.data_end import DataEnd, write_data_end
from zephon.run.directory import RunDir
from zephon.run.events import EventLog, EventReader
from zephon.run.generation import Generation, claim
from zephon.run.handle import Handle, write_handle
from zephon.run.lease import Lease
from zephon.run.progress import Progress, write_progress
from zephon.run.state import AttemptState, Counts
from zephon.spec.experiment import RunSpec

pytestmark = pytest.mark.kubernetes


class Run:
    """A submitted attempt and its run directory."""

    def __init__(self, plane: Plane, directory: Path) -> None:
        self.plane, self.namespace, self.backend = plane, plane.namespace(), KubernetesBackend()
        volumes = {"runs": {"mount": "/runs", "empty_dir": "1Gi"}}
        options = {"namespace": self.namespace, "kubeconfig": plane.kubeconfig(), "volumes": volumes}
        self.rundir = RunDir(str(directory))
        where = ("attempts", "0001")
        spec = {
            "name": "exp1",
            "global_batch_size": 16,
            "data": {"datasets": {"docs": {"path": "stdlib://docs"}}},
            "pipeline": {"context_length": 32},
            "trainer": {"steps": 9},
            "runs": "/runs",
            "nodes": 2,
            "elastic": {"nodes_max": 8},
            "scheduler": {"name": "kubernetes", "options": options},
        }
        self.rundir.write_json(*where, "spec.json", data=spec)
        job = Job(spec=RunSpec.from_dict(spec), run="/runs/exp1", attempt=1)
        handle = self.backend.submit(job, Lease(self.rundir, holder="test"))
        write_handle(self.rundir, 1, Handle(scheduler="kubernetes", handle=handle, worker="zephon.train", time=time.time()))

    def state(self) -> AttemptState:
        return self.backend.state(self.rundir, 1, EventReader(self.rundir))

    def running(self) -> list[str]:
        """Reports all pods as running; returns their names as the coordinator knows them."""
        pods = self.plane.bound(self.namespace, 2)
        for pod in pods:
            self.plane.play_kubelet(self.namespace, pod["metadata"]["name"], phase="Running")
        return sorted(f"{pod['metadata']['name']}@{pod['metadata']['uid']}" for pod in pods)

    def until_state(self, state: str, message: str = "") -> None:
        """Waits for a state, and a message in which these words are, while the machines confirm all deletions."""

        def poll() -> tuple[str, str]:
            self.plane.ends_deleted_pods(self.namespace)
            found = self.state()
            return found.state, found.message

        until(f"{state} {message}", poll, holds=lambda seen: seen[0] == state and message in seen[1])


@pytest.fixture
def run(plane: Plane, tmp_path: Path) -> Run:
    return Run(plane, tmp_path / "exp1")


def test_the_states_from_start_to_deletion(run: Run) -> None:
    assert run.state().state == "STARTING"
    names = run.running()
    claim(run.rundir, Generation(attempt=1, generation=3, nodes=tuple(names), world_size=2, time=time.time()))
    found = run.state()
    assert (found.state, found.members, found.target, found.generation) == ("RUNNING", tuple(names), 2, 3)
    run.backend.stop(run.rundir, 1)
    assert run.state().state == "DRAINING"
    run.until_state("STOPPED")
    assert run.backend.resume(run.rundir, 1)
    run.until_state("STARTING")
    run.plane.kubectl("delete", "job", "exp1-1", "-n", run.namespace, "--wait=false")
    run.until_state("GONE", "no longer in the cluster")
    assert not run.backend.resume(run.rundir, 1), "only a new attempt can go on"
    run.backend.discard(run.rundir, 1)
    write_progress(run.rundir, 1, Progress(step=7, steps=9, time=time.time()))
    assert run.state().state == "GONE"
    write_data_end(run.rundir, DataEnd(step=7, steps=9, attempt=1))
    assert run.state().state == "DONE", "there is no more data"
    write_progress(run.rundir, 1, Progress(step=9, steps=9, time=time.time()))
    assert run.state().state == "DONE"


def test_a_stop_whose_drain_lost_steps_is_a_failure_by_the_coordinators_word_and_without_it(run: Run) -> None:
    run.running()
    log = EventLog(run.rundir, 1, "coordinator")
    log.write("generation", generation=1, nodes=[], world_size=2)
    write_progress(run.rundir, 1, Progress(step=7, steps=9, time=time.time(), generation=1))
    run.rundir.write_json("checkpoints", "step-00000004", "COMPLETE", data={})
    run.backend.stop(run.rundir, 1)
    assert run.state().state == "DRAINING"
    run.until_state("FAILED", "3 steps were lost in the drain (the last checkpoint is of step 4)")
    cause = "the drain took longer than elastic.drain_s=2 s; 3 steps were lost (the last checkpoint is of step 4)"
    log.write("drain_failed", cause=cause)
    found = run.state()
    assert (found.state, found.message, found.status) == ("FAILED", cause, 1)
    log.write("generation", generation=2, nodes=[], world_size=1)  # it went on, and was stopped anew before a step
    assert run.state().state == "STOPPED", "what the last generation has lost is no loss of this stop"


def test_a_rescale_says_what_happens_and_the_target_follows(run: Run) -> None:
    assert run.backend.preview(run.rundir, 1, 4) == "nodes 0..1 stay, 2..3 join"
    run.backend.rescale(run.rundir, 1, 4)
    assert run.state().target == 4
    for nodes, message in ((3, "does not divide the 8 lanes"), (9, "does not divide"), (0, "use stop")):
        with pytest.raises(ConfigError, match=message):
            run.backend.rescale(run.rundir, 1, nodes)
    assert run.state().target == 4


def test_the_coordinators_stages_are_shown_and_a_size_is_changed_only_while_it_trains(run: Run) -> None:
    assert run.state().stages == {}, "training is all"
    where = ("attempts", "0001")
    spec = run.rundir.read_json(*where, "spec.json")
    run.rundir.write_json(*where, "spec.json", data={**spec, "stages": {"order": ["doctor", "train"]}})
    assert run.state().stages == {"doctor": "waiting", "train": "waiting"}
    (first, _) = run.running()
    known = AttemptStages(stage="doctor", node=first, token=1, states={"doctor": "running", "train": "waiting"})
    write_attempt_stages(run.rundir, 1, known)
    found = run.state()
    assert (found.state, found.stage, found.stages) == (
        "RUNNING",
        "doctor",
        {"doctor": "running", "train": "waiting"},
    )
    assert found.message.startswith(f"stage doctor on {first.split('@')[0]}; 2 nodes run")
    assert status_of(run.rundir).state == "RUNNING"
    with pytest.raises(ConfigError, match="the run is in stage doctor"):
        run.backend.rescale(run.rundir, 1, 4)
    run.backend.stop(run.rundir, 1)
    run.until_state("STOPPED")
    assert run.state().stages == {"doctor": "stopped", "train": "waiting"}
    run.plane.kubectl("delete", "job", "exp1-1", "-n", run.namespace, "--cascade=orphan")
    write_progress(run.rundir, 1, Progress(step=9, steps=9, time=time.time()))
    assert run.state().state == "GONE", "all steps are done, but not all stages"
    ended = dataclasses.replace(known, states={"doctor": "skipped", "train": "done"})
    write_attempt_stages(run.rundir, 1, ended)
    assert run.state().state == "DONE"


def test_the_history_of_an_attempt_is_counted_from_its_events(run: Run) -> None:
    first, second = (EventLog(run.rundir, attempt, "coordinator") for attempt in (1, 2))
    first.write("rerendezvous", reason="lost node")
    first.write("rerendezvous", reason="a node joined")
    first.write("workers_exited", error={"rank": 0})
    first.write("resized", **dataclasses.asdict(RESIZED))
    second.write("resized", **dataclasses.asdict(dataclasses.replace(RESIZED, generation=9)))
    found = run.state()
    assert found.counts == Counts(failures=1, lost=1, resizes=1)
    assert found.resized == RESIZED


def test_a_cluster_that_does_not_answer_is_no_failed_run(run: Run) -> None:
    claim(run.rundir, Generation(attempt=1, generation=3, nodes=("a", "b"), world_size=2, time=time.time()))
    spec = run.rundir.read_json("attempts", "0001", "spec.json")
    config = json.loads(Path(spec["scheduler"]["options"]["kubeconfig"]).read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    elsewhere = Path(run.rundir.path("kubeconfig"))
    elsewhere.write_text(json.dumps(config))
    spec["scheduler"]["options"]["kubeconfig"] = str(elsewhere)
    run.rundir.write_json("attempts", "0001", "spec.json", data=spec)
    found = KubernetesBackend(state_retry_s=0.5).state(run.rundir, 1, EventReader(run.rundir))
    assert (found.state, found.members) == ("UNKNOWN", ("a", "b"))
    assert "the cluster does not answer" in found.message


def test_logs_come_from_the_cluster_of_the_attempt(run: Run) -> None:
    """No kubelet plays here, so there is no line; but the right Job was found with the attempt's own kubeconfig."""
    assert list(run.backend.log_lines(run.rundir, 1, 0, follow=False)) == []
