"""Files of multiple-choice tasks: our own format, and those in which the public task collections come.

    ours        {"prompt": "The capital of France is", "choices": [" Paris", " Rome"], "answer": 0}
    CORE        {"query", "choices", "gold"}     {"context_options", "continuation", "gold"}
    FineWeb     {"ctx", "endings", "label"} (HellaSwag)     {"question", "choices", "answer"} (MMLU)
                {"question", "choices": {"text", "label"}, "answerKey"} (ARC)     {"goal", "sol1", "sol2", "label"} (PIQA)

One JSON object a line. In our format prompt and choice are joined as they are: a space between them is part of the choice. The
others are joined by one space, without examples of other items before them ("zero-shot").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zephon.errors import ConfigError, DataError
from zephon.fastjson import loads


@dataclass(frozen=True, kw_only=True)
class Item:
    """One question.

    Args:
        task: its task's name.
        pairs: (context, continuation) of each choice; the likelihood of the continuation counts.
        answer: the place of the right one.
    """

    task: str
    pairs: tuple[tuple[str, str], ...]
    answer: int


def read_items(path: Path) -> list[Item]:
    """All items of a file. ``task`` of a line names its task; else the file does.

    Raises:
        ConfigError: no such file, or no item in it.
        DataError: a line that is no item, with its number.
    """
    if not path.is_file():
        raise ConfigError(f"--tasks {path}: there is no such file", remedy="give a file of JSON lines, see docs/evaluation.md")
    items = list(_items(path))
    if not items:
        raise ConfigError(f"--tasks {path} has no item", remedy="give one JSON object a line, see docs/evaluation.md")
    return items


def _items(path: Path) -> Iterator[Item]:
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            fields = loads(line)
            if not isinstance(fields, dict):
                raise ValueError("it is no JSON object")
            pairs, answer = _choices(fields)
            if len(pairs) < 2:
                raise ValueError(f"it has {len(pairs)} choice")
            if not 0 <= answer < len(pairs):
                raise ValueError(f"its answer {answer} is none of {len(pairs)} choices, counted from 0")
            if not all(continuation for _, continuation in pairs):
                raise ValueError("a choice is empty")
            yield Item(task=str(fields.get("task") or path.stem), pairs=tuple(pairs), answer=answer)
        except (ValueError, KeyError, TypeError) as error:
            what = f"{error.args[0]!r} is missing or ill-formed" if isinstance(error, KeyError) else str(error)
            raise DataError(
                f"{path}, line {number} is no item of a multiple-choice task: {what}",
                follows="the score would be of other items than the file says",
                remedy='write {"prompt": "...", "choices": ["...", "..."], "answer": 0}, or see docs/evaluation.md',
            ) from error


def _choices(fields: Mapping[str, Any]) -> tuple[list[tuple[str, str]], int]:
    """(pairs, answer) of a line of any known format."""
    match fields:
        case {"prompt": str(prompt), "choices": list(choices), "answer": int(answer)}:
            return [(prompt, _text(choice)) for choice in choices], answer
        case {"query": str(query), "choices": list(choices), "gold": int(gold)}:
            return _joined(query, choices), gold
        case {"context_options": list(contexts), "continuation": str(continuation), "gold": int(gold)}:
            return [(_text(context), f" {continuation}") for context in contexts], gold
        case {"ctx": str(context), "endings": list(choices), "label": label}:
            return _joined(context, choices), int(label)
        case {"question": str(question), "choices": {"text": list(texts), "label": list(labels)}, "answerKey": str(key)}:
            return _joined(_asked(question), texts), labels.index(key)
        case {"question": str(question), "choices": list(choices), "answer": int(answer)}:
            return _joined(_asked(question), choices), answer
        case {"goal": str(goal), "sol1": str(first), "sol2": str(second), "label": label}:
            return _joined(_asked(goal), [first, second]), int(label)
        case {"context": str(), "continuation": str()}:
            raise ValueError("it is a language-modelling item, which has no choices")
    raise ValueError(f"the fields {', '.join(sorted(map(str, fields)))[:120]} are of no known format")


def _joined(context: str, choices: Sequence[object]) -> list[tuple[str, str]]:
    return [(context, f" {_text(choice)}") for choice in choices]


def _asked(question: str) -> str:
    return f"Question: {question}\nAnswer:"


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value
