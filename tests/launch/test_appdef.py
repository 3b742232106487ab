"""RunSpec -> AppDef: a value, the same every time, and the component file that gives it to TorchX's own command line."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from torchx.specs import AppDef

from tests.agent.toy import toy_spec
from zephon.errors import ConfigError
from zephon.launch.appdef import app_def, job_of
from zephon.launch.backends.registry import backend
from zephon.launch.config.packaged import package_data
from zephon.launch.job import Job
from zephon.spec.experiment import RunSpec


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    return toy_spec(tmp_path, nodes=4)


def component() -> Any:
    found = importlib.util.spec_from_file_location("components", package_data("launch") / "components.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_one_role_of_agents_with_the_range_and_the_resolved_spec(spec: RunSpec) -> None:
    job = Job(spec=spec, run="s3://b/runs/toy", attempt=3)
    app = app_def(job)
    (role,) = app.roles
    assert (role.name, role.num_replicas, role.min_replicas, role.entrypoint) == ("node", 4, 1, "python")
    assert role.args[:6] == ["-m", "zephon.agent", "--run", "s3://b/runs/toy", "--attempt", "3"]
    assert role.args[6:] == ["--procs", "1"]
    assert job_of(app) == job


def test_the_same_spec_gives_the_same_app(spec: RunSpec) -> None:
    def made() -> AppDef:
        return app_def(Job(spec=spec, run="r", attempt=1))

    assert made() == made()


def test_resources_follow_processes_and_device_and_can_be_set(spec: RunSpec) -> None:
    two = dataclasses.replace(spec, elastic=dataclasses.replace(spec.elastic, procs_per_node=2))
    cuda = dataclasses.replace(two, trainer=dataclasses.replace(spec.trainer, device="cuda"))
    own = dataclasses.replace(
        spec, scheduler=dataclasses.replace(spec.scheduler, options={"cpu": 7, "gpu": 3, "memory_mb": 99})
    )
    resources = [app_def(Job(spec=each, run="r", attempt=1)).roles[0].resource for each in (two, cuda, own)]
    assert [(r.cpu, r.gpu, r.memMB) for r in resources] == [(2, 0, 4096), (2, 2, 4096), (7, 3, 99)]


@pytest.mark.parametrize("value", [-1, "4", 1.5, True])
def test_a_resource_that_is_no_count_is_refused(spec: RunSpec, value: Any) -> None:
    bad = dataclasses.replace(spec, scheduler=dataclasses.replace(spec.scheduler, options={"cpu": value}))
    with pytest.raises(ConfigError, match=r"scheduler\.options\.cpu"):
        app_def(Job(spec=bad, run="r", attempt=1))


def test_nodes_outside_the_range_are_refused(spec: RunSpec) -> None:
    with pytest.raises(ConfigError, match=r"nodes=9 .* 1\.\.8"):
        Job(spec=dataclasses.replace(spec, nodes=9), run="r", attempt=1)


def test_the_component_file_gives_the_same_app_from_a_file_or_from_text(spec: RunSpec, tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text(spec.canonical_json())
    elastic = component().elastic
    wanted = app_def(Job(spec=spec, run="r", attempt=2))
    assert elastic(spec=str(path), run="r", attempt=2) == wanted
    assert elastic(spec=spec.canonical_json(), run="r", attempt=2) == wanted


def test_torchx_itself_accepts_the_component_file() -> None:
    from torchx.specs.file_linter import validate

    path = package_data("launch") / "components.py"
    assert validate(str(path), "elastic", None) == []


def test_an_unknown_option_of_the_local_scheduler_is_refused_with_the_nearest(spec: RunSpec) -> None:
    bad = dataclasses.replace(spec, scheduler=dataclasses.replace(spec.scheduler, options={"gpu_ids": "0"}))
    with pytest.raises(ConfigError, match=r"did you mean 'gpus'|known: cwd, gpus"):
        backend("local").request(Job(spec=bad, run="r", attempt=1))


@pytest.mark.parametrize("changes", [{}, {"worker": "mine", "image": "repo/i:1", "endpoint": "host:1"}])
def test_a_job_survives_the_app_and_every_view_is_made_from_it(spec: RunSpec, changes: dict[str, Any]) -> None:
    job = Job(spec=spec, run="r", attempt=2, **changes)
    assert job_of(app_def(job)) == job == Job.from_json(job.to_json())
    assert job.agent()[:6] == ["--run", "r", "--attempt", "2", "--procs", "1"]
    assert ("--worker" in job.agent()) == ("--endpoint" in job.agent()) == bool(changes)
    assert job.coordinator(port=7)[4:] == ["--nodes", "4", "--linger", "--host", "0.0.0.0", "--port", "7"]


def test_an_app_that_was_made_in_another_way_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"use the component launch/components\.py:elastic"):
        job_of(AppDef(name="x"))
