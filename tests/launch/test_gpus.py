"""The GPUs of this machine, and which of them each node gets."""

from __future__ import annotations

import pytest

from zephon.errors import ConfigError
from zephon.launch.backends.local.gpus import devices, gpus_of_node


def test_a_node_keeps_its_gpus_whatever_the_number_of_nodes_and_too_few_are_refused() -> None:
    gpus = ["0", "1", "2", "3"]
    assert [gpus_of_node(gpus, index, 2) for index in (0, 1)] == [["0", "1"], ["2", "3"]]
    assert gpus_of_node([], 7, 2) == []
    with pytest.raises(ConfigError, match="3 nodes with 2 workers each need 6 GPUs, and this machine gives 4"):
        gpus_of_node(gpus, 2, 2)


def test_gpus_are_named_found_or_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices("0,1, 2,3") == ["0", "1", "2", "3"]
    assert devices("none") == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert devices("auto") == ["4", "5"]
