"""What the cluster is asked before a submit, on a real control plane: rights, quotas, pod security, and YAML for kubectl."""

from __future__ import annotations

import copy
import dataclasses
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.conftest import ROOT, Plane, until
from tests.kubernetes.samples import sample_app, sample_options
from zephon.errors import ConfigError
from zephon.launch import start as launcher
from zephon.launch.backends.kubernetes.client import Cluster
from zephon.launch.backends.kubernetes.manifest import Request, build
from zephon.launch.backends.kubernetes.preflight import QUEUE_RIGHTS, RIGHTS, examine, missing_rights
from zephon.launch.backends.kubernetes.quotas import needed
from zephon.launch.cli.main import main
from zephon.spec.experiment import RunSpec

BASE = ROOT / "k8s" / "base"


def request_for(namespace: str, **options: Any) -> Request:
    volumes = {"runs": {"mount": "/runs", "empty_dir": "1Gi"}}
    return build(sample_app(), sample_options(namespace=namespace, **{"volumes": volumes, **options}), submission="x")


def roles(plane: Plane, folder: str) -> list[dict[str, Any]]:
    documents = list(yaml.safe_load_all(plane.kubectl("kustomize", str(ROOT / "k8s" / folder))))
    return [document for document in documents if document["kind"] == "Role"]


def granted(rules: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.kubernetes
def test_the_rights_that_are_asked_for_are_those_that_the_shipped_roles_grant(plane: Plane) -> None:
    by_name = {role["metadata"]["name"]: role for role in roles(plane, "overlays/gpu")}
    asked = {(right.group, right.path, right.verb) for right in RIGHTS}
    assert asked <= granted(by_name["zephon-submitter"]["rules"])
    queue = {(right.group, right.path, right.verb) for right in QUEUE_RIGHTS}
    assert queue <= granted(by_name["zephon-queue-user"]["rules"])


@pytest.mark.kubernetes
def test_each_missing_right_is_named_with_the_verb_that_needs_it_before_anything_is_created(plane: Plane) -> None:
    namespace = plane.namespace()
    role = next(copy.deepcopy(role) for role in roles(plane, "base") if role["metadata"]["name"] == "zephon-submitter")
    role["metadata"]["namespace"] = namespace
    for rule in role["rules"]:  # as a careful administrator might cut it down
        rule["verbs"] = [verb for verb in rule["verbs"] if (rule["resources"], verb) != (["jobs"], "patch")]
        rule["resources"] = [resource for resource in rule["resources"] if resource != "pods/log"]
    role["rules"] = [rule for rule in role["rules"] if rule["resources"]]
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "cut", "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role["metadata"]["name"]},
        "subjects": [subject],
    }
    plane.apply(role, binding)
    plane.until_allowed("alice", "create", "jobs.batch", namespace)
    cluster = Cluster(kubeconfig=plane.kubeconfig("alice"))
    options = sample_options(namespace=namespace)
    assert [right.path for right in missing_rights(cluster, namespace, RIGHTS)] == ["jobs", "pods/log"]
    with pytest.raises(ConfigError) as refused:
        examine(cluster, request_for(namespace), options)
    cluster.close()
    assert "patch jobs (for stop, resume, rescale); get pods/log (for logs)" in refused.value.what
    assert '{apiGroups: [""], resources: ["pods/log"], verbs: ["get"]}' in refused.value.remedy
    assert plane.find(namespace, "Job", "Service") == []


