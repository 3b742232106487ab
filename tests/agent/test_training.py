"""The coordinator of a training and the agents' links over real sockets, in one process and without torch."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.agent.peers import Peers, Server, assigned, record_end, until
from tests.agent.toy import toy_spec
from zephon.agent.channel import NONCE, PROOF, Handshake
from zephon.agent.link import Link
from zephon.agent.messages import Exited, Finish, Hello, Leaving, Ready, Rerendezvous, WorkerError, encode
from zephon.agent.training import Training
from zephon.errors import Superseded
from zephon.run.directory import RunDir
from zephon.run.events import read_events
from zephon.run.generation import Generation, claim, read_generation
from zephon.run.progress import Progress, write_progress
from zephon.run.stop import write_stop
from zephon.run.target import write_target


def joined(peers: Peers) -> tuple[Server, tuple[Link, Link]]:
    """A coordinator, and two nodes that have their places in its first generation."""
    server = peers.serve(2)
    links = peers.link("n-0", server.training.port), peers.link("n-1", server.training.port)
    for link in links:
        link.send(Ready("x:1"))
    for link in links:
        assigned(link)
    return server, links


def test_two_links_get_one_generation_with_the_store_of_rank_zero(peers: Peers) -> None:
    server = peers.serve(2)
    a, b = peers.link("n-0", server.training.port), peers.link("n-1", server.training.port)
    b.send(Ready("b:2"))
    a.send(Ready("a:1"))
    first, second = assigned(a), assigned(b)
    assert (first.rank, second.rank, second.store) == (0, 1, "a:1")
    assert first.generation == second.generation == 1
    newest = read_generation(peers.rundir)
    assert newest is not None
    assert newest.nodes == ("n-0", "n-1")


def test_a_closed_link_is_a_lost_node_at_once(peers: Peers) -> None:
    _, (a, b) = joined(peers)
    began = time.monotonic()
    b.close()
    until(lambda: a.rerendezvous(1) is not None)
    assert time.monotonic() - began < 1.0
    assert a.rerendezvous(1) == Rerendezvous(1, "lost n-1", drain=False)


def test_a_killed_coordinator_is_found_again_and_the_running_generation_goes_on(peers: Peers) -> None:
    server = peers.serve(1)
    link = peers.link("n-0", server.training.port)
    link.send(Ready("x:1"))
    assigned(link)
    port = server.training.port
    server.kill()
    again = peers.serve(1, port=port)
    until(lambda: "n-0" in again.training.membership.nodes and again.training.server.connected())
    until(lambda: len(peers.events("node_hello")) == 2)
    record_end(peers.rundir)
    link.send(Exited(1, {0: 0}))
    until(lambda: link.finished is not None)
    assert link.rerendezvous(1) is None, "workers were stopped though nothing was wrong with them"
    assert link.finished is not None
    assert link.finished.status == 0


def test_what_happened_while_the_coordinator_was_away_is_sent_when_it_is_back(peers: Peers) -> None:
    server = peers.serve(1)
    link = peers.link("n-0", server.training.port)
    link.send(Ready("x:1"))
    assigned(link)
    port = server.training.port
    server.kill()
    link.send(Exited(1, {0: 75}))
    link.send(Ready("x:2"))
    peers.serve(1, port=port)
    assert assigned(link).generation == 2


def test_an_unreachable_coordinator_is_given_up_with_its_address(peers: Peers) -> None:
    link = peers.link("n-0", 1, timeout_s=0.5)
    assert link.wait_assignment(5.0, threading.Event()) is None
    assert link.failed is not None
    assert "127.0.0.1:1" in link.failed


def test_a_coordinator_that_comes_late_is_waited_for(peers: Peers) -> None:
    probe = peers.serve(1)
    port = probe.training.port
    probe.kill()
    link = peers.link("n-0", port, timeout_s=20.0)
    link.send(Ready("x:1"))
    time.sleep(1.0)
    peers.serve(1, port=port)
    assert assigned(link, 10.0).rank == 0


@pytest.mark.parametrize("restarted", [False, True], ids=["the same coordinator", "a new coordinator"])
def test_a_job_that_comes_back_after_a_stop_forms_once_and_with_the_size_last_asked_for(peers: Peers, restarted: bool) -> None:
    server = peers.serve(1, supervised=False)
    first = peers.link("n-0", server.training.port)
    first.send(Ready("x:1"))
    assigned(first)
    write_target(peers.rundir, 1, 3)  # a rescale that came just before the stop
    write_stop(peers.rundir, 1)
    first.send(Leaving())
    first.send(Exited(1, {0: 143}))
    until(lambda: first.released.is_set())
    first.close()
    until(lambda: not server.training.membership.nodes)
    if restarted:
        server.kill()
        server = peers.serve(1, supervised=False)
        until(lambda: not server.training.membership.nodes, 10)  # those of the old generation do not say hello
    links = [peers.link(f"m-{i}", server.training.port) for i in range(3)]
    for link in links[:2]:
        link.send(Ready("y:1"))
    until(lambda: len([n for n in server.training.membership.nodes.values() if n.state == "ready"]) == 2)
    assert links[0].wait_assignment(1.0, threading.Event()) is None, "two of three trained without waiting for the third"
    links[2].send(Ready("y:1"))
    assert [(given.rank, given.nodes) for given in map(assigned, links)] == [(0, 3), (1, 3), (2, 3)]
    assert [event.details["generation"] for event in read_events(peers.rundir) if event.kind == "generation"] == [1, 2]


def step_at(rundir: RunDir, step: int, generation: int) -> None:
    write_progress(rundir, 1, Progress(step=step, steps=99, generation=generation, time=time.time(), step_s=0.1))


@pytest.mark.parametrize("between", ["replaced", "stopped", "away for long"])
def test_the_time_without_a_node_is_a_stall_where_one_was_replaced_and_not_where_the_run_was_stopped(
    peers: Peers, between: str
) -> None:
    server = peers.serve(1, supervised=False, join_timeout_s=0.5 if between == "away for long" else 60.0)
    members = server.training.membership
    members.rules = dataclasses.replace(members.rules, join_timeout_s=math.inf)  # as a coordinator on a cluster
    first = peers.link("n-0@1", server.training.port)
    first.send(Ready("x:1"))
    assigned(first)
    step_at(peers.rundir, 7, 1)
    first.send(Leaving())
    first.send(Exited(1, {0: 143}))
    until(lambda: first.released.is_set())
    first.close()
    until(lambda: not members.nodes)
    if between == "stopped":
        write_stop(peers.rundir, 1)
    if between == "away for long":
        until(lambda: server.training.resizes.waited(time.time()) > server.training.spec.elastic.join_timeout_s)
    second = [("n-0@3", 9)] if between != "away for long" else []  # a replacement, whatever went before
    for name, step in [("n-0@2", 8), *second]:
        link = peers.link(name, server.training.port)
        link.send(Ready("y:1"))
        generation = assigned(link).generation
        step_at(peers.rundir, step, generation)
        until(lambda: not server.training.resizes.settling)
        if step == 8:
            link.close()
            until(lambda: not members.nodes)
    first = {"a node leaves": "workers ended"}  # whichever message is looked at first
    told = [
        (first.get(event["reason"], event["reason"]), event["step_after"], event["lost_steps"])
        for event in peers.events("resized")
    ]
    expected = {"replaced": [("workers ended", 8, 0), ("lost n-0@2", 9, 0)], "stopped": [("lost n-0@2", 9, 0)]}
    assert told == expected.get(between, [])


def test_every_decision_is_an_event(peers: Peers) -> None:
    server = peers.serve(1)
    link = peers.link("n-0", server.training.port)
    link.send(Ready("x:1"))
    assigned(link)
    record_end(peers.rundir)
    link.send(Exited(1, {0: 0}))
    until(lambda: link.finished is not None)
    kinds = [event.kind for event in read_events(peers.rundir)]
    assert kinds[:3] == ["node_hello", "node_ready", "generation"]
    assert "finish" in kinds


def test_a_run_is_done_when_its_files_say_so_and_not_when_its_workers_do(peers: Peers) -> None:
    server = peers.serve(1)
    link = peers.link("n-0", server.training.port)
    link.send(Ready("x:1"))
    assigned(link)
    link.send(Exited(1, {0: 0}))
    until(lambda: server.training.membership.missing == "the ledger has 0 of 20 steps")
    assert server.training.membership.finished is None
    record_end(peers.rundir)
    until(lambda: link.finished is not None)
    assert link.finished == Finish(0, "all steps are done")


def say(port: int, text: bytes) -> bytes:
    """What a stranger gets who connects, says this and has no more to say."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger, contextlib.suppress(ConnectionError):
        stranger.sendall(text)
        stranger.shutdown(socket.SHUT_WR)
        return stranger.makefile("rb").read()
    return b""


