"""A state in memory goes to the ranks of another membership: every row once, from a rank that has it, or not at all."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.train.ranks import Meet, on_ranks
from zephon.train.pieces import WHOLE, Held, Part, deal, newest_complete


@given(total=st.integers(0, 40), parts=st.integers(1, 9))
def test_parts_are_those_of_torch_chunk(total: int, parts: int) -> None:
    rows = torch.arange(total)
    chunks = [chunk.tolist() for chunk in torch.chunk(rows, parts)] if total else []
    chunks += [[]] * (parts - len(chunks))
    assert [list(Part(number, parts).rows(total)) for number in range(parts)] == chunks


def test_only_a_state_of_which_every_part_has_an_owner_is_used() -> None:
    assert newest_complete([None, None]) is None
    assert newest_complete([Held(7, Part(0, 2)), None]) is None
    assert newest_complete([Held(7, Part(0, 2)), Held(6, WHOLE), None]) == (6, [[1]])
    assert newest_complete([Held(7, Part(1, 2)), Held(7, Part(0, 2)), Held(7, Part(1, 2))]) == (7, [[1], [0, 2]])


def dealt(meet: Meet, rank: int, holds: list[tuple[int, int] | None], wants: list[tuple[int, int]]) -> dict[str, list[float]]:
    """Deals three tensors, of 7, 3 and 0 dimensions, from parts that some ranks hold; what this rank has afterwards."""
    membership = meet()
    full = {"a": torch.arange(28.0).reshape(7, 4), "b": torch.arange(3.0), "c": torch.tensor(5.0)}

    def part_of(tensor: torch.Tensor, part: tuple[int, int]) -> torch.Tensor:
        rows = Part(*part).rows(tensor.shape[0])
        return tensor[rows.start : rows.stop].clone()

    held = holds[rank]
    newest = newest_complete([None if part is None else Held(1, Part(*part)) for part in holds])
    assert newest is not None
    names = ["a", "b"] if any(part != (0, 1) for part in [*wants, *filter(None, holds)]) else ["a", "b", "c"]
    source = {} if held is None else {n: part_of(full[n], held) if n != "c" else full[n].reshape(1) for n in names}
    wanted = {n: part_of(full[n], wants[rank]) if n != "c" else full[n].clone() for n in names}
    target = {n: torch.full_like(tensor, -1.0) for n, tensor in wanted.items()}
    whole_rows = {n: Sized(target[n], full[n].shape) for n in names}
    deal(membership, newest[1], [Part(*part) for part in wants], source, whole_rows)
    assert all(torch.equal(target[n], wanted[n]) for n in names), (rank, target, wanted)
    membership.leave()
    return {n: tensor.flatten().tolist() for n, tensor in target.items()}


class Sized(torch.Tensor):
    """Local rows that say the shape of the whole tensor, as a DTensor does."""

    @staticmethod
    def __new__(cls, rows: torch.Tensor, shape: torch.Size) -> Sized:
        made = torch.Tensor._make_subclass(cls, rows)
        made.whole = shape  # type: ignore[attr-defined]
        return made

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        return self.whole  # type: ignore[attr-defined, no-any-return]

    def detach(self) -> torch.Tensor:  # type: ignore[override]
        return self.as_subclass(torch.Tensor).detach()


@pytest.mark.parametrize(
    ("holds", "wants"),
    [
        ([(0, 1), None, None], [(0, 1)] * 3),  # replicas: one is left, two join
        ([(0, 1), None, (0, 1)], [(0, 1)] * 3),
        ([(0, 2), (1, 2), None], [(0, 3), (1, 3), (2, 3)]),  # shards: 2 -> 3
        ([(1, 2), None, (0, 2)], [(0, 1)] * 3),
        ([(0, 2), (1, 2), (0, 2)], [(2, 3), (1, 3), (0, 3)]),  # two replicas of shards, one of them half gone
    ],
)
def test_every_rank_gets_the_rows_it_wants(holds: list[tuple[int, int] | None], wants: list[tuple[int, int]]) -> None:
    on_ranks(dealt, 3, holds, wants)
