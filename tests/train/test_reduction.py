"""The two reductions by themselves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.train.synthetic import spec
from zephon.errors import ConfigError
from zephon.train.reduction import block_size, canonical_gradients, check_canonical, default_gradients, tree_sum
from zephon.train.step import TokenRows

ALONE = SimpleNamespace(device=torch.device("cpu"), process=SimpleNamespace(rank=0, size=1), sum=lambda value: value)


def rows(*trained: int) -> TokenRows:
    """One row for each number of trained labels."""
    labels = torch.full((len(trained), 10), -100)
    for index, count in enumerate(trained):
        labels[index, :count] = 1
    return TokenRows(input_ids=torch.zeros_like(labels), labels=labels)


@pytest.mark.parametrize(
    "reduce", [lambda *a, **k: default_gradients(*a, microbatch=1, **k), lambda *a, **k: canonical_gradients(*a, block=1, **k)]
)
def test_gradients_are_divided_by_the_tokens_of_the_whole_step(reduce):
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    sums = {2: 6.0, 8: 8.0}

    def forward(part: TokenRows):
        total = model.weight.sum() * sums[part.tokens]
        return total, total

    losses = reduce(model, forward, rows(2, 8), tokens=10, membership=ALONE)
    assert losses.tolist() == [14.0]
    assert model.weight.grad.item() == pytest.approx(1.4)


def test_the_tree_adds_halves_and_its_halves_are_the_trees_of_half_the_blocks():
    def order(count: int) -> list[str]:
        seen: list[str] = []
        parts = [rows(index) for index in range(count)]
        tree_sum(parts, lambda part: _Recorded(str(part.tokens), seen))
        return seen

    assert order(4) == ["0+1", "2+3", "(0+1)+(2+3)"]
    assert order(6)[:2] == order(3) == ["1+2", "0+(1+2)"]


class _Recorded:
    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    def __iadd__(self, other: _Recorded) -> _Recorded:
        names = [f"({n})" if "+" in n else n for n in (self.name, other.name)]
        self.name = "+".join(names)
        self.seen.append(self.name)
        return self


def test_a_block_is_a_lanes_share_unless_given():
    assert block_size(spec()) == 2
    assert block_size(spec(trainer__canonical_block=4)) == 4


@pytest.mark.parametrize("size, remedy", [(3, "use 2 or 4 ranks"), (6, "use 4 or 8 ranks")])
def test_the_nearest_powers_of_two_are_offered(size, remedy):
    with pytest.raises(ConfigError, match=remedy):
        check_canonical(spec(trainer__reduction="canonical"), dp_size=size)


def test_more_ranks_than_blocks_are_refused():
    with pytest.raises(ConfigError, match="do not divide over 16 ranks"):
        check_canonical(spec(trainer__reduction="canonical"), dp_size=16)
