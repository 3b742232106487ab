"""The coordinator of several stages and the nodes' links over real sockets; the nodes' processes are played by the test."""

from __future__ import annotations

from tests.agent.peers import Peers, assigned, record_end, until
from zephon.agent.link import Link
from zephon.agent.messages import Exited, Finish, Leaving, Ready, RunStage, StageEnded, StageStarted, WithdrawStage
from zephon.run.attempt_stages import read_attempt_stages
from zephon.run.directory import RunDir
from zephon.run.stage_records import read_record
from zephon.spec.experiment import StageSpec, StagesSpec

OWN = {name: StageSpec(call=f"own:{name}") for name in ("first", "last")}
STAGES = StagesSpec(order=("first", "train", "last"), own=OWN)


def states(rundir: RunDir) -> list[str]:
    return list(read_attempt_stages(rundir, 1).states.values())


def done(link: Link, stage: str, token: int) -> None:
    """A node does what it was ordered."""
    until(lambda: link.stage == RunStage(stage, token))
    link.send(StageStarted(token))
    link.send(StageEnded(token, "done", 0, f"stage {stage} is done"))


def test_one_node_does_the_first_stage_all_train_and_one_does_the_last(peers: Peers) -> None:
    server = peers.serve(2, stages=STAGES)
    first, second = peers.link("n-0", server.training.port), peers.link("n-1", server.training.port)
    until(lambda: first.stage is not None or second.stage is not None)
    assert states(peers.rundir) == ["running", "waiting", "waiting"]
    owner = first if first.stage is not None else second
    done(owner, "first", 1)
    for link in (first, second):
        link.send(Ready("x:1"))
    for link in (first, second):
        rank = assigned(link).rank
        record_end(peers.rundir)
        link.send(Exited(1, {rank: 0}))
    until(lambda: states(peers.rundir)[1:] == ["done", "running"])
    last = read_attempt_stages(peers.rundir, 1)
    owner, other = (first, second) if last.node == "n-0" else (second, first)
    until(lambda: other.finished is not None)
    assert other.finished == Finish(0, "all steps are done"), "after training one node is enough"
    assert owner.finished is None
    done(owner, "last", 2)
    until(lambda: owner.finished is not None)
    assert owner.finished == Finish(0, "all stages are done")
    assert states(peers.rundir) == ["done", "done", "done"]
    record = read_record(peers.rundir, "train")
    assert record is not None
    assert record.status == "done"


def test_a_stage_that_fails_ends_the_job_for_every_node_and_for_those_that_come_later(peers: Peers) -> None:
    server = peers.serve(1, stages=STAGES)
    link = peers.link("n-0", server.training.port)
    until(lambda: link.stage == RunStage("first", 1))
    link.send(StageEnded(1, "failed", 65, "stage first failed: no data"))
    until(lambda: link.finished is not None)
    assert link.finished == server.finish == Finish(65, "stage first failed: no data")
    again = peers.serve(1, stages=STAGES)
    until(lambda: again.finish is not None)
    assert again.finish == server.finish, "a coordinator that comes again knows how the job has ended"
    assert states(peers.rundir) == ["failed", "waiting", "waiting"]


def test_a_node_with_an_older_token_is_ordered_to_stop_and_changes_nothing(peers: Peers) -> None:
    server = peers.serve(2, stages=STAGES, heartbeat_s=0.2)
    lost = peers.link("n-0", server.training.port)
    until(lambda: lost.stage == RunStage("first", 1))
    lost.send(StageStarted(1))
    until(lambda: server.served.owner.state == "running")  # type: ignore[union-attr]
    lost.close()
    other = peers.link("n-1", server.training.port)
    until(lambda: other.stage == RunStage("first", 2))
    back = peers.link("n-0", server.training.port)
    back.send(StageEnded(1, "failed", 1, "too late"))
    until(lambda: back.stage == WithdrawStage(2))
    assert states(peers.rundir) == ["running", "waiting", "waiting"]
    (event,) = peers.events("stage_lost")
    assert event["node"] == "n-0"


def test_a_node_that_leaves_hands_its_stage_on_as_stopped(peers: Peers) -> None:
    server = peers.serve(1, stages=STAGES)
    link = peers.link("n-0", server.training.port)
    until(lambda: link.stage == RunStage("first", 1))
    link.send(StageStarted(1))
    link.send(Leaving())
    link.send(StageEnded(1, "stopped", 143, "stopped in stage first"))
    assert link.released.wait(5)
    until(lambda: states(peers.rundir) == ["stopped", "waiting", "waiting"])
    other = peers.link("n-1", server.training.port)
    until(lambda: other.stage == RunStage("first", 2))
    assert read_attempt_stages(peers.rundir, 1).lost == 0


def test_a_new_coordinator_goes_on_with_the_stage_that_runs(peers: Peers) -> None:
    server = peers.serve(1, stages=STAGES)
    link = peers.link("n-0", server.training.port)
    until(lambda: link.stage == RunStage("first", 1))
    link.send(StageStarted(1))
    port = server.training.port
    server.kill()
    link.send(StageEnded(1, "done", 0, "stage first is done"))
    record_end(peers.rundir)
    peers.serve(1, port=port, stages=STAGES)
    done(link, "last", 2)
    until(lambda: link.finished is not None)
    assert states(peers.rundir) == ["done", "skipped", "done"], "all steps were saved already"
    assert [event["stage"] for event in peers.events("stage_started")] == ["first", "last"]
