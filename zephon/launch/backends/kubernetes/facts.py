"""What the Kubernetes objects need to know of an AppDef, read once and checked.

The component (launch/components.py) is written for every scheduler, so its arguments hold TorchX macros. Here they become
``$(VARIABLE)`` references, which the kubelet resolves per pod; everything else is the same text in every pod.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from torchx.specs import AppDef, Role, macros

from zephon.errors import ConfigError
from zephon.launch.backends.kubernetes.names import job_name
from zephon.launch.backends.kubernetes.options import KubernetesOptions

DRAIN_DEFAULT_S = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobFacts:
    """One job's values that the builders share."""

    name: str
    role: Role
    run: str
    attempt: str
    spec: str
    spec_sha256: str
    nodes: int
    nodes_min: int
    nodes_max: int
    drain_s: float
    submission: str

    def argument(self, flag: str) -> str | None:
        """The value after ``flag`` in the agent's arguments."""
        args = self.role.args
        return args[args.index(flag) + 1] if flag in args[:-1] else None


def facts_of(app: AppDef, options: KubernetesOptions, *, submission: str) -> JobFacts:
    """Reads the component's AppDef.

    Args:
        submission: identifies this submission, so that a repeated create recognises its own Job.
    Raises:
        ConfigError: not exactly one role, a run directory that the pods cannot write, or a name that is too long.
    """
    if len(app.roles) != 1:
        raise ConfigError(
            f"the AppDef {app.name!r} has {len(app.roles)} roles",
            follows="an Indexed Job has one kind of pod",
            remedy="use the component launch/components.py:elastic, which has one role",
        )
    spec = app.metadata.get("zephon.spec", "{}")
    elastic: dict[str, Any] = json.loads(spec).get("elastic", {})
    attempt = app.metadata.get("zephon.attempt", "1")
    nodes = app.roles[0].num_replicas
    nodes_min = app.roles[0].min_replicas or int(elastic.get("nodes_min", 1))
    nodes_max = max(nodes, int(elastic.get("nodes_max", nodes)))
    name = job_name(f"{app.name}-{attempt}", nodes_max=nodes_max)
    facts = JobFacts(
        name=name,
        role=_substituted(app.roles[0], name),
        run=app.name,
        attempt=attempt,
        spec=spec,
        spec_sha256=app.metadata.get("zephon.spec-sha256", ""),
        nodes=nodes,
        nodes_min=nodes_min,
        nodes_max=nodes_max,
        drain_s=float(elastic.get("drain_s", DRAIN_DEFAULT_S)),
        submission=submission,
    )
    _check_run_directory(facts, options)
    _check_grace(facts, options)
    return facts


def _substituted(role: Role, name: str) -> Role:
    values = macros.Values(img_root="", app_id=name, replica_id="$(JOB_COMPLETION_INDEX)", rank0_env="ZEPHON_ENDPOINT")
    substituted: Role = values.apply(role)
    substituted.env.pop("TORCHX_INTERNAL_SESSION_ID", None)  # random in every process: two dry runs would differ
    return substituted


def _check_run_directory(facts: JobFacts, options: KubernetesOptions) -> None:
    url = facts.argument("--run")
    if url is None:
        return
    mounts = [volume.mount for volume in options.volumes.values() if not volume.read_only]
    if "://" in url and not url.startswith("file://"):
        return
    path = url.removeprefix("file://")
    if any(path == mount or path.startswith(mount.rstrip("/") + "/") for mount in mounts):
        return
    if options.overlay:  # an overlay may mount anything; a pod that cannot write says so at its start
        return
    raise ConfigError(
        f"the run directory {url!r} is on no volume of the pods",
        follows="every pod has a read-only root file system, and checkpoints would be lost with the pod",
        remedy="set runs= to an object store URL, or to a path under scheduler.options.volumes.NAME.mount with a claim",
    )


def _check_grace(facts: JobFacts, options: KubernetesOptions) -> None:
    if options.grace_s is not None and options.grace_s <= facts.drain_s:
        raise ConfigError(
            f"grace_s={options.grace_s} is not above the drain budget elastic.drain_s={facts.drain_s:g}",
            follows="Kubernetes would kill the workers before they have saved",
            remedy=f"leave grace_s out, or set it to at least {int(facts.drain_s) + 30}",
        )
