"""Resizes and durations in words."""

from __future__ import annotations

import pytest

from tests.run.samples import RESIZED
from zephon.launch.cli.wording import duration, resize_text, shares_text


def test_a_resize_is_told_in_the_order_in_which_it_happens() -> None:
    assert resize_text(RESIZED) == (
        "1 -> 2 nodes (a node joined): stalled 0.90 s "
        "(drain 0.10, save 0.20, membership 0.00, restore 0.50, first step 0.10), 0 steps lost"
    )


@pytest.mark.parametrize(("seconds", "text"), [(None, "–"), (0.4, "0 s"), (65, "1 min 05 s"), (7800, "2 h 10 min")])
def test_durations_read_like_speech(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_shares_stand_beside_their_targets() -> None:
    text = shares_text({"web": 0.7, "old": 0.05}, {"web": 0.75, "code": 0.25})
    assert text == "web 70.00% (target 75.00%), code 0.00% (target 25.00%), old 5.00% (target 0.00%)"
