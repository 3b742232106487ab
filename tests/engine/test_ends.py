"""All ranks of an own loop end after the same step, and need no message for it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource
from zephon.errors import StateError
from zephon.types import DropSummary


def rank_of(rank: int, size: int, *, documents: int = 9, lanes: int = 4, drop_last: bool = True, **options: Any) -> Pipeline:
    """Documents of very different lengths, a chunk each, so that lanes end at different steps."""
    rows = [{"text": "x" * (1 + 37 * i % 53)} for i in range(documents)]
    source = StaticMixtureWorkSource(
        [Dataset.from_dict("d", {str(i): InMemoryShard([row]) for i, row in enumerate(rows)})],
        exhausted_policy="stop",
        chunk_bytes=32,
    )
    pipeline = Pipeline(source).options(canonical_replicas=lanes, global_batch_size=lanes, runner="inline")
    pipeline.options(dp_degree=size, dp_group_id=rank, lanes_allow="uneven", **{"last_step": "same", **options})
    return pipeline.tokenize(tokenizer_id="bytes", field="text").pack_flat(8, algorithm="wrap").batch(1, drop_last=drop_last)


def steps(pipeline: Pipeline) -> list[int]:
    return sorted({batch.step for batch in pipeline})


@pytest.mark.filterwarnings("ignore:the data ends before the first step")
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("documents", [4, 9, 40])
def test_every_ranks_last_step_is_the_same_and_that_of_one_rank_alone(documents: int, drop_last: bool) -> None:
    alone = steps(rank_of(0, 1, documents=documents, drop_last=drop_last))
    assert alone == list(range(len(alone)))
    for size in (2, 3, 4):
        for rank in range(size):
            pipeline = rank_of(rank, size, documents=documents, drop_last=drop_last)
            assert steps(pipeline) == alone, (size, rank)


def test_left_to_themselves_ranks_end_at_different_steps() -> None:
    assert len({len(steps(rank_of(rank, 4, documents=40, last_step="own"))) for rank in range(4)}) > 1


def test_every_rank_runs_as_many_microbatches_also_in_the_last_step_that_is_not_full() -> None:
    counts = {len(list(rank_of(rank, 4, drop_last=False))) for rank in range(4)}
    assert len(counts) == 1


@pytest.mark.parametrize("runner", [{"runner": "threads", "max_workers": 2}, {"isolated": True, "runner": "threads"}])
def test_the_end_is_the_same_with_workers_and_in_an_isolated_engine(runner: dict[str, Any]) -> None:
    alone = steps(rank_of(0, 1))
    assert [steps(rank_of(rank, 2, **runner)) for rank in range(2)] == [alone] * 2


def test_a_rank_that_goes_on_from_its_own_state_ends_at_the_same_step() -> None:
    alone = steps(rank_of(0, 1, documents=40))
    for stop in range(0, len(alone), 4):
        first = rank_of(1, 2, documents=40)
        for batch in first:
            if batch.step == stop and batch.microbatch[0] + 1 == batch.microbatch[1]:
                break
        again = rank_of(1, 2, documents=40).restore(first.checkpoint())
        assert steps(again) == alone[stop + 1 :]


def test_skipped_steps_count_at_the_end_and_a_state_from_after_them_is_refused() -> None:
    alone = rank_of(0, 1, documents=40).skip(steps=range(1, 3))
    found = steps(alone)
    ranks = [rank_of(rank, 2, documents=40).skip(steps=range(1, 3)) for rank in range(2)]
    assert [steps(rank) for rank in ranks] == [found] * 2
    with pytest.raises(StateError, match=r"skip\(\) was used before(.|\n)*last_step='own'"):
        list(rank_of(0, 2, documents=40).restore(ranks[0].checkpoint()))


@pytest.mark.parametrize("last_step", ["auto", "own", "same"])
def test_ranks_that_may_end_apart_are_warned_where_other_ranks_run(last_step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    if last_step == "auto":
        with pytest.warns(UserWarning, match=r"2 ranks may end at different steps.*last_step='same'"):
            next(iter(rank_of(0, 2, last_step=last_step)))
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            next(iter(rank_of(0, 2, last_step=last_step)))


@pytest.mark.parametrize("runner", [{}, {"isolated": True, "runner": "threads"}])
def test_a_pipeline_whose_data_has_ended_says_once_that_it_is_used_up(runner: dict[str, Any]) -> None:
    pipeline = rank_of(0, 1, **runner)
    found = steps(pipeline)
    with pytest.warns(UserWarning, match=rf"used up: its data ended before step {len(found)}.*dropped_at_end"):
        assert steps(pipeline) == []
    assert steps(pipeline) == []
    state = rank_of(0, 1).checkpoint()
    assert steps(pipeline.restore(state)) == found, "from another state it goes on silently"


def test_a_loop_that_was_left_early_goes_on_silently() -> None:
    pipeline = rank_of(0, 1)
    next(iter(pipeline))
    assert steps(pipeline)


@pytest.mark.parametrize("runner", [{"runner": "threads", "max_workers": 2}, {"isolated": True, "runner": "threads"}])
def test_an_iterator_that_was_closed_is_at_its_end_but_the_data_is_not_used_up(runner: dict[str, Any]) -> None:
    pipeline = rank_of(0, 1, **runner)
    batches = iter(pipeline)
    next(batches)
    pipeline.close()
    assert next(batches, None) is None
    assert steps(pipeline)


def test_whole_sequences_behind_the_last_full_step_are_counted_at_every_size() -> None:
    alone = rank_of(0, 1, documents=40)
    delivered = sum(sum(batch.tokens.values()) for batch in alone)
    everything = sum(sum(batch.tokens.values()) for batch in rank_of(0, 1, documents=40, drop_last=False))
    left = [pair for rank in range(2) for pair in _at_end(rank_of(rank, 2, documents=40, last_step="same"))]
    assert sorted(left, key=lambda pair: pair[0]) == alone.dropped_at_end()
    (reason,) = {summary.reason for _, summary in left}
    assert reason == "after the last full step (sequences)"
    assert delivered + sum(summary.tokens for _, summary in left) == everything
    assert _at_end(rank_of(0, 1, documents=40, drop_last=False)) == []


def _at_end(pipeline: Pipeline) -> list[tuple[int, DropSummary]]:
    list(pipeline)
    return pipeline.dropped_at_end()
