"""A small AppDef as the component builds it, options, and the golden-file comparison."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from torchx.specs import AppDef, Resource, Role, macros

from zephon.launch.backends.kubernetes.options import KubernetesOptions, options_from

GOLDEN = Path(__file__).with_name("golden")
IMAGE = "registry.example/zephon@sha256:" + "0" * 64
RUNS_VOLUME = {"runs": {"mount": "/runs", "claim": "zephon-runs"}}


def sample_app(
    *, name: str = "exp1", nodes: int = 4, attempt: int = 1, run: str | None = None, elastic: dict[str, Any] | None = None
) -> AppDef:
    """What the component returns for a run on four nodes, elastic between one and eight."""
    limits = {"nodes_min": 1, "nodes_max": 8, "drain_s": 60.0, **(elastic or {})}
    run = run or f"/runs/{name}"
    role = Role(
        name="node",
        image=IMAGE,
        entrypoint="python",
        args=["-m", "zephon.agent", "--run", run, "--attempt", str(attempt), "--procs", "1"],
        env={"ZEPHON_NODE": f"node-{macros.replica_id}", "PYTHONUNBUFFERED": "1"},
        num_replicas=nodes,
        min_replicas=int(limits["nodes_min"]),
        resource=Resource(cpu=1, gpu=0, memMB=512),
    )
    metadata = {
        "zephon.run": run,
        "zephon.attempt": str(attempt),
        "zephon.spec-sha256": "ab" * 32,
        "zephon.spec": json.dumps({"name": name, "elastic": limits}, sort_keys=True),
    }
    return AppDef(name=name, roles=[role], metadata=metadata)


def sample_options(**given: Any) -> KubernetesOptions:
    return options_from({"volumes": RUNS_VOLUME, **given})


def assert_golden(name: str, text: str) -> None:
    """Compares with a file that a person reads; ``ZEPHON_WRITE_GOLDEN=1`` writes it anew."""
    path = GOLDEN / name
    if os.environ.get("ZEPHON_WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
