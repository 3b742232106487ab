"""Messages between agents and coordinator: each is read as it was written, anything else is refused."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from zephon.agent.messages import (
    FROM_AGENT,
    TO_AGENT,
    Assign,
    BadMessage,
    Beat,
    Exited,
    Finish,
    FromAgent,
    Hello,
    Leaving,
    Message,
    Ready,
    Released,
    Rerendezvous,
    RunStage,
    StageEnded,
    StageStarted,
    Standby,
    ToAgent,
    WithdrawStage,
    WorkerError,
    decode,
    encode,
)

ERROR = WorkerError(time=12.5, rank=3, node="n-1", status=-9, message='two\nlines and a "quote"', stuck=True)
SENT: list[FromAgent] = [
    Hello("n-0@a", 4711, "machine", None),
    Hello("n-0@a", 4711, "machine", 7),
    Ready("[fd00::1]:29400"),
    Beat(),
    Leaving(),
    Exited(7, {0: 75, 3: -9}, ERROR),
    Exited(7, {0: 0}),
    StageStarted(2),
    StageEnded(2, "failed", 65, "stage first failed: ö"),
]
RECEIVED: list[ToAgent] = [
    Assign(7, 1, 2, "h:1"),
    Rerendezvous(7, "lost n-1", drain=False),
    Standby(7),
    Released(),
    Finish(0, "all steps are done"),
    RunStage("first", 2),
    WithdrawStage(3),
]


@pytest.mark.parametrize("message", [*SENT, *RECEIVED], ids=repr)
def test_a_message_is_one_line_and_read_as_it_was_written(message: Message) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode(line, [*FROM_AGENT, *TO_AGENT]) == message


def test_every_message_is_written_and_read_here() -> None:
    assert {type(message) for message in SENT} == set(FROM_AGENT) == set(get_args(FromAgent))
    assert {type(message) for message in RECEIVED} == set(TO_AGENT) == set(get_args(ToAgent))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"GET / HTTP/1.1", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1, 2]", "not an object"),
        (b"{}", "unknown kind of message 'None'"),
        (b'{"kind": "Shutdown"}', "unknown kind of message 'Shutdown'"),
        (b'{"kind": "Ready"}', "missing 1 required positional argument: 'store'"),
        (b'{"kind": "Ready", "store": "x:1", "more": 1}', "'more'"),
        (b'{"kind": "Ready", "store": 1}', "1 is no str"),
        (b'{"kind": "Exited", "generation": true, "exits": {}}', "True is no int"),
        (b'{"kind": "Exited", "generation": 1, "exits": {"a": 0}}', "invalid literal"),
        (b'{"kind": "Exited", "generation": 1, "exits": {}, "error": "boom"}', "WorkerError is not an object"),
        (b'{"kind": "StageEnded", "token": 1, "state": "fine", "status": 0, "cause": ""}', "'fine' is no state of a stage"),
    ],
)
def test_what_is_no_message_is_refused_with_what_is_wrong(line: bytes, problem: str) -> None:
    with pytest.raises(BadMessage, match=problem):
        decode(line, FROM_AGENT)


def test_a_side_reads_only_what_the_other_may_send() -> None:
    with pytest.raises(BadMessage, match="unknown kind of message 'Finish'"):
        decode(encode(Finish(0, "forged")), FROM_AGENT)
    with pytest.raises(BadMessage, match="unknown kind of message 'Ready'"):
        decode(json.dumps({"kind": "Ready", "store": "x:1"}).encode(), TO_AGENT)
