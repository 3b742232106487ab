"""Where the lanes were, step by step: the key ``cursors`` of a ledger's line has each lane that has passed a sentinel.

    line of step   0          1     2          3     4
    cursors        all lanes        lane 3           lane 0, lane 7

Between two of its lines a lane's cursor changes in one number alone, the sequences delivered since the sentinel, which grows by
the lane's share in every step. So the cursors before any step follow from the lines before it, and a reader who wants to see
what a step held replays at most one flush interval of each lane.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from zephon.cursor import Cursor, unchanging_part
from zephon.run.ledger import Entry

KEY = "cursors"


class MovedCursors:
    """Of the cursors after each step those that say something new. One writer has one, from its first step on."""

    def __init__(self) -> None:
        self._written: dict[int, bytes] = {}

    def of(self, lanes: Mapping[int, bytes]) -> dict[str, dict[str, str]]:
        """What a ledger's line says of the cursors after its step; empty where no lane has passed a sentinel.

        Args:
            lanes: the encoded cursor of each lane.
        """
        moved = {}
        for lane, cursor in sorted(lanes.items()):
            part = unchanging_part(cursor)
            if self._written.get(lane) != part:
                self._written[lane], moved[str(lane)] = part, cursor.hex()
        return {KEY: moved} if moved else {}


def cursors_before(entries: Iterable[Entry], step: int, lanes: int, per_lane: int) -> dict[int, Cursor] | None:
    """The cursor of each lane before a step, from the lines of the steps before it; None where they do not tell.

    Args:
        entries: of the ledger, in the order written.
        step: which; at most the one after the last that was written.
        lanes, per_lane: how many there are, and the sequences that each delivers in a step.
    """
    newest: dict[int, tuple[int, str]] = {}
    for entry in entries:
        for lane, data in entry.rest.get(KEY, {}).items() if entry.step < step else ():
            if entry.step >= newest.get(int(lane), (-1, ""))[0]:
                newest[int(lane)] = entry.step, data
    if step == 0:
        return {lane: Cursor() for lane in range(lanes)}
    if sorted(newest) != list(range(lanes)):
        return None
    cursors = {}
    for lane, (after, data) in newest.items():
        cursor = Cursor.decode(bytes.fromhex(data), lane=lane)
        cursors[lane] = cursor._replace(delivered=cursor.delivered + (step - 1 - after) * per_lane)
    return cursors
