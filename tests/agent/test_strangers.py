"""A whole run on this machine, as somebody sees it who does not belong to it."""

from __future__ import annotations

import base64
import socket
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.agent.toy import Toy, processes_of
from zephon.launch import control
from zephon.launch.backends.local.index import apps
from zephon.run.attempt import attempt_directory
from zephon.run.secret import FILE, find_secret

LONG = 100_000
Maker = Callable[..., Toy]


def processes(run: Toy) -> list[psutil.Process]:
    """All of the run's processes."""
    (app,) = [entry.app_id for entry in apps() if entry.run == run.rundir.url]
    return [psutil.Process(run.supervisor_pid()), *processes_of(app)]


def listening(run: Toy) -> list[tuple[str, int]]:
    """Where they can be reached."""
    found = [link for process in processes(run) for link in process.net_connections() if link.status == psutil.CONN_LISTEN]
    return [(link.laddr.ip, link.laddr.port) for link in found]


def secret_of(run: Toy) -> bytes:
    secret = find_secret(run.rundir, run.rundir.attempts()[-1])
    assert secret is not None
    return secret


@pytest.fixture
def running(toy: Maker) -> Toy:
    run = toy(nodes=2, steps=LONG, step_s=0.02).start()
    run.wait_step(3)
    return run


def test_a_run_on_this_machine_listens_on_the_loopback_only(running: Toy) -> None:
    addresses = {address for address, _ in listening(running)}
    assert addresses == {"127.0.0.1"}
    assert len(listening(running)) >= 6, "control port, coordinator, two stores, gloo in two workers"


def test_its_secret_is_in_one_private_file_and_nowhere_else_and_goes_with_the_attempt(running: Toy) -> None:
    secret = secret_of(running)
    forms = (secret, base64.b64encode(secret), bytes.fromhex(secret.decode()))
    for process in processes(running):
        said = "\0".join([*process.cmdline(), *process.environ().values()]).encode()
        assert not any(form in said for form in forms), process
    control.stop(running.rundir)
    directory = attempt_directory(running.rundir, 1)
    assert not (directory / FILE).exists(), "the attempt has ended"
    files = [path for path in Path(running.rundir.root).parents[1].rglob("*") if path.is_file()]
    assert directory / "logs" / "supervisor.log" in files
    assert [path for path in files if any(form in path.read_bytes() for form in forms)] == []


def test_a_store_listens_on_the_address_that_it_is_given(tmp_path: Path) -> None:
    from zephon.agent.node import listening_store

    store = listening_store("127.0.0.2")
    with socket.create_connection(("127.0.0.2", store.port)), pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", store.port))
