"""The scheduler against a real control plane: the real Job controller, scheduler, garbage collector and RBAC."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from torchx.runner import Runner
from torchx.specs import AppState

from tests.kubernetes.conftest import ROOT, Plane, until, until_said
from tests.kubernetes.samples import sample_app
from zephon.errors import ConfigError
from zephon.launch.backends.kubernetes.errors import Conflict, Forbidden, NotFound
from zephon.launch.backends.kubernetes.scheduler import KubernetesScheduler, create_scheduler

pytestmark = pytest.mark.kubernetes


class Case:
    """A namespace, a Runner with our scheduler, and the options that reach the control plane."""

    def __init__(self, plane: Plane, user: str = "admin", namespace: str | None = None) -> None:
        self.plane = plane
        self.namespace = namespace or plane.namespace()
        self.cfg: dict[str, Any] = {
            "namespace": self.namespace,
            "kubeconfig": plane.kubeconfig(user),
            "volumes": {"runs": {"mount": "/runs", "empty_dir": "1Gi"}},
            "grace_s": 61,
        }
        self.runner = Runner("test", {"kubernetes": create_scheduler})

    @property
    def scheduler(self) -> KubernetesScheduler:
        found: KubernetesScheduler = self.runner._scheduler("kubernetes")
        return found

    def submit(self, **app: Any) -> str:
        handle: str = self.runner.run(sample_app(**app), "kubernetes", self.cfg)
        return handle

    def pods(self, role: str = "node") -> list[dict[str, Any]]:
        return self.plane.find(self.namespace, "Pod", labels=f"zephon/role={role}")

    def bound(self, count: int) -> list[dict[str, Any]]:
        return self.plane.bound(self.namespace, count)

    def left(self, *kinds: str, labels: str) -> list[str]:
        """Names of what is still there, after the machines have confirmed all deletions."""
        self.plane.ends_deleted_pods(self.namespace)
        return [item["metadata"]["name"] for item in self.plane.find(self.namespace, *kinds, labels=labels)]

    def until_state(self, handle: str, state: AppState) -> None:
        """Waits for a state while the machines confirm all deletions."""

        def poll() -> AppState:
            self.plane.ends_deleted_pods(self.namespace)
            found: AppState = self.runner.status(handle).state
            return found

        until(f"{handle} is {state}", poll, holds=lambda seen: seen == state)

    def until_said(self, handle: str, words: str) -> str:
        return until_said(words, lambda: str(self.runner.status(handle).msg))

    def job(self, name: str = "exp1-1") -> dict[str, Any]:
        return self.plane.get("Job", name, self.namespace)

    def kubelet_ends_deleted_pods(self) -> None:
        self.plane.ends_deleted_pods(self.namespace)


@pytest.fixture
def case(plane: Plane) -> Iterator[Case]:
    found = Case(plane)
    with found.runner:
        yield found


def test_submit_creates_bound_pods_and_delete_leaves_nothing(case: Case) -> None:
    handle = case.submit()
    assert handle == f"kubernetes://test/{case.namespace}:exp1-1"
    pods = case.bound(4)
    assert {pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] for pod in pods} == set("0123")
    assert {pod["spec"]["nodeName"] for pod in pods} == {"m-1", "m-2"}
    job = case.job()
    for kind, name in (("Service", "exp1-1"), ("ConfigMap", "exp1-1"), ("Deployment", "exp1-1-coordinator")):
        (owner,) = case.plane.get(kind, name, case.namespace)["metadata"]["ownerReferences"]
        assert owner["uid"] == job["metadata"]["uid"]
    until("the coordinator's pod is made", lambda: case.pods("coordinator"))
    listed = case.runner.list("kubernetes", case.cfg)
    assert [(app.app_id, app.name) for app in listed] == [(f"{case.namespace}:exp1-1", "exp1")]

    case.plane.kubectl("delete", "job", "exp1-1", "-n", case.namespace, "--wait=false")
    kinds, ours = ("Job", "Pod", "Service", "ConfigMap", "Deployment"), "app.kubernetes.io/managed-by=zephon"
    until("one delete removes everything", lambda: case.left(*kinds, labels=ours), holds=lambda left: not left)
    assert case.runner.status(handle) is None


def test_the_dry_run_is_what_the_api_server_stores(case: Case) -> None:
    info = case.runner.dryrun(sample_app(), "kubernetes", case.cfg)
    printed = list(yaml.safe_load_all(str(info)))
    case.runner.schedule(info)
    for document in printed:
        metadata = document["metadata"]
        stored = case.plane.get(document["kind"], metadata["name"], metadata["namespace"])
        assert _contains(stored, document) == []


def _contains(stored: Any, sent: Any, at: str = "") -> list[str]:
    """Where ``stored`` lacks something of ``sent``; the API server only adds defaults."""
    if isinstance(sent, dict):
        return [line for key in sent for line in _contains((stored or {}).get(key), sent[key], f"{at}.{key}")]
    if isinstance(sent, list) and isinstance(stored, list) and len(sent) == len(stored):
        return [line for i, item in enumerate(sent) for line in _contains(stored[i], item, f"{at}[{i}]")]
    return [] if stored == sent else [f"{at}: sent {sent!r}, stored {stored!r}"]


def test_a_rescale_keeps_the_pods_that_stay(case: Case) -> None:
    handle = case.submit()
    app_id = f"{case.namespace}:exp1-1"
    before = {pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]: pod for pod in case.bound(4)}
    assert case.scheduler.rescale(app_id, 2).note == "nodes 0..1 stay, 2..3 drain and leave"
    kept = {pod["metadata"]["uid"] for pod in case.bound(2)}
    assert kept == {before[i]["metadata"]["uid"] for i in "01"}
    case.kubelet_ends_deleted_pods()
    assert case.scheduler.rescale(app_id, 4).after == 4
    assert kept < {pod["metadata"]["uid"] for pod in case.bound(4)}
    assert "already has 4 nodes" in case.scheduler.rescale(app_id, 4).note
    assert case.runner.status(handle).state == AppState.PENDING


@pytest.mark.parametrize(("nodes", "message"), [(0, "use stop"), (9, "outside 1..8"), (-1, "outside 1..8")])
def test_an_impossible_size_is_refused_and_changes_nothing(case: Case, nodes: int, message: str) -> None:
    case.submit()
    before = case.job()["metadata"]["generation"]
    with pytest.raises(ConfigError, match=message):
        case.scheduler.rescale(f"{case.namespace}:exp1-1", nodes)
    assert case.job()["metadata"]["generation"] == before


def test_somebody_elses_rescale_is_shown_and_not_overwritten(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.submit()
    cluster = case.scheduler._cluster(case.scheduler.options)
    real, tries = cluster.patch, []

    def patch(*args: Any) -> dict[str, Any]:
        if not tries:
            two = json.dumps({"spec": {"parallelism": 2, "completions": 2}})
            case.plane.kubectl("patch", "job", "exp1-1", "-n", case.namespace, "--type=merge", "-p", two)
        tries.append(args)
        return real(*args)

    monkeypatch.setattr(cluster, "patch", patch)
    with pytest.raises(Conflict, match="somebody else changed it from 4 to 2 nodes"):
        case.scheduler.rescale(f"{case.namespace}:exp1-1", 6)
    assert case.job()["spec"]["completions"] == 2


def test_a_conflict_about_something_else_is_tried_again(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.submit()
    cluster = case.scheduler._cluster(case.scheduler.options)
    real, tries = cluster.patch, []

    def patch(*args: Any) -> dict[str, Any]:
        if len(tries) < 2:
            case.plane.kubectl("annotate", "job", "exp1-1", "-n", case.namespace, f"note-{len(tries)}=x")
        tries.append(args)
        return real(*args)

    monkeypatch.setattr(cluster, "patch", patch)
    assert case.scheduler.rescale(f"{case.namespace}:exp1-1", 6).after == 6
    assert len(tries) >= 3
    assert case.job()["spec"]["completions"] == case.job()["spec"]["parallelism"] == 6


def test_stop_suspends_and_resume_starts_again(case: Case) -> None:
    handle = case.submit(nodes=2)
    old = {pod["metadata"]["uid"] for pod in case.bound(2)}
    case.runner.cancel(handle)
    until(
        "all pods are asked to go",
        lambda: [pod["metadata"].get("deletionTimestamp") for pod in case.pods()],
        holds=lambda asked: len(asked) == 2 and all(asked),
    )
    assert "saving their state" in case.runner.status(handle).msg
    case.until_state(handle, AppState.CANCELLED)
    assert case.runner.status(handle).msg == "stopped; resume starts it again from its last checkpoint"
    case.scheduler.resume(f"{case.namespace}:exp1-1")
    assert not old & {pod["metadata"]["uid"] for pod in case.bound(2)}


def test_exit_65_fails_the_job_at_once_and_75_and_143_cost_nothing(case: Case) -> None:
    handle = case.submit(nodes=3)
    for code, pod in zip((75, 143), case.bound(3), strict=False):
        case.plane.play_kubelet(case.namespace, pod["metadata"]["name"], phase="Failed", exit_code=code)
    pods = until(
        "both are replaced",
        lambda: [pod for pod in case.pods() if pod["status"]["phase"] == "Pending"],
        holds=lambda pods: len(pods) == 3,
    )
    assert not case.job()["status"].get("failedIndexes")
    victim = pods[0]
    case.plane.play_kubelet(case.namespace, victim["metadata"]["name"], phase="Failed", exit_code=65)
    case.until_state(handle, AppState.FAILED)
    assert "PodFailurePolicy" in case.runner.status(handle).msg


def test_a_second_submit_of_the_same_attempt_is_refused(case: Case) -> None:
    case.submit()
    with pytest.raises(Conflict, match=r"exp1-1 already exists\n"):
        case.submit()
    assert len(case.bound(4)) == 4


def test_a_repeated_submit_finds_its_own_objects(case: Case) -> None:
    info = case.runner.dryrun(sample_app(), "kubernetes", case.cfg)
    assert case.runner.schedule(info) == case.runner.schedule(info)
    assert len(case.plane.find(case.namespace, "Job")) == 1


def test_a_missing_namespace_is_named_with_the_command_that_makes_it(case: Case) -> None:
    case.cfg["namespace"] = "nowhere"
    with pytest.raises(NotFound, match="kubectl create namespace nowhere"):
        case.submit()


def test_an_exhausted_quota_is_told_and_nothing_is_left_behind(case: Case) -> None:
    case.plane.quota(case.namespace, {"count/services": "0"})
    with pytest.raises(Forbidden, match="exceeded quota"):
        case.submit()
    assert case.plane.find(case.namespace, "Job", "ConfigMap", "Deployment", labels="zephon/run=exp1") == []


def test_a_failing_child_takes_the_job_away_again(case: Case) -> None:
    """The check before the first create is switched off: the refusal comes in the middle."""
    case.cfg["server_dry_run"] = False
    taken = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "exp1-1", "namespace": case.namespace}}
    case.plane.apply({**taken, "spec": {"ports": [{"port": 80}]}})
    with pytest.raises(Conflict, match=r"Service .*/exp1-1 already exists"):
        case.submit()
    until("the Job is gone", lambda: case.left("Job", "ConfigMap", labels="zephon/run=exp1"), holds=lambda left: not left)


def test_the_attempts_secret_goes_with_the_job_or_its_spec_and_its_value_is_in_nothing_else(case: Case) -> None:
    case.submit()
    read = ("get", "secrets", "-n", case.namespace, "-l", "zephon/run=exp1", "-o", "yaml")
    (secret,) = yaml.safe_load(case.plane.kubectl(*read))["items"]
    job = case.plane.get("Job", "exp1-1", case.namespace)
    owners = [(owner["kind"], owner["uid"]) for owner in secret["metadata"]["ownerReferences"]]
    assert owners == [
        ("Job", job["metadata"]["uid"]),
        ("ConfigMap", case.plane.get("ConfigMap", "exp1-1", case.namespace)["metadata"]["uid"]),
    ]
    assert secret["immutable"]
    encoded = secret["data"]["secret"]
    value = base64.b64decode(encoded).decode()
    assert len(value) == 64
    kinds = "jobs,pods,services,deployments,configmaps,events,replicasets"
    everything = case.plane.kubectl("get", kinds, "-n", case.namespace, "-o", "yaml")
    assert "exp1-1-coordinator" in everything
    assert value not in everything
    assert encoded not in everything


def test_a_field_that_the_cluster_does_not_know_is_refused(case: Case) -> None:
    case.cfg["overlay"] = {"job": {"spec": {"actvDeadlineSeconds": 5}}}
    with pytest.raises(Exception, match=r'unknown field "spec\.actvDeadlineSeconds"'):
        case.submit()


def test_pods_that_fit_nowhere_are_told_with_the_schedulers_words(case: Case) -> None:
    case.cfg["node_selector"] = {"pool": "gpu"}
    handle = case.submit(nodes=1)
    assert "node affinity/selector" in case.until_said(handle, "cannot be placed")


def test_the_documented_role_is_exactly_enough(plane: Plane) -> None:
    documents = list(yaml.safe_load_all(plane.kubectl("kustomize", str(ROOT / "k8s" / "base"))))
    namespace = plane.namespace()
    role = copy.deepcopy(next(d for d in documents if d["kind"] == "Role" and d["metadata"]["name"] == "zephon-submitter"))
    binding = copy.deepcopy(next(d for d in documents if d["kind"] == "RoleBinding"))
    for document in (role, binding):
        document["metadata"]["namespace"] = namespace
    binding["subjects"] = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}]
    case = Case(plane, user="alice", namespace=namespace)
    app_id = f"{namespace}:exp1-1"
    with pytest.raises(Forbidden, match=r'apiGroups: \["batch"\], resources: \["jobs"\], verbs: \["get"\]'):
        case.submit()
    plane.apply(role, binding)
    plane.until_allowed("alice", "create", "jobs.batch", namespace)
    with case.runner:
        handle = case.submit()
        case.bound(4)
        assert case.runner.status(handle) is not None
        assert len(case.runner.list("kubernetes", case.cfg)) == 1
        assert list(case.runner.log_lines(handle, "node", 0)) == []
        case.scheduler.rescale(app_id, 2)
        case.scheduler.stop(app_id)
        case.scheduler.resume(app_id)
        with pytest.raises(Conflict):
            case.submit()
        with pytest.raises(Forbidden, match='resources: \\["secrets"\\]'):
            _read_secrets(case)
        # No kubelet confirms that the pods have ended, so this ends them first.
        case.plane.kubectl("delete", "pods", "--all", "-n", namespace, "--force", "--wait=false")
        case.scheduler.rescale(app_id, 3)
        _delete_with_kubelet(case, handle)
        assert case.runner.status(handle) is None


def _read_secrets(case: Case) -> None:
    cluster = case.scheduler._cluster(case.scheduler.options)
    cluster.request("GET", f"/api/v1/namespaces/{case.namespace}/secrets", action="list secrets")


def _delete_with_kubelet(case: Case, handle: str) -> None:
    """Deletes through the scheduler while a thread plays the kubelet that confirms the pods' end."""
    import threading

    stop = threading.Event()

    def kubelet() -> None:
        while not stop.wait(0.3):
            case.kubelet_ends_deleted_pods()

    thread = threading.Thread(target=kubelet)
    thread.start()
    try:
        case.runner.delete(handle)
    finally:
        stop.set()
        thread.join()


