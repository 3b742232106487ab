"""Fixtures of the launcher's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.toy import toy
from tests.launch.written import Written

__all__ = ["toy"]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    directory = Written(tmp_path)
    yield directory
    directory.close()
