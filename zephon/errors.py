"""Every error a user can meet, in one place.

    ZephonError                     what is wrong / what would follow / what to do
    ├── ConfigError                 a value, option or name that cannot work          (also ValueError)
    │   └── NotFound                data that is named and not there                  (also FileNotFoundError)
    ├── ContractError               a run's pinned or guarded value has changed
    ├── DataError                   a document or shard that cannot be used           (also ValueError)
    ├── StateError                  a checkpoint state that is torn, foreign or damaged (also ValueError)
    ├── LedgerMismatch              a step was delivered with other data than before
    ├── WorkerDied                  a thread, process or rank ended that was still needed (also RuntimeError)
    ├── SaveFailed                  a checkpoint that could not be completed          (also RuntimeError)
    ├── TrainingDiverged            a loss or gradient that must not reach the weights
    └── Superseded                  a newer generation has taken the run over

An address (dataset, shard, row, lane, step) is attached with ``add_note`` as the exception passes the code that knows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class ZephonError(Exception):
    """Base of all errors with three parts.

    Args:
        what: what is wrong, with the offending value.
        follows: what would happen if this were accepted.
        remedy: what the user can do.
    """

    exit_status = 1

    def __init__(self, what: str, *, follows: str, remedy: str) -> None:
        super().__init__(what, follows, remedy)
        self.what = what
        self.follows = follows
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}\n  otherwise: {self.follows}\n  to do: {self.remedy}"

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process boundaries (worker processes, isolated engine); notes travel in __dict__.
        return (_rebuild, (type(self), self.what, self.follows, self.remedy, getattr(self, "__notes__", [])))


def _rebuild(cls: type[ZephonError], what: str, follows: str, remedy: str, notes: list[str]) -> ZephonError:
    error = cls(what, follows=follows, remedy=remedy)
    for note in notes:
        error.add_note(note)
    return error


class ConfigError(ZephonError, ValueError):
    """A value, option or name that cannot work. Launcher exit status 65: retrying cannot help."""

    exit_status = 65


class NotFound(ConfigError, FileNotFoundError):
    """Data that is named and not there."""


class ContractError(ZephonError):
    """Something that defines the run differs from what the run began with."""

    exit_status = 65


class DataError(ZephonError, ValueError):
    """A document or shard that cannot be read or used.

    ``document`` is (shard, row) within its chunk's dataset where the error is about one document; the reader and the
    workers, who know the dataset, turn it into a note with the whole address. ``kind`` then says what is wrong without the
    place, so that documents in quarantine can be counted by it.
    """

    exit_status = 65
    document: tuple[int, int] | None = None
    kind: str = ""


class StateError(ZephonError, ValueError):
    """A saved state that is torn, damaged, or belongs to another stream."""

    exit_status = 65


class LedgerMismatch(ZephonError):
    """A step's digest differs from the one in the ledger."""

    exit_status = 65


class WorkerDied(ZephonError, RuntimeError):
    """A worker thread, process or rank ended while it was still needed."""


class SaveFailed(ZephonError, RuntimeError):
    """A checkpoint could not be completed; the one before is untouched. A crash: the next start may succeed."""


class TrainingDiverged(ZephonError):
    """A loss or gradient that is not finite, or a spike. Deterministic: retrying gives the same step again."""

    exit_status = 65


class Superseded(ZephonError):
    """A newer generation trains this run; this one must not write any more. Exits like a drained worker."""

    exit_status = 75


def nearest(name: str, known: Iterable[str], *, kind: str = "") -> str:
    """A phrase naming the closest known name, or listing all of them: ``did you mean 'lanes'?``.

    With ``kind`` (what the names are, in the plural) all of them are listed behind the closest as well.
    """
    candidates = sorted(known)
    close = get_close_matches(name, candidates, n=1, cutoff=0.5)
    listed = f"{kind or 'known'}: {', '.join(candidates)}"
    if close:
        return f"did you mean {close[0]!r}?" + (f" ({listed})" if kind else "")
    return listed
