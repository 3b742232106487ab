"""Datasets that come with Python itself, for a first run without a network.

    stdlib://docs    the language reference and topics of ``help()``, split into documents at their headings
    stdlib://code    the standard library's own modules, a document each

Both depend on the Python version, and the dataset's identity says so: a run begun on one version is refused on another.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from zephon.errors import ConfigError, nearest
from zephon.io.filesystem import FileSystem
from zephon.io.in_memory import InMemoryShard
from zephon.io.storage import filesystem

_HEADING = re.compile(r"\n(?=[^\n]+\n(?:={4,}|\*{4,}|-{4,})\n)")
_SKIPPED = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "lib2to3"}


class Files(NamedTuple):
    """Text files below a folder, by name and size in bytes."""

    fs: FileSystem
    root: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]


def open_url(url: str) -> Files | Mapping[str, InMemoryShard]:
    """What ``stdlib://docs`` or ``stdlib://code`` stands for. Raises ConfigError for another name."""
    name = url.removeprefix("stdlib://")
    if name == "docs":
        return _docs()
    if name == "code":
        return _code()
    raise ConfigError(f"unknown built-in dataset {url!r}", remedy=nearest(name, ("docs", "code")))


def _docs() -> dict[str, InMemoryShard]:
    from pydoc_data.topics import topics

    return {topic: InMemoryShard([{"text": part, "topic": topic} for part in _split(topics[topic])]) for topic in topics}


def _split(text: str) -> Iterator[str]:
    for part in _HEADING.split(text):
        if part.strip():
            yield part.strip() + "\n"


def _code() -> Files:
    top = sysconfig.get_path("stdlib")
    files = []
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(set(folders) - _SKIPPED)
        for file in names:
            path = os.path.join(folder, file)
            if file.endswith(".py") and not file.startswith("_sysconfigdata") and os.path.getsize(path):
                files.append((os.path.relpath(path, top), os.path.getsize(path)))
    files.sort()
    fs, root = filesystem(top)
    return Files(fs, root, tuple(name for name, _ in files), tuple(size for _, size in files))
