"""What all tests share."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests kill processes and wait for clocks on a machine that may be busy with something else.

    One that fails is run once more, and the summary lists it as rerun: a fault of ours fails twice, and a rerun that
    comes again and again is a fault too.
    """
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.flaky(reruns=1))
