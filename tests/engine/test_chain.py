"""A chain pushes what one accumulator emits to the next, and flushes them in their order."""

from __future__ import annotations

from tests.engine.parts import block
from zephon.engine.chain import Chain
from zephon.ops.block import Block, concatenate
from zephon.ops.op import Counting


class Holds(Counting):
    """Emits the block before the one that is pushed; drops empty documents."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Block] = []
        self.starts: list[int] = []

    def start(self, position: int) -> None:
        self.starts.append(position)

    def push(self, block: Block) -> Block | None:
        self.held.append(block)
        self.drop(block, (block.used() == 0).nonzero()[0], "empty")
        return self.held.pop(0) if len(self.held) > 1 else None

    def flush(self, *, final: bool) -> Block | None:
        held, self.held = self.held, []
        return concatenate(held) if held else None


def test_a_block_comes_out_when_every_accumulator_has_emitted() -> None:
    chain = Chain([Holds(), Holds()])
    blocks = [block("a"), block("b"), block("c")]
    assert [chain.push(one) for one in blocks] == [None, None, blocks[0]]


def test_a_flush_sends_what_was_held_through_the_accumulators_after_it() -> None:
    chain = Chain([Holds(), Holds()])
    blocks = [block("a"), block("b")]
    for one in blocks:
        chain.push(one)
    assert list(chain.flush(final=False)) == [blocks[0], blocks[1]]


def test_what_is_dropped_is_taken_once() -> None:
    chain = Chain([Holds()])
    chain.push(block("a", "", ""))
    assert [(some.reason, some.row.tolist()) for some in chain.take_dropped()] == [("empty", [1, 2])]
    assert chain.take_dropped() == []


def test_an_interval_starts_for_every_accumulator() -> None:
    both = [Holds(), Holds()]
    Chain(both).start(7)
    assert [one.starts for one in both] == [[7], [7]]


def test_a_chain_of_nothing_gives_the_block_back() -> None:
    one = block("a")
    assert Chain([]).push(one) is one
