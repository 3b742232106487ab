"""How a run stands, from files alone; logs and displays."""

from __future__ import annotations

import dataclasses
import io
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.agent.toy import toy_spec
from zephon.errors import ConfigError
from zephon.launch import start as session
from zephon.launch.cli.display import duration, follow, one_line, panel, resize_text
from zephon.launch.cli.logs import Tail, level_of, merged
from zephon.launch.cli.main import main
from zephon.launch.cli.views import status_table
from zephon.launch.status import find_run, status_of
from zephon.run.data_end import DataEnd, write_data_end
from zephon.run.directory import RunDir
from zephon.run.environment import environment, write_environment
from zephon.run.events import EventLog
from zephon.run.progress import Progress, write_progress
from zephon.run.specs import write_spec
from zephon.run.state import AttemptState, Resized, write_state
from zephon.train.metrics import ProgressFile

RESIZED = Resized(
    reason="a node joined",
    generation=2,
    nodes_before=1,
    nodes=2,
    step_before=9,
    step_after=10,
    lost_steps=0,
    stall_s=0.9,
    parts_s={"drain": 0.1, "save": 0.2, "membership": 0.0, "restore": 0.5, "first_step": 0.1},
)


class Written:
    """A run directory as a supervisor and a trainer would leave it; the supervisor's lock is held while ``alive``."""

    def __init__(self, tmp_path: Path, *, name: str = "toy") -> None:
        spec = toy_spec(tmp_path / "runs", name=name, nodes=2, steps=100, stall_s=30.0)
        self.rundir = session.rundir_of(spec)
        write_spec(self.rundir, 1, spec)
        self._lock: Any = None

    def supervisor(self, **facts: Any) -> Written:
        import fcntl

        state = AttemptState(app_id="toy-0001-x", state="RUNNING", target=2, generation=1, members=("node-0@1", "node-1@1"))
        write_state(self.rundir, 1, dataclasses.replace(state, **facts), copy=False)
        if self._lock is None:
            self._lock = open(self.rundir.path("attempts", "0001", "supervisor.lock"), "a")  # noqa: SIM115 - held by the test
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self

    def progress(self, step: int = 10, age_s: float = 0.0) -> Written:
        made = {"loss": 2.5, "tokens_per_s": 1234.0, "digest": "ab" * 32, "world_size": 2, "generation": 1, "pace_s": 2.0}
        write_progress(self.rundir, 1, Progress(step=step, steps=100, time=time.time() - age_s, **made))
        return self

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = Written(tmp_path)
    yield made
    made.close()


def test_states_from_start_to_end(written: Written) -> None:
    assert status_of(written.rundir).state == "QUEUED"
    assert status_of(written.supervisor(state="STARTING").rundir).state == "STARTING"
    assert status_of(written.supervisor().rundir).state == "STARTING", "no step yet"
    written.progress()
    assert status_of(written.rundir).state == "TRAINING"
    assert status_of(written.supervisor(members=("node-0@1",)).rundir).state == "DEGRADED"
    written.supervisor().progress(age_s=31.0)
    assert status_of(written.rundir).state == "STALLED"
    for state in ("DRAINING", "DONE", "STOPPED", "FAILED"):
        assert status_of(written.supervisor(state=state).rundir).state == state


def test_a_run_whose_data_ended_before_its_last_step_says_so(written: Written) -> None:
    write_data_end(written.progress(61).rundir, DataEnd(step=61, steps=100, attempt=1))
    assert status_of(written.rundir).state == "DONE", "nothing is left to do, whoever has ended"
    status = status_of(written.supervisor(state="DONE").rundir)
    assert (status.state, status.message) == ("DONE", "the data ended after 61 of 100 steps")
    assert one_line(status).endswith("the data ended after 61 of 100 steps")
    later = status_of(written.progress(40).supervisor().rundir)
    assert (later.state, later.message) == ("TRAINING", ""), "gone back to a checkpoint"


