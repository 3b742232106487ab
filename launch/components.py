"""The TorchX component: an elastic Zephon job from a resolved spec.

    torchx run -s kubernetes launch/components.py:elastic --spec runs/exp1/spec.json --run s3://bucket/runs/exp1

``zephon run`` builds the same value through ``zephon.launch.appdef``; this file is for TorchX's own command line.
"""

# No `from __future__ import annotations` here: TorchX reads the parameters' types as objects.
import torchx.specs as specs


def elastic(
    spec: str,
    run: str,
    attempt: int = 1,
    image: str = "",
    worker: str = "zephon.train",
    endpoint: str = "",
    coordinator: bool = False,
) -> specs.AppDef:
    """One elastic agent per node, each with its workers.

    Args:
        spec: file with the resolved RunSpec as JSON, or the JSON text itself
        run: URL of the run directory
        attempt: number of this start
        image: container image
        worker: module that each worker runs
        endpoint: host:port of the coordinator, if it is known
        coordinator: add a role for it, for TorchX's own Kubernetes scheduler, which starts none
    """
    import json
    from pathlib import Path

    from zephon.launch.appdef import app_def, with_coordinator
    from zephon.launch.job import Job
    from zephon.spec.experiment import RunSpec

    text = spec if spec.lstrip().startswith("{") else Path(spec).read_text(encoding="utf-8")
    resolved = RunSpec.from_dict(json.loads(text))
    job = Job(spec=resolved, run=run, attempt=attempt, image=image or None, worker=worker, endpoint=endpoint or None)
    return with_coordinator(app_def(job)) if coordinator else app_def(job)
