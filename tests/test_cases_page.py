"""tests/cases.md: every reported fault has a line, and every test that a line names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PAGE = (TESTS / "cases.md").read_text("utf-8")
LINES = re.findall(r"^\| ([A-Z]+\d\d) \| (.+?) \| (.+) \|$", PAGE, re.MULTILINE)

# The reports are numbered in odd numbers; the last one of each section that is kept here.
LAST = {
    "A": 33,
    "B": 21,
    "C": 13,
    "D": 19,
    "E": 15,
    "F": 13,
    "G": 11,
    "H": 11,
    "I": 15,
    "J": 9,
    "K": 11,
    "X": 13,
    "Y": 13,
    "Z": 7,
}
BUILT_LATER: set[str] = set()
MAKE_NO_SENSE = {"C03", "C07", "C13", "I07", "J05", "J07", "J09"}


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


def test_every_case_has_one_line() -> None:
    expected = [f"{section}{number:02}" for section, last in LAST.items() for number in range(1, last + 1, 2)]
    assert [case for case, _, _ in LINES] == expected


def test_every_named_test_exists() -> None:
    wrong = []
    for case, _, tests in LINES:
        for file, name in re.findall(r"`([\w/]+\.py)::(\w+)`", tests):
            path = TESTS / file
            if not path.is_file() or name not in functions(path):
                wrong.append(f"{case}: {file}::{name}")
    assert not wrong, "\n".join(wrong)


def test_a_case_without_a_test_says_why_and_the_list_of_them_is_this() -> None:
    without = {case: tests for case, _, tests in LINES if "::" not in tests}
    assert {case for case, why in without.items() if why.startswith("not built: ")} == BUILT_LATER
    assert {case for case, why in without.items() if why.startswith("does not apply: ")} == MAKE_NO_SENSE
    assert {case for case, why in without.items() if why.startswith("measured, not tested: ")} == {"F09"}
    assert len(without) == len(BUILT_LATER | MAKE_NO_SENSE) + 1
