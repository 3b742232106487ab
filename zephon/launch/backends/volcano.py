"""Scheduler ``volcano``: TorchX's own Kubernetes scheduler, which makes a Volcano job, with its traps worked around.

What it cannot do: be rescaled in place beyond the submitted size, run without Volcano, suspend. What is added here:

- a role ``coordinator``, so that the agents have somebody to meet, and its name in ``ZEPHON_ENDPOINT``;
- a policy per task: only the pod that was lost or crashed starts again, where TorchX's job would lose the whole run;
  exit statuses 65 and 70 abort the job, because trying again is of no use;
- no dry run against a cluster (``validate_spec``): a plan works without one.

Manifests only: nothing here is tried on a Volcano cluster by the tests.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torchx.schedulers import kubernetes_scheduler as stock
from torchx.specs import AppDef, AppDryRunInfo

from zephon.exits import FINAL
from zephon.launch.appdef import with_coordinator

_COUNT_RETRIES = 1000


class VolcanoScheduler(stock.KubernetesScheduler):  # type: ignore[misc]
    """TorchX's scheduler for jobs of our component."""

    def _submit_dryrun(self, app: AppDef, cfg: Any) -> AppDryRunInfo[Any, Any]:
        cfg = copy.copy(cfg)
        cfg.validate_spec = False
        info = super()._submit_dryrun(with_coordinator(copy.deepcopy(app)), cfg)
        spec: dict[str, Any] = info.request.resource["spec"]
        for task in spec["tasks"]:
            task["policies"] = _policies()
            task["maxRetry"] = _COUNT_RETRIES
        spec["maxRetry"] = _COUNT_RETRIES
        return info


def _policies() -> list[Mapping[str, Any]]:
    aborts = [{"exitCode": int(status), "action": "AbortJob"} for status in FINAL]
    restarts = [{"event": event, "action": "RestartTask"} for event in ("PodEvicted", "PodFailed")]
    return [*aborts, *restarts]


def create_scheduler(session_name: str, **kwargs: Any) -> VolcanoScheduler:
    """TorchX's factory."""
    return VolcanoScheduler(session_name, **kwargs)