def test_garbage_on_the_port_disturbs_nobody_and_is_one_event_a_minute(peers: Peers) -> None:
    server = peers.serve(1)
    for text in (b"GET / HTTP/1.1\r\n\r\n", b"{}\n", b"[1]\n", b"\xff\xfe\n", b'{"kind": "hello"}\n', b"x" * 100_000 + b"\n"):
        assert len(say(server.training.port, text)) in (0, NONCE)
    link = peers.link("n-0", server.training.port)
    link.send(Ready("x:1"))
    assert assigned(link).rank == 0
    (event,) = peers.events("bad_connection")
    assert (event["node"], event["number"]) == ("", 1)


def test_a_stranger_who_speaks_in_the_name_of_a_node_or_as_a_new_one_is_not_heard(peers: Peers) -> None:
    server, _ = joined(peers)
    for node, rank in (("n-0", 0), ("n-1", 1), ("n-9", 2)):
        words = [Hello(node, 1, "stranger", 1), Ready("stranger:1"), Leaving(), Exited(1, {rank: 0})]
        text = b"".join(encode(word) for word in words)
        say(server.training.port, text)
        say(server.training.port, bytes(NONCE + PROOF) + text)
        guess = Handshake(b"a guess", "coordinator", server=bytes(NONCE), client=bytes(NONCE))
        say(server.training.port, bytes(NONCE) + guess.proof("client") + guess.lines("client").seal(text))
    members = server.training.membership
    assert sorted(members.nodes) == ["n-0", "n-1"]
    assert [node.state for node in members.nodes.values()] == ["working", "working"]
    assert (members.active, members.rerendezvous, members.finished) == (True, None, None)


