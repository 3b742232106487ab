"""Events: several writers, readers that come again, lines that are not whole."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from zephon.run.directory import RunDir
from zephon.run.events import Event, EventLog, EventReader, read_events


@pytest.fixture(params=["file", "memory"])
def rundir(request: pytest.FixtureRequest, tmp_path: Path) -> RunDir:
    return RunDir(str(tmp_path) if request.param == "file" else f"memory://events-{os.getpid()}-{time.time_ns()}")


def test_events_of_several_writers_are_read_by_time(rundir: RunDir) -> None:
    assert read_events(rundir) == []
    first, second = EventLog(rundir, 1, "a"), EventLog(rundir, 1, "b")
    for number, log in enumerate((first, second, first)):
        log.write("tick", number=number)
    found = read_events(rundir)
    assert [(event.who, event.kind, event.details) for event in found] == [
        ("a", "tick", {"number": 0}),
        ("b", "tick", {"number": 1}),
        ("a", "tick", {"number": 2}),
    ]
    assert [Event.from_dict(json.loads(json.dumps(event.to_dict()))) for event in found] == found


def test_a_reader_that_comes_again_gets_what_is_new_and_reads_nothing_twice(
    rundir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, log = EventReader(rundir), EventLog(rundir, 1, "a")
    read: list[int] = []
    whole = rundir.fs.cat_file

    def counted(path: str, start: int | None = None, end: int | None = None) -> bytes:
        data: bytes = whole(path, start=start, end=end)
        read.append(len(data))
        return data

    monkeypatch.setattr(rundir.fs, "cat_file", counted)
    assert reader.read() == []
    for number in range(20):
        log.write("tick", number=number)
        assert [event.details["number"] for event in reader.read()] == list(range(number + 1))
        assert len(reader.read()) == number + 1
    size = sum(rundir.fs.size(path) for path in rundir.fs.find(rundir.root))
    assert (len(read), sum(read)) == (20, size)


def test_events_of_one_attempt_are_told_apart(rundir: RunDir) -> None:
    for attempt in (1, 2):
        EventLog(rundir, attempt, "a").write("start", nodes=attempt)
    reader = EventReader(rundir)
    assert [event.details["nodes"] for event in reader.of_attempt(2)] == [2]


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    rundir = RunDir(str(tmp_path))
    EventLog(rundir, 1, "a").write("tick", number=0)
    path = tmp_path / "events.jsonl"
    line = path.read_text()
    reader = EventReader(rundir)
    for end in range(1, len(line)):
        with open(path, "a", encoding="utf-8") as file:
            file.write(line[end - 1 : end])
        assert len(reader.read()) == 1
    with open(path, "a", encoding="utf-8") as file:
        file.write("\n")
    assert len(reader.read()) == 2


@pytest.mark.parametrize("torn", [b'{"time": 1.0, "att', b"\0" * 4096, b'{"time": 1.0}', b"[]", b"\xff\xfe"])
def test_a_torn_line_costs_only_itself_is_said_and_the_next_writer_begins_on_its_own(tmp_path: Path, torn: bytes) -> None:
    rundir = RunDir(str(tmp_path))
    EventLog(rundir, 1, "a").write("first")
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(torn)
    assert [event.kind for event in read_events(rundir)] == ["first"]
    EventLog(rundir, 2, "b").write("second")
    EventLog(rundir, 2, "b").write("third")
    with pytest.warns(UserWarning, match=r"a torn line of .*events.jsonl was passed over"):
        assert [event.kind for event in read_events(rundir)] == ["first", "second", "third"]
