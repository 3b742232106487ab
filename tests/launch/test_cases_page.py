"""tests/launch/cases.md: every reported fault of a launcher has a line, and every named test exists."""

from __future__ import annotations

import re
from pathlib import Path

from tests.test_cases_page import functions

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "tests" / "launch" / "cases.md").read_text("utf-8")
LINES = re.findall(r"^\| ([A-Z]+\d\d) \| (.+?) \| (.+) \|$", PAGE, re.MULTILINE)
REPORTED = {"M": 11, "N": 9, "O": 11, "P": 7, "Q": 9, "R": 7, "S": 5, "T": 11}  # in odd numbers; the last of each section


def test_every_case_has_one_line() -> None:
    expected = [f"{section}{number:02}" for section, last in REPORTED.items() for number in range(1, last + 1, 2)]
    assert [case for case, _, _ in LINES] == expected


def test_every_named_test_exists_and_only_one_case_names_none() -> None:
    named = {case: re.findall(r"`([\w/]+\.py)::(\w+)`", tests) for case, _, tests in LINES}
    assert [case for case, tests in named.items() if not tests] == ["M07"]
    for case, tests in named.items():
        for file, name in tests:
            path = ROOT / "tests" / file
            assert path.is_file(), f"{case}: {file}"
            assert name in functions(path), f"{case}: {file}::{name}"
