"""A small AppDef as the component builds it, options, and the golden-file comparison."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchx.specs import AppDef

from zephon.launch.appdef import app_def
from zephon.launch.backends.kubernetes.options import KubernetesOptions, options_from
from zephon.launch.job import Job
from zephon.spec.experiment import RunSpec

GOLDEN = Path(__file__).with_name("golden")
IMAGE = "registry.example/zephon@sha256:" + "0" * 64
RUNS_VOLUME = {"runs": {"mount": "/runs", "claim": "zephon-runs"}}


def sample_spec(*, name: str = "exp1", nodes: int = 4, elastic: Mapping[str, Any] | None = None) -> RunSpec:
    """A run on four nodes, elastic between one and eight."""
    return RunSpec.from_dict(
        {
            "name": name,
            "nodes": nodes,
            "global_batch_size": 16,
            "data": {"datasets": {"docs": {"path": "stdlib://docs"}}},
            "pipeline": {"context_length": 32},
            "trainer": {"steps": 9},
            "elastic": {"nodes_max": 8, **(elastic or {})},
            "scheduler": {"name": "kubernetes", "options": {"image": IMAGE, "memory_mb": 512}},
        }
    )


def sample_app(
    *, name: str = "exp1", nodes: int = 4, attempt: int = 1, run: str | None = None, elastic: Mapping[str, Any] | None = None
) -> AppDef:
    """What the component returns for that run."""
    spec = sample_spec(name=name, nodes=nodes, elastic=elastic)
    return app_def(Job(spec=spec, run=run or f"/runs/{name}", attempt=attempt))


def sample_options(**given: Any) -> KubernetesOptions:
    return options_from({"volumes": RUNS_VOLUME, **given})


def assert_golden(name: str, text: str) -> None:
    """Compares with a file that a person reads; ``ZEPHON_WRITE_GOLDEN=1`` writes it anew."""
    path = GOLDEN / name
    if os.environ.get("ZEPHON_WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
