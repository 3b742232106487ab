"""A job is a value: RunSpec -> TorchX ``AppDef``, a pure function.

One role, ``node``; every replica runs one elastic agent::

    python -m zephon.agent --run URL --attempt 1 --procs 1

The scheduler tells each replica who it is and where the others meet, through ``ZEPHON_NODE`` (its identity) and
``ZEPHON_ENDPOINT`` (host:port of the coordinator), because both are known only when the job is placed. The resolved spec
travels in the app's metadata, so that a scheduler can hand it to nodes that do not see the run directory yet.
"""

from __future__ import annotations

from typing import Any

from torchx.specs import AppDef, Resource, RetryPolicy, Role, macros

from zephon.errors import ConfigError
from zephon.spec.experiment import RunSpec

ROLE = "node"
DEFAULT_IMAGE = "zephon:latest"
DEFAULT_WORKER = "zephon.train"


def app_def(
    spec: RunSpec,
    *,
    run: str,
    attempt: int,
    image: str | None = None,
    worker: str = DEFAULT_WORKER,
    endpoint: str | None = None,
) -> AppDef:
    """The job of one attempt.

    Args:
        spec: the resolved experiment.
        run: URL of the run directory, as every node sees it.
        attempt: number of this start, from 1.
        image: container image; ``scheduler.options.image`` or ``zephon:latest`` when not given. Unused on this machine.
        worker: module each worker runs with ``--run URL --attempt N``.
        endpoint: ``host:port`` of the coordinator when it is known beforehand.

    Raises:
        ConfigError: ``nodes`` lies outside ``elastic.nodes_min..nodes_max``.
    """
    spec.check_nodes()
    elastic = spec.elastic
    args = ["-m", "zephon.agent", "--run", run, "--attempt", str(attempt), "--procs", str(elastic.procs_per_node)]
    if endpoint:
        args += ["--endpoint", endpoint]
    if worker != DEFAULT_WORKER:
        args += ["--worker", worker]
    node = Role(
        name=ROLE,
        image=image or str(spec.scheduler.options.get("image", DEFAULT_IMAGE)),
        entrypoint="python",
        args=args,
        env={"ZEPHON_NODE": f"node-{macros.replica_id}", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PYTHONUNBUFFERED": "1"},
        num_replicas=spec.nodes,
        min_replicas=elastic.nodes_min,
        retry_policy=RetryPolicy.REPLICA,
        resource=resource_of(spec),
    )
    return AppDef(name=spec.name, roles=[node], metadata=metadata_of(spec, run=run, attempt=attempt))


def metadata_of(spec: RunSpec, *, run: str, attempt: int) -> dict[str, str]:
    """What a scheduler keeps beside the job to find its run again."""
    return {
        "zephon.run": run,
        "zephon.attempt": str(attempt),
        "zephon.spec-sha256": spec.sha256(),
        "zephon.spec": spec.canonical_json(),
    }


def resource_of(spec: RunSpec) -> Resource:
    """CPU cores, GPUs and MiB of one node: ``scheduler.options`` or one core and 2 GiB per worker, a GPU each on cuda."""
    procs, options = spec.elastic.procs_per_node, spec.scheduler.options
    gpus = procs if spec.trainer.device == "cuda" else 0
    return Resource(
        cpu=_whole(options, "cpu", procs),
        gpu=_whole(options, "gpu", gpus),
        memMB=_whole(options, "memory_mb", 2048 * procs),
    )


def _whole(options: dict[str, Any], key: str, default: int) -> int:
    value = options.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(
            f"scheduler.options.{key}={value!r} is not a whole number of at least 0",
            follows="the node's resources could not be requested",
            remedy=f"give scheduler.options.{key} as a whole number",
        )
    return value
