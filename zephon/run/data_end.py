"""``data_end.json``: where the data ended before the last step. Rank 0 writes it; status and the cluster's state read it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from zephon.fastjson import Json
from zephon.run.directory import RunDir
from zephon.run.plain import as_record

_FILE = "data_end.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataEnd:
    """How far the data reached.

    Args:
        step, steps: optimizer steps done and wanted.
        attempt: the attempt that reached the end.
        dropped: documents, or whole sequences where the reason says so, dropped after the last step,
            ``{reason: {"count", "tokens", "first"}}``; no ledger line has them.
    """

    step: int
    steps: int
    attempt: int
    dropped: Mapping[str, Json] = dataclasses.field(default_factory=dict)


def read_data_end(rundir: RunDir) -> DataEnd | None:
    """None where the data has not ended."""
    return as_record(DataEnd, rundir.find_json(_FILE))


def write_data_end(rundir: RunDir, end: DataEnd) -> None:
    rundir.write_json(_FILE, data=dataclasses.asdict(end))


def ended_at(rundir: RunDir) -> int | None:
    """The number of steps for which the data sufficed; None where it has not ended."""
    end = read_data_end(rundir)
    return None if end is None else end.step
