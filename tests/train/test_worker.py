"""Whole workers on real text: exit statuses, drain, resume at other sizes, errors on all ranks."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.train.ranks import Meet, on_ranks
from zephon.run.directory import RunDir
from zephon.run.generation import Generation, claim
from zephon.run.ledger import compare
from zephon.run.metrics import series
from zephon.run.specs import write_spec
from zephon.spec.experiment import RunSpec
from zephon.train import life, worker
from zephon.train.session import Session
from zephon.train.step import GlobalStep
from zephon.train.update import Update


def write_run(folder: Path | str, attempt: int = 1, **changes: Any) -> None:
    """An attempt of a tiny experiment on the texts that ship with Python; ``trainer__steps=3`` changes a field."""
    data: dict[str, Any] = {
        "name": "tiny",
        "global_batch_size": 8,
        "data": {"datasets": {name: {"path": f"stdlib://{name}", "weight": 0.5} for name in ("docs", "code")}},
        "tokenizer": {"id": "bytes"},
        "pipeline": {"context_length": 32, "shuffle_buffer": 16},
        "lanes": {"count": 4},
        "loader": {"workers": 1},
        "model": {"dim": 16, "layers": 1, "heads": 2},
        "optimizer": {"lr": 1e-2},
        "checkpoint": {"every": 4},
        "trainer": {"steps": 10, "microbatch_size": 2, "device": "cpu", "tensorboard": False, "process_group_timeout_s": 60.0},
    }
    for name, value in changes.items():
        *groups, last = name.split("__")
        place = data
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value
    write_spec(RunDir(str(folder)), attempt, RunSpec.from_dict(data))


def free_port() -> int:
    """A free port below those that the kernel gives to outgoing connections, which could take it before rank 0 listens."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def work(
    meet: Meet, rank: int, folder: str, attempt: int, port: int, leave: dict[int, int], env: dict[str, str]
) -> tuple[int, str]:
    """One worker: its exit status and what it logged. ``leave`` maps a rank to the step after which it gets SIGTERM."""
    os.environ.update(env)
    if meet.size > 1:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(meet.size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(meet.size))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if rank in leave:
        _terminate_after(leave[rank])
    lines: list[str] = []
    worker.log = life.log = lines.append
    return worker.main(folder, attempt), "\n".join(lines)


def _terminate_after(step: int) -> None:
    """This process gets SIGTERM as soon as it has trained so many steps of the run, however fast it is."""
    update = Session.update

    def update_and_terminate(session: Session, batch: GlobalStep) -> Update:
        done = update(session, batch)
        if session.step == step:
            signal.raise_signal(signal.SIGTERM)
        return done

    Session.update = update_and_terminate


def workers_with_logs(
    folder: Path, size: int, attempt: int = 1, leave: dict[int, int] | None = None, **env: str
) -> list[tuple[int, str]]:
    """(exit status, what it logged) of each rank."""
    return on_ranks(work, size, str(folder), attempt, free_port(), leave or {}, env, timeout=150)


def workers(folder: Path, size: int, attempt: int = 1, leave: dict[int, int] | None = None, **env: str) -> list[int]:
    return [status for status, _ in workers_with_logs(folder, size, attempt, leave, **env)]


def curve(folder: Path) -> list[tuple[int, float, float]]:
    return [(one["step"], one["loss"], one["grad_norm"]) for one in series(RunDir(str(folder)))]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    write_run(folder, trainer__reduction="canonical")
    assert workers(folder, 1) == [0]
    return folder


def test_a_plain_process_trains_and_leaves_ledger_metrics_progress_and_a_checkpoint(tmp_path):
    write_run(tmp_path, trainer__steps=3)
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, "-m", "zephon.train", "--run", str(tmp_path), "--attempt", "1"],
        env={**env, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[3] for line in done.stdout.splitlines()] == ["1/3", "2/3", "3/3"]
    progress = json.loads((tmp_path / "attempts/0001/progress.json").read_text())
    assert {name: progress[name] for name in ("step", "steps", "world_size", "generation")} == {
        "step": 3,
        "steps": 3,
        "world_size": 1,
        "generation": 0,
    }
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == 3
    assert [line["step"] for line in series(RunDir(str(tmp_path)))] == [0, 1, 2]
    assert (tmp_path / "checkpoints/step-00000003/COMPLETE").exists()