@pytest.mark.kubernetes
def test_a_quota_that_forgets_the_coordinator_is_too_small_and_one_that_others_use_is_a_remark(plane: Plane) -> None:
    namespace = plane.namespace()
    options = sample_options(namespace=namespace)
    plane.quota(namespace, {"pods": "4"})
    with pytest.raises(ConfigError, match="allows pods=4, and this job needs 5 with its coordinator"):
        examine(plane.api, request_for(namespace), options)
    plane.quota(namespace, {"pods": "5", "requests.memory": "3Gi", "limits.memory": "3Gi"})
    quota = f"/api/v1/namespaces/{namespace}/resourcequotas/q"

    def status(part: str) -> dict[str, str]:
        found: dict[str, str] = plane.api.request("GET", quota, action="read the quota")["status"].get(part, {})
        return found

    until("the new quota is in force", lambda: status("hard"), holds=lambda hard: hard.get("pods") == "5")
    assert examine(plane.api, request_for(namespace), options) == ()
    memory = {"memory": "1Gi"}
    container = {"name": "main", "image": "i", "resources": {"requests": memory, "limits": memory}}
    metadata = {"name": "other", "namespace": namespace}
    plane.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}})
    until("it is counted", lambda: status("used"), holds=lambda used: used.get("pods") == "1")
    remarks = examine(plane.api, request_for(namespace), options)
    assert "quota q: pods has 4 left of 5 and this job needs 5: some pods wait until other jobs end" in remarks
    assert any(line.startswith("quota q: requests.memory has 2Gi left of 3Gi and this job needs 2.25Gi") for line in remarks)


@pytest.mark.kubernetes
def test_a_quota_with_scopes_counts_the_pods_that_match_them_as_the_cluster_does(plane: Plane) -> None:
    namespace = plane.namespace()
    for name in ("low", "high"):
        plane.apply(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": f"{namespace}-{name}"},
                "value": 1,
                "description": "",
            }
        )
    low = {"scopeName": "PriorityClass", "operator": "In", "values": [f"{namespace}-low"]}
    scoped = {
        "deadline": {"hard": {"pods": "1"}, "scopes": ["Terminating"]},
        "greedy": {"hard": {"pods": "1"}, "scopes": ["BestEffort"]},
        "low": {"hard": {"pods": "4", "requests.cpu": "9"}, "scopeSelector": {"matchExpressions": [low]}},
    }
    for name, spec in scoped.items():
        metadata = {"name": name, "namespace": namespace}
        plane.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec})
    options = sample_options(namespace=namespace)
    assert examine(plane.api, request_for(namespace), options) == ()
    assert examine(plane.api, request_for(namespace, priority_class=f"{namespace}-high"), options) == ()
    with pytest.raises(ConfigError, match=rf"quota low .*pods=4 \(of pods in scope PriorityClass In {namespace}-low\)"):
        examine(plane.api, request_for(namespace, priority_class=f"{namespace}-low"), options)
    deadline = {"nodes": {"spec": {"activeDeadlineSeconds": 60}}}
    with pytest.raises(ConfigError, match=r"quota deadline .* allows pods=1 \(of pods in scope Terminating\), .* needs 4 "):
        examine(plane.api, request_for(namespace, overlay=deadline), options)


@pytest.mark.kubernetes
def test_pods_that_the_namespaces_security_would_not_admit_are_refused_before_the_job_exists(plane: Plane) -> None:
    plane.kubectl("apply", "-k", str(BASE))
    volumes = {"runs": {"mount": "/runs", "host_path": "/tmp"}}
    options = sample_options(namespace="zephon", volumes=volumes)
    with pytest.raises(Exception, match=r"violates PodSecurity(.|\n)*take the named setting out"):
        examine(plane.api, request_for("zephon", volumes=volumes), options)


