"""The run directory: its list of files is true, nobody else knows them, and its writes are whole."""

from __future__ import annotations

import ast
import json
import re
import threading
from pathlib import Path

import pytest

import zephon
from zephon.errors import ConfigError
from zephon.run import directory
from zephon.run.directory import RunDir

PACKAGE = Path(zephon.__file__).parent
ROWS = re.findall(r"^ +(\S.*?\S)  .*  (run/\w+\.py)$", directory.__doc__ or "", re.M)
NAME = re.compile(r"[a-z_]+\.(json|jsonl|lock)|COMPLETE")


def constants(path: Path) -> list[tuple[int, str]]:
    """The texts in a module that are no docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docs]
    return [(node.lineno, node.value) for node in found if isinstance(node.value, str)]


def test_the_list_of_files_is_what_the_modules_name() -> None:
    listed = {(name, module) for names, module in ROWS for name in names.split()}
    named = {
        (text, f"run/{path.name}")
        for path in sorted((PACKAGE / "run").glob("*.py"))
        for _, text in constants(path)
        if NAME.fullmatch(text) and text not in ("meta.json", "COMPLETE")
    }
    assert {row for row in listed if NAME.fullmatch(row[0])} == named
    assert all((PACKAGE / module).exists() for _, module in ROWS)


def test_no_other_room_names_a_file_of_the_run_directory() -> None:
    names = {name for names, _ in ROWS for name in names.split() if NAME.fullmatch(name)} | {"COMPLETE"}
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}: {text}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.parent.name != "run"
        for line, text in constants(path)
        if text in names
    ]
    assert not wrong, "\n".join(wrong)


def test_no_other_room_reads_or_writes_json_below_a_run_directory() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.parent.name != "run"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("read_json", "write_json", "find_json")
    ]
    assert not wrong, "\n".join(wrong)


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    rundir = RunDir(str(tmp_path))
    rundir.write_json("small.json", data=[0] * 10_000)
    stop, seen = threading.Event(), set[int]()

    def read() -> None:
        while not stop.is_set():
            found = rundir.read_json("small.json")
            assert len(found) == 10_000
            seen.update(found)

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(50):
        rundir.write_json("small.json", data=[number] * 10_000)
    stop.set()
    thread.join()
    assert seen
    assert [path.name for path in tmp_path.iterdir()] == ["small.json"], "no scratch file is left"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    rundir = RunDir(str(tmp_path))
    rundir.write_json("small.json", data=1)
    with pytest.raises(TypeError):
        rundir.write_json("small.json", data=object())
    assert rundir.read_json("small.json") == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_of_two_creators_one_gets_the_file(tmp_path: Path) -> None:
    rundir = RunDir(str(tmp_path))
    assert rundir.create("small.json", data={"by": 1})
    assert not rundir.create("small.json", data={"by": 2})
    assert json.loads((tmp_path / "small.json").read_text()) == {"by": 1}


def test_attempts_are_found_in_order_and_make_a_directory_a_run(tmp_path: Path) -> None:
    rundir = RunDir(str(tmp_path))
    assert (rundir.attempts(), rundir.holds_run()) == ([], False)
    for attempt in (10, 2, 1):
        rundir.write_json(*RunDir.in_attempt(attempt, "some.json"), data={})
    rundir.write_json("attempts", "notes", "some.json", data={})
    assert (rundir.attempts(), rundir.holds_run()) == ([1, 2, 10], True)
    assert RunDir(str(tmp_path.parent)).holds_run(tmp_path.name)


def test_a_scheme_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="nowhere://runs/a cannot be used"):
        RunDir("nowhere://runs/a")
