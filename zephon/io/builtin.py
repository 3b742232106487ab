"""Datasets that come with Python itself, for a first run without a network.

    stdlib://docs    the language reference and topics behind ``help()``, split into documents at their headings
    stdlib://code    the standard library's own modules, a document each

Both depend on the Python version, and the dataset's identity says so: a run begun on one version is refused on another.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterator

import numpy as np

from zephon.errors import ConfigError, nearest
from zephon.io.dataset import Dataset, InMemoryShard
from zephon.io.formats.base import format_named
from zephon.io.storage import filesystem

_HEADING = re.compile(r"\n(?=[^\n]+\n(?:={4,}|\*{4,}|-{4,})\n)")
_LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "lib2to3"}


def stdlib(name: str, url: str) -> Dataset:
    """``stdlib://docs`` or ``stdlib://code``. Raises ConfigError for another name."""
    what = url.removeprefix("stdlib://")
    builders = {"docs": _docs, "code": _code}
    if what not in builders:
        raise ConfigError(
            f"unknown built-in dataset {url!r}", follows="there would be nothing to read", remedy=nearest(what, builders)
        )
    return builders[what](name)


def _docs(name: str) -> Dataset:
    from pydoc_data.topics import topics

    shards = {topic: InMemoryShard([{"text": part, "topic": topic} for part in _split(topics[topic])]) for topic in topics}
    return Dataset.from_dict(name, shards)


def _split(text: str) -> Iterator[str]:
    for part in _HEADING.split(text):
        if part.strip():
            yield part.strip() + "\n"


def _code(name: str) -> Dataset:
    root = sysconfig.get_path("stdlib")
    files = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        for file in names:
            path = os.path.join(folder, file)
            if file.endswith(".py") and not file.startswith("_sysconfigdata") and os.path.getsize(path):
                files.append((os.path.relpath(path, root), os.path.getsize(path)))
    files.sort()
    fs, root = filesystem(root)
    sizes = np.array([size for _, size in files], np.int64)
    return Dataset(name, format_named("text"), tuple(file for file, _ in files), sizes, root, fs)
