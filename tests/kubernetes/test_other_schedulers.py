"""The component through TorchX's own command line and scheduler: whole, known documents without a cluster."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kubernetes.conftest import ROOT
from tests.kubernetes.samples import assert_golden

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


@pytest.mark.parametrize("coordinator", [False, True])
def test_torchx_own_scheduler_takes_the_component(tmp_path: Path, coordinator: bool) -> None:
    """TorchX's Kubernetes scheduler makes a Volcano job; with a coordinator's role the nodes have somebody to meet."""
    (tmp_path / "spec.json").write_text(json.dumps(SPEC))
    command = [
        *(sys.executable, "-m", "torchx.cli.main", "run", "-s", "kubernetes", "--dryrun", "--workspace="),
        *("-cfg", "queue=default,validate_spec=False", f"{ROOT / 'launch' / 'components.py'}:elastic"),
        *("--spec", str(tmp_path / "spec.json"), "--run", "s3://bucket/exp1"),
        *(("--coordinator", "True") if coordinator else ()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    request = settled(done.stdout[done.stdout.index("=== SCHEDULER REQUEST ===") :])
    assert_golden("volcano.yaml" if coordinator else "torchx-cli.yaml", request)
    names = set(re.findall(r"(?m)^ +(?:- )?name: (\w+-[01])$", request))
    assert names == {"node-0", "node-1", *(["coordinator-0"] if coordinator else [])}
    assert ("value: exp1-SUFFIX-coordinator-0-0.exp1-SUFFIX:29400" in request) is coordinator
