"""The README's first program runs as it stands and holds the README's first promise."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zephon

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)[1]  # type: ignore[index]
Rows = dict[tuple[int, int], str]


def rows_of(rank: int, size: int, monkeypatch: pytest.MonkeyPatch) -> Rows:
    """Runs the program as one of ``size`` ranks; (step, slot) -> digest of the two steps that come after its own."""
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(size))
    names: dict[str, Any] = {}
    exec(compile(PROGRAM, "README.md", "exec"), names)
    rows: Rows = {}
    for step in itertools.islice(names["pipeline"].steps(), 2):
        for batch in step:
            ids = np.asarray(batch.fields["input_ids"])
            rows |= {
                (batch.step, slot): hashlib.sha256(row).hexdigest() for slot, row in zip(batch.slots.tolist(), ids, strict=True)
            }
    names["pipeline"].close()
    return rows


def test_the_first_program_gives_the_same_global_batch_on_1_2_and_4_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = rows_of(0, 1, monkeypatch)
    assert sorted(alone) == [(step, slot) for step in (3, 4) for slot in range(64)]
    for size in (2, 4):
        parts = [rows_of(rank, size, monkeypatch) for rank in range(size)]
        assert sum(map(len, parts)) == len(alone)
        assert {place: row for part in parts for place, row in part.items()} == alone


def test_help_begins_with_the_same_program() -> None:
    assert inspect.getdoc(zephon).split("\n\n", 1)[1].startswith(textwrap.indent(PROGRAM.rstrip(), "    "))  # type: ignore[union-attr]


@pytest.mark.slow
def test_the_first_program_divides_its_rows_under_torchrun(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text(PROGRAM)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(tmp_path / "first.py"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    printed = re.findall(r"(\d) rows \[([\d ]+)\]", done.stdout)
    assert sorted((int(step), int(slot)) for step, slots in printed for slot in slots.split()) == [
        (step, slot) for step in range(3) for slot in range(64)
    ]
