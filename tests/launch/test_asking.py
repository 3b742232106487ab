"""Questions at a terminal: only yes is yes, and one of several is chosen by number or name."""

from __future__ import annotations

import contextlib
import os
import pty
import sys
from collections.abc import Iterator

import pytest

from zephon.errors import ConfigError
from zephon.launch.cli.asking import chosen, confirmed


@contextlib.contextmanager
def typing(text: str) -> Iterator[None]:
    """A terminal in the place of stdin and stdout, at which this line is typed."""
    terminal, end = pty.openpty()
    os.write(terminal, f"{text}\n".encode())
    before = sys.stdin, sys.stdout
    with os.fdopen(end, "r") as sys.stdin, os.fdopen(os.dup(end), "w") as sys.stdout:
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stdin, sys.stdout = before
    os.close(terminal)


@pytest.mark.parametrize(("answer", "yes"), [("y", True), ("YES", True), ("n", False), ("", False), ("yess", False)])
def test_only_yes_is_yes(answer: str, yes: bool) -> None:
    with typing(answer):
        assert confirmed("Remove it?", remedy="say --yes") is yes


@pytest.mark.parametrize(("answer", "name"), [("2", "b"), ("a", "a"), ("3", ""), ("0", ""), ("c", ""), ("", "")])
def test_one_of_several_is_chosen_by_number_or_name(answer: str, name: str) -> None:
    with typing(answer):
        assert chosen("which?", ["a", "b"], remedy="name one") == name


def test_where_nobody_can_answer_the_remedy_is_said() -> None:
    with pytest.raises(ConfigError, match="say --yes"):
        confirmed("Remove it?", remedy="say --yes")