def test_no_cluster_is_an_error_at_once_with_what_to_set(plane: Plane, tmp_path: Any) -> None:
    case = Case(plane)
    for kubeconfig, message in ((str(tmp_path / "none"), "no cluster to talk to"), (plane.kubeconfig(), "context='nope'")):
        case.cfg |= {"kubeconfig": kubeconfig, "context": "nope" if "context" in message else None}
        with pytest.raises(Exception, match=message) as error:
            case.submit()
        assert "kubectl config get-contexts" in str(error.value)


def test_the_namespace_of_k8s_base_admits_our_pods_and_refuses_looser_ones(plane: Plane) -> None:
    plane.kubectl("apply", "-k", str(ROOT / "k8s" / "base"))
    case = Case(plane, namespace="zephon")
    with case.runner:
        case.submit(name="strict")
        case.bound(4)
        until("the coordinator's pod is made", lambda: case.pods("coordinator"))
        case.cfg["volumes"] = {"runs": {"mount": "/runs", "host_path": "/tmp"}}
        loose = case.submit(name="loose", nodes=1)
        told = case.until_said(loose, "its pods cannot be created")
        assert "violates PodSecurity" in told
        assert "hostPath" in told


def test_pods_that_the_quota_has_no_room_for_are_told(case: Case) -> None:
    case.plane.quota(case.namespace, {"pods": "2"})
    handle = case.submit(nodes=4)
    assert "exceeded quota: q" in case.until_said(handle, "its pods cannot be created")


