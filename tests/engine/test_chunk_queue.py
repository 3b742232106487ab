"""The chunk queue: groups to workers, a bounded number ahead, results in order, errors when their turn comes."""

from __future__ import annotations

import pytest

from tests.engine.parts import documents
from zephon.engine.chunk_queue import ChunkQueue
from zephon.engine.program import NO_CHUNK, ChunkGroup, ChunkResult
from zephon.engine.runners.base import InlineRunner


class Asked:
    """Does the work of a group and remembers what it was asked for."""

    def __init__(self, end: int = 1000, fails: int = -1) -> None:
        self.end, self.fails = end, fails
        self.groups: list[ChunkGroup] = []

    def __call__(self, group: ChunkGroup) -> list[ChunkResult | Exception]:
        self.groups.append(group)
        return [self._one(position) for position in range(group.first, group.first + len(group.quarantined))]

    def _one(self, position: int) -> ChunkResult | Exception:
        if position == self.fails:
            return ValueError(f"chunk {position}")
        return NO_CHUNK if position >= self.end else ChunkResult(documents("x" * position), 1, {})


def queue(work: Asked, position: int = 0, window: int = 8, needed: range = range(1000)) -> ChunkQueue:
    return ChunkQueue(3, InlineRunner(work), position, window, lambda at: () if at in needed else None)


def test_chunks_come_one_by_one_in_order_from_groups_of_four() -> None:
    work = Asked()
    chunks = queue(work, position=5)
    lengths = [len(columns.fields["input_ids"][0]) for columns in (chunks.next() for _ in range(6)) if columns is not None]
    assert lengths == [5, 6, 7, 8, 9, 10]
    assert [(group.lane, group.first, len(group.quarantined)) for group in work.groups] == [(3, 5, 4), (3, 9, 4)]


@pytest.mark.parametrize(("window", "submitted"), [(1, 1), (4, 4), (7, 4), (8, 8)])
def test_no_more_than_the_window_is_submitted(window: int, submitted: int) -> None:
    asked: list[int] = []
    chunks = ChunkQueue(0, InlineRunner(Asked()), 0, window, lambda at: asked.append(at))
    chunks.fill()
    chunks.fill()
    assert asked == list(range(submitted))


def test_a_group_of_which_nothing_is_needed_goes_to_no_worker() -> None:
    work = Asked()
    chunks = queue(work, needed=range(5, 100))
    got = [chunks.next() is not None for _ in range(8)]
    assert got[:4] == [False] * 4
    assert [group.first for group in work.groups] == [4]
    assert work.groups[0].quarantined[0] is None


def test_following_gives_only_what_came_together_with_the_chunk_before() -> None:
    chunks = queue(Asked())
    assert chunks.following() is None  # its worker has not been waited for
    for _ in range(3):
        chunks.next()
        assert chunks.following() is not None
    chunks.next()
    assert chunks.following() is None


def test_an_error_waits_for_its_turn() -> None:
    chunks = queue(Asked(fails=2))
    chunks.next()
    chunks.next()
    assert chunks.following() is None
    with pytest.raises(ValueError, match="chunk 2"):
        chunks.next()


def test_after_the_end_and_after_close_nothing_more_is_asked_for() -> None:
    work = Asked(end=1)
    chunks = queue(work)
    assert chunks.next() is not None
    assert chunks.next() is None
    chunks.close()
    chunks.fill()
    assert chunks.following() is None
    assert len(work.groups) == 1
