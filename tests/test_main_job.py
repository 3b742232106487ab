"""The main job through the front door: commands as a user types them, real agents, real gloo, real text.

One run of three legs at 4, 2 and 1 nodes, each leg with other performance settings, beside one uninterrupted run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zephon.run.ledger import compare, read_ledger

pytestmark = pytest.mark.slow

STEPS = 200
SETTINGS = [
    "conf=bytes",
    f"trainer.steps={STEPS}",
    "checkpoint.every=60",
    "pipeline.context_length=64",
    "trainer.tensorboard=false",
    "data.chunk_bytes=4096",
]


def zephon(*arguments: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zephon.launch", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment, check=False)


def steps_done(ledger: Path) -> int:
    return max((entry.step + 1 for entry in read_ledger(str(ledger))), default=0) if ledger.exists() else 0


def leg(runs: Path, arguments: list[str], stop_at: int | None) -> None:
    """One leg in the foreground of another process, stopped from outside at a step."""
    process = subprocess.Popen(
        [sys.executable, "-m", "zephon.launch", *arguments, f"runs={runs}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        deadline = time.monotonic() + 200
        while stop_at is not None and process.poll() is None and steps_done(runs / "legs" / "ledger.jsonl") < stop_at:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        if stop_at is not None:
            assert zephon("stop", "legs", f"runs={runs}").returncode == 0
        output, _ = process.communicate(timeout=200)
    finally:
        process.kill()
        process.wait()
    if stop_at is None:
        assert process.returncode == 0, output


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    runs = tmp_path_factory.mktemp("runs")
    leg(runs, ["run", *SETTINGS, "name=whole", "nodes=1"], None)
    leg(runs, ["run", *SETTINGS, "name=legs", "nodes=4", "loader.workers=1", "trainer.microbatch_size=2"], 10)
    leg(runs, ["resume", "legs", "nodes=2", "loader.workers=3", "loader.prefetch_batches=1", "trainer.microbatch_size=3"], 90)
    leg(
        runs,
        ["resume", "legs", "nodes=1", "loader.runner=inline", "loader.prefetch_batches=0", "trainer.microbatch_size=16"],
        None,
    )
    return runs


def test_legs_at_4_2_and_1_nodes_have_the_ledger_of_the_uninterrupted_run(runs: Path) -> None:
    found = compare(str(runs / "legs"), str(runs / "whole"))
    assert found.equal, found.sentence
    assert found.steps == STEPS
    entries = list(read_ledger(str(runs / "legs" / "ledger.jsonl")))
    assert sorted({entry.rest["world_size"] for entry in entries}) == [1, 2, 4]
    assert [entry.step for entry in entries] == list(range(STEPS)), "a planned stop loses and repeats no step"


def test_verify_says_so_and_exits_with_the_answer(runs: Path, tmp_path: Path) -> None:
    done = zephon("verify", "legs", "whole", f"runs={runs}")
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.copytree(runs / "whole", tmp_path / "runs" / "other")
    shutil.copytree(runs / "legs", tmp_path / "runs" / "legs")
    other = tmp_path / "runs" / "other"
    lines = (runs / "whole" / "ledger.jsonl").read_text().splitlines()
    line = json.loads(lines[7])
    line["digest"], line["lanes"][3] = "0" * 64, "0" * 12
    (other / "ledger.jsonl").write_text("\n".join([*lines[:7], json.dumps(line), *lines[8:]]) + "\n")
    done = zephon("verify", "legs", "other", f"runs={tmp_path / 'runs'}")
    assert done.returncode not in (0, 65)
    assert "step 7" in done.stdout + done.stderr
    assert "lane 3" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("change", "field", "now"),
    [
        ("data.seed=7", "data.seed", "7"),
        ("tokenizer=gpt2", "tokenizer.id", "gpt2"),
        ("data.datasets.docs.weight=3", "data.datasets.docs.weight", "3"),
        ("pipeline.context_length=32", "pipeline.context_length", "32"),
        ("global_batch_size=32", "global_batch_size", "32"),
        ("lanes.count=4", "lanes.count", "4"),
        ("pipeline.packing=best_fit", "pipeline.packing", "best_fit"),
        ("pipeline.shuffle_buffer=7", "pipeline.shuffle_buffer", "7"),
    ],
)
def test_a_change_of_what_defines_the_data_is_refused_with_both_values(runs: Path, change: str, field: str, now: str) -> None:
    before = (runs / "whole" / "ledger.jsonl").read_bytes()
    others = [setting for setting in SETTINGS if not setting.startswith(f"{field}=")]  # a key is given once
    done = zephon("run", *others, "name=whole", "nodes=1", f"runs={runs}", change)
    said = done.stdout + done.stderr
    assert done.returncode == 65, said
    assert field in said
    assert now in said
    assert str(_value(json.loads((runs / "whole" / "spec.json").read_text()), field)) in said
    assert "fork=" in said
    assert (runs / "whole" / "ledger.jsonl").read_bytes() == before


def test_a_change_of_performance_settings_is_not_refused_and_a_finished_run_stays_as_it_is(runs: Path) -> None:
    free = ["nodes=2", "loader.workers=2", "loader.prefetch_batches=9", "trainer.microbatch_size=1"]
    before = (runs / "whole" / "ledger.jsonl").read_bytes()
    done = zephon("run", *SETTINGS, "name=whole", f"runs={runs}", *free)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (runs / "whole" / "ledger.jsonl").read_bytes() == before


def _value(spec: dict[str, Any], field: str) -> Any:
    value: Any = spec
    for part in field.split("."):
        value = value[part]
    return value


def jsonl(tmp_path: Path, lines: list[str]) -> list[str]:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
    return ["data=jsonl", f"data.datasets.text.path={folder}"]


GOOD = [json.dumps({"text": f"line {i} " * 20}) for i in range(400)]


@pytest.mark.parametrize(
    ("settings", "lines", "says"),
    [
        (["nodes=3"], None, ["3", "8", "1, 2, 4, 8"]),
        (["global_batch_size=12"], None, ["global_batch_size", "12", "8"]),
        ([], "missing", ["nowhere", "text"]),
        ([], [], ["text"]),
        ([], [*GOOD[:200], '{"text": "broken', *GOOD[200:]], ["line 201", "a.jsonl", "'text'"]),
        ([], [*GOOD[:200], '{"txt": "no such field"}', *GOOD[200:]], ["'text'", "a.jsonl", "['txt']"]),
    ],
    ids=["lanes do not divide", "batch does not divide", "missing dataset", "empty dataset", "not JSON", "no such field"],
)
def test_what_cannot_work_ends_in_a_three_part_error_with_its_address(
    tmp_path: Path, settings: list[str], lines: Any, says: list[str]
) -> None:
    data = ["data=jsonl", "data.datasets.text.path=nowhere/at/all"] if lines == "missing" else []
    data = jsonl(tmp_path, lines) if isinstance(lines, list) else data
    nodes = [] if any(s.startswith("nodes=") for s in settings) else ["nodes=2"]
    base = [s for s in SETTINGS if not s.startswith("data.")]
    started = time.monotonic()
    done = zephon("run", *base, "name=bad", f"runs={tmp_path / 'runs'}", *nodes, *settings, *data, timeout=120)
    said = done.stdout + done.stderr
    assert done.returncode == 65, said
    for part in [*says, "why it matters:", "fix:"]:
        assert part in said, said
    assert "Traceback" not in said
    assert time.monotonic() - started < 90
