"""Situations of an elastic job that no other file holds; tests/kubernetes/cases.md names the tests of all thirteen."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agent.peers import Peers, until
from tests.agent.toy import Toy, toy_spec
from zephon.agent.membership import Form, Membership
from zephon.agent.messages import Rerendezvous
from zephon.agent.rules import rules_of
from zephon.errors import ConfigError
from zephon.launch import control
from zephon.run.secret import make_secret
from zephon.spec.experiment import ElasticSpec

LATE_S = 120.0


@pytest.mark.slow
@pytest.mark.parametrize(("doomed", "other"), [("n-0", "n-1"), ("n-1", "n-0")], ids=["the store's host", "another"])
def test_a_node_killed_between_the_round_and_its_workers_start_costs_nothing(peers: Peers, doomed: str, other: str) -> None:
    """The node is frozen while it waits for its place, is given one, and is killed before it can act on it."""
    server = peers.serve(2, heartbeat_s=30.0)
    port, settings = server.training.port, {"steps": 30, "step_s": 0.01}
    victim = peers.agent(doomed, port, **settings)
    until(lambda: peers.events("node_ready"), 60, peers.story)
    for process in (victim, *victim.children(recursive=True)):
        process.suspend()
    peers.agent(other, port, **settings)
    until(lambda: peers.events("generation"), 60, peers.story)
    assert set(peers.events("generation")[0]["nodes"]) == {"n-0", "n-1"}
    assert not Path(peers.rundir.path("attempts", "0001", "logs", doomed)).exists(), "its worker had started already"
    victim.kill()
    until(lambda: server.finish, 60, peers.story)
    assert server.finish is not None
    assert server.finish.status == 0
    assert [event["nodes"] for event in peers.events("generation")[1:]] == [[other]]
    assert (server.training.membership.counters.lost, server.training.membership.counters.failures) == (1, 0)
    until(lambda: not peers.agents[-1].is_running() or peers.agents[-1].poll() is not None, 20, peers.story)
    assert peers.agents[-1].wait() == 0


@pytest.mark.parametrize("minimum", [2, 1])
def test_with_the_defaults_node_0_120_s_late_is_no_failure(tmp_path: Path, minimum: int) -> None:
    """Where two nodes are the least, one waits; where one will do, it trains after a minute and then makes room."""
    spec = toy_spec(tmp_path, nodes=2)
    spec = dataclasses.replace(spec, elastic=ElasticSpec(nodes_min=minimum))
    members = Membership(rules_of(spec), target=None, expected=2, generation=0, now=0.0)
    members.hello("n-1", 0.0)
    members.ready("n-1", 0.0, store="n-1:1")
    actions: list[Any] = []
    for tick in range(int(LATE_S * 2)):
        members.beat("n-1", tick / 2)
        actions += members.decide(tick / 2)
    assert members.finished is None
    assert actions == ([] if minimum == 2 else [Form(1, ("n-1",), "n-1:1")])
    members.hello("n-0", LATE_S)
    members.ready("n-0", LATE_S, store="n-0:1")
    members.beat("n-1", LATE_S + 2)
    members.beat("n-0", LATE_S + 2)
    actions = members.decide(LATE_S + 2)
    assert actions == ([Form(1, ("n-0", "n-1"), "n-0:1")] if minimum == 2 else [Rerendezvous(1, "a node joined", drain=True)])
    assert members.counters.failures == 0


def test_no_default_bound_gives_up_before_a_node_that_is_120_s_late() -> None:
    """The agents' wait for the coordinator and the coordinator's for its nodes are one setting."""
    assert ElasticSpec().join_timeout_s >= 2 * LATE_S


@pytest.mark.slow
def test_node_0_comes_late_and_the_job_is_done_by_both(peers: Peers) -> None:
    """120 s of 300 s, scaled to 8 s of 60 s: less would not hold the start of an agent on a busy machine."""
    server = peers.serve(2, nodes_min=2, join_timeout_s=60.0)
    port, settings = server.training.port, {"steps": 20, "step_s": 0.01}
    early = peers.agent("n-1", port, **settings)
    until(lambda: peers.events("node_ready"), 60, peers.story)
    ready = peers.events("node_ready")[0]["time"]
    until(lambda: time.time() - ready > 8.0, 10)
    assert early.is_running()
    peers.agent("n-0", port, **settings)
    until(lambda: server.finish, 60, peers.story)
    assert server.finish is not None
    assert server.finish.status == 0
    assert [event["nodes"] for event in peers.events("generation")] == [["n-0", "n-1"]]


def test_an_endpoint_whose_name_resolves_late_is_waited_for(peers: Peers, tmp_path: Path) -> None:
    """A process with a hosts file of its own, in which the coordinator's name is written when others have given up."""
    hosts, switch = tmp_path / "hosts", tmp_path / "nsswitch.conf"
    hosts.write_text("127.0.0.1 localhost\n")
    switch.write_text("hosts: files\n")
    unshare = [shutil.which("unshare") or "unshare", "--map-root-user", "--mount", "/bin/sh", "-c"]
    own = f"mount --bind {hosts} /etc/hosts && mount --bind {switch} /etc/nsswitch.conf"
    try:
        subprocess.run([*unshare, own], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no mount namespace for a hosts file of its own: {error}")
    port = peers.serve(1).training.port
    program = (
        "import sys, threading\n"
        "from zephon.agent.link import Link\n"
        "from zephon.agent.messages import Ready\n"
        "link = Link(f'late.example:{sys.argv[1]}', 'n-0', secret=sys.argv[2].encode(), beat_s=0.2, timeout_s=60.0)\n"
        "link.start()\n"
        "link.send(Ready('x:1'))\n"
        "print('looking', flush=True)\n"
        "found = link.wait_assignment(60.0, threading.Event())\n"
        "print(found.rank if found else link.failed, flush=True)\n"
        "link.close()\n"
    )
    command = [*unshare, f'{own} && exec "$0" -c "$1" "$2" "$3"', sys.executable, program, str(port)]
    command.append(make_secret(peers.rundir, 1).decode())  # one of a test may be in an argument
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        assert node.stdout.readline() == "looking\n"
        with pytest.raises(subprocess.TimeoutExpired):
            node.wait(3.0)
        assert peers.events("node_hello") == []
        hosts.write_text("127.0.0.1 localhost late.example\n")  # the same file, not a new one: it is mounted
        assert node.stdout.readline() == "0\n"
        assert node.wait(20) == 0


@pytest.mark.slow
def test_a_second_rescale_before_the_first_has_settled_is_refused_and_the_first_goes_on(toy: Callable[..., Toy]) -> None:
    run = toy(nodes=1, steps=10_000, step_s=1.0).start()
    run.wait_step(1)
    control.rescale(run.rundir, 2, wait_s=0)
    with pytest.raises(ConfigError, match="has not settled"):
        control.rescale(run.rundir, 3, wait_s=0)
    assert run.wait_world(2).target == 2
