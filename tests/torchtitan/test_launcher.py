"""``trainer=torchtitan`` under our launcher and agent: `make test-torchtitan`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

pytest.importorskip("torchtitan", reason="TorchTitan is not installed here: make test-torchtitan")

from tests.torchtitan.test_trainer import folder  # noqa: F401 - the texts and the tokenizer
from zephon.run.checkpoints import complete_steps
from zephon.run.directory import RunDir
from zephon.run.ledger import compare, read_ledger

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STEPS = 8


def zephon(texts: Path, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "zephon.launch", verb, *words, f"runs={texts / 'runs'}"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=800, env=environment(), check=False)


def environment() -> dict[str, str]:
    """Agents install the shims before anything imports TorchTitan."""
    site = Path(__file__).parent / "site"
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.getcwd()])}


def experiment(texts: Path, **fields: object) -> str:
    datasets = {name: {"path": str(texts / name), "weight": 0.5} for name in ("prose", "code")}
    spec = {
        "defaults": [{"override /trainer": "torchtitan"}],
        "global_batch_size": 8,
        "tokenizer": {"id": str(texts / "assets")},
        "data": {"datasets": datasets, "chunk_bytes": 4096},
        "pipeline": {"context_length": 64, "shuffle_buffer": 32},
        "lanes": {"count": 4},
        "trainer": {"steps": STEPS, "microbatch_size": 2, "process_group_timeout_s": 120},
        "torchtitan": {"module": "tests.torchtitan.launched", "config": "small"},
        "checkpoint": {"every": 3},
        **fields,
    }
    file = texts / "experiment.yaml"
    file.write_text(yaml.safe_dump(spec))
    return str(file)


def test_a_run_is_stopped_resumed_at_another_size_and_done_with_the_ledger_of_the_unbroken_one(folder: Path) -> None:  # noqa: F811
    conf = f"conf={experiment(folder)}"
    done = zephon(folder, "run", conf, "name=whole", "nodes=1")
    assert done.returncode == 0, done.stdout + done.stderr
    argv = [sys.executable, "-m", "zephon.launch", "run", conf, "name=cut", "nodes=2", f"runs={folder / 'runs'}"]
    run = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment())
    ledger = folder / "runs" / "cut" / "ledger.jsonl"
    deadline = time.monotonic() + 300
    while not (ledger.exists() and ledger.read_text().count("\n") >= 2):
        assert time.monotonic() < deadline, run.communicate()[0]
        time.sleep(0.2)
    run.send_signal(signal.SIGINT)
    said = run.communicate(timeout=300)[0]
    assert run.returncode == 143, said
    resumed = zephon(folder, "resume", "cut", "nodes=1")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    both = [folder / "runs" / name for name in ("whole", "cut")]
    found = compare(*map(str, both))
    assert (found.steps, found.first) == (STEPS, None), found.sentence
    assert complete_steps(RunDir(str(both[1])))[-1] == STEPS
    sizes = {entry.rest["world_size"] for entry in read_ledger(str(ledger))}
    assert sizes == {1, 2}


def test_what_torchtitan_refuses_is_said_by_the_run(folder: Path) -> None:  # noqa: F811
    conf = experiment(folder, torchtitan={"module": "tests.torchtitan.launched", "config": "nothing"})
    done = zephon(folder, "run", f"conf={conf}", "name=refused")
    assert done.returncode == 65
    assert "nothing" in done.stdout + done.stderr
    assert json.loads((folder / "runs" / "refused" / "contract.json").read_text())
