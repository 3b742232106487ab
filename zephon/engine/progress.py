"""The no-progress guard: without it, a repeating source that yields no sequence would be read for ever."""

from __future__ import annotations

from collections.abc import Sequence

from zephon.engine.program import Program
from zephon.errors import DataError

_PATIENCE = 64  # chunks in a row before the size of the source is looked up


class NoProgressGuard:
    """Ends a lane that has read the whole source several times without a document or without a sequence.

    Args:
        lane: its number, for the error.
        program: whose plan says how much there is.
        position: where the lane begins.
    """

    def __init__(self, lane: int, program: Program, position: int) -> None:
        self._lane, self._program = lane, program
        self._empty = 0  # chunks in a row without a document
        self._last = position  # the last sentinel with progress before it
        self._tokens_in: tuple[int, ...] = ()  # what packing had taken by then

    def chunk(self, documents: int) -> None:
        """A chunk with this many documents has reached the lane.

        Raises:
            DataError: too many chunks in a row have had none.
        """
        self._empty = 0 if documents else self._empty + 1
        self._check(self._empty, "found no document")

    def sentinel(self, position: int, emitted: int, tokens_in: Sequence[int]) -> None:
        """The lane is at a sentinel.

        Args:
            position: of the sentinel.
            emitted: sequences since the sentinel before.
            tokens_in: tokens pushed to packing so far, by group.


        Raises:
            DataError: packing, or an op after it, has dropped all documents for so long that no sequence will come.
        """
        if emitted or tuple(tokens_in) != self._tokens_in:
            self._last, self._tokens_in = position, tuple(tokens_in)
        else:
            self._check(position - self._last, "made no sequence of what it found")

    def _check(self, chunks: int, what: str) -> None:
        if chunks < _PATIENCE:
            return
        limit = 4 * self._program.plan.first_pass + _PATIENCE  # of one lane: several passes over the whole source
        if chunks > limit:
            names = ", ".join(repr(dataset.name) for dataset in self._program.datasets)
            raise DataError(
                f"lane {self._lane} {what} in {chunks} chunks in a row of {names}",
                follows="the lane would read on for ever and deliver nothing",
                remedy="check that the datasets hold documents and that no filter or limit drops all of them",
            )
