"""The commands of the control port: what is sent is what arrives, and a refusal arrives with its three parts."""

from __future__ import annotations

import pytest

from zephon.errors import ConfigError
from zephon.launch.backends.local.commands import Command, Rescale, Stop, check_reply, decode, encode, encode_reply


@pytest.mark.parametrize("command", [Stop(), Rescale(4)])
def test_a_command_arrives_as_it_was_sent(command: Command) -> None:
    line = encode(command)
    assert line.endswith(b"\n")
    assert decode(line) == command


@pytest.mark.parametrize(
    "line", [b"", b"[]", b'{"verb": "rescale"}', b'{"verb": "rescale", "nodes": "4"}', b'{"verb": "kill"}', b'{"nodes": 4}']
)
def test_anything_else_is_no_command(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a command|Expecting value"):
        decode(line)


def test_a_refusal_arrives_with_its_three_parts() -> None:
    check_reply(encode_reply(None))
    sent = ConfigError("nodes=9 is not possible", follows="the lanes could not be divided", remedy="use nodes=8")
    with pytest.raises(ConfigError) as received:
        check_reply(encode_reply(sent))
    assert str(received.value) == str(sent)


def test_a_closed_connection_is_an_error_too() -> None:
    with pytest.raises(ConfigError, match="the supervisor did not answer"):
        check_reply(b"")
