"""Questions to the caller at a terminal. Where nobody can answer, the caller gets the line to type instead."""

from __future__ import annotations

import sys

from zephon.errors import ConfigError


def confirmed(question: str, *, remedy: str) -> bool:
    """Asks for yes or no; anything but yes is no.

    Raises:
        ConfigError: nobody is there to answer.
    """
    return _answer(f"{question} [y/N] ", question, remedy).lower() in ("y", "yes")


def chosen(question: str, options: list[str], *, remedy: str) -> str:
    """Asks for one of several options by its name or number; empty where the caller chose none.

    Raises:
        ConfigError: nobody is there to answer.
    """
    for number, option in enumerate(options, 1):
        print(f"  {number}  {option}")
    answer = _answer(f"{question} (name or number; Enter: none) ", question, remedy)
    if answer.isdigit() and 1 <= int(answer) <= len(options):
        return options[int(answer) - 1]
    return answer if answer in options else ""


def _answer(prompt: str, question: str, remedy: str) -> str:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError(f"{question} Nobody is at a terminal to answer", remedy=remedy)
    try:
        return input(prompt).strip()
    except EOFError:
        print()
        return ""
