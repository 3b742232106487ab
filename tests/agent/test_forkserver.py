"""The fork server: quick starts, true exit statuses, and nothing left when anybody dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from zephon.agent.fork_messages import Start
from zephon.agent.forkserver import ForkServer

SCRIPT = """
import json, os, signal, subprocess, sys, time
what = sys.argv[1]
if what == "tell":
    print(json.dumps({"argv": sys.argv[1:], "env": os.environ.get("A"), "gone": "B" in os.environ, "sid": os.getsid(0)}))
if what == "exit":
    sys.exit(int(sys.argv[2]))
if what == "raise":
    raise ValueError("told to")
if what == "text":
    sys.exit("a text and no number")
if what == "grandchild":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print(child.pid, flush=True)
if what == "atexit":
    import atexit
    atexit.register(print, "said at exit")
if what == "sleep":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print("sleeping", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def script(tmp_path: Path) -> None:
    """What the children run."""
    (tmp_path / "child_script.py").write_text(SCRIPT)


def ended(server: ForkServer, handle: int, limit_s: float = 10.0) -> int:
    deadline = time.monotonic() + limit_s
    while handle not in server.exits:
        assert time.monotonic() < deadline, "the child did not end"
        time.sleep(0.01)
        server.poll()
    return server.exits[handle][0]


def wait_for(path: Path, text: str, limit_s: float = 10.0) -> str:
    deadline = time.monotonic() + limit_s
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < deadline, f"{text!r} never came"
        time.sleep(0.01)
    return path.read_text()


def test_a_child_gets_its_arguments_environment_and_log(server: ForkServer, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "child.log"
    argv = ["tell", "--log", "x", "--mo", "0.9", "--r=16"]
    handle = server.start(Start(module="child_script", argv=argv, env={"A": "1", "B": None}, log=str(log)))
    assert ended(server, handle) == 0
    assert f'"argv": {argv}'.replace("'", '"') in log.read_text()
    assert '"env": "1"' in log.read_text()
    assert '"gone": false' in log.read_text()


@pytest.mark.parametrize(("argv", "status"), [(["exit", "0"], 0), (["exit", "75"], 75), (["raise"], 1), (["text"], 1)])
def test_exit_statuses_are_those_of_a_new_interpreter(server: ForkServer, tmp_path: Path, argv: list[str], status: int) -> None:
    log = tmp_path / "child.log"
    assert ended(server, server.start(Start(module="child_script", argv=argv, log=str(log)))) == status
    if argv == ["raise"]:
        assert "ValueError: told to" in log.read_text()
    if argv == ["text"]:
        assert "a text and no number" in log.read_text()


def test_exit_handlers_run(server: ForkServer, tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    ended(server, server.start(Start(module="child_script", argv=["atexit"], log=str(log))))
    assert "said at exit" in log.read_text()


def test_signals_reach_the_child_and_a_kill_is_reported_as_a_signal(server: ForkServer, tmp_path: Path) -> None:
    for sig, status in ((signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        log = tmp_path / f"{sig}.log"
        handle = server.start(Start(module="child_script", argv=["sleep"], log=str(log)))
        wait_for(log, "sleeping")
        server.kill(handle, sig)
        assert ended(server, handle) == status


def test_a_signal_sent_right_after_the_start_is_never_lost(server: ForkServer, tmp_path: Path) -> None:
    handles = []
    for _ in range(40):
        handle = server.start(Start(module="child_script", argv=["sleep"], log=str(tmp_path / "log")))
        server.kill(handle, signal.SIGTERM)
        handles.append(handle)
    assert {ended(server, handle) for handle in handles} <= {143, -signal.SIGTERM}


def test_what_a_child_leaves_in_its_group_ends_with_it(server: ForkServer, tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    assert ended(server, server.start(Start(module="child_script", argv=["grandchild"], log=str(log)))) == 0
    grandchild = int(log.read_text())
    deadline = time.monotonic() + 5
    while psutil.pid_exists(grandchild) and psutil.Process(grandchild).status() != "zombie":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_ten_forks_take_less_time_than_five_new_interpreters(server: ForkServer, tmp_path: Path) -> None:
    ended(server, server.start(Start(module="child_script", argv=["exit", "0"])), 30.0)
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import zephon.agent.forkserver"], check=True)
    interpreter, began = time.monotonic() - began, time.monotonic()
    handles = [server.start(Start(module="child_script", argv=["exit", "0"], log=str(tmp_path / "x.log"))) for _ in range(10)]
    for handle in handles:
        ended(server, handle)
    assert time.monotonic() - began < 5 * interpreter


OWNER = """
import os, sys, time
from zephon.agent.fork_messages import Start
from zephon.agent.forkserver import ForkServer
server = ForkServer.fork()
handle = server.start(Start(module="child_script", argv=["sleep"], log=sys.argv[1]))
while handle not in server.pids:
    server.poll()
print(server.pid, server.pids[handle], flush=True)
time.sleep(60)
"""


def test_kill_9_of_the_owner_ends_the_server_and_its_children(tmp_path: Path) -> None:
    (tmp_path / "child_script.py").write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])}
    with subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path / "x.log")], stdout=subprocess.PIPE, env=env) as owner:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        wait_for(tmp_path / "x.log", "sleeping")
        owner.kill()
        owner.wait(10)
    deadline = time.monotonic() + 5
    for pid in pids:
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie":
            assert time.monotonic() < deadline, f"process {pid} outlived its owner"
            time.sleep(0.02)


def test_a_server_that_ended_is_an_error_and_not_a_hang(server: ForkServer) -> None:
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(ConnectionError, match="has ended"):
        knock(server)


def knock(server: ForkServer) -> None:
    while True:
        server.start(Start(module="child_script", argv=["exit", "0"]))
        server.poll()
        time.sleep(0.01)
