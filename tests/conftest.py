"""What all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.objects import objects, store

__all__ = ["objects", "store"]  # named here only: each place that names a fixture would start a server of its own
HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of real processes kill them and wait for clocks, on a machine that may be busy with something else.

    One that fails is run once more, and the summary lists it as rerun: a fault of ours fails twice, and a rerun that
    comes again and again is a fault too.
    """
    for item in items:
        room = item.path.relative_to(HERE).parts[0]
        if item.get_closest_marker("slow") or room in ("agent", "engine", "kubernetes", "launch", "train"):
            item.add_marker(pytest.mark.flaky(reruns=1))
