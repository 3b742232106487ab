"""reassign: a living pipeline becomes another rank of another size between two steps."""

from __future__ import annotations

import pytest

from tests.engine.recipes import small
from tests.laws import Job, reference
from zephon.errors import ConfigError, StateError


def test_reassign_equals_checkpoint_and_restore_at_the_new_size() -> None:
    expected = reference(small, 12)
    with Job(small, 1) as job:
        got = job.steps(2)
        for size in (2, 4, 2, 1):
            states = job.states()
            living, kept = job.pipelines[:size], len(job.pipelines[:size])
            for rank, pipeline in enumerate(living):
                pipeline.reassign(size, rank, states)
            for leaving in job.pipelines[size:]:
                leaving.close()
            joining = [small(dp_degree=size, dp_group_id=rank).restore(states) for rank in range(kept, size)]
            job.pipelines = living + joining
            job.iterators = [pipeline.steps() for pipeline in job.pipelines]
            got += job.steps(2)
        assert got == expected[: len(got)]
        assert len(got) == 10


def test_reassign_in_the_middle_of_a_step_or_without_a_lane_is_refused_and_changes_nothing() -> None:
    pipeline = small()
    batches = iter(pipeline)
    next(batches)
    with pytest.raises(StateError, match="middle of step 0"):
        pipeline.reassign(2, 0)
    pipeline.close()
    rank = small(dp_degree=2, dp_group_id=0)
    with pytest.raises(StateError, match="lane 2, 3"):
        rank.reassign(1, 0)
    with pytest.raises(ConfigError, match="cannot take 4 lanes"):
        rank.reassign(3, 0)
    assert rank.checkpoint()["lanes"].keys() == {0, 1}


def test_ranks_of_one_data_parallel_index_get_equal_batches() -> None:
    peers = [small(dp_degree=2, dp_group_id=1, world_size=8, global_rank=rank) for rank in (4, 5, 6)]
    rows = [[batch.fields["input_ids"].tolist() for batch, _ in zip(peer, range(6), strict=False)] for peer in peers]  # type: ignore[union-attr]
    assert rows[0] == rows[1] == rows[2]
    for peer in peers:
        peer.close()
