"""Who may write the run: the membership with the highest (attempt, generation) that was claimed.

    generations/0002-00000007.json    attempt 2 has claimed generation 7: created, so that one of several claimers gets it
    generation.json                   the newest claim, replaced after it: one small read for a worker before it writes

A coordinator claims before its workers start; a claim below one that exists is refused. Each worker lists the claims when it
starts and reads ``generation.json`` before it writes. So of two attempts only the newer one writes, whatever either of them
believes: a claim that came later is in ``generation.json`` before its workers start, and an earlier one's writer of that file
has no workers yet that could miss it in the list.
"""

from __future__ import annotations

import dataclasses
import posixpath
import re

from zephon.errors import Superseded
from zephon.run.directory import RunDir
from zephon.run.plain import as_record

_FILE, _FOLDER = "generation.json", "generations"


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

    @property
    def order(self) -> tuple[int, int]:
        return self.attempt, self.generation


def read_generation(rundir: RunDir) -> Generation | None:
    """The newest membership, as one small file has it; None before the first."""
    return as_record(Generation, rundir.find_json(_FILE))


def newest_claim(rundir: RunDir) -> tuple[int, int]:
    """The highest (attempt, generation) that was claimed; zeros before the first."""
    try:
        names = rundir.fs.ls(rundir.path(_FOLDER), detail=False, refresh=True)
    except FileNotFoundError:
        return 0, 0
    found = (re.fullmatch(r"(\d+)-(\d+)\.json", posixpath.basename(str(name))) for name in names)
    return max(((int(match[1]), int(match[2])) for match in found if match), default=(0, 0))


def check_newest(order: tuple[int, int], newest: tuple[int, int]) -> None:
    """Raises Superseded: ``newest`` is above ``order``."""
    if newest > order:
        (attempt, generation), (mine, own) = newest, order
        other = f"attempt {attempt}" if attempt != mine else f"generation {generation}"
        this = f"attempt {mine}" if attempt != mine else f"generation {own}"
        raise Superseded(
            f"{other} trains this run now and this process belongs to {this}",
            follows="two memberships would write to one ledger and one set of checkpoints",
            remedy=f"nothing: this process ends, and {other} goes on",
        )


def claim(rundir: RunDir, wanted: Generation) -> None:
    """Makes a membership the only one that may write.

    Raises:
        Superseded: another process has claimed this one, or a later one.
    """
    check_newest(wanted.order, newest_claim(rundir))
    name = f"{RunDir.attempt_name(wanted.attempt)}-{wanted.generation:08d}.json"
    if not rundir.create(_FOLDER, name, data=dataclasses.asdict(wanted)):
        raise Superseded(
            f"another coordinator of attempt {wanted.attempt} has claimed generation {wanted.generation}",
            follows="two memberships would write to one ledger and one set of checkpoints",
            remedy="nothing: this coordinator ends, and the other one goes on",
        )
    rundir.write_json(_FILE, data=dataclasses.asdict(wanted))
