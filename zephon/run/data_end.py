"""Where the data ended before the last step."""

from __future__ import annotations

from zephon.run.directory import RunDir


def data_end(rundir: RunDir) -> int | None:
    """The steps that the data was enough for, where that was found to be fewer than wanted."""
    found = rundir.find_json("data_end.json")
    return None if found is None else int(found["step"])
