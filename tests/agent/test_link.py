"""The agent's connection against a socket that plays the coordinator: what is repeated, what is refused, who gives up when."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.agent.peers import until
from tests.agent.played import SECRET, Played
from zephon.agent.link import Link, parse_endpoint
from zephon.agent.messages import (
    Assign,
    Beat,
    Exited,
    Finish,
    Hello,
    Leaving,
    Ready,
    Released,
    Rerendezvous,
    RunStage,
    StageStarted,
    WithdrawStage,
)
from zephon.errors import ConfigError

NEVER = threading.Event()


@pytest.fixture
def link(coordinator: Played) -> Iterator[Link]:
    made = Link(coordinator.endpoint, "n-0", secret=SECRET, beat_s=0.1, timeout_s=1.0)
    made.start()
    coordinator.accept()
    yield made
    made.close()


def greeted(coordinator: Played) -> Hello:
    message = coordinator.receive()
    assert isinstance(message, Hello)
    return message


def test_a_link_says_hello_and_then_gives_signs_of_life(coordinator: Played, link: Link) -> None:
    hello = greeted(coordinator)
    assert (hello.node, hello.generation, hello.host) == ("n-0", None, socket.gethostname())
    assert coordinator.receive_any() == Beat()
    assert link.wait_address(5) == "127.0.0.1"


def test_an_assignment_is_given_once_and_ends_the_wait(coordinator: Played, link: Link) -> None:
    assign = Assign(3, 0, 1, "h:1")
    coordinator.send(assign)
    assert link.wait_assignment(5, NEVER) == assign
    assert link.wait_assignment(0.05, NEVER) is None


def test_an_order_to_stop_counts_for_its_own_generation_until_the_next_one(coordinator: Played, link: Link) -> None:
    order = Rerendezvous(3, "a node joined", drain=True)
    coordinator.send(order)
    until(lambda: link.rerendezvous(3) == order)
    assert link.rerendezvous(2) is None
    link.send(Ready("h:1"))
    assert link.rerendezvous(3) is None


def test_the_end_of_the_job_is_known_and_releases(coordinator: Played, link: Link) -> None:
    coordinator.send(Finish(1, "3 crashes"))
    until(lambda: link.finished == Finish(1, "3 crashes"))
    assert link.released.is_set()
    assert link.wait_assignment(5, NEVER) is None


def test_a_release_is_no_end_of_the_job(coordinator: Played, link: Link) -> None:
    coordinator.send(Released())
    assert link.released.wait(5)
    assert link.finished is None


def test_the_last_order_about_stages_stands(coordinator: Played, link: Link) -> None:
    coordinator.send(RunStage("first", 1), WithdrawStage(2))
    until(lambda: link.stage == WithdrawStage(2))


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_after_a_reconnect_a_link_repeats_what_still_holds(coordinator: Played, link: Link, reset: bool) -> None:
    link.send(Ready("h:1"))
    coordinator.send(Assign(3, 0, 1, "h:1"))
    assert link.wait_assignment(5, NEVER) is not None
    link.send(Exited(3, {0: 75}))
    link.send(Leaving())
    link.send(StageStarted(1))
    coordinator.drop(reset=reset)
    coordinator.accept()
    assert greeted(coordinator).generation == 3
    assert [coordinator.receive() for _ in range(3)] == [Exited(3, {0: 75}), Leaving(), StageStarted(1)]
    link.send(Ready("h:2"))
    assert coordinator.receive() == Ready("h:2")
    coordinator.drop(reset=reset)
    coordinator.accept()
    assert greeted(coordinator).generation is None, "it has no workers any more"
    assert [coordinator.receive() for _ in range(2)] == [Ready("h:2"), StageStarted(1)]


def test_a_coordinator_that_resets_the_connection_after_long_is_looked_for_as_long_as_any(
    coordinator: Played, link: Link
) -> None:
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 1.2)  # longer than the link looks for a coordinator that is away
    coordinator.drop(reset=True)
    coordinator.accept()
    assert greeted(coordinator).node == "n-0"
    assert link.failed is None


def test_what_is_no_message_makes_the_link_connect_again(coordinator: Played, link: Link) -> None:
    assert coordinator.connection is not None
    coordinator.connection.sendall(b"HTTP/1.1 400 Bad Request\n")
    coordinator.accept()
    assert greeted(coordinator).node == "n-0"
    coordinator.send(Finish(0, "done"))
    until(lambda: link.finished is not None)


def test_a_coordinator_that_stays_away_is_given_up_with_its_address(coordinator: Played, link: Link) -> None:
    coordinator.close()
    until(lambda: link.failed is not None)
    assert link.failed is not None
    assert coordinator.endpoint in link.failed
    assert link.wait_assignment(5, NEVER) is None


def test_a_wait_ends_when_the_node_is_asked_to_leave(coordinator: Played, link: Link) -> None:
    leaving = threading.Event()
    threading.Timer(0.1, leaving.set).start()
    assert link.wait_assignment(None, leaving) is None


@pytest.mark.parametrize("text", ["", "host", "host:", ":29400", "host:0", "host:65536", "host:port"])
def test_a_bad_endpoint_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        parse_endpoint(text)


def test_endpoints_may_be_names_and_both_kinds_of_addresses() -> None:
    assert parse_endpoint("job-0.svc:29400") == ("job-0.svc", 29400)
    assert parse_endpoint("[fd00::1]:29400") == ("fd00::1", 29400)
