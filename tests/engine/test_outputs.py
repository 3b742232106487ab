"""Outputs: sequences leave in order, each with the cursor before it, its number, and what was dropped before it."""

from __future__ import annotations

import pytest

from tests.engine.parts import block, texts
from zephon.cursor import Cursor
from zephon.engine.outputs import Output, Outputs
from zephon.engine.rows import RowSlice, gather
from zephon.ops.block import Block
from zephon.ops.packing.wrap import Wrap
from zephon.types import Dropped


def packed(text: str) -> Block:
    documents = block(text)
    rows = Wrap(2, 0, 1).push(documents, documents.used())
    assert rows is not None
    return rows


def dropped(block: Block, reason: str) -> list[Dropped]:
    return [Dropped(reason, block.row[:1], block.row[:1], block.row[:1])]


def filled() -> Outputs:
    """Three rows after the sentinel at 0, and two after that at 4."""
    outputs = Outputs()
    first, second = packed("aabbcc"), packed("ddee")
    outputs.add(Output(first, Cursor(0), 3, dropped(first, "one")))
    outputs.add(Output(second, Cursor(4), 2, dropped(second, "two")))
    return outputs


def seen(output: Output[Block | RowSlice]) -> tuple[list[str], int, int, list[str]]:
    return texts(gather(output.sequences)[0]), output.base.position, output.emitted, [some.reason for some in output.dropped]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([1, 2, 2], [(["aa"], 0, 1, ["one"]), (["bb", "cc"], 0, 3, []), (["dd", "ee"], 4, 2, ["two"])]),
        ([3, 1, 1], [(["aa", "bb", "cc"], 0, 3, ["one"]), (["dd"], 4, 1, ["two"]), (["ee"], 4, 2, [])]),
        ([2, 2, 1], [(["aa", "bb"], 0, 2, ["one"]), (["cc", "dd"], 4, 1, ["two"]), (["ee"], 4, 2, [])]),
        ([5], [(["aa", "bb", "cc", "dd", "ee"], 4, 2, ["one", "two"])]),
    ],
)
def test_what_is_taken_says_the_sentinel_and_number_of_its_last_sequence(counts: list[int], expected: list[object]) -> None:
    outputs = filled()
    assert [seen(outputs.take(count)) for count in counts] == expected
    assert outputs.ready == 0


def test_rows_of_one_output_are_slices_of_one_buffer() -> None:
    outputs = filled()
    first, second = outputs.take(1).sequences, outputs.take(1).sequences
    assert isinstance(first, RowSlice)
    assert isinstance(second, RowSlice)
    assert first.buffer is second.buffer
    assert (first.tokens(), second.tokens()) == ([2], [2])


def test_documents_are_gathered_and_not_copied_into_a_buffer() -> None:
    outputs = Outputs()
    outputs.add(Output(block("a", "bb", "ccc"), Cursor(), 3, []))
    assert [len(outputs.take(2).sequences), len(outputs.take(1).sequences)] == [2, 1]
