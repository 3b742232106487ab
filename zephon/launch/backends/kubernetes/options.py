"""KubernetesOptions: every setting of ``scheduler=kubernetes``, typed and checked before anything is sent.

Secrets are referred to by name and key; no field takes a secret's value. What has no field of its own goes through
``overlay``, which is applied last (see overlay.py).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from zephon.errors import ConfigError
from zephon.launch.backends.kubernetes.names import check_dns_label, check_object_name, quantity
from zephon.spec.base import Spec, free
from zephon.spec.fields import AtLeast, NotNegative, Positive


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecretKey(Spec):
    """Where an environment variable's value lies: a key of a Secret in the job's namespace."""

    secret: str = free()
    key: str = free()
    optional: bool = free(False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Toleration(Spec):
    key: str | None = free(None)
    operator: Literal["Equal", "Exists"] = free("Equal")
    value: str | None = free(None)
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = free(None)
    seconds: NotNegative | None = free(None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Volume(Spec):
    """One mounted volume; exactly one source.

    Args:
        mount: absolute path in the container.
        claim: name of a PersistentVolumeClaim.
        config_map: name of a ConfigMap.
        secret: name of a Secret.
        empty_dir: size limit of a scratch directory, such as ``50Gi``.
        host_path: directory of the node (needs a namespace that admits it).
    """

    mount: str = free()
    claim: str | None = free(None)
    config_map: str | None = free(None)
    secret: str | None = free(None)
    empty_dir: str | None = free(None)
    host_path: str | None = free(None)
    sub_path: str | None = free(None)
    read_only: bool = free(False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KubernetesOptions(Spec):
    """Settings of ``scheduler=kubernetes``.

    Args:
        namespace: where everything is created.
        kubeconfig, context: which cluster; by default KUBECONFIG and its current context, inside a pod the pod's own.
        image: container image, best by digest.
        cpu, memory_mb, gpu: resources of one node, whole numbers; the component puts them into the role.
        gpu_resource: the name that the device plugin gives to GPUs, or to parts of them (``nvidia.com/mig-3g.40gb``).
        network: ``pod``, or ``host`` for the machine's own network (needs a namespace that admits it).
        rdma, rdma_resource: RDMA devices of one node, and the name that their device plugin gives them.
        topology_spread: keep nodes on different machines: ``none``, ``prefer`` or ``require``, which counts every machine that
            the pods may run on: give a node_selector where some machines have no GPU.
        lost_node_s: seconds until pods of an unreachable machine are given up.
        shm_size, tmp_size: sizes of /dev/shm, which counts as the container's memory, and of /tmp.
        workspace: folder of this machine whose code runs in the pods, above the image's own.
        queue: Kueue LocalQueue; ``queue_priority`` is a WorkloadPriorityClass.
        watch: write the causes of ended pods down while nobody asks, by a second container beside the coordinator that has
            the token of ``service_account`` (k8s/components/watch).
        retries_per_node: crashes of one node after which the Job fails; drains, evictions and node losses do not count.
        grace_s: seconds between SIGTERM and SIGKILL; by default the drain budget and 30 s.
        keep_finished_s: how long a finished Job stays readable; None keeps it until it is deleted.
        server_dry_run: let the API server check all objects before the first is created.
        overlay: raw parts merged last into ``job``, ``nodes``, ``pods``, ``config_map``, ``service``, ``coordinator``.
    """

    namespace: str = free("zephon")
    kubeconfig: str | None = free(None)
    context: str | None = free(None)
    image: str | None = free(None)
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = free("IfNotPresent")
    image_pull_secrets: tuple[str, ...] = free(())
    service_account: str | None = free(None)
    cpu: NotNegative | None = free(None)
    memory_mb: NotNegative | None = free(None)
    gpu: NotNegative | None = free(None)
    gpu_resource: str = free("nvidia.com/gpu")
    network: Literal["pod", "host"] = free("pod")
    rdma: NotNegative = free(0)
    rdma_resource: str = free("rdma/hca")
    node_selector: dict[str, str] = free({})
    tolerations: tuple[Toleration, ...] = free(())
    affinity: dict[str, Any] = free({})
    priority_class: str | None = free(None)
    topology_spread: Literal["none", "prefer", "require"] = free("prefer")
    lost_node_s: NotNegative = free(30)
    volumes: dict[str, Volume] = free({})
    env: dict[str, str] = free({})
    env_from_secrets: dict[str, SecretKey] = free({})
    shm_size: str = free("1Gi")
    tmp_size: str = free("10Gi")
    workspace: str | None = free(None)
    queue: str | None = free(None)
    queue_priority: str | None = free(None)
    run_as_user: Positive = free(1000)
    run_as_group: Positive = free(1000)
    retries_per_node: NotNegative = free(20)
    grace_s: Positive | None = free(None)
    keep_finished_s: NotNegative | None = free(86400)
    watch: bool = free(False)
    coordinator_port: Annotated[int, AtLeast(1024)] = free(29400)
    coordinator_cpu: str = free("50m")
    coordinator_memory: str = free("256Mi")
    server_dry_run: bool = free(True)
    request_timeout_s: Annotated[float, AtLeast(0.1)] = free(30.0)
    overlay: dict[str, Any] = free({})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dns_label(self.namespace, setting="namespace")
        for setting in ("service_account", "priority_class", "queue", "queue_priority"):
            if getattr(self, setting) is not None:
                check_object_name(getattr(self, setting), setting=setting)
        for setting in ("shm_size", "tmp_size", "coordinator_cpu", "coordinator_memory"):
            quantity(getattr(self, setting), setting=setting)
        for name, volume in self.volumes.items():
            _check_volume(name, volume)
        for name, reference in self.env_from_secrets.items():
            check_object_name(reference.secret, setting=f"env_from_secrets.{name}.secret")
        if twice := sorted(set(self.env) & set(self.env_from_secrets)):
            raise ConfigError(
                f"{twice[0]} is in env and in env_from_secrets",
                follows="one of the two values would silently win",
                remedy=f"remove {twice[0]} from one of them",
            )
        for name, value in self.env.items():
            _check_plain(name, value)
        if self.watch and self.service_account is None:
            raise ConfigError(
                "watch=true is set without service_account",
                follows="nothing could read why a pod ended",
                remedy="set service_account=zephon-job, and apply k8s/components/watch, which lets that account read pods",
            )
        if self.queue_priority is not None and self.queue is None:
            raise ConfigError(
                f"queue_priority={self.queue_priority!r} is set without queue",
                follows="Kueue does not look at a Job without a queue, so the priority would have no effect",
                remedy="set queue=NAME as well, or use priority_class for the pods' own priority",
            )


_SECRET_NAME = re.compile(r"(^|_)(SECRET|SECRET_ACCESS_KEY|TOKEN|PASSWORD|PASSWD|API_?KEY|PRIVATE_KEY|CREDENTIALS?)$", re.I)
_SECRET_VALUE = re.compile(r"(hf_|ghp_|github_pat_|glpat-|sk-)\w{8,}|\w+://[^/@\s]*:[^/@\s]+@|-----BEGIN .*PRIVATE KEY")


def _check_plain(name: str, value: str) -> None:
    """Refuses a secret as a plain value: everybody who may read the Job, the run directory or a log would have it."""
    path = value.startswith("/")  # a file that holds the secret is none
    if not value or not (_SECRET_VALUE.match(value) or (_SECRET_NAME.search(name) and not path)):
        return
    raise ConfigError(
        f"scheduler.options.env.{name} looks like a secret, given as a value",
        follows="it would stand in the Job, in the run directory and in what plan prints",
        remedy=f"kubectl create secret generic NAME --from-literal={name.lower().replace('_', '-')}=..., and refer to it: "
        f"scheduler.options.env_from_secrets.{name}={{secret: NAME, key: {name.lower().replace('_', '-')}}}",
    )


def _check_volume(name: str, volume: Volume) -> None:
    setting = f"volumes.{name}"
    check_dns_label(name, setting=setting)
    if name in ("spec", "attempt-secret", "shm", "tmp", "code", "workspace", "watcher-token"):
        raise ConfigError(
            f"{setting} uses a name that every pod already has",
            follows="two volumes of one name are refused by the API server",
            remedy="choose another name",
        )
    sources = ("claim", "config_map", "secret", "empty_dir", "host_path")
    given = [source for source in sources if getattr(volume, source) is not None]
    if len(given) != 1:
        raise ConfigError(
            f"{setting} has {len(given)} sources ({', '.join(given) or 'none'})",
            follows="a volume comes from exactly one place",
            remedy=f"give exactly one of {', '.join(sources)}",
        )
    if not volume.mount.startswith("/"):
        raise ConfigError(
            f"{setting}.mount={volume.mount!r} is not an absolute path",
            follows="the API server would refuse the pod",
            remedy="begin the path with /",
        )
    if volume.empty_dir is not None:
        quantity(volume.empty_dir, setting=f"{setting}.empty_dir")
    for source in ("claim", "config_map", "secret"):
        if getattr(volume, source) is not None:
            check_object_name(getattr(volume, source), setting=f"{setting}.{source}")


def options_from(cfg: Mapping[str, Any]) -> KubernetesOptions:
    """Typed options from plain containers.

    Raises:
        ConfigError: an unknown name or a value of another type, with the dotted name.
    """
    return KubernetesOptions.from_dict(cfg, at="scheduler.options")