def test_a_supervisor_that_was_killed_reads_as_failed_and_not_as_running(written: Written) -> None:
    written.supervisor().progress()
    written.close()
    status = status_of(written.rundir)
    assert (status.state, status.status) == ("FAILED", 1)
    assert "killed" in status.message


def test_speed_checkpoint_and_the_last_error_are_shown(written: Written) -> None:
    written.supervisor().progress(step=40)
    written.rundir.write_json("checkpoints", "step-00000030", "COMPLETE", data={})
    events = EventLog(written.rundir, 1, "test")
    error = {"time": 1.0, "rank": 3, "node": "node-1@1", "status": 1, "message": "ValueError: boom"}
    events.write("workers_exited", node="node-1@1", generation=1, exits={"3": 1}, error=error)
    status = status_of(written.rundir)
    assert (status.step, status.steps, status.loss, status.checkpoint) == (40, 100, 2.5, 30)
    assert status.checkpoint_age_s is not None
    assert status.checkpoint_age_s < 60
    assert "rank 3 on node-1@1" in status.error
    assert "ValueError: boom" in status.error
    events.write("finish", status=1, cause="rank 3: 4 crashes")
    assert status_of(written.rundir).error == "rank 3: 4 crashes"


def test_status_and_list_show_an_error_in_one_line_and_once(written: Written, capsys: pytest.CaptureFixture[str]) -> None:
    text = "rank 0: DataError: row 3 is broken\n  otherwise: it would be left out\n  to do: correct it"
    written.supervisor(state="FAILED", status=65, message=text)
    EventLog(written.rundir, 1, "test").write("finish", status=65, cause=text)
    runs = f"runs={Path(written.rundir.root).parent}"
    for verb in ("status", "list"):
        assert main([verb, runs]) == 0
        shown = capsys.readouterr().out
        assert shown.count("row 3 is broken") == 1, shown
        assert "otherwise" not in shown


def test_runs_are_found_by_name_by_path_and_as_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    runs = str(tmp_path / "runs")
    for name, started in (("exp-old", 1.0), ("exp-new", 2.0)):
        write_environment(Written(tmp_path, name=name).rundir, 1, dataclasses.replace(environment([], {}), time=started))
    assert find_run("exp-old", runs).root.endswith("exp-old")
    assert find_run(f"{runs}/exp-old", "elsewhere").root.endswith("exp-old")
    assert find_run(None, runs).root.endswith("exp-new")
    with pytest.raises(ConfigError, match="did you mean 'exp-new'"):
        find_run("exp-nw", runs)
    with pytest.raises(ConfigError, match="no run in"):
        find_run(None, str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="holds no run"):
        status_of(RunDir(str(tmp_path)))


def test_a_run_whose_directory_only_the_nodes_see_is_found_in_the_launchers_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zephon.launch.config.compose import compose

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    spec = compose(["conf=exp1", "scheduler=kubernetes", "runs=/only/on/nodes"]).spec
    rundir = session.rundir_of(spec)
    assert rundir.root.startswith(str(tmp_path / "state"))
    assert session.url_of(spec, rundir) == "/only/on/nodes/exp1"
    write_spec(rundir, 1, spec)
    assert find_run("exp1", "/only/on/nodes").root == rundir.root


def test_the_time_left_is_shown_from_what_the_trainer_writes(written: Written, capsys: pytest.CaptureFixture[str]) -> None:
    written.supervisor()
    rank_0 = ProgressFile(written.rundir, 1, 100)
    for step, seconds in enumerate((50.0, 3.0, 3.0)):
        rank_0.write(
            step,
            {"loss": 2.5, "tokens_per_s": 10.0, "digest": "ab", "world_size": 2, "generation": 1, "seconds": {"step": seconds}},
        )
    rank_0.close()
    status = status_of(written.rundir)
    assert (status.step, status.eta_s) == (3, 97 * 3.0)
    console = Console(width=200)
    console.print(panel(status))
    console.print(status_table(status))
    assert capsys.readouterr().out.count("4 min 51 s left") == 2


