"""``generation.json``: the newest membership that may write. The coordinator writes it before its workers start; each worker
compares its own generation with it before it writes, so that an older membership cannot."""

from __future__ import annotations

import dataclasses

from zephon.run.directory import RunDir
from zephon.run.plain import as_record

_FILE = "generation.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """One membership.

    Args:
        attempt: the attempt that it belongs to.
        generation: its number; grows over all attempts.
        nodes: names of its nodes, in the order of their ranks.
        world_size: its workers.
        time: when it was decided, in unix seconds.
    """

    attempt: int
    generation: int
    nodes: tuple[str, ...]
    world_size: int
    time: float


def read_generation(rundir: RunDir) -> Generation | None:
    """None before the first membership."""
    return as_record(Generation, rundir.find_json(_FILE))


def write_generation(rundir: RunDir, generation: Generation) -> None:
    rundir.write_json(_FILE, data=dataclasses.asdict(generation))
