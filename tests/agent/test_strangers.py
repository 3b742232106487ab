"""A whole run on this machine, as somebody sees it who does not belong to it."""

from __future__ import annotations

import base64
import contextlib
import random
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from tests.agent.toy import Toy, processes_of
from zephon.agent.channel import NONCE, PROOF, Handshake
from zephon.agent.door import MAX_PENDING
from zephon.agent.messages import Exited, Hello, Leaving, encode
from zephon.launch import control
from zephon.launch.backends.local.index import apps
from zephon.run.attempt import attempt_directory
from zephon.run.secret import FILE, find_secret

LONG = 100_000
HELD, GROWTH = 500, 64 << 20
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


def test_no_secret_is_in_an_argument_a_file_or_a_log_of_a_run(toy: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt's own is in one private file while it runs, and those of the user's environment go through memory alone."""
    theirs = secrets.token_hex(16)  # not typed here: an attempt records the uncommitted changes of its code
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, theirs)
    run = toy(nodes=1, steps=LONG, step_s=0.02).start()
    run.wait_step(3)
    secret = secret_of(run)
    forms = (secret, base64.b64encode(secret), bytes.fromhex(secret.decode()))
    for process in processes(run):
        assert not any(form in "\0".join(process.environ().values()).encode() for form in forms), process
        said = "\0".join(process.cmdline()).encode()
        assert not any(form in said for form in (*forms, theirs.encode())), process
    control.stop(run.rundir)
    directory = attempt_directory(run.rundir, 1)
    assert not (directory / FILE).exists(), "the attempt has ended"
    files = [path for path in Path(run.rundir.root).parents[1].rglob("*") if path.is_file()]
    assert {directory / "logs" / "supervisor.log", directory / "request.json", directory / "environment.json"} <= {*files}
    assert [path for path in files if any(form in path.read_bytes() for form in (*forms, theirs.encode()))] == []


class Fuzzer:
    """A stranger who tries everything that needs no secret; ``held`` are connections kept open."""

    def __init__(self, ports: Sequence[int], seed: int) -> None:
        self.ports, self.random = ports, random.Random(seed)
        self.held: list[socket.socket] = []
        self.connections = 0

    def attack(self) -> None:
        kind = self.random.choice([self.hold, self.garbage, self.endless, self.half, self.half_a_proof, self.pretend])
        with contextlib.suppress(OSError):
            kind()
        while len(self.held) > HELD:
            self.held.pop(0).close()

    def connect(self) -> socket.socket:
        self.connections += 1
        return socket.create_connection(("127.0.0.1", self.random.choice(self.ports)), timeout=0.1)

    def send(self, data: bytes) -> None:
        with self.connect() as link:
            link.sendall(data)

    def hold(self) -> None:
        """Many at once that say nothing."""
        for _ in range(50):
            self.held.append(self.connect())

    def garbage(self) -> None:
        self.send(self.random.randbytes(self.random.choice([1, 63, 64, 65, 500, 70_000])))

    def endless(self) -> None:
        self.send(b"x" * (1 << 21))

    def half(self) -> None:
        line = encode(Exited(1, {0: 0}))
        self.send(line[: self.random.randrange(len(line))])

    def half_a_proof(self) -> None:
        """The start of a right answer, and then silence."""
        link = self.connect()
        self.held.append(link)
        link.sendall(self.random.randbytes(NONCE + PROOF - 1))

    def pretend(self) -> None:
        """Other nodes' words, with a proof of another secret."""
        with self.connect() as link:
            theirs, ours = link.recv(NONCE), self.random.randbytes(NONCE)
            handshake = Handshake(b"a guess", self.random.choice(["coordinator", "control"]), server=theirs, client=ours)
            link.sendall(ours + handshake.proof("client"))
            lines = handshake.lines("client")
            for message in (Hello("node-0@1", 1, "here", 1), Exited(1, {0: 0, 1: 0}), Leaving()):
                link.sendall(lines.seal(encode(message)))

    def close(self) -> None:
        for link in self.held:
            link.close()


@pytest.mark.slow
@pytest.mark.parametrize("ports", ["of ours", "of torch"])
def test_half_a_minute_of_strangers_on_every_port_costs_no_step_and_no_memory(running: Toy, ports: str) -> None:
    ours = {link.laddr.port for link in psutil.Process(running.supervisor_pid()).net_connections() if link.status == "LISTEN"}
    every = {port for _, port in listening(running)}
    stranger = Fuzzer(sorted(ours if ports == "of ours" else every - ours), seed=13)
    before = {process: process.memory_info().rss for process in processes(running)}
    began, step, most = time.monotonic(), running.status().step, 0
    while time.monotonic() - began < 30.0 or stranger.connections <= 3000:  # thousands, however slow the machine is
        assert time.monotonic() - began < 200.0, f"{stranger.connections} connections only"
        stranger.attack()
        most = max(most, psutil.Process(running.supervisor_pid()).num_fds())
    running.wait_step(step + 20)
    after = {process: process.memory_info().rss for process in processes(running)}
    stranger.close()
    assert set(after) == set(before), running.story()
    assert max(after[process] - before[process] for process in after) < GROWTH
    assert most < 2 * MAX_PENDING + 100, "file descriptors of the supervisor"
    status = running.status()
    assert (status.state, status.generation, status.failures, status.lost) == ("TRAINING", 1, 0, 0), running.story()
    assert sum(event["event"] == "bad_connection" for event in running.events()) <= 2
    assert control.stop(running.rundir).state == "STOPPED"


@pytest.mark.slow
def test_workers_that_end_with_status_0_before_the_last_step_are_no_done_run(toy: Maker) -> None:
    run = toy(nodes=1, steps=40, step_s=0.02, faults={"13": "0"}).start()
    status = run.wait_end(120)
    assert (status.state, status.message) == ("FAILED", "all workers ended with status 0, but the ledger has 12 of 40 steps")


def test_a_store_listens_on_the_address_that_it_is_given(tmp_path: Path) -> None:
    from zephon.agent.node import listening_store

    store = listening_store("127.0.0.2")
    with socket.create_connection(("127.0.0.2", store.port)), pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", store.port))