def test_the_display_shows_step_loss_speed_digest_and_size_on_a_terminal_and_in_a_file(written: Written) -> None:
    written.supervisor(state="DONE").progress(step=100)
    for terminal in (True, False):
        text = io.StringIO()
        console = Console(file=text, force_terminal=terminal, width=140)
        assert follow(written.rundir, console=console).state == "DONE"
        shown = text.getvalue()
        for part in ("DONE", "toy", "100/100", "loss 2.5000", "1,234 tokens/s", "digest abababababab", "world 2"):
            assert part in shown, (terminal, part)
        assert ("\x1b[" in shown) is terminal
    status = status_of(written.rundir)
    assert panel(status).row_count == 2
    assert one_line(status).startswith("DONE")


def test_a_resize_is_told_in_the_order_in_which_it_happens() -> None:
    assert resize_text(RESIZED) == (
        "1 -> 2 nodes (a node joined): stalled 0.90 s "
        "(drain 0.10, save 0.20, membership 0.00, restore 0.50, first step 0.10), 0 steps lost"
    )


@pytest.mark.parametrize(("seconds", "text"), [(None, "–"), (0.4, "0 s"), (65, "1 min 05 s"), (7800, "2 h 10 min")])
def test_durations_read_like_speech(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_logs_are_merged_by_time_follow_new_lines_and_filter_by_rank(tmp_path: Path) -> None:
    mark = "--- 2025-12-30T10:00:00Z generation 1 rank {} of 3"
    early = "2026-01-01 10:00:01,5 a"
    for node, rank, lines in (("node-0", 0, ["2026-01-01T10:00:02 b", "  trace of b"]), ("node-1", 1, [early])):
        path = tmp_path / node / "rank-0.log"
        path.parent.mkdir()
        path.write_text("\n".join([mark.format(rank), *lines]) + "\n")
    (tmp_path / "node-1" / "rank-1.log").write_text(mark.format(2) + "\n2026-01-01T10:00:03 c\nhalf a li")
    tails: dict[Path, Tail] = {}
    found = [line for _, line in merged(tmp_path, tails) if not line.startswith("---")]
    assert found == [early, "2026-01-01T10:00:02 b", "  trace of b", "2026-01-01T10:00:03 c"]
    with open(tmp_path / "node-1" / "rank-1.log", "a") as file:
        file.write("ne\n")
    assert list(merged(tmp_path, tails)) == [("rank 2 (node-1)", "half a line")]
    assert [name for name, _ in merged(tmp_path, {}, rank=2)] == ["rank 2 (node-1)"] * 3


def test_a_line_belongs_to_the_global_rank_of_its_generation(tmp_path: Path) -> None:
    path = tmp_path / "node-3" / "rank-0.log"
    path.parent.mkdir()
    marks = [f"--- 2026-01-01T10:0{n}:00Z generation {n} rank {rank} of 4" for n, rank in ((1, 3), (2, 1))]
    path.write_text("\n".join([marks[0], "old", marks[1], "new", ""]))
    assert [line for _, line in merged(tmp_path, {}, rank=3)] == [marks[0], "old"]
    assert [line for _, line in merged(tmp_path, {}, rank=1)] == [marks[1], "new"]


def test_last_words_without_a_stamp_come_when_the_file_was_last_written(tmp_path: Path) -> None:
    now = time.time()
    for name, text in (
        ("a", "2026-01-01T10:00:00Z start\nTraceback (most recent call last):\nValueError: boom\n"),
        ("b", f"2026-01-01T10:00:01Z start\n{datetime.fromtimestamp(now - 60):%Y-%m-%d %H:%M:%S} before\n"),
    ):
        (tmp_path / f"{name}.log").write_text(text)
    assert [line for _, line in merged(tmp_path, {})][-2:] == ["Traceback (most recent call last):", "ValueError: boom"]


@pytest.mark.parametrize(
    ("line", "level"),
    [("2026 I zephon.agent: started", 1), ("[W1129 socket.cpp] WARNING: slow", 2), ("ValueError: an error", 3), ("step 3", 1)],
)
def test_levels_are_read_from_the_line(line: str, level: int) -> None:
    assert level_of(line) == level
