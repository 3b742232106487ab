"""From which chunk on a carried tail can be made again: a few positions per group, whatever came before them."""

from __future__ import annotations

import collections
from collections.abc import Sequence


class Tails:
    """Remembers, for each group of a carrying accumulator, how much had flowed in at the start of recent chunks.

    Args:
        position: where reading begins.
        groups: how many groups the accumulator keeps apart.
    """

    def __init__(self, position: int, groups: int) -> None:
        self._noted = [collections.deque([(position, 0)]) for _ in range(groups)]

    def note(self, position: int, inflows: Sequence[int], carried: Sequence[int]) -> None:
        """At the start of the chunk at ``position``, so much had flowed in, and so much of it is held."""
        for noted, tokens_in, held in zip(self._noted, inflows, carried, strict=True):
            if noted[-1][1] == tokens_in:
                noted.pop()  # nothing of this group since: a later start serves as well
            noted.append((position, tokens_in))
            while len(noted) > 1 and tokens_in - noted[1][1] >= held:
                noted.popleft()  # an older start is never needed again: the tail begins behind it

    def chunks(self, position: int, inflows: Sequence[int], carried: Sequence[int]) -> tuple[int, ...]:
        """How many chunks before ``position`` each group's tail goes back; 0 where nothing is held."""
        back = []
        for noted, tokens_in, held in zip(self._noted, inflows, carried, strict=True):
            starts = [start for start, before in noted if tokens_in - before >= held]
            back.append(position - max(starts) if held else 0)
        return tuple(back)
