"""Every error a user can meet, in one place.

    ZephonError                     what is wrong / why it matters / fix
    ├── ConfigError                 a value, option or name that cannot work          (also ValueError)
    │   └── NotFound                data that is named and not there                  (also FileNotFoundError)
    ├── ContractError               a run's pinned or guarded value has changed
    ├── DataError                   a document or shard that cannot be used           (also ValueError)
    ├── StateError                  a checkpoint state that is torn, foreign or damaged (also ValueError)
    ├── LedgerMismatch              a step was delivered with other data than before
    ├── WorkerDied                  a thread, process or rank ended that was still needed (also RuntimeError)
    ├── StoreFailed                 a store that gave no good answer in time          (also RuntimeError)
    ├── SaveFailed                  a checkpoint that could not be completed          (also RuntimeError)
    ├── TrainingDiverged            a loss or gradient that must not reach the weights
    └── Superseded                  a newer generation has taken the run over

An address (dataset, shard, row, lane, step) is attached with ``add_note`` as the exception passes the code that knows it.
An error about one document carries the document's numbers until then: see `address_error` and `address_of`.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar, NamedTuple

from zephon.exits import Exit


class ZephonError(Exception):
    """Base of all errors with three parts.

    Args:
        what: what is wrong, with the offending value.
        follows: what would happen if this were accepted. Leave it out where the refusal is the only consequence: the
            error then has the ``refusal`` of its class, which its text does not repeat.
        remedy: what the user can do.
    """

    exit_status: int = Exit.FAILED
    refusal: ClassVar[str] = "the operation stops here"

    def __init__(self, what: str, *, follows: str | None = None, remedy: str) -> None:
        follows = follows or self.refusal
        super().__init__(what, follows, remedy)
        self.what = what
        self.follows = follows
        self.remedy = remedy

    def __str__(self) -> str:
        # Labels that name what stands behind them: "otherwise" is read as "as an alternative".
        matters = f"  why it matters: {self.follows}\n" if self.follows != self.refusal else ""
        return f"{self.what}\n{matters}  fix: {self.remedy}"

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process boundaries (worker processes, isolated engine); notes and addresses travel in __dict__.
        return (_rebuild, (type(self), self.what, self.follows, self.remedy), self.__dict__)


def _rebuild(cls: type[ZephonError], what: str, follows: str, remedy: str) -> ZephonError:
    return cls(what, follows=follows, remedy=remedy)


class ConfigError(ZephonError, ValueError):
    """A value, option or name that cannot work. Launcher exit status 65: retrying cannot help."""

    exit_status = Exit.REFUSED
    refusal = "nothing starts"


class NotFound(ConfigError, FileNotFoundError):
    """Data that is named and not there."""


class ContractError(ZephonError):
    """Something that defines the run differs from what the run began with."""

    exit_status = Exit.REFUSED


class DataError(ZephonError, ValueError):
    """A document or shard that cannot be read or used."""

    exit_status = Exit.REFUSED
    refusal = "the run ends here"


class StateError(ZephonError, ValueError):
    """A saved state that is torn, damaged, or belongs to another stream."""

    exit_status = Exit.REFUSED
    refusal = "the state is not loaded"


class LedgerMismatch(ZephonError):
    """A step's digest differs from the one in the ledger."""

    exit_status = Exit.REFUSED


class WorkerDied(ZephonError, RuntimeError):
    """A worker thread, process or rank ended while it was still needed."""


class StoreFailed(ZephonError, RuntimeError):
    """A store of data gave no good answer within its budget. A crash: the next start may succeed."""


class SaveFailed(ZephonError, RuntimeError):
    """A checkpoint could not be completed; the one before is untouched. A crash: the next start may succeed."""


class TrainingDiverged(ZephonError):
    """A loss or gradient that is not finite, or a spike. Deterministic: retrying gives the same step again."""

    exit_status = Exit.REFUSED


class Superseded(ZephonError):
    """A newer generation trains this run; this one must not write any more. Exits like a drained worker."""

    exit_status = Exit.DRAINED


_ADDRESS = "zephon_address"  # the attribute of any exception that holds it


class ErrorAddress(NamedTuple):
    """Which document an error is about, in numbers; the reader, the workers and the lane know their names.

    Args:
        shard, row: the document within its dataset.
        dataset: the dataset's index in the source; None for that of the chunk being read.
        kind: what is wrong without the place, so that documents with one fault are counted together; "" where unknown.
    """

    shard: int
    row: int
    dataset: int | None = None
    kind: str = ""


def address_error(error: BaseException, address: ErrorAddress) -> None:
    """Notes on an error, which may come from the user's own code, the document that it is about."""
    setattr(error, _ADDRESS, address)


def address_of(error: BaseException) -> ErrorAddress | None:
    """The document that an error is about; None where none was noted."""
    address: ErrorAddress | None = getattr(error, _ADDRESS, None)
    return address


_OF_SCHEME = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}


def not_installed(purpose: str, package: str, extra: str) -> ConfigError:
    """The error that an optional package is missing, with the line to type."""
    return ConfigError(f"{purpose} needs {package}, which is not installed", remedy=install_line(extra))


def install_line(extra: str) -> str:
    return f"pip install 'zephon-elastic[{extra}]'"


def install_line_of(url: str) -> str:
    """What to type for the file system of a URL's scheme; empty where no extra brings it."""
    extra = _OF_SCHEME.get(url.partition("://")[0])
    return install_line(extra) if extra else ""


def nearest(name: str, known: Iterable[str], *, kind: str = "") -> str:
    """A phrase naming the closest known name, or listing all of them: ``did you mean 'lanes'?``.

    With ``kind`` (what the names are, in the plural) all of them follow the closest as well.
    """
    candidates = sorted(known)
    close = get_close_matches(name, candidates, n=1, cutoff=0.5)
    listed = f"{kind or 'known'}: {', '.join(candidates)}"
    if close:
        return f"did you mean {close[0]!r}?" + (f" ({listed})" if kind else "")
    return listed
