"""A worker's life over many memberships: the test plays the agent at the other end of its line."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.train.test_worker import write_run
from zephon.handover import LINE, CanStay, FromWorker, LeaveGroup, Parked, Place, ToWorker, decode, encode
from zephon.run.checkpoints import complete_steps
from zephon.run.directory import RunDir
from zephon.run.ledger import read_ledger
from zephon.run.progress import read_progress


class Agent:
    """The agent's end of the line of one worker, which trains alone."""

    def __init__(self, folder: Path) -> None:
        self.run, self.generation = RunDir(str(folder)), 1
        ours, theirs = socket.socketpair()
        env = {**os.environ, "OMP_NUM_THREADS": "1", LINE: str(theirs.fileno()), "ZEPHON_GENERATION": "1"}
        command = [sys.executable, "-m", "zephon.train", "--run", str(folder), "--attempt", "1"]
        with open(folder / "log", "wb") as log:
            self.process = subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()], stdout=log, stderr=log)
        theirs.close()
        ours.settimeout(120)
        self._line, self._lines = ours, ours.makefile("r")

    def heard(self) -> FromWorker:
        message = decode(self._lines.readline())
        assert isinstance(message, CanStay | Parked)
        return message

    def say(self, message: ToWorker) -> None:
        self._line.sendall(encode(message).encode() + b"\n")

    def place(self) -> None:
        self.generation += 1
        self.say(Place({"ZEPHON_GENERATION": str(self.generation), "RANK": "0", "WORLD_SIZE": "1"}))

    def trained(self) -> int:
        """Waits for a step of the newest generation; how many steps are done then."""
        deadline = time.monotonic() + 120
        while (progress := read_progress(self.run, 1)) is None or progress.generation != self.generation:
            assert time.monotonic() < deadline
            assert self.process.poll() is None
            time.sleep(0.005)
        return progress.step

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._lines.close()
        self._line.close()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    write_run(tmp_path, trainer__steps=100_000, checkpoint__every=100_000)
    made = Agent(tmp_path)
    yield made
    made.close()


def test_a_worker_that_waits_for_a_place_saves_what_it_alone_holds_when_it_is_asked_to_end(agent: Agent) -> None:
    assert agent.heard() == CanStay()
    agent.trained()
    agent.say(LeaveGroup())
    parked = agent.heard()
    assert isinstance(parked, Parked)
    assert parked.lost is None
    assert complete_steps(agent.run) == []
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(60) == 143
    assert complete_steps(agent.run) == [parked.step]
    assert [entry.step for entry in read_ledger(agent.run.path("ledger.jsonl"))] == list(range(parked.step))


@pytest.mark.slow
def test_a_hundred_changes_leave_threads_descriptors_and_memory_flat(agent: Agent) -> None:
    assert agent.heard() == CanStay()
    process = psutil.Process(agent.process.pid)
    sizes: list[tuple[int, int, int]] = []
    for _ in range(100):
        agent.trained()
        agent.say(LeaveGroup())
        assert isinstance(agent.heard(), Parked)
        sizes.append((process.num_threads(), process.num_fds(), process.memory_info().rss))
        agent.place()
    threads, descriptors, memory = zip(*sizes, strict=True)
    assert max(threads[10:]) <= max(threads[:10])
    assert max(descriptors[10:]) <= max(descriptors[:10])
    assert max(memory[80:]) < 1.1 * max(memory[10:30])
    steps = [entry.step for entry in read_ledger(agent.run.path("ledger.jsonl"))]
    assert steps == list(range(len(steps)))
