"""The rules of memberships, from a spec."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tests.agent.toy import toy_spec
from zephon.agent.rules import allowed_nodes


def test_allowed_node_counts_follow_lanes_processes_and_tensor_parallel(tmp_path: Path) -> None:
    spec = toy_spec(tmp_path, nodes=1)
    whole = dataclasses.replace(spec, lanes=dataclasses.replace(spec.lanes, allow="whole"))
    assert [n for n in range(1, 9) if allowed_nodes(whole)(n)] == [1, 2, 4, 8]
    two = dataclasses.replace(whole, elastic=dataclasses.replace(spec.elastic, procs_per_node=2))
    assert [n for n in range(1, 9) if allowed_nodes(two)(n)] == [1, 2, 4]
    tensor = dataclasses.replace(whole, trainer=dataclasses.replace(spec.trainer, tensor_parallel=2))
    assert [n for n in range(1, 9) if allowed_nodes(tensor)(n)] == [2, 4, 8]