def test_a_pod_ended_by_a_machines_shutdown_is_replaced_and_not_counted(case: Case) -> None:
    handle = case.submit(nodes=1)
    (pod,) = case.bound(1)
    name = pod["metadata"]["name"]
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "lastTransitionTime": None}
    change = {"status": {"phase": "Failed", "reason": "Terminated", "message": "node shutdown", "conditions": [disrupted]}}
    case.plane._patch(f"/api/v1/namespaces/{case.namespace}/pods/{name}/status", change)
    until("a successor is made", lambda: [pod for pod in case.pods() if pod["metadata"]["name"] != name])
    assert not case.job()["status"].get("failedIndexes")
    assert case.runner.status(handle).state == AppState.PENDING


def test_a_node_that_used_up_its_retries_ends_the_job_instead_of_being_left_behind(case: Case) -> None:
    case.cfg["retries_per_node"] = 0
    handle = case.submit(nodes=2)
    pod = case.bound(2)[1]
    case.plane.play_kubelet(case.namespace, pod["metadata"]["name"], phase="Failed", exit_code=1)
    case.until_state(handle, AppState.FAILED)
    assert "FailedIndexes" in case.runner.status(handle).msg


def test_many_submits_of_one_attempt_make_one_job(case: Case) -> None:
    refused = 0
    for _ in range(20):
        try:
            case.submit()
        except Conflict:
            refused += 1
    assert refused == 19
    assert len(case.plane.find(case.namespace, "Job", "Service", "ConfigMap", labels="zephon/run=exp1")) == 3
