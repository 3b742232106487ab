"""The manifest as it is used in production, on real nodes, by a user who has exactly the documented role."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.conftest import ROOT, until, until_said
from tests.kubernetes.machines import TRAINS_S, Machines, reach
from zephon.launch import control
from zephon.launch import start as session
from zephon.launch.backends.kubernetes.options import options_from
from zephon.launch.backends.kubernetes.scheduler import KubernetesScheduler
from zephon.launch.status import status_of
from zephon.run.directory import RunDir
from zephon.run.specs import newest_spec

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(600)]

SETTINGS = ["conf=bytes", "nodes=2", "trainer.steps=100000", "elastic.drain_s=10", "elastic.heartbeat_s=2"]


def user_kubeconfig(machines: Machines, name: str, path: Path) -> str:
    """A kubeconfig of a service account that is bound to the submitter's role of k8s/base and nothing else."""
    for document in yaml.safe_load_all((ROOT / "tests/kubernetes/golden/k8s-base.yaml").read_text()):
        if document["kind"] in ("Role", "RoleBinding", "NetworkPolicy", "ServiceAccount"):
            document["metadata"]["namespace"] = name
            if document["kind"] == "RoleBinding":
                document["subjects"] = [{"kind": "ServiceAccount", "name": "submitter", "namespace": name}]
            file = path / "document.yaml"
            file.write_text(yaml.safe_dump(document))
            machines.kubectl("apply", "-f", str(file))
    machines.kubectl("create", "serviceaccount", "submitter", "-n", name)
    account, asked = f"system:serviceaccount:{name}:submitter", ("auth", "can-i", "create", "jobs.batch", "-n", name)
    until(
        "the account may submit",
        lambda: machines.kubectl(*asked, f"--as={account}", check=False).strip(),
        holds=lambda answer: answer == "yes",
    )
    token = machines.kubectl("create", "token", "submitter", "-n", name).strip()
    config: dict[str, Any] = yaml.safe_load(Path(machines.kubeconfig).read_text())
    config["users"] = [{"name": "submitter", "user": {"token": token}}]
    current = next(each for each in config["contexts"] if each["name"] == config["current-context"])
    current["context"]["user"] = "submitter"
    (path / "kubeconfig").write_text(json.dumps(config))
    return str(path / "kubeconfig")


@pytest.fixture(scope="module")
def run(machines: Machines, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    name = machines.name("production")
    toy = {"steps": 100000, "step_s": 0.05, "save_every": 20}
    spec = machines.spec(name, *SETTINGS, worker_env={"ZEPHON_TOY": json.dumps(toy)}, service_account="zephon-job")
    spec.scheduler.options["kubeconfig"] = user_kubeconfig(machines, name, tmp_path_factory.mktemp("user"))
    rundir = machines.submit(spec, worker="tests.agent.toy_worker")
    reach(rundir, "training on two nodes", lambda now: now.world_size == 2)
    return rundir


def scheduler_of(rundir: RunDir) -> KubernetesScheduler:
    return KubernetesScheduler("test", options_from(newest_spec(rundir).scheduler.options))


def name_of(rundir: RunDir) -> str:
    return str(rundir.root).rsplit("/", 1)[-1]


def test_the_pods_are_as_locked_up_as_the_manifest_says(machines: Machines, run: RunDir) -> None:
    name = name_of(run)
    pod = machines.pods(name)[0]["metadata"]["name"]

    def inside(*command: str) -> str:
        return machines.kubectl("exec", pod, "-n", name, "--", *command, check=False).strip()

    assert inside("/usr/bin/id", "-u") == "1000"
    assert inside("/usr/bin/sh", "-c", "echo x > /here 2>/dev/null || echo refused") == "refused"
    assert inside("/usr/bin/sh", "-c", "echo x > /tmp/here && cat /tmp/here") == "x"
    assert inside("/usr/bin/sh", "-c", "ls /var/run/secrets 2>/dev/null || echo none") == "none"
    status = dict(line.split(":", 1) for line in inside("/usr/bin/cat", "/proc/self/status").splitlines() if ":" in line)
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"].strip() == "1"
    assert status["Seccomp"].strip() == "2"


def test_logs_follow_a_node_across_its_replacement(machines: Machines, run: RunDir) -> None:
    scheduler = scheduler_of(run)
    name = name_of(run)
    app = f"{name}:{name}-1"
    lines = iter(scheduler.log_iter(app, "node", 1, should_tail=True))
    until_said("workers started", lambda: next(lines))
    victim = next(pod["metadata"]["name"] for pod in machines.pods(name) if pod["metadata"]["name"].startswith(f"{name}-1-1-"))
    machines.kubectl("delete", "pod", victim, "-n", name, "--wait=false")
    until_said("--- node 1 goes on in pod", lambda: next(lines), TRAINS_S)
    until_said("workers started", lambda: next(lines))
    assert [line for line in scheduler.log_iter(app, "coordinator") if line.startswith("coordinator of")]
    scheduler.close()


def test_every_verb_works_with_the_documented_role(machines: Machines, run: RunDir) -> None:
    reach(run, "both nodes train", lambda now: now.world_size == 2)
    assert control.rescale(run, 1, wait_s=TRAINS_S).world_size == 1
    assert control.stop(run, wait_s=TRAINS_S).state == "STOPPED"
    session.resume(run)
    before = status_of(run).step
    reach(run, "training again", lambda now: now.step > before)
    scheduler = scheduler_of(run)
    assert len(scheduler.list()) == 1
    name = name_of(run)
    scheduler.delete(f"{name}:{name}-1")
    assert machines.pods(name) == machines.pods(name, "coordinator") == []
    assert scheduler.list() == []
    assert status_of(run).state == "GONE"
    scheduler.close()
