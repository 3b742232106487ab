"""Delivery: lanes become microbatches in slot order, with the state after each, also where a lane is shared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.engine.parts import program, texts
from zephon import SampleBatch
from zephon.cursor import Cursor, RankState
from zephon.engine.delivery import Delivery
from zephon.engine.lane import Lane
from zephon.engine.runners.base import InlineRunner
from zephon.types import Dropped
from zephon.world import World

CHUNKS = [["aaaabbbb"], ["ccccdddd"], ["eeeeffff"], ["g"]]


def delivery(world: World, rank: int = 0, *, drop_last: bool = True, size: int = 8, **fields: Any) -> Delivery:
    return Delivery(world, rank, size, drop_last, ["d"], 4, True, program(CHUNKS).datasets, **fields)


def batches(what: Delivery, state: RankState | None = None) -> list[SampleBatch]:
    work = program(CHUNKS)
    state = state or RankState(0, 0, {share.lane: Cursor() for share in what.world.shares(what.rank)})
    lanes = {n: Lane(n, work, InlineRunner(work.work), cursor, 1) for n, cursor in state.lanes.items()}
    return list(what.batches(lanes, state))


def seen(batch: SampleBatch) -> tuple[int, tuple[int, int], list[int], list[str]]:
    return batch.step, batch.microbatch, batch.slots.tolist(), texts(batch.fields)


def test_a_step_is_the_lanes_one_after_the_other_in_slot_order() -> None:
    got = batches(delivery(World(lanes=2, global_batch_size=4)))
    assert [seen(batch) for batch in got[:3]] == [
        (0, (0, 2), [0, 1], ["aaaa", "bbbb"]),
        (0, (1, 2), [2, 3], ["aaaa", "bbbb"]),
        (1, (0, 2), [0, 1], ["cccc", "dddd"]),
    ]


def test_the_state_after_a_batch_gives_the_batches_after_it() -> None:
    what = delivery(World(lanes=2, global_batch_size=4), size=1)
    whole = batches(what)
    for number, batch in enumerate(whole, 1):
        assert [seen(one) for one in batches(what, batch.state)] == [seen(one) for one in whole[number:]]


def test_ranks_that_share_a_lane_take_their_rows_of_it_and_keep_the_same_cursor() -> None:
    world = World(lanes=1, global_batch_size=2, dp_degree=2, allow="shared")
    first, second = (batches(delivery(world, rank)) for rank in range(2))
    assert [texts(batch.fields)[0] for batch in first] == ["aaaa", "cccc", "eeee"]
    assert [texts(batch.fields)[0] for batch in second] == ["bbbb", "dddd", "ffff"]
    assert [batch.state.lanes[0].delivered for batch in second] == [2, 4, 2]


def test_a_short_rank_runs_rows_without_weight() -> None:
    world = World(lanes=1, global_batch_size=3, dp_degree=2, allow="uneven")
    got = [batches(delivery(world, rank, size=1))[:2] for rank in range(2)]
    assert [[batch.real_rows for batch in of_rank] for of_rank in got] == [[1, 0], [1, 1]]
    assert got[0][1].fields["input_ids"].shape == (1, 4)  # type: ignore[union-attr]


@pytest.mark.parametrize(("drop_last", "steps"), [(True, 3), (False, 4)])
def test_the_last_incomplete_step_is_dropped_or_delivered(drop_last: bool, steps: int) -> None:
    got = batches(delivery(World(lanes=1, global_batch_size=2), drop_last=drop_last))
    assert len(got) == steps
    assert texts(got[-1].fields) == (["eeee", "ffff"] if drop_last else ["g\0\0\0"])


def test_map_batch_may_change_the_rows_but_not_the_place() -> None:
    def blank(batch: SampleBatch) -> SampleBatch | None:
        return None if batch.step == 1 else batch

    got = batches(delivery(World(lanes=1, global_batch_size=2), maps=[blank]))
    assert [(batch.step, batch.real_rows) for batch in got] == [(0, 2), (1, 0), (2, 2)]


def test_drops_of_one_reason_are_counted_together_with_the_first_eight_addresses() -> None:
    what = delivery(World(lanes=1, global_batch_size=1))
    rows = np.arange(6)
    summaries = what.drop_summaries(
        [Dropped("why", rows * 0, rows * 0, rows)] * 2 + [Dropped("else", -rows[1:2], rows[:1], rows[:1])]
    )
    assert [(some.reason, some.count, len(some.addresses)) for some in summaries] == [("else", 1, 0), ("why", 12, 8)]
    assert str(summaries[1].addresses[5]) == "dataset 'd', shard 's', row 5"
