"""One training at every size: what must be equal, and how equal."""

from __future__ import annotations

import itertools
import math
import os
import signal
from typing import Any

import pytest
import torch

from tests.train.ranks import Meet, Ranks, on_ranks
from tests.train.synthetic import spec
from tests.train.training import job, resize, run_steps, some_steps, state_hash, weights_gap
from zephon.errors import ConfigError, TrainingDiverged
from zephon.spec.experiment import RunSpec
from zephon.train.session import build


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The unbroken one-rank run, default and canonical reduction."""
    folder = str(tmp_path_factory.mktemp("alone"))
    return {mode: on_ranks(run_steps, 1, spec(trainer__reduction=mode), folder, 4)[0] for mode in ("default", "canonical")}


@pytest.mark.parametrize("parallel", ["ddp", "fsdp", "hsdp"])
@pytest.mark.parametrize("size", [2, 4])
def test_every_kind_of_parallelism_gives_the_one_rank_training_within_rounding(alone, tmp_path, parallel, size):
    found = on_ranks(run_steps, size, spec(trainer__parallel=parallel), str(tmp_path), 4)
    assert {one["begin"] for one in found} == {alone["default"]["begin"]}
    for mine, reference in zip(found[0]["losses"], alone["default"]["losses"], strict=True):
        assert mine == pytest.approx(reference, rel=1e-5)
    assert weights_gap(found[0]["weights"], alone["default"]["weights"]) < 1e-4
    assert len({one["end"] for one in found}) == 1


@pytest.mark.parametrize(
    "parallel, size",
    [("fsdp", 2), pytest.param("fsdp", 4, marks=pytest.mark.slow), pytest.param("ddp", 4, marks=pytest.mark.slow)],
)
def test_tensor_parallel_ranks_give_the_one_rank_training_within_rounding(alone, tmp_path, parallel, size):
    some = spec(trainer__parallel=parallel, trainer__tensor_parallel=2)
    found = on_ranks(run_steps, size, some, str(tmp_path), 4)
    assert {one["begin"] for one in found} == {alone["default"]["begin"]}
    for mine, reference in zip(found[0]["losses"], alone["default"]["losses"], strict=True):
        assert mine == pytest.approx(reference, rel=1e-5)
    assert weights_gap(found[0]["weights"], alone["default"]["weights"]) < 1e-4
    assert len({one["end"] for one in found}) == 1


@pytest.mark.parametrize("size", [2, 4, 8])
def test_canonical_reduction_gives_the_bits_of_the_one_rank_training(alone, tmp_path, size):
    found = on_ranks(run_steps, size, spec(trainer__reduction="canonical"), str(tmp_path), 4)
    assert {tuple(one["losses"]) for one in found} == {tuple(alone["canonical"]["losses"])}
    assert {one["end"] for one in found} == {alone["canonical"]["end"]}


def test_canonical_reduction_does_not_depend_on_the_microbatch_size(alone, tmp_path):
    (found,) = on_ranks(run_steps, 1, spec(trainer__reduction="canonical", trainer__microbatch_size=5), str(tmp_path), 4)
    assert found["end"] == alone["canonical"]["end"]


def test_canonical_reduction_agrees_with_the_default_within_rounding(alone):
    assert weights_gap(alone["canonical"]["weights"], alone["default"]["weights"]) < 1e-4


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_the_same_processes_go_4_2_4_in_memory_and_train_as_if_nothing_had_happened(alone, tmp_path, parallel):
    mode = {"ddp": "canonical", "fsdp": "default"}[parallel]
    some = spec(trainer__reduction=mode, trainer__parallel=parallel)
    found = on_ranks(resize, 4, some, str(tmp_path), [4, 2, 4], 1)
    unbroken = alone[mode]["losses"][:3]
    assert len({one["end"] for one in found}) == 1
    if mode == "canonical":
        assert found[0]["losses"] == unbroken
    for mine, reference in zip(found[0]["losses"], unbroken, strict=True):
        assert mine == pytest.approx(reference, rel=1e-5)
    assert not list(tmp_path.iterdir())


def test_canonical_weights_survive_4_2_8_1_resizes_bit_for_bit(alone, tmp_path):
    found = on_ranks(resize, 8, spec(trainer__reduction="canonical"), str(tmp_path), [4, 2, 8, 1], 1)
    assert found[0] == {"losses": alone["canonical"]["losses"], "end": alone["canonical"]["end"]}


@pytest.mark.parametrize("size, microbatch", [(1, 16), (2, 2), (4, 1), (3, 2), (5, 16)])
def test_one_gradient_for_one_global_batch_whatever_the_split(alone, tmp_path, size, microbatch):
    some = spec(trainer__microbatch_size=microbatch, lanes__allow="uneven")
    found = on_ranks(run_steps, size, some, str(tmp_path), 1)
    assert found[0]["losses"][0] == pytest.approx(alone["default"]["losses"][0], rel=1e-6)


def test_a_rank_without_trained_tokens_keeps_in_step_and_has_no_share(tmp_path):
    feed = {"masked": tuple(range(8, 16))}
    (one,) = on_ranks(run_steps, 1, spec(), str(tmp_path), 2, feed)
    two = on_ranks(run_steps, 2, spec(), str(tmp_path), 2, feed)
    assert two[0]["losses"] == [pytest.approx(reference, rel=1e-6) for reference in one["losses"]]


def test_a_step_without_any_trained_token_leaves_the_weights_and_is_recorded(tmp_path):
    found = on_ranks(run_steps, 2, spec(), str(tmp_path), 2, {"masked": tuple(range(16))})
    for one in found:
        assert one["begin"] == one["end"]
        assert one["skipped"] == (0, 1)


def poisoned(meet: Meet, rank: int, some: RunSpec, folder: str, step: int, count: int) -> dict[str, Any]:
    """Trains with a loss that is NaN in one step, as the loop does."""
    membership = meet()
    session = build(job(some, folder), membership)
    losses: list[Any] = []
    losses_of = session.losses

    def nan_once(rows):
        factor = math.nan if session.step == step else 1.0
        return tuple(factor * value for value in losses_of(rows))

    session.losses = nan_once
    try:
        for one in session.steps(leaving=lambda: False):
            update = session.update(one)
            losses.append((one.step, update.loss))
            session.judge(update)
            if session.step % some.checkpoint.every == 0:
                session.save()
            if session.step == count:
                break
    except TrainingDiverged as error:
        losses.append(str(error))
    finally:
        session.close()
        membership.leave()
    return {"losses": losses, "skipped": session.skipped}


def test_a_loss_that_is_not_a_number_stops_all_ranks_in_that_step(tmp_path):
    found = on_ranks(poisoned, 2, spec(), str(tmp_path), 2, 4)
    for one in found:
        assert [step for step, _ in one["losses"][:-1]] == [0, 1, 2]
        assert one["losses"][-1].startswith("step 2: loss nan and gradient norm nan are not both finite")


def test_such_a_step_is_skipped_with_a_record(tmp_path):
    found = on_ranks(poisoned, 2, spec(trainer__nonfinite="skip"), str(tmp_path), 2, 4)
    for one in found:
        assert [step for step, _ in one["losses"]] == [0, 1, 2, 3]
        assert one["skipped"] == (2,)


@pytest.mark.parametrize("every, again", [(2, [2]), (1000, [0, 1, 2])])
def test_a_rollback_goes_to_the_last_checkpoint_or_the_start_and_leaves_the_step_out(tmp_path, every, again):
    some = spec(trainer__nonfinite="rollback", checkpoint__every=every)
    found = on_ranks(poisoned, 2, some, str(tmp_path), 2, 4)
    for one in found:
        assert [step for step, _ in one["losses"]] == [0, 1, 2, *again, 3]
        assert one["losses"][:2] == one["losses"][3:5] or every == 2
        assert one["skipped"] == (2,)


def test_a_spike_counts_as_a_bad_step(tmp_path):
    (found,) = on_ranks(run_steps, 1, spec(trainer__spike=1.0), str(tmp_path), 6)
    assert found["skipped"]
    assert all(loss > 0 for loss, *_ in found["losses"])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["default", "canonical"])
def test_over_100_steps_sizes_and_rescales_give_losses_within_a_hundred_thousandth_and_canonical_equal_bits(tmp_path, mode):
    """The same runs with both reductions. The peak rate is one at which training is smooth; see docs/training.md."""
    some = spec(trainer__reduction=mode, trainer__steps=100, optimizer__lr=3e-3, optimizer__warmup_steps=10)
    (one,) = on_ranks(run_steps, 1, some, str(tmp_path), 100, timeout=120)
    runs = [on_ranks(resize, 8, some, str(tmp_path), [4, 2, 8, 1], 25, timeout=150)[0]]
    if mode == "default":  # canonical bits at each size have a test of their own
        runs.append(on_ranks(run_steps, 4, some, str(tmp_path), 100, timeout=120)[0])
    for found in runs:
        assert [loss for loss, *_ in found["losses"]] == [pytest.approx(loss, rel=1e-5) for loss, *_ in one["losses"]]
        if mode == "canonical":
            assert found["losses"] == one["losses"]
            assert found["end"] == one["end"]


@pytest.mark.parametrize(
    "size, changes, words",
    [
        (3, {"lanes__allow": "uneven"}, "3 ranks are not a power of two"),
        (2, {"trainer__parallel": "fsdp"}, "trainer.parallel=fsdp"),
        (2, {"trainer__canonical_block": 3}, "16 sequences in blocks of 3"),
        (1, {"trainer__compile": True}, "trainer.compile"),
    ],
)
def test_canonical_reduction_is_refused_where_it_could_not_hold(tmp_path, size, changes, words):
    some = spec(trainer__reduction="canonical", **changes)
    assert all(words in text for text in on_ranks(refused, size, some, str(tmp_path)))


def refused(meet: Meet, rank: int, some: RunSpec, folder: str) -> str:
    membership = meet(parallel=some.trainer.parallel)
    try:
        build(job(some, folder), membership)
        return "built"
    except ConfigError as error:
        return str(error)
    finally:
        membership.leave()


def survive(meet: Meet, rank: int, some: RunSpec, folder: str, deadly: int) -> dict[str, Any]:
    """Four ranks; the last two die without a word in the middle of a step; the others go on in memory, as two."""
    membership = meet()
    the_job = job(some, folder)
    session = build(the_job, membership)
    losses = some_steps(session, deadly)
    losses_of, forwards = session.losses, itertools.count()

    def die(rows):
        if rank >= 2 and next(forwards) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return losses_of(rows)

    session.losses = die
    with pytest.raises(RuntimeError):
        some_steps(session, 1)
    snapshot = session.hold()
    session.close(abandon=True)
    membership.leave()
    membership = meet(size=2, name="survivors")
    session = build(the_job, membership, snapshot)
    losses += some_steps(session, 4 - deadly)
    found = {"losses": losses, "end": state_hash(session)}
    session.close()
    membership.leave()
    return found


def test_survivors_of_a_killed_rank_go_on_in_memory_from_the_step_before(alone, tmp_path):
    some = spec(trainer__reduction="canonical")
    with Ranks(survive, 4, some, str(tmp_path), 2) as ranks:
        found = ranks.results(timeout=60, of=(0, 1))
    assert [one["end"] for one in found] == [alone["canonical"]["end"]] * 2
    assert found[0]["losses"] == alone["canonical"]["losses"]
    assert not list(tmp_path.iterdir())


def with_threads(meet: Meet, rank: int, some: RunSpec, folder: str) -> str:
    torch.set_num_threads(1 + rank)
    return refused(meet, rank, some, folder)


def test_canonical_reduction_is_refused_over_ranks_with_other_kernels(tmp_path):
    found = on_ranks(with_threads, 2, spec(trainer__reduction="canonical"), str(tmp_path))
    assert all("1 threads and rank 1 on" in text for text in found)
