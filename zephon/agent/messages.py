"""What agents and the coordinator send each other: one JSON object a line, one type a message.

    agent -> Hello, Ready, Beat, Leaving, Exited                   (stages: StageStarted, StageEnded)
    agent <- Assign, Rerendezvous, Released, Finish                (stages: RunStage, WithdrawStage)

``encode`` and ``decode`` are the only places that know how a message looks on the wire: ``{"kind": "ready", "store": ...}``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast, get_args, get_type_hints

from zephon.run.stage_records import StageState


class BadMessage(ValueError):
    """A line that is not a message, or not one that this side accepts."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerError:
    """The end of the worker that explains a failure best.

    Args:
        time: unix seconds of its end.
        node: the node that it ran on.
        status: its exit status, negative for a signal.
        message: the error in its log; empty where there is none.
        stuck: the worker hung by itself and was killed; ``message`` says where.
        cut: the worker had not ended when the time for a drain was over, and was killed.
    """

    time: float
    rank: int
    node: str
    status: int
    message: str
    stuck: bool = False
    cut: bool = False


@dataclasses.dataclass(frozen=True)
class Hello:
    """The first message of a connection; ``generation`` is the one whose workers the node still has, if any."""

    node: str
    pid: int
    host: str
    generation: int | None


@dataclasses.dataclass(frozen=True)
class Ready:
    """Without workers and ready for a generation; ``store`` is the address of the store that it would host as rank 0."""

    store: str


@dataclasses.dataclass(frozen=True)
class Beat:
    """A sign of life."""


@dataclasses.dataclass(frozen=True)
class Leaving:
    """This node was asked to leave."""


@dataclasses.dataclass(frozen=True)
class Exited:
    """All workers of a node have ended; ``exits`` maps rank to exit status."""

    generation: int
    exits: Mapping[int, int]
    error: WorkerError | None = None


@dataclasses.dataclass(frozen=True)
class StageStarted:
    """The process of the stage that was ordered with this fencing token runs."""

    token: int


@dataclasses.dataclass(frozen=True)
class StageEnded:
    """That process has ended; the other fields are those of ``StageEnd``."""

    token: int
    state: StageState
    status: int
    cause: str


@dataclasses.dataclass(frozen=True)
class Assign:
    """Start the workers of a generation: ``rank`` is this node's among ``nodes``, ``store`` the address of the first one's.

    It has no names: with them all messages of a generation together would grow with the square of its size.
    """

    generation: int
    rank: int
    nodes: int
    store: str


@dataclasses.dataclass(frozen=True)
class Rerendezvous:
    """Stop the workers of a generation, for another is to be formed: drain, or at once when a peer is lost."""

    generation: int
    reason: str
    drain: bool


@dataclasses.dataclass(frozen=True)
class Standby:
    """This generation was formed without this node: what its workers hold in memory is out of date."""

    generation: int


@dataclasses.dataclass(frozen=True)
class Released:
    """This leaving node is no longer needed by anybody."""


@dataclasses.dataclass(frozen=True)
class Finish:
    """The job has ended with this exit status."""

    status: int
    cause: str


@dataclasses.dataclass(frozen=True)
class RunStage:
    """Run this stage. The token grows with every order: a node with an older one may not write the stage's record."""

    stage: str
    token: int


@dataclasses.dataclass(frozen=True)
class WithdrawStage:
    """Stop the stage that runs here: another node has the newest token, which is ``token``."""

    token: int


FromAgent = Hello | Ready | Beat | Leaving | Exited | StageStarted | StageEnded
ToAgent = Assign | Standby | Rerendezvous | Released | Finish | RunStage | WithdrawStage
Message = FromAgent | ToAgent

FROM_AGENT: tuple[type[FromAgent], ...] = (Hello, Ready, Beat, Leaving, Exited, StageStarted, StageEnded)
TO_AGENT: tuple[type[ToAgent], ...] = (Assign, Standby, Rerendezvous, Released, Finish, RunStage, WithdrawStage)

M = TypeVar("M", bound=Message)
T = TypeVar("T")


def encode(message: Message) -> bytes:
    """A message as a line."""
    return json.dumps({"kind": type(message).__name__, **dataclasses.asdict(message)}).encode() + b"\n"


def decode(line: bytes, kinds: Sequence[type[M]]) -> M:
    """The message of a line.

    Raises:
        BadMessage: it is no JSON object, its kind is none of ``kinds``, or its fields are not those of the kind.
    """
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise BadMessage(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadMessage(f"not an object: {str(fields)[:100]!r}")
    name = fields.pop("kind", None)
    kind = next((kind for kind in kinds if kind.__name__ == name), None)
    if kind is None:
        raise BadMessage(f"unknown kind of message {str(name)[:100]!r}")
    return _value_of(kind, fields)


def _value_of(cls: type[T], fields: object) -> T:
    """A dataclass of its fields, each of which must be what its annotation says."""
    if not isinstance(fields, dict):
        raise BadMessage(f"{cls.__name__} is not an object: {fields!r}")
    kinds = get_type_hints(cls)
    try:
        return cls(**{name: _READERS[kinds[name]](value) for name, value in fields.items()})
    except (KeyError, TypeError, ValueError) as error:
        raise BadMessage(f"fields of {cls.__name__}: {error}") from error


def _exact(kind: type[T]) -> Callable[[object], T]:
    def read(value: object) -> T:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"{value!r} is no {kind.__name__}")
        return value

    return read


def _optional(read: Callable[[object], T]) -> Callable[[object], T | None]:
    return lambda value: None if value is None else read(value)


def _seconds(value: object) -> float:
    return float(_exact(float)(value) if isinstance(value, float) else _exact(int)(value))


def _statuses(value: object) -> dict[int, int]:
    return {int(rank): _exact(int)(status) for rank, status in _exact(dict)(value).items()}


def _stage_state(value: object) -> StageState:
    if value not in get_args(StageState):
        raise ValueError(f"{value!r} is no state of a stage")
    return cast(StageState, value)


# A field is read by its annotation. JSON has texts as keys.
_READERS: dict[object, Callable[[object], object]] = {
    bool: _exact(bool),
    int: _exact(int),
    float: _seconds,
    str: _exact(str),
    int | None: _optional(_exact(int)),
    Mapping[int, int]: _statuses,
    StageState: _stage_state,
    WorkerError | None: _optional(lambda value: _value_of(WorkerError, value)),
}
