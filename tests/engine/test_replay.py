"""Replay: from how far back a carry-over is rebuilt, which chunks that needs, and that it is the same carry-over."""

from __future__ import annotations

import pickle

import pytest

from tests.engine.parts import block, program, texts
from zephon.cursor import Cursor
from zephon.engine.replay import Origins, Replay
from zephon.engine.rows import gather
from zephon.ops.op import Accumulator
from zephon.ops.shuffle import Shuffle

CHUNKS = [["aaaaa"], ["bbb"], ["cc"], ["d"], ["eeee"]]


def opened(cursor: Cursor, **fields: object) -> tuple[Replay, Accumulator]:
    work = program(CHUNKS, length=8, **fields)
    accumulators = [op.open(work.context(0)) for op in work.accumulators]
    return Replay(0, work, accumulators, cursor), accumulators[-1]


def test_origins_say_the_last_chunk_start_after_which_all_that_is_held_was_pushed() -> None:
    origins = Origins(0, 1)
    for position, pushed in enumerate([500, 800, 840, 930], 1):
        origins.note(position, [pushed], [130])
    assert origins.chunks(4, [930], [130]) == (2,)
    assert origins.chunks(4, [930], [90]) == (1,)
    assert origins.chunks(4, [930], [0]) == (0,)


def test_origins_keep_few_positions_however_many_chunks_went_by() -> None:
    origins = Origins(0, 2)
    for position in range(1, 10_000):
        origins.note(position, [10 * position, 0], [25, 0])
    assert origins.chunks(9_999, [99_990, 0], [25, 0]) == (3, 0)
    assert len(pickle.dumps(origins)) < 300


def test_a_carry_over_is_rebuilt_from_the_chunks_that_the_cursor_names() -> None:
    replay, packing = opened(Cursor(4, 3, 3))
    read: list[int] = []
    assert (replay.begin, replay.rebuilt) == (1, False)
    replay.rebuild(lambda position: (read.append(position), block(*CHUNKS[position]))[1])
    assert (read, replay.rebuilt) == ([1, 2, 3], True)
    assert packing.carried == [3]  # type: ignore[attr-defined]
    row = packing.push(block("eeeee"))
    assert row is not None
    assert texts(gather(row)[0]) == ["ccdeeeee"]
    assert replay.cursor(4).carried_tokens == 0


@pytest.mark.parametrize("joined", [False, True])
def test_a_sentinels_cursor_says_what_is_carried_whether_chunks_were_pushed_one_by_one_or_together(joined: bool) -> None:
    replay, packing = opened(Cursor())
    replay.rebuild(lambda _: None)
    blocks = [block(*chunk) for chunk in CHUNKS[:4]]
    before = replay.tokens_in
    for position, one in enumerate(blocks):
        packing.push(one)
        if not joined:
            replay.note(position + 1)
    if joined:
        replay.note_within(blocks, 0, 0, before)
        replay.note(4)
    # 11 tokens in rows of 8: the last three, "ccd", are carried, and lie in the chunks from position 2 on.
    assert replay.cursor(4) == Cursor(4, 2, 3)


def test_a_replay_reads_the_chunks_of_the_carry_over_and_those_from_the_cursor_on() -> None:
    replay, _ = opened(Cursor(4, 2, 3))
    assert [replay.reads(Cursor(4, 2, 3), position) for position in range(6)] == [False, False, True, True, True, True]
    assert replay.needs(2)
    replay.rebuild(lambda position: block(*CHUNKS[position]))
    assert all(replay.needs(position) for position in range(6))


def test_after_an_op_that_reorders_whole_intervals_are_replayed() -> None:
    work = program(CHUNKS, length=8)
    shuffle = Shuffle(buffer_size=4)
    replay, packing = opened(Cursor(), accumulators=[shuffle, *work.accumulators])
    replay.rebuild(lambda _: None)
    for position, chunk in enumerate(CHUNKS[:4]):
        packing.push(block(*chunk))
        replay.note(position + 1)
    assert not replay.joins
    assert replay.cursor(4).carried_chunks == 2
    assert [replay.cursor(4).carried_tokens] == [3]


def test_without_packing_that_carries_a_cursor_is_its_position() -> None:
    replay, _ = opened(Cursor(3), accumulators=[Shuffle(buffer_size=4)])
    replay.rebuild(lambda _: pytest.fail("nothing is read again"))
    replay.note(4)
    assert replay.cursor(4) == Cursor(4)
