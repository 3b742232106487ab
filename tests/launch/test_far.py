"""A local run whose directory is an object store: a real S3 server on this machine, real agents, the real trainer."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from zephon.errors import ConfigError
from zephon.launch import control
from zephon.launch import start as session
from zephon.launch.backends.local.index import apps
from zephon.launch.cli.main import main
from zephon.launch.config.compose import compose
from zephon.launch.status import LIVE, run_names, status_of
from zephon.run.attempt import attempt_directory
from zephon.run.directory import RunDir
from zephon.run.lease import Lease, read_lease
from zephon.run.metrics import series


def test_of_two_takers_in_one_moment_only_one_creates_the_file(objects: str) -> None:
    first, second = RunDir(f"{objects}/create"), RunDir(f"{objects}/create")
    assert first.create("lease.json", data={"by": 1})
    assert not second.create("lease.json", data={"by": 2})
    assert second.read_json("lease.json") == {"by": 1}
    with pytest.raises(ConfigError, match="is held by one"):
        _hold(RunDir(f"{objects}/held"))


def _hold(rundir: RunDir) -> None:
    Lease(rundir, holder="one").take()
    Lease(rundir, holder="two").take()


def test_of_many_that_find_an_expired_lease_exactly_one_gets_it_and_the_others_are_told_who(objects: str) -> None:
    contenders = 8
    for number in range(4):
        url = f"{objects}/expired-{number}"
        Lease(RunDir(url), holder="the old one").take()
        found = read_lease(RunDir(url))
        assert found is not None
        expired = dataclasses.replace(found, time=found.time - 60)
        RunDir(url).write_json("lease.json", data=dataclasses.asdict(expired))
        together, told = threading.Barrier(contenders), []

        def contend(holder: str, url: str = url, together: threading.Barrier = together, told: list[str] = told) -> None:
            lease = Lease(RunDir(url), holder=holder)
            together.wait(20)
            try:
                lease.take()
            except ConfigError as error:
                told.append(error.what)
            else:
                lease.renew()
                told.append(holder)

        threads = [threading.Thread(target=contend, args=(f"holder {i}",)) for i in range(contenders)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        winners = [text for text in told if text.startswith("holder")]
        assert (len(told), len(winners)) == (contenders, 1), told
        assert all(f"is held by {winners[0]} (pid {os.getpid()}" in text for text in told if text != winners[0]), told
        after = read_lease(RunDir(url))
        assert after is not None
        assert after.holder == winners[0]


def test_a_file_is_replaced_only_where_it_is_still_the_one_that_was_seen(objects: str) -> None:
    run = RunDir(f"{objects}/replaced")
    with pytest.raises(FileNotFoundError):
        run.version("small.json")
    run.write_json("small.json", data=1)
    seen = run.version("small.json")
    assert run.replace("small.json", data=b"2", version=seen)
    assert not run.replace("small.json", data=b"3", version=seen)
    assert run.read_json("small.json") == 2
    seen = run.version("small.json")
    run.fs.rm_file(run.path("small.json"))
    assert not run.replace("small.json", data=b"4", version=seen), "what is gone is not replaced"


def test_what_another_process_writes_is_seen_at_once(objects: str) -> None:
    mine, other = RunDir(f"{objects}/seen"), RunDir(f"{objects}/seen")
    assert not mine.exists("checkpoints")
    code = "import sys; from zephon.run.directory import RunDir; "
    code += "RunDir(sys.argv[1]).write_json('attempts', '0001', 'x.json', data={})"
    for _ in range(2):
        assert mine.attempts() == other.attempts()
        subprocess.run([sys.executable, "-c", code, mine.url], check=True)
        assert mine.attempts() == [1]


@pytest.mark.slow
def test_a_store_that_does_not_answer_or_lets_nobody_in_is_refused_with_what_to_do(objects: str) -> None:
    code = "import sys; from zephon.launch.cli.main import main; sys.exit(main(sys.argv[1:]))"
    for changed, said in (
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "credentials"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}, "endpoint"),
    ):
        argv = [sys.executable, "-c", code, "plan", "conf=exp1", f"runs={objects}/runs"]
        done = subprocess.run(argv, env={**os.environ, **changed}, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 65, done.stderr
        assert said in done.stderr.lower()
        assert "fix:" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_run_in_an_object_store_is_started_stopped_resumed_and_read_from_elsewhere(
    objects: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    runs = f"{objects}/runs"
    overrides = [
        "conf=bytes",
        f"runs={runs}",
        "nodes=2",
        "trainer.steps=2000",
        "checkpoint.every=1000",
        "stages.order=[calibrate,train]",
    ]
    overrides += ["pipeline.context_length=16", "model.layers=1", "model.dim=16", "trainer.tensorboard=false"]
    spec = compose(overrides).spec
    started = session.start(spec)
    rundir = started.rundir
    begun = control.wait_for(rundir, lambda now: now.step >= 3 or now.state not in LIVE, 120, "to make three steps")
    assert begun.state == "TRAINING", begun
    with pytest.raises(ConfigError, match="is running"):
        session.resume(rundir)
    stopped = control.stop(rundir)
    assert (stopped.state, stopped.checkpoint) == ("STOPPED", stopped.step), stopped
    assert stopped.stages == {"calibrate": "done", "train": "stopped"}
    last = stopped.step + 4
    session.resume(rundir, ["nodes=1", f"trainer.steps={last}"], allow=["trainer.steps"])
    ended = control.wait_for(rundir, lambda now: now.state not in LIVE, 120, "to end")
    assert (ended.state, ended.step, ended.world_size) == ("DONE", last, 1), ended
    assert [one["step"] for one in series(rundir)] == list(range(last))
    assert run_names(runs) == ["bytes"]
    assert os.listdir(attempt_directory(rundir, 2)), "locks and logs are on this machine"
    assert apps()[-1].run == rundir.url
    home = os.environ["XDG_STATE_HOME"]
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another-machine"))
    assert (status_of(rundir).state, status_of(rundir).step) == ("DONE", last)
    assert main(["status", "bytes", f"runs={runs}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stages"] == {"calibrate": "skipped", "train": "done"}
    assert main(["logs", "bytes", f"runs={runs}", "--rank", "0"]) == 0
    assert f"step {last}/{last}" in capsys.readouterr().out
    monkeypatch.setenv("XDG_STATE_HOME", home)
    rundir.fs.rm(rundir.root, recursive=True)
    assert main(["list", f"runs={runs}"]) == 0
    assert (apps(), attempt_directory(rundir, 2).exists()) == ([], False), "nothing of a deleted run is kept"
