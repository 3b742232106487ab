"""TorchX's own scheduler and command line: both doors give whole, known documents without a cluster."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import yaml
from torchx.runner import Runner

from tests.kubernetes.conftest import ROOT
from tests.kubernetes.samples import assert_golden, sample_app
from zephon.launch.backends.volcano import create_scheduler

SPEC = {
    "name": "exp1",
    "nodes": 2,
    "global_batch_size": 8,
    "data": {"datasets": {"docs": {"path": "stdlib://docs"}}},
    "pipeline": {"context_length": 32},
    "trainer": {"steps": 3},
    "scheduler": {"options": {"image": "repo/zephon:1"}},
}


def settled(text: str) -> str:
    """The document without what TorchX draws at random: the suffix of the id and the session."""
    text = re.sub(r"exp1-[a-z0-9]{8,}", "exp1-SUFFIX", text)
    return re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "SESSION", text)


def test_a_volcano_job_has_a_coordinator_and_restarts_single_pods() -> None:
    with Runner("test", {"volcano": create_scheduler}) as runner:
        text = str(runner.dryrun(sample_app(nodes=2), "volcano", {"queue": "team"}).request)
    assert_golden("volcano.yaml", settled(text))
    tasks = yaml.safe_load(text)["spec"]["tasks"]
    job = yaml.safe_load(text)["metadata"]["name"]
    assert [task["name"] for task in tasks] == ["node-0", "node-1", "coordinator-0"]
    env = {item["name"]: item["value"] for item in tasks[0]["template"]["spec"]["containers"][0]["env"]}
    assert env["ZEPHON_ENDPOINT"] == f"{job}-coordinator-0-0.{job}:29400"
    assert {"event": "PodEvicted", "action": "RestartTask"} in tasks[0]["policies"]


def test_torchx_own_command_line_renders_the_component(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(json.dumps(SPEC))
    command = [
        *(sys.executable, "-m", "torchx.cli.main", "run", "-s", "kubernetes", "--dryrun", "--workspace="),
        *("-cfg", "queue=default,validate_spec=False", f"{ROOT / 'launch' / 'components.py'}:elastic"),
        *("--spec", str(tmp_path / "spec.json"), "--run", "s3://bucket/exp1"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    request = done.stdout[done.stdout.index("=== SCHEDULER REQUEST ===") :]
    assert_golden("torchx-cli.yaml", settled(request))
