from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon.errors import ConfigError
from zephon.world import World


@given(lanes=st.integers(1, 12), per_lane=st.integers(1, 6), data=st.data())
def test_ranks_own_every_slot_exactly_once_and_run_equally_many_forwards(
    lanes: int, per_lane: int, data: st.DataObject
) -> None:
    batch = lanes * per_lane
    dp = data.draw(st.integers(1, batch))
    size = data.draw(st.integers(1, 4))
    world = World(lanes, batch, dp, "uneven")
    owned, forwards = [], set()
    for rank in range(dp):
        microbatches = world.microbatches(rank, size)
        forwards.add(len(microbatches))
        for lane, first, last in microbatches:
            assert last - first <= size
            owned += [lane * per_lane + j for j in range(first, last)]
    assert sorted(owned) == list(range(batch))
    assert len(forwards) == 1


@pytest.mark.parametrize("dp", [1, 2, 4, 8])
def test_whole_lanes_need_no_permission(dp: int) -> None:
    assert World(8, 16, dp).kind == "whole"


@pytest.mark.parametrize(
    ("lanes", "batch", "dp", "allow", "says"),
    [
        (8, 12, 1, "whole", "global_batch_size=12 is not a multiple of lanes=8"),
        (8, 16, 3, "whole", "1, 2, 4, 8"),
        (8, 16, 16, "whole", "lanes.allow=shared"),
        (8, 16, 5, "shared", "1, 2, 4, 8, 16"),
        (8, 16, 17, "uneven", "more ranks than sequences"),
        (0, 16, 1, "whole", "lanes=0"),
    ],
)
def test_a_division_that_does_not_fit_is_refused_with_what_would(
    lanes: int, batch: int, dp: int, allow: str, says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        World(lanes, batch, dp, allow)
    assert says in str(caught.value)
    assert caught.value.follows
    assert caught.value.remedy


def test_the_drawn_example_of_the_module_holds() -> None:
    assert [list(World(4, 8, 3, "uneven").slots(rank)) for rank in range(3)] == [[0, 1], [2, 3, 4], [5, 6, 7]]