def test_an_agent_of_another_attempt_does_not_get_in_and_says_why(peers: Peers) -> None:
    server = peers.serve(1)
    link = Link(f"127.0.0.1:{server.training.port}", "n-0", secret=b"of another attempt", beat_s=0.2, timeout_s=0.3)
    link.start()
    try:
        until(lambda: link.failed is not None)
    finally:
        link.close()
    assert link.failed is not None
    assert "before both ends had proved that they know the attempt's secret" in link.failed
    assert server.training.server.connected() == []


def test_an_attempt_whose_run_a_later_one_has_claimed_forms_no_membership_and_ends_for_good(peers: Peers) -> None:
    server = peers.serve(1)
    link = peers.link("node-0", server.training.port)
    link.send(Ready("x:1"))
    assigned(link)
    later = Generation(attempt=2, generation=2, nodes=("node-0",), world_size=1, time=time.time())
    claim(peers.rundir, later)
    link.send(Exited(1, {0: 75}))  # its worker has seen the claim
    link.send(Ready("x:1"))
    until(lambda: link.finished is not None)
    assert link.finished == Finish(1, "attempt 2 trains this run now and this process belongs to attempt 1")
    assert read_generation(peers.rundir) == later, "nothing was written over it"


def test_of_two_coordinators_of_one_attempt_the_second_ends_itself_and_not_the_job(peers: Peers) -> None:
    training = Training(peers.rundir, 1, toy_spec(Path(peers.rundir.root).parent), target=1)
    claim(peers.rundir, Generation(attempt=1, generation=1, nodes=("other",), world_size=1, time=time.time()))
    training.membership.ready("node-0", time.monotonic(), store="x:1")
    with pytest.raises(Superseded, match="generation 1"):
        asyncio.run(training.run())
    assert training.membership.finished is None


def test_the_last_node_that_leaves_after_a_drain_that_was_cut_off_says_what_was_lost(peers: Peers) -> None:
    server = peers.serve(1)
    link = peers.link("node-0", server.training.port)
    link.send(Ready("x:1"))
    assigned(link)
    write_progress(peers.rundir, 1, Progress(step=13, steps=20, time=time.time(), generation=1))
    link.send(Leaving())
    said = "the drain took longer than elastic.drain_s=2 s"
    cut = WorkerError(time=1.0, rank=0, node="node-0", status=-9, message=said, cut=True)
    link.send(Exited(1, {0: -9}, cut))
    until(link.released.is_set)
    link.close()
    until(lambda: peers.events("drain_failed") != [])
    (event,) = peers.events("drain_failed")
    assert event["cause"] == f"{said}; 13 steps were lost (the last checkpoint is of step 0)"