@pytest.mark.kubernetes
def test_a_submitter_who_may_not_ask_for_a_pod_reads_the_servers_warning(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    plane.kubectl("apply", "-k", str(BASE))
    monkeypatch.setattr("zephon.launch.backends.kubernetes.preflight.check_pod", lambda *_: False)
    volumes = {"runs": {"mount": "/runs", "host_path": "/tmp"}}
    options = sample_options(namespace="zephon", volumes=volumes)
    remarks = examine(plane.api, request_for("zephon", volumes=volumes), options)
    assert any('the API server warns: would violate PodSecurity "restricted:latest": ' in remark for remark in remarks), remarks


@pytest.mark.kubernetes
def test_plan_and_run_refuse_what_the_cluster_would_and_plan_works_without_one(
    plane: Plane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    namespace = plane.namespace()
    plane.quota(namespace, {"pods": "1"})
    where = f"{{namespace: {namespace}, kubeconfig: {plane.kubeconfig()}}}"
    volume = [f"scheduler.options.volumes.here.mount={tmp_path}", "scheduler.options.volumes.here.empty_dir=1Gi"]
    words = ["conf=bytes", f"runs={tmp_path}", "nodes=1", "scheduler=kubernetes", f"scheduler.options={where}", *volume]
    for verb in ("plan", "run"):
        assert main([verb, *words]) == 65
        assert "allows pods=1, and this job needs 2 with its coordinator" in capsys.readouterr().err
    assert not (tmp_path / "bytes" / "attempts").exists()
    nowhere = f"scheduler.options={{namespace: {namespace}, kubeconfig: {tmp_path / 'none'}}}"
    assert main(["plan", *words[:4], nowhere, *volume]) == 0
    assert "note: the cluster was not asked: no cluster to talk to" in capsys.readouterr().out


TRAPS = ["1e3", "y", "N", "on", "0o7", "0x1F", "1_000", "12:30", ".5", "=", "<<", "~", "null", "2026-01-01", "", " a ", "a: b"]
TRAPS += ["-", "é\n"]


@pytest.mark.kubernetes
def test_kubectl_takes_the_printed_yaml_back_whatever_is_in_a_value(plane: Plane) -> None:
    namespace = plane.namespace()
    env = {f"TRAP_{number}": text for number, text in enumerate(TRAPS)}
    request = request_for(namespace, env=env)
    plane.kubectl("create", "-f", "-", stdin=request.to_yaml())
    stored = plane.get("Job", request.name, namespace)
    (container,) = stored["spec"]["template"]["spec"]["containers"]
    assert {entry["name"]: entry.get("value", "") for entry in container["env"] if entry["name"] in env} == env


def test_what_a_job_needs_of_a_quota_counts_every_node_and_the_coordinator() -> None:
    needs = needed(build(sample_app(), sample_options(), submission="x"))
    assert needs["pods"] == 5
    assert needs["requests.cpu"] == needs["cpu"] == Decimal("4.05")
    assert needs["limits.memory"] == (4 * 512 + 256) * 2**20


@pytest.mark.parametrize(
    ("gpu", "procs", "device", "message"),
    [
        (8, 1, "cuda", r"gpu=8 and elastic\.procs_per_node=1(.|\n)*7 GPUs of every node would idle"),
        (1, 2, "cuda", "1 processes of every node would have none"),
        (0, 2, "cuda", r"set scheduler\.options\.gpu=2, or leave it out"),
        (2, 2, "cpu", r"set trainer\.device=cuda"),
        (2, 2, "cuda", ""),
        (None, 2, "cuda", ""),
        (None, 2, "cpu", ""),
    ],
)
def test_gpus_are_as_many_as_processes(gpu: int | None, procs: int, device: str, message: str) -> None:
    plain = RunSpec.from_dict(
        {
            "name": "exp1",
            "runs": "s3://b/runs",
            "global_batch_size": 16,
            "data": {"datasets": {"docs": {"path": "stdlib://docs"}}},
            "pipeline": {"context_length": 32},
            "trainer": {"steps": 9, "device": device},
            "elastic": {"procs_per_node": procs},
            "scheduler": {"name": "kubernetes", "options": {} if gpu is None else {"gpu": gpu}},
        }
    )
    rundir = dataclasses.replace(plain, runs="/tmp")
    if message:
        with pytest.raises(ConfigError, match=message):
            launcher.request_of(plain, launcher.rundir_of(rundir), 1)
    else:
        assert launcher.request_of(plain, launcher.rundir_of(rundir), 1)
