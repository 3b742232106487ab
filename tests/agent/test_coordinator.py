"""The coordinator and the agents' links over real sockets, in one process and without torch."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
import time
from pathlib import Path

import pytest

from tests.agent.peers import Peers, assigned, until
from tests.agent.toy import toy_spec
from zephon.agent.coordinator import allowed_nodes
from zephon.agent.link import parse_endpoint
from zephon.errors import ConfigError
from zephon.run.directory import RunDir
from zephon.run.events import read_events
from zephon.run.generation import read_generation
from zephon.run.progress import Progress, write_progress
from zephon.run.stop import write_stop
from zephon.run.target import write_target


def test_two_links_get_one_generation_with_the_store_of_rank_zero(peers: Peers) -> None:
    server = peers.serve(2)
    a, b = peers.link("n-0", server.coordinator.port), peers.link("n-1", server.coordinator.port)
    b.send("ready", store="b:2")
    a.send("ready", store="a:1")
    first, second = assigned(a), assigned(b)
    assert (first["rank"], second["rank"], second["store"]) == (0, 1, "a:1")
    assert first["generation"] == second["generation"] == 1
    newest = read_generation(peers.rundir)
    assert newest is not None
    assert newest.nodes == ("n-0", "n-1")


def test_a_closed_link_is_a_lost_node_at_once(peers: Peers) -> None:
    server = peers.serve(2)
    a, b = peers.link("n-0", server.coordinator.port), peers.link("n-1", server.coordinator.port)
    for link in (a, b):
        link.send("ready", store="x:1")
    for link in (a, b):
        assigned(link)
    began = time.monotonic()
    b.close()
    until(lambda: a.regroup(1) is not None)
    assert time.monotonic() - began < 1.0
    assert a.regroup(1) == {"kind": "regroup", "generation": 1, "reason": "lost n-1", "drain": False}


def test_a_killed_coordinator_is_found_again_and_the_running_generation_goes_on(peers: Peers) -> None:
    server = peers.serve(1)
    link = peers.link("n-0", server.coordinator.port)
    link.send("ready", store="x:1")
    assigned(link)
    port = server.coordinator.port
    server.kill()
    again = peers.serve(1, port=port)
    until(lambda: "n-0" in again.coordinator.membership.nodes and again.coordinator._links)
    time.sleep(0.3)
    assert link.regroup(1) is None, "workers were stopped though nothing was wrong with them"
    link.send("exited", generation=1, exits={"0": 0}, error=None)
    until(lambda: link.finished is not None)
    assert link.finished is not None
    assert link.finished["status"] == 0


def test_what_happened_while_the_coordinator_was_away_is_told_when_it_is_back(peers: Peers) -> None:
    server = peers.serve(1)
    link = peers.link("n-0", server.coordinator.port)
    link.send("ready", store="x:1")
    assigned(link)
    port = server.coordinator.port
    server.kill()
    link.send("exited", generation=1, exits={"0": 75}, error=None)
    link.send("ready", store="x:2")
    peers.serve(1, port=port)
    assert assigned(link)["generation"] == 2


def test_an_unreachable_coordinator_is_given_up_with_its_address(peers: Peers) -> None:
    link = peers.link("n-0", 1, timeout_s=0.5)
    assert link.wait_assignment(5.0, threading.Event()) is None
    assert link.failed is not None
    assert "127.0.0.1:1" in link.failed


def test_a_coordinator_that_comes_late_is_waited_for(peers: Peers) -> None:
    probe = peers.serve(1)
    port = probe.coordinator.port
    probe.kill()
    link = peers.link("n-0", port, timeout_s=20.0)
    link.send("ready", store="x:1")
    time.sleep(1.0)
    peers.serve(1, port=port)
    assert assigned(link, 10.0)["rank"] == 0


@pytest.mark.parametrize("restarted", [False, True], ids=["the same coordinator", "a new coordinator"])
def test_a_job_that_comes_back_after_a_stop_forms_once_and_with_the_size_last_asked_for(peers: Peers, restarted: bool) -> None:
    server = peers.serve(1, supervised=False)
    first = peers.link("n-0", server.coordinator.port)
    first.send("ready", store="x:1")
    assigned(first)
    write_target(peers.rundir, 1, 3)  # a rescale that came just before the stop
    first.send("leaving")
    first.send("exited", generation=1, exits={"0": 143}, error=None)
    until(lambda: first.released.is_set())
    first.close()
    until(lambda: not server.coordinator.membership.nodes)
    if restarted:
        server.kill()
        server = peers.serve(1, supervised=False)
        until(lambda: not server.coordinator.membership.nodes, 10)  # those of the old generation do not say hello
    links = [peers.link(f"m-{i}", server.coordinator.port) for i in range(3)]
    for link in links[:2]:
        link.send("ready", store="y:1")
    until(lambda: len([n for n in server.coordinator.membership.nodes.values() if n.state == "ready"]) == 2)
    assert links[0].wait_assignment(1.0, threading.Event()) is None, "two of three trained without waiting for the third"
    links[2].send("ready", store="y:1")
    assert [assigned(link)["nodes"] for link in links] == [["m-0", "m-1", "m-2"]] * 3
    assert [event.details["generation"] for event in read_events(peers.rundir) if event.kind == "generation"] == [1, 2]


def step_at(rundir: RunDir, step: int, generation: int) -> None:
    write_progress(rundir, 1, Progress(step=step, steps=99, generation=generation, time=time.time(), step_s=0.1))


@pytest.mark.parametrize("between", ["replaced", "stopped", "away for long"])
def test_the_time_without_a_node_is_a_stall_where_one_was_replaced_and_not_where_the_run_was_stopped(
    peers: Peers, between: str
) -> None:
    server = peers.serve(1, supervised=False, join_timeout_s=0.5 if between == "away for long" else 60.0)
    members = server.coordinator.membership
    members.rules = dataclasses.replace(members.rules, join_timeout_s=math.inf)  # as a coordinator on a cluster
    first = peers.link("n-0@1", server.coordinator.port)
    first.send("ready", store="x:1")
    assigned(first)
    step_at(peers.rundir, 7, 1)
    first.send("leaving")
    first.send("exited", generation=1, exits={"0": 143}, error=None)
    until(lambda: first.released.is_set())
    first.close()
    until(lambda: not members.nodes)
    if between == "stopped":
        write_stop(peers.rundir, 1)
    time.sleep(1.0 if between == "away for long" else 0.1)
    second = [("n-0@3", 9)] if between != "away for long" else []  # a replacement, whatever went before
    for name, step in [("n-0@2", 8), *second]:
        link = peers.link(name, server.coordinator.port)
        link.send("ready", store="y:1")
        generation = assigned(link)["generation"]
        step_at(peers.rundir, step, int(str(generation)))
        until(lambda: not server.coordinator.resizes.settling)
        if step == 8:
            link.close()
            until(lambda: not members.nodes)
    told = [(event["reason"], event["step_after"], event["lost_steps"]) for event in peers.events("resized")]
    expected = {"replaced": [("workers ended", 8, 0), ("lost n-0@2", 9, 0)], "stopped": [("lost n-0@2", 9, 0)]}
    assert told == expected.get(between, [])


def test_every_decision_is_an_event(peers: Peers) -> None:
    server = peers.serve(1)
    link = peers.link("n-0", server.coordinator.port)
    link.send("ready", store="x:1")
    assigned(link)
    link.send("exited", generation=1, exits={"0": 0}, error=None)
    until(lambda: link.finished is not None)
    kinds = [event.kind for event in read_events(peers.rundir)]
    assert kinds[:3] == ["node_hello", "node_ready", "generation"]
    assert "finish" in kinds


def test_garbage_on_the_port_disturbs_nobody(peers: Peers) -> None:
    import socket

    server = peers.serve(1)
    for text in (b"GET / HTTP/1.1\r\n\r\n", b"{}\n", b"[1]\n", b"\xff\xfe\n", b'{"kind": "hello"}\n', b"x" * 100_000 + b"\n"):
        with socket.create_connection(("127.0.0.1", server.coordinator.port)) as stranger:
            stranger.sendall(text)
            stranger.settimeout(5)
            with contextlib.suppress(ConnectionError):
                assert stranger.recv(10) == b""
    link = peers.link("n-0", server.coordinator.port)
    link.send("ready", store="x:1")
    assert assigned(link)["rank"] == 0


@pytest.mark.parametrize("text", ["", "host", "host:", ":29400", "host:0", "host:65536", "host:port"])
def test_a_bad_endpoint_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        parse_endpoint(text)


def test_endpoints_may_be_names_and_both_kinds_of_addresses() -> None:
    assert parse_endpoint("job-0.svc:29400") == ("job-0.svc", 29400)
    assert parse_endpoint("[fd00::1]:29400") == ("fd00::1", 29400)


def test_allowed_node_counts_follow_lanes_processes_and_tensor_parallel(tmp_path: Path) -> None:
    import dataclasses

    spec = toy_spec(tmp_path, nodes=1)
    whole = dataclasses.replace(spec, lanes=dataclasses.replace(spec.lanes, allow="whole"))
    assert [n for n in range(1, 9) if allowed_nodes(whole)(n)] == [1, 2, 4, 8]
    two = dataclasses.replace(whole, elastic=dataclasses.replace(spec.elastic, procs_per_node=2))
    assert [n for n in range(1, 9) if allowed_nodes(two)(n)] == [1, 2, 4]
    tensor = dataclasses.replace(whole, trainer=dataclasses.replace(spec.trainer, tensor_parallel=2))
    assert [n for n in range(1, 9) if allowed_nodes(tensor)(n)] == [2, 4, 8]
