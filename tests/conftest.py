"""What all tests share."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest

from tests.agent.objects import objects, store

__all__ = ["objects", "store"]  # named here only: each place that names a fixture would start a server of its own
# How long an example takes depends on what else the machine does, and is measured in benchmarks/.
hypothesis.settings.register_profile("zephon", deadline=None)
hypothesis.settings.load_profile("zephon")
HERE = Path(__file__).resolve().parent
RERUN = ("agent", "kubernetes", "launch")  # rooms whose tests kill processes, wait for clocks or need a cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that kill real processes or need a cluster run once more when they fail, on a machine that may be busy.

    A fault of ours fails twice, and each rerun is a warning in the summary. A test of the loader or of the trainer never runs
    again: there, what fails one time in twenty is exactly the fault that must not be.
    """
    for item in items:
        room = item.path.relative_to(HERE).parts[0]
        if room in RERUN:
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says which tests failed before they passed, in yellow and by name."""
    again = sorted({report.nodeid for report in terminalreporter.getreports("rerun")})
    if again:
        terminalreporter.section("WARNING: tests that failed and were run again", sep="=", yellow=True)
        for name in again:
            terminalreporter.write_line(f"WARNING: failed at first: {name}", yellow=True)