@pytest.mark.slow
def test_legs_at_4_2_and_1_ranks_have_the_ledger_and_the_losses_of_the_unbroken_run(unbroken, tmp_path):
    for attempt, size, leave in [(1, 4, {1: 2}), (2, 2, {0: 5}), (3, 1, {})]:
        free = {"trainer__microbatch_size": attempt, "loader__workers": attempt - 1, "loader__prefetch_batches": attempt}
        free |= {"loader__isolated": attempt == 2}
        write_run(tmp_path, attempt, trainer__reduction="canonical", **free)
        statuses = workers(tmp_path, size, attempt, leave)
        assert statuses == [(143 if rank in leave else 75) if leave else 0 for rank in range(size)]
    comparison = compare(str(tmp_path), str(unbroken))
    assert comparison.equal, comparison.sentence
    assert comparison.steps == 10
    assert curve(tmp_path) == curve(unbroken)
    assert {one["world_size"] for one in series(RunDir(str(tmp_path)))} == {1, 2, 4}
    assert rates(tmp_path) == rates(unbroken)
    assert rates(unbroken)[4] == pytest.approx(0.5e-2)  # the fifth of ten warm-up steps, at whatever size it was trained


def rates(folder: Path) -> list[float]:
    return [one["lr"] for one in series(RunDir(str(folder)))]


@pytest.mark.parametrize("size", [2, 4])
def test_the_gradient_norm_in_the_metrics_is_that_of_the_whole_gradient_however_it_is_sharded(unbroken, tmp_path, size):
    write_run(tmp_path, trainer__steps=2, trainer__parallel="fsdp", optimizer__clip=0.1)
    assert workers(tmp_path, size) == [0] * size
    whole = curve(unbroken)[0][2]
    assert curve(tmp_path)[0][2] == pytest.approx(whole, rel=1e-5)
    assert whole > 0.1


def test_resuming_a_finished_run_changes_nothing_and_is_done(unbroken):
    before = (unbroken / "ledger.jsonl").read_text()
    assert workers(unbroken, 2) == [0, 0]
    assert (unbroken / "ledger.jsonl").read_text() == before


@pytest.mark.parametrize(
    "changes",
    [
        {"data__datasets": {"docs": {"path": "/nowhere"}}},
        {"lanes__count": 3},
        {"lanes__count": 1},
        {"tokenizer__id": "nope"},
        {"model__dim": 15},
        {"model__vocab_size": 100},
    ],
)
def test_what_cannot_work_is_a_configuration_error_on_every_rank(tmp_path, changes):
    write_run(tmp_path, **changes)
    assert workers(tmp_path, 2) == [65, 65]


def test_a_line_that_is_not_json_ends_every_rank_with_its_address(tmp_path):
    lines = [json.dumps({"text": f"document {i} " * 20}) for i in range(120)]
    lines[70] = "{not json"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "part.jsonl").write_text("\n".join(lines))
    write_run(tmp_path, data__datasets={"mine": {"path": str(tmp_path / "data")}}, data__chunk_bytes=1024, trainer__steps=500)
    for status, log in workers_with_logs(tmp_path, 2):
        assert status == 65
        assert f"address: dataset 'mine', shard 'part.jsonl', byte {sum(len(line) + 1 for line in lines[:70])}" in log


def test_without_a_spec_the_attempt_is_refused(tmp_path):
    assert workers(tmp_path, 1) == [65]


def test_a_worker_of_an_older_generation_writes_nothing_and_leaves(tmp_path):
    write_run(tmp_path)
    newest = Generation(attempt=1, generation=7, nodes=("node-0",), world_size=2, time=time.time())
    claim(RunDir(str(tmp_path)), newest)
    assert workers(tmp_path, 2, ZEPHON_GENERATION="6") == [75, 75]
    assert not (tmp_path / "ledger.jsonl").exists()
    assert workers(tmp_path, 2, ZEPHON_GENERATION="7") == [0, 0]


