"""Columns of a run's steps, and curves with fewer points."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zephon.report.curves import Curves, extremes, means


def test_of_a_step_that_was_trained_twice_the_later_line_counts_and_what_is_missing_is_no_number() -> None:
    lines = [
        {"step": 0, "loss": 3.0, "seconds": {"data": 0.5}, "skipped": "why"},
        {"step": 1, "loss": "nan", "digest": "ab"},
        {"step": 0, "loss": 2.0, "skipped": None},
        {"step": 2, "loss": 1.0, "seconds": {"data": 0.25}},
    ]
    curves = Curves.of(lines)
    assert curves.step.tolist() == [1, 2, 3]
    np.testing.assert_array_equal(curves.column("loss"), [2.0, np.nan, 1.0])
    np.testing.assert_array_equal(curves.group("seconds")["data"], [np.nan, np.nan, 0.25])
    assert "digest" not in curves.columns
    assert curves.skipped == {}
    assert np.isnan(curves.column("nothing")).all()


def test_stretches_of_one_size_follow_each_other() -> None:
    curves = Curves.of({"step": i, "world_size": size} for i, size in enumerate([4, 4, 2, 4]))
    assert curves.stretches("world_size") == [(0, 2, 4), (2, 3, 2), (3, 4, 4)]
    assert Curves.of([]).stretches("world_size") == []


numbers = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([np.nan, np.inf, -np.inf]))


@given(st.lists(numbers, min_size=1, max_size=400), st.integers(4, 60))
def test_fewer_points_keep_the_ends_and_the_extremes_of_each_stretch(values: list[float], points: int) -> None:
    array = np.array(values)
    rows = extremes(array, points)
    assert len(rows) <= max(points, 4)
    assert (np.diff(rows) > 0).all()
    assert (rows[0], rows[-1]) == (0, len(array) - 1)
    finite, kept = array[np.isfinite(array)], array[rows][np.isfinite(array[rows])]
    if len(finite):
        assert (kept.min(), kept.max()) == (finite.min(), finite.max())


def test_a_mean_passes_over_what_is_no_number() -> None:
    np.testing.assert_array_equal(means(np.array([1.0, np.nan, 3.0, np.nan]), np.array([0, 3, 4])), [2.0, np.nan])
