"""Exclusions: documents of a lane's chunks that no accumulator sees, because a rule skips them or they are in quarantine.

Both are decided once and then belong to the cursor, so that a replay excludes the same documents at the same place.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from zephon.cursor import Cursor, QuarantinedId, SkipRule
from zephon.engine.program import Program
from zephon.errors import DataError
from zephon.ops.quarantine import QuarantinedIds, budget_exceeded
from zephon.types import Columns


class Exclusions:
    """A lane's skip rules and its documents in quarantine, from a cursor on.

    Args:
        lane: its number.
        program: whose datasets, plan and quarantine policy count.
        cursor: where the lane begins.
    """

    def __init__(self, lane: int, program: Program, cursor: Cursor) -> None:
        self._lane, self._program = lane, program
        self._rules = cursor.skip_rules
        self._before: dict[int, list[QuarantinedId]] = {}  # what the replay meets again, by position of the chunk
        for document in cursor.quarantined_ids:
            self._before.setdefault(document.position, []).append(document)
        self._ids: tuple[QuarantinedId, ...] = ()
        self._quarantined = cursor.quarantined - len(cursor.quarantined_ids)  # the replay counts the others again
        self._interval = cursor.position
        self._delivered = cursor.delivered

    @property
    def skipping(self) -> bool:
        """Whether there is a skip rule."""
        return bool(self._rules)

    def known(self, position: int) -> QuarantinedIds:
        """Documents of the chunk at this position that were in quarantine when the cursor was taken."""
        return tuple((document.range, document.row) for document in self._before.get(position, ()))

    def apply(self, columns: Columns, position: int, emitted: int | None) -> Columns:
        """A chunk's documents without those that a rule skips; those that went into quarantine are noted.

        Args:
            position: of the chunk.
            emitted: sequences emitted since the last sentinel; None while only a carry-over is rebuilt.

        Raises:
            DataError: a document that has been delivered fails now, or more have failed than the budget allows.
        """
        if columns.quarantined:
            self._note_quarantined(columns, position, emitted)
        if self._rules:
            columns = self._skip(columns, position, emitted)
        return columns

    def begin(self, position: int, replayed: Callable[[int], bool]) -> None:
        """A flush interval begins: of the documents in quarantine a cursor names those that its replay meets again.

        Args:
            replayed: whether a replay from here reads the chunk at a position.
        """
        self._interval, self._delivered = position, 0
        if self._ids:
            self._ids = tuple(document for document in self._ids if replayed(document.position))

    def noted_in(self, cursor: Cursor) -> Cursor:
        """The cursor with what is excluded."""
        return cursor._replace(quarantined=self._quarantined, quarantined_ids=self._ids, skip_rules=self._rules)

    def _note_quarantined(self, columns: Columns, position: int, emitted: int | None) -> None:
        documents = [QuarantinedId(position, *document) for document in columns.quarantined]
        new = [document for document in documents if document not in self._before.get(position, ())]
        if new and (emitted is None or emitted < self._delivered):
            chunk = self._program.plan.chunk(self._lane, position)
            assert chunk is not None
            address = self._program.datasets[columns.dataset].address(chunk.ranges[new[0].range].shard, new[0].row)
            raise DataError(
                f"a document that was used before the restart fails now: {address}",
                follows="the sequences after it would be others than those already trained on",
                remedy="make the function that failed deterministic, or go back to the checkpoint before",
            )
        self._ids += tuple(documents)
        self._quarantined += len(documents)
        if self._quarantined > self._program.quarantine.budget:
            raise budget_exceeded(self._program.quarantine.budget)

    def _skip(self, columns: Columns, position: int, emitted: int | None) -> Columns:
        if emitted is not None:
            self._rules = tuple(self._in_force(rule, position, emitted) for rule in self._rules)
        keep = np.ones(len(columns), bool)
        for rule in self._rules:
            if rule.after == 0 and rule.position <= position:
                for dataset, shard, row in rule.documents:
                    if dataset == columns.dataset:
                        keep &= (columns.shard != shard) | (columns.row != row)
        return columns.keep(np.flatnonzero(keep), "skip: document")

    def _in_force(self, rule: SkipRule, position: int, emitted: int) -> SkipRule:
        """Turns "after so many sequences of that interval" into "from this chunk on", when that many have been emitted."""
        if rule.after == 0:
            return rule
        passed = rule.position < self._interval or emitted >= rule.after
        return SkipRule(position, 0, rule.documents) if passed else rule
