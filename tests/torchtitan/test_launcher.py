"""``trainer=torchtitan`` under our launcher and agent: `make test-torchtitan`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

pytest.importorskip("torchtitan", reason="TorchTitan is not installed here: make test-torchtitan")

from zephon.run.checkpoints import complete_steps, read_meta
from zephon.run.directory import RunDir
from zephon.run.ledger import compare, read_ledger

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STEPS = 8
SITE = Path(__file__).parent / "site"


def zephon(runs: str | Path, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "zephon.launch", verb, *words, f"runs={runs}"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=800, env=environment(), check=False)


def environment() -> dict[str, str]:
    """Agents install the shims before anything imports TorchTitan."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(SITE), os.getcwd()])}


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


def test_a_run_is_stopped_resumed_at_another_size_and_done_with_the_ledger_of_the_unbroken_one(folder: Path) -> None:
    """The unbroken run is trained by TorchTitan, and once more by our own trainer."""
    runs, conf = folder / "runs", f"conf={experiment(folder)}"
    done = zephon(runs, "run", conf, "name=whole", "nodes=1")
    assert done.returncode == 0, done.stdout + done.stderr
    argv = [sys.executable, "-m", "zephon.launch", "run", conf, "name=cut", "nodes=2", f"runs={runs}"]
    run = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment())
    ledger = runs / "cut" / "ledger.jsonl"
    deadline = time.monotonic() + 300
    while not (ledger.exists() and ledger.read_text().count("\n") >= 2):
        assert time.monotonic() < deadline, run.communicate()[0]
        time.sleep(0.2)
    run.send_signal(signal.SIGINT)
    said = run.communicate(timeout=300)[0]
    assert run.returncode == 143, said
    resumed = zephon(runs, "resume", "cut", "nodes=1")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    cut = RunDir(str(runs / "cut"))
    assert complete_steps(cut)[-1] == STEPS
    entries = list(read_ledger(str(ledger)))
    assert {entry.rest["world_size"] for entry in entries} == {1, 2}
    assert read_meta(cut, STEPS).tokens == sum(sum(entry.rest["tokens"].values()) for entry in entries), "not all since step 0"

    ours = zephon(runs, "run", f"conf={experiment(folder, defaults=[], torchtitan={})}", "name=ours", "nodes=1")
    assert ours.returncode == 0, ours.stdout + ours.stderr
    for other in ("whole", "ours"):
        found = compare(str(runs / other), str(runs / "cut"))
        assert (found.steps, found.first) == (STEPS, None), found.sentence
    verified = zephon(runs, "verify", "ours", "cut")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_a_run_in_an_object_store_is_resumed_at_another_size(folder: Path, objects: str) -> None:
    runs, conf, name = f"{objects}/runs", f"conf={experiment(folder)}", f"far-{os.getpid()}"
    begun = zephon(runs, "run", conf, f"name={name}", "nodes=2", f"trainer.steps={STEPS // 2}")
    assert begun.returncode == 0, begun.stdout + begun.stderr
    resumed = zephon(runs, "run", conf, f"name={name}", "nodes=1", "allow=[trainer.steps]")
    assert resumed.returncode == 0, begun.stdout + begun.stderr + resumed.stdout + resumed.stderr
    far = RunDir(f"{runs}/{name}")
    assert complete_steps(far)[-1] == STEPS
    far.fs.get(far.path("ledger.jsonl"), str(folder / "far.jsonl"))
    entries = list(read_ledger(str(folder / "far.jsonl")))
    assert [entry.step for entry in entries] == list(range(STEPS))
    assert [entry.rest["world_size"] for entry in entries] == [2] * (STEPS // 2) + [1] * (STEPS - STEPS // 2)
    assert read_meta(far, STEPS).tokens == sum(sum(entry.rest["tokens"].values()) for entry in entries)


@pytest.mark.parametrize(
    ("torchtitan", "says"),
    [({"config": "nothing"}, "nothing"), ({"overrides": ["--checkpoint.async_mode", "async"]}, "async_mode async")],
)
def test_what_torchtitan_refuses_is_said_by_the_run(folder: Path, torchtitan: dict[str, object], says: str) -> None:
    conf = experiment(folder, torchtitan={"module": "tests.torchtitan.launched", "config": "small", **torchtitan})
    done = zephon(folder / "runs", "run", f"conf={conf}", "name=refused")
    assert done.returncode == 65
    assert says in done.stdout + done.stderr
    assert json.loads((folder / "runs" / "refused" / "contract.json").read_text())
    shutil.rmtree(folder / "runs" / "refused")
