"""Records of a run that several tests write, read and show."""

from __future__ import annotations

from zephon.run.state import Resized

RESIZED = Resized(
    reason="a node joined",
    generation=2,
    nodes_before=1,
    nodes=2,
    step_before=9,
    step_after=10,
    lost_steps=0,
    stall_s=0.9,
    parts_s={"drain": 0.1, "save": 0.2, "membership": 0.0, "restore": 0.5, "first_step": 0.1},
)
