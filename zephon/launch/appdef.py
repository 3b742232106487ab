"""A job for TorchX: Job -> ``AppDef``, a pure function, and back.

One role, ``node``; every replica runs one elastic agent::

    python -m zephon.agent --run URL --attempt 1 --procs 1

The scheduler tells each replica who it is and where the others meet, through ``ZEPHON_NODE`` (its identity) and
``ZEPHON_ENDPOINT`` (host:port of the coordinator), because both are known only when the job is placed. The job itself
travels in the app's metadata as one JSON value: our schedulers read that, and never the arguments made from it.
"""

from __future__ import annotations

from torchx.specs import AppDef, Resource, RetryPolicy, Role, macros

from zephon.errors import ConfigError
from zephon.launch.job import AGENT_MODULE, COORDINATOR_MODULE, Job
from zephon.spec.experiment import RunSpec

ROLE = "node"
DEFAULT_IMAGE = "zephon:latest"
JOB = "zephon.job"
# TorchX's own Kubernetes scheduler gives every pod the name <app id>-<role>-0-<replica> below a Service called like the app.
COORDINATOR_PORT = 29400
COORDINATOR_ENDPOINT = f"{macros.app_id}-coordinator-0-0.{macros.app_id}:{COORDINATOR_PORT}"


def app_def(job: Job) -> AppDef:
    """The AppDef of a job."""
    elastic = job.spec.elastic
    node = Role(
        name=ROLE,
        image=_image(job),
        entrypoint="python",
        args=["-m", AGENT_MODULE, *job.agent()],
        env={"ZEPHON_NODE": f"node-{macros.replica_id}", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PYTHONUNBUFFERED": "1"},
        num_replicas=job.spec.nodes,
        min_replicas=elastic.nodes_min,
        retry_policy=RetryPolicy.REPLICA,
        resource=resource_of(job.spec),
    )
    return AppDef(name=job.spec.name, roles=[node], metadata={JOB: job.to_json()})


def with_coordinator(app: AppDef) -> AppDef:
    """The app with a second role, ``coordinator``, for a scheduler that starts none: TorchX's own on a Volcano cluster."""
    job, (node,) = job_of(app), app.roles
    node.env["ZEPHON_ENDPOINT"] = COORDINATOR_ENDPOINT
    coordinator = Role(
        name="coordinator",
        image=node.image,
        entrypoint=node.entrypoint,
        args=["-m", COORDINATOR_MODULE, *job.coordinator(port=COORDINATOR_PORT)],
        env={"PYTHONUNBUFFERED": "1"},
        num_replicas=1,
        min_replicas=1,
        retry_policy=RetryPolicy.REPLICA,
        resource=Resource(cpu=1, gpu=0, memMB=1280),
    )
    return AppDef(name=app.name, roles=[node, coordinator], metadata=app.metadata)


def job_of(app: AppDef) -> Job:
    """The job from which the app was made.

    Raises:
        ConfigError: it was made in another way.
    """
    if JOB not in app.metadata:
        raise ConfigError(
            f"the AppDef {app.name!r} holds no job ({JOB} in its metadata)",
            follows="it would belong to no run",
            remedy="use the component launch/components.py:elastic",
        )
    return Job.from_json(app.metadata[JOB])


def resource_of(spec: RunSpec) -> Resource:
    """CPU cores, GPUs and MiB of one node: ``scheduler.options`` or one core and 2 GiB per worker, a GPU each on cuda."""
    procs = spec.elastic.procs_per_node
    gpus = procs if spec.trainer.device == "cuda" else 0
    return Resource(
        cpu=_whole(spec, "cpu", procs),
        gpu=_whole(spec, "gpu", gpus),
        memMB=_whole(spec, "memory_mb", 2048 * procs),
    )


def _image(job: Job) -> str:
    return job.image or str(job.spec.scheduler.options.get("image") or DEFAULT_IMAGE)


def _whole(spec: RunSpec, key: str, default: int) -> int:
    value = spec.scheduler.options.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(
            f"scheduler.options.{key}={value!r} is not a whole number of at least 0",
            follows="the node's resources could not be requested",
            remedy=f"give scheduler.options.{key} as a whole number",
        )
    return value
