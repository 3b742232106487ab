"""Exit statuses: what they are, and that nobody else spells them."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import zephon
from zephon.errors import ConfigError, DataError, Superseded, ZephonError
from zephon.exits import Exit, outcome_of

PACKAGE = Path(zephon.__file__).parent
SPOKEN_FOR = {65, 70, 75, 130, 137, 143}


def test_the_statuses_are_these() -> None:
    assert {status.name: int(status) for status in Exit} == {
        "DONE": 0,
        "FAILED": 1,
        "DISAGREES": 2,
        "REFUSED": 65,
        "FAILED_FOR_GOOD": 70,
        "DRAINED": 75,
        "LOST_PEER": 76,
        "INTERRUPTED": 130,
        "KILLED": 137,
        "LEFT": 143,
    }


def test_errors_end_a_process_with_the_status_of_their_kind() -> None:
    assert [kind.exit_status for kind in (ZephonError, ConfigError, DataError, Superseded)] == [1, 65, 65, 75]


@pytest.mark.parametrize(("status", "outcome"), [(0, "done"), (143, "stopped"), (1, "failed"), (65, "failed"), (-9, "failed")])
def test_a_run_is_done_stopped_or_failed_by_its_status(status: int, outcome: str) -> None:
    assert outcome_of(status) == outcome


def test_a_status_is_a_plain_number_in_json() -> None:
    assert json.dumps({"status": Exit.LEFT}) == '{"status": 143}'


def test_no_other_module_spells_a_status() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE.parent)}:{node.lineno}: {node.value}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "exits.py"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value in SPOKEN_FOR
    ]
    assert not wrong, "\n".join(wrong)
