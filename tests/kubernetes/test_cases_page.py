"""tests/kubernetes/cases.md: every situation and every reported fault of a cluster has a line, and every named test exists."""

from __future__ import annotations

import re

from tests.kubernetes.conftest import ROOT
from tests.test_cases_page import functions

PAGE = (ROOT / "tests" / "kubernetes" / "cases.md").read_text("utf-8")
LINES = re.findall(r"^\| ([A-Z]+\d\d) \| (.+?) \| (.+) \|$", PAGE, re.MULTILINE)
SITUATIONS = [f"S{number:02}" for number in range(1, 14)]
REPORTED = {"U": 11, "V": 9, "W": 9, "ZZ": 9}  # in odd numbers; the last of each section


def test_every_case_has_one_line() -> None:
    reported = [f"{section}{number:02}" for section, last in REPORTED.items() for number in range(1, last + 1, 2)]
    assert [case for case, _, _ in LINES] == SITUATIONS + reported


def test_every_named_test_exists_and_only_one_case_names_none() -> None:
    named = {case: re.findall(r"`([\w/]+\.py)::(\w+)`", tests) for case, _, tests in LINES}
    assert [case for case, tests in named.items() if not tests] == ["V03"]
    for file, name in re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE):  # those of lines without a number too
        path = ROOT / "tests" / file
        assert path.is_file(), file
        assert name in functions(path), f"{file}::{name}"
