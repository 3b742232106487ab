"""Before packing: what is too short or too long is dropped and counted, the others go to the packer of their group."""

from __future__ import annotations

import pytest

from tests.ops.packing.documents import block_of, rows_of
from zephon.errors import DataError
from zephon.ops.block import Block, concatenate
from zephon.ops.op import LaneContext
from zephon.ops.packing.router import CarryingRouter, LengthFilter, Router, group_numbers
from zephon.ops.packing.wrap import Wrap
from zephon.types import IntArray


class Recorder:
    """A packer that only notes what it was given."""

    def __init__(self) -> None:
        self.lengths: list[list[int]] = []
        self.flushed = 0

    def push(self, block: Block, lengths: IntArray) -> Block | None:
        assert block.used().tolist() == lengths.tolist()
        self.lengths.append(lengths.tolist())
        return block

    def flush(self, *, final: bool) -> Block | None:
        self.flushed += 1
        return None


def router(rule: LengthFilter, groups: list[int]) -> tuple[Router, list[Recorder]]:
    packers = [Recorder() for _ in range(max(groups) + 1)]
    return Router(rule, Block.used, groups, packers, LaneContext(0, len(groups))), packers


def test_short_and_long_documents_are_dropped_and_named() -> None:
    route, (packer,) = router(LengthFilter("pack_flat", 8, 2, "dropped"), [0])
    route.push(block_of(1, 5, 9, 8))
    assert packer.lengths == [[5, 8]]
    assert [(some.reason, some.row.tolist()) for some in route.dropped] == [
        ("pack_flat: shorter than min_sequence_length", [0]),
        ("pack_flat: longer than max_length", [2]),
    ]


def test_long_documents_are_kept_or_an_error_where_that_was_asked_for() -> None:
    kept, (packer,) = router(LengthFilter("pack_flat", 8, 1, "kept"), [0])
    kept.push(block_of(9))
    assert (packer.lengths, kept.dropped) == ([[9]], [])
    with pytest.raises(DataError, match="a document of 9 tokens is longer than max_length=8"):
        router(LengthFilter("pack_flat", 8, 1, "error"), [0])[0].push(block_of(9))


def test_a_block_of_which_nothing_is_dropped_is_known_beforehand() -> None:
    route, _ = router(LengthFilter("pack_flat", 8, 2, "dropped"), [0])
    assert [route.takes_all(block_of(*lengths)) for lengths in ([2, 8], [1, 8], [2, 9], [])] == [True, False, False, True]


def test_documents_go_to_the_packer_of_their_datasets_group() -> None:
    route, packers = router(LengthFilter("pack_flat", 8, 1, "dropped"), [0, 1, 0])
    mixed = concatenate([block_of(n, dataset=n - 1, datasets=3) for n in (1, 2, 3)])
    out = route.push(mixed)
    assert [packer.lengths for packer in packers] == [[[1, 3]], [[2]]]
    assert out is not None
    assert out.used().tolist() == [1, 3, 2], "what packers emit is concatenated in the order of groups"
    route.flush(final=True)
    assert [packer.flushed for packer in packers] == [1, 1]
    assert [route.group_of(dataset) for dataset in range(3)] == [0, 1, 0]


def test_streams_carry_tokens_by_group_and_are_rebuilt_from_their_documents() -> None:
    def fresh() -> CarryingRouter:
        streams = [Wrap(4, 0, 2) for _ in range(2)]
        return CarryingRouter(LengthFilter("pack_flat", 4, 1, "kept"), Block.used, [0, 1], streams, LaneContext(0, 2))

    blocks = [block_of(5, dataset=0, datasets=2), block_of(3, 3, dataset=1, datasets=2)]
    first = fresh()
    for block in blocks:
        first.push(block)
    assert (first.tokens_in, first.carried) == ([5, 6], [1, 2])
    again = fresh()
    for block in blocks:
        again.rebuild(block)
    again.keep_last(first.carried)
    assert (again.tokens_in, again.carried) == ([5, 6], [1, 2])
    assert rows_of([again.flush(final=True)]) == rows_of([first.flush(final=True)]) == [[104, 0, 0, 0], [201, 202, 0, 0]]


def test_groups_are_numbered_in_order_of_first_appearance() -> None:
    names = ["web", "books", "code"]
    assert group_numbers(names, "none", {}) == [0, 0, 0]
    assert group_numbers(names, "full", {}) == [0, 1, 2]
    assert group_numbers(names, "group", {"web": "text", "books": "text", "code": "code"}) == [0, 0, 1]