def sees(meet: Meet, rank: int, folder: str, port: int) -> tuple[int, str]:
    """A rank whose machine has files of its own under the data's path."""
    os.chdir(Path(folder) / f"machine-{rank}")
    return work(meet, rank, folder, 1, port, {}, {})


@pytest.mark.parametrize("where", ["data.datasets", "trainer.eval_data"])
def test_machines_with_other_files_under_one_path_are_refused_before_the_first_step_with_rank_and_counts(tmp_path, where):
    for rank, files in enumerate((2, 3)):
        (tmp_path / f"machine-{rank}" / "data").mkdir(parents=True)
        for number in range(files):
            lines = "".join(json.dumps({"text": f"document {i} " * 20}) + "\n" for i in range(50))
            (tmp_path / f"machine-{rank}" / "data" / f"part-{number}.jsonl").write_text(lines)
    mine: dict[str, object] = {where.replace(".", "__"): {"mine": {"path": "data"}}}
    write_run(tmp_path, **mine, data__chunk_bytes=1024, trainer__eval_every=5 if "trainer__eval_data" in mine else None)
    for status, log in on_ranks(sees, 2, str(tmp_path), free_port(), timeout=150):
        assert status == 65
        assert f"{where}.mine: rank 1 sees 3 files of" in log
        assert "and rank 0 sees 2 of" in log
    assert not (tmp_path / "ledger.jsonl").exists()


@pytest.mark.slow
def test_a_paused_worker_that_wakes_up_in_a_superseded_attempt_writes_trains_and_saves_no_more(tmp_path):
    write_run(tmp_path, trainer__steps=100_000, checkpoint__every=1, checkpoint__background=False)
    ledger, folder = tmp_path / "ledger.jsonl", tmp_path / "checkpoints"
    command = [sys.executable, "-m", "zephon.train", "--run", str(tmp_path), "--attempt", "1"]
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True) as paused:
        deadline = time.monotonic() + 60
        while not ledger.exists() or ledger.read_bytes().count(b"\n") < 3:
            assert paused.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        paused.send_signal(signal.SIGSTOP)
        os.waitpid(paused.pid, os.WUNTRACED)
        claim(RunDir(str(tmp_path)), Generation(attempt=2, generation=1, nodes=("other",), world_size=1, time=time.time()))
        before = ledger.read_bytes(), sorted(folder.glob("*/COMPLETE"))
        paused.send_signal(signal.SIGCONT)
        assert paused.stderr is not None
        said = paused.stderr.read()
        assert paused.wait(60) == 75, said
    assert "attempt 2 trains this run now and this process belongs to attempt 1" in said
    assert (ledger.read_bytes(), sorted(folder.glob("*/COMPLETE"))) == before
    assert workers(tmp_path, 1) == [75], "nor does one that starts late"


def test_other_data_under_an_old_ledger_ends_every_rank_and_names_the_lane(unbroken, tmp_path):
    write_run(tmp_path)
    lines = (unbroken / "ledger.jsonl").read_text().splitlines()
    changed = json.loads(lines[2])
    changed["digest"], changed["lanes"][3] = "0" * 64, "0" * 12
    (tmp_path / "ledger.jsonl").write_text("\n".join([*lines[:2], json.dumps(changed)]) + "\n")
    for status, log in workers_with_logs(tmp_path, 2):
        assert status == 65
        assert "the first lane that differs is 3" in log


@pytest.mark.slow
def test_loader_ledger_and_metrics_cost_under_3_percent_of_a_10_million_parameter_model(tmp_path):
    model = {"dim": 320, "layers": 8, "heads": 5}
    write_run(tmp_path, model=model, pipeline__context_length=128, trainer__steps=9, checkpoint__every=100)
    assert workers(tmp_path, 1) == [0]
    steady = [line["seconds"] for line in series(RunDir(str(tmp_path)))][2:]
    # The median step: on a shared machine a single one may wait for the processor and not for the loader.
    shares = [sum(seconds[phase] for phase in ("data", "agree", "record")) / seconds["step"] for seconds in steady]
    assert statistics.median(shares) < 0.03
