"""The GPU page as printed: its folder applied, its config read out of it, on machines whose devices are only numbers.

The real scheduler, quota and Kueue count them as they would real ones; nothing runs.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from torchx.runner import Runner

from tests.kubernetes.conftest import ROOT, Plane, tool, until
from tests.kubernetes.samples import IMAGE, sample_spec
from zephon.errors import ConfigError
from zephon.launch.appdef import app_def
from zephon.launch.backends.kubernetes.errors import Forbidden
from zephon.launch.backends.kubernetes.manifest import Request, build
from zephon.launch.backends.kubernetes.options import options_from
from zephon.launch.backends.kubernetes.preflight import examine
from zephon.launch.backends.kubernetes.scheduler import create_scheduler
from zephon.launch.job import Job
from zephon.spec.experiment import RunSpec, SchedulerSpec

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]
PAGE = (ROOT / "docs" / "kubernetes_gpu.md").read_text("utf-8")
NAMESPACE, GPU_MACHINES = "zephon", [f"gpu-{number}" for number in range(8)]


def printed(number: int) -> dict[str, Any]:
    """A YAML block of the page."""
    found: dict[str, Any] = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[number])
    return found


def page_options(plane: Plane, **more: Any) -> dict[str, Any]:
    return {**printed(0)["options"], "image": IMAGE, "kubeconfig": plane.kubeconfig(), **more}


def page_job(options: dict[str, Any], *, nodes: int = 8, procs: int = 8, name: str = "exp1") -> Job:
    spec = sample_spec(name=name, nodes=nodes, elastic={"procs_per_node": procs})
    data = spec.to_dict()
    data["trainer"]["device"] = "cuda"
    cluster_only = {key: value for key, value in options.items() if key in ("cpu", "gpu", "memory_mb", "image")}
    spec = dataclasses.replace(RunSpec.from_dict(data), scheduler=SchedulerSpec(name="kubernetes", options=cluster_only))
    return Job(spec=spec, run=f"s3://team-bucket/runs/{name}", attempt=1)


def request(options: dict[str, Any], **given: Any) -> Request:
    return build(app_def(page_job(options, **given)), options_from(options), submission="x")


@pytest.fixture(scope="module")
def cluster(plane: Plane) -> Iterator[Plane]:
    """The page's folder, over the base that was applied before, and eight machines of eight GPUs beside two without."""
    with tool("kueue", "kueue").Kueue(plane.real):
        for folder in ("base", "overlays/gpu", "overlays/gpu"):
            plane.kubectl("apply", "-k", str(ROOT / "k8s" / folder))
        for name in GPU_MACHINES:
            gpu_machine(plane, name)
        wait = ("wait", "--for=condition=Active", "localqueue/zephon", "-n", NAMESPACE, "--timeout=60s")
        plane.kubectl(*wait)
        yield plane
        plane.kubectl("delete", "node", *GPU_MACHINES)


def gpu_machine(plane: Plane, name: str) -> None:
    plane.machine(name, cpu="64", memory="1Ti")
    devices = {"nvidia.com/gpu": "8", "rdma/hca": "8", "nvidia.com/mig-3g.40gb": "16"}
    plane.play_devices(name, devices)
    plane.kubectl("label", "node", name, "nvidia.com/gpu.present=true")
    plane.kubectl("taint", "node", name, "nvidia.com/gpu=present:NoSchedule")


def test_the_pages_config_runs_eight_nodes_on_eight_machines_with_their_coordinator(cluster: Plane) -> None:
    options = page_options(cluster)
    assert examine(cluster.api, request(options), options_from(options)) == ()
    with Runner("test", {"kubernetes": create_scheduler}) as runner:
        runner.run(app_def(page_job(options)), "kubernetes", options)
        pods = cluster.bound(NAMESPACE, 8)
        until("the coordinator is placed", lambda: placed_coordinator(cluster), holds=bool)
        assert sorted(pod["spec"]["nodeName"] for pod in pods) == GPU_MACHINES
        (container,) = pods[0]["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == container["resources"]["limits"]["rdma/hca"] == "8"
        env = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert (env["NCCL_IB_DISABLE"], env["NCCL_SOCKET_IFNAME"]) == ("0", "eth0")
        again = examine(cluster.api, request(options, name="second"), options_from(options))
        assert any(line.startswith("quota zephon: requests.nvidia.com/gpu has 0 left of 64") for line in again)
        cluster.kubectl("delete", "job", "exp1-1", "-n", NAMESPACE, "--wait=false")
        until("its pods are gone", lambda: gone(cluster))


def placed_coordinator(plane: Plane) -> bool:
    found = plane.find(NAMESPACE, "Pod", labels="zephon/role=coordinator")
    return any(pod["spec"].get("nodeName") for pod in found)


def gone(plane: Plane) -> bool:
    plane.ends_deleted_pods(NAMESPACE)
    return not plane.find(NAMESPACE, "Pod", labels="zephon/run=exp1")


def test_more_nodes_than_the_quota_holds_are_refused_before_the_submit(cluster: Plane) -> None:
    options = page_options(cluster, memory_mb=524288 + 16384)
    with pytest.raises(
        ConfigError, match=r"quota zephon of namespace zephon allows requests\.memory=4200Gi, and this job needs"
    ):
        examine(cluster.api, request(options), options_from(options))


def test_parts_of_gpus_are_one_for_each_process(cluster: Plane) -> None:
    options = page_options(cluster, gpu_resource="nvidia.com/mig-3g.40gb", gpu=2, rdma=0, queue=None, cpu=4, memory_mb=8192)
    options["topology_spread"] = "none"
    with Runner("test", {"kubernetes": create_scheduler}) as runner:
        runner.run(app_def(page_job(options, procs=2, name="mig")), "kubernetes", options)
        pods = until(
            "eight nodes are placed",
            lambda: cluster.find(NAMESPACE, "Pod", labels="zephon/run=mig,zephon/role=node"),
            holds=lambda found: len(found) == 8 and all(pod["spec"].get("nodeName") for pod in found),
        )
        limits = pods[0]["spec"]["containers"][0]["resources"]["limits"]
        assert limits["nvidia.com/mig-3g.40gb"] == "2"
        assert "nvidia.com/gpu" not in limits
        cluster.kubectl("delete", "job", "mig-1", "-n", NAMESPACE, "--wait=false")


def test_pinned_memory_and_the_machines_network_need_a_namespace_that_admits_them(cluster: Plane) -> None:
    pinned = page_options(cluster, **printed(1))
    host = page_options(cluster, network="host")
    for options in (pinned, host):
        with pytest.raises(Forbidden, match="violates PodSecurity"):
            examine(cluster.api, request(options), options_from(options))
    free = cluster.namespace()  # no pod security in it
    for options in (pinned, host):
        there = {**options, "namespace": free, "queue": None, "service_account": None}
        assert examine(cluster.api, request(there), options_from(there)) == ()
    spec = request(pinned).documents[0]["spec"]["template"]["spec"]
    assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert spec["securityContext"]["runAsUser"] == 0
