"""The last step of finite data, the same on every rank of a torch process group, with no collective and no other rank's data.

How many steps a lane has is known when its documents have been read. Each rank says in the process group's store how many it
is sure of; rank 0 writes down what all are sure of, and a step is begun where that says so:

    rank 0  has 7       rank 1  has 6, and no more           all  have 6, and no more: step 6 begins nowhere

These are facts about the stream, whose fingerprint is in the names: they hold for every iterator over it, and nobody has to
be there at the same time. A rank waits only for one that has not come so far.
"""

from __future__ import annotations

import datetime
import hashlib
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Protocol

from zephon.cursor import RankState
from zephon.errors import WorkerDied
from zephon.pipeline.definition import Definition

PATIENCE = 30.0  # seconds before a rank that waits says for whom
_LONGEST_PAUSE = 0.01


class Store(Protocol):
    """The part of a torch store that is used here."""

    @property
    def timeout(self) -> datetime.timedelta: ...
    def check(self, keys: list[str]) -> bool: ...
    def get(self, key: str) -> bytes: ...
    def set(self, key: str, value: str) -> None: ...
    def multi_get(self, keys: list[str]) -> list[bytes]: ...
    def has_extended_api(self) -> bool: ...


class Known(tuple[int, bool]):
    """(steps, whether there are no more)."""

    __slots__ = ()

    def written(self) -> str:
        return f"{self[0]}{'.' if self[1] else ''}"

    @staticmethod
    def read(value: bytes) -> Known:
        return Known((int(value.rstrip(b".")), value.endswith(b".")))


class AgreedEnd:
    """What one rank says about its own steps, and what is known of all.

    Args:
        store: of the process group.
        scope: what stands before the names: the stream.
        rank, ranks: data-parallel rank and size.
    """

    def __init__(self, store: Store, scope: str, rank: int, ranks: int) -> None:
        self._store, self._rank = store, rank
        self._names = [f"{scope}/{number}" for number in range(ranks)]
        self._all = f"{scope}/all"
        self._known = Known((0, False))

    def has(self, step: int) -> bool:
        """This rank has the step: whether all have. Waits until each has said so.

        Raises:
            WorkerDied: a rank has not come so far within the process group's timeout.
        """
        if not self._decided(step):
            self._store.set(self._names[self._rank], Known((step + 1, False)).written())
            self._wait(step)
        return step < self._known[0]

    def ended(self, steps: int) -> None:
        """This rank has so many steps and no more; all of them have been begun on every rank."""
        if self._decided(steps):
            return
        last = Known((steps, True)).written()
        self._store.set(self._names[self._rank], last)
        if self._rank == 0:
            self._store.set(self._all, last)

    def _decided(self, step: int) -> bool:
        return step < self._known[0] or self._known[1]

    def _wait(self, step: int) -> None:
        began, pause, warned = time.monotonic(), 0.0002, False
        while True:
            behind = self._look(step)
            if self._decided(step):
                return
            waited = time.monotonic() - began
            whom = f"rank {', '.join(map(str, behind))}" if behind else "rank 0"
            if waited > self._store.timeout.total_seconds():
                raise WorkerDied(
                    f"{whom} did not ask for step {step} of this stream within {waited:.0f} s",
                    follows="this rank would train a step that others do not have, and wait in its collectives for ever",
                    remedy="take batches on every data-parallel rank, of one pipeline; or end at a step of your own and say "
                    "options(last_step='own')",
                )
            if waited > PATIENCE and not warned:
                warned = True
                warnings.warn(f"step {step} is ready here and waits for {whom} to ask for it too", stacklevel=5)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _look(self, step: int) -> Sequence[int]:
        """Brings what is known up to date. Returns the ranks that have not come so far, where this rank can tell."""
        if self._store.check([self._all]):
            self._known = Known.read(self._store.get(self._all))
        if self._decided(step) or self._rank:
            return ()
        if not self._store.check(self._names):
            return [number for number, name in enumerate(self._names) if not self._store.check([name])]
        fast = self._store.has_extended_api()
        values = self._store.multi_get(self._names) if fast else [self._store.get(name) for name in self._names]
        by_rank = [Known.read(value) for value in values]
        ends = [steps for steps, final in by_rank if final]
        least = min(steps for steps, _ in by_rank)
        known = Known((least, least in ends))
        if known[0] > step or known[1]:
            self._known = known
            self._store.set(self._all, known.written())
        return [number for number, (steps, _) in enumerate(by_rank) if steps <= step]


def agreed_end_of(definition: Definition, state: RankState) -> AgreedEnd | None:
    """What ranks tell each other, where that is needed and there is a process group to do it through."""
    division, options = definition.division, definition.options
    if options.last_step != "auto" or division.dp_degree == 1 or definition.finite_bytes is None:
        return None
    if not definition.required_batching.drop_last:  # ranks without a sequence would have to go on
        return None
    store = _group_store()
    if store is None:
        return None
    cursor = next(iter(state.lanes.values()))
    skips = repr((cursor.skipped_steps, [rule.documents for rule in cursor.skip_rules]))
    scope = hashlib.sha256(f"{definition.fingerprint} {skips} {division.dp_degree}".encode()).hexdigest()[:24]
    return AgreedEnd(store, f"zephon/{scope}", division.dp_group_id, division.dp_degree)


def _group_store() -> Store | None:
    """An own connection to the store of torch's process group; None without one, or where torch is too old to give it."""
    distributed = sys.modules.get("torch.distributed")  # not imported here: nobody can have initialised it then
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return None
    get = getattr(distributed.group.WORLD, "get_group_store", None)
    if get is None:
        return None
    store: Store = get().clone()
    return store
