"""What the Kubernetes objects need to know of an AppDef, put together once and checked.

The AppDef is written for every scheduler, so its environment holds TorchX macros. Here they become ``$(VARIABLE)``
references, which the kubelet resolves per pod; everything else is the same text in every pod.
"""

from __future__ import annotations

import dataclasses

from torchx.specs import AppDef, Role, macros

from zephon.errors import ConfigError
from zephon.launch.appdef import job_of
from zephon.launch.backends.kubernetes.names import attempt_name
from zephon.launch.backends.kubernetes.options import KubernetesOptions
from zephon.launch.job import Job


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobFacts:
    """What the builders share: the job, its role with the macros substituted, and its name in the cluster."""

    name: str
    job: Job
    role: Role
    submission: str


def facts_of(app: AppDef, options: KubernetesOptions, *, submission: str) -> JobFacts:
    """The facts of a job's AppDef.

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
    job = job_of(app)
    name = attempt_name(app.name, job.attempt, nodes_max=job.spec.elastic.nodes_max)
    facts = JobFacts(name=name, job=job, role=_substituted(app.roles[0], name), submission=submission)
    _check_run_directory(job.run, options)
    _check_grace(job.spec.elastic.drain_s, options)
    _check_gpus(job, facts.role.resource.gpu)
    return facts


def _substituted(role: Role, name: str) -> Role:
    values = macros.Values(img_root="", app_id=name, replica_id="$(JOB_COMPLETION_INDEX)", rank0_env="ZEPHON_ENDPOINT")
    substituted: Role = values.apply(role)
    substituted.env.pop("TORCHX_INTERNAL_SESSION_ID", None)  # random in every process: two dry runs would differ
    return substituted


def _check_run_directory(url: str, options: KubernetesOptions) -> None:
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


def _check_grace(drain_s: float, options: KubernetesOptions) -> None:
    if options.grace_s is not None and options.grace_s <= drain_s:
        raise ConfigError(
            f"grace_s={options.grace_s} is not above the drain budget elastic.drain_s={drain_s:g}",
            follows="Kubernetes would kill the workers before they have saved",
            remedy=f"leave grace_s out, or set it to at least {int(drain_s) + 30}",
        )


def _check_gpus(job: Job, gpus: int) -> None:
    """Each process trains on one GPU: another number of them would idle, or be missing."""
    procs, device = job.spec.elastic.procs_per_node, job.spec.trainer.device
    if gpus and device == "cpu":
        raise ConfigError(
            f"scheduler.options.gpu={gpus} and trainer.device=cpu",
            follows="the GPUs would be reserved and never used",
            remedy="set trainer.device=cuda, or leave scheduler.options.gpu out",
        )
    if gpus == procs or (gpus == 0 and device != "cuda"):
        return
    idle, none = f"{gpus - procs} GPUs of every node would idle", f"{procs - gpus} processes of every node would have none"
    raise ConfigError(
        f"scheduler.options.gpu={gpus} and elastic.procs_per_node={procs}: each process trains on one GPU",
        follows=idle if gpus > procs else none,
        remedy=f"set elastic.procs_per_node={gpus}, or scheduler.options.gpu={procs}"
        if gpus
        else f"set scheduler.options.gpu={procs}, or leave it out",
    )
