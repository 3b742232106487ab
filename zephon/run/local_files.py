"""The local disk with the methods of fsspec's file systems that run directories need, and under the same names.

For a run on this machine fsspec is not imported at all: that takes as long as everything else that ``zephon list`` does.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import IO, Any

_PROTOCOLS = ("file://", "local://")


class LocalFiles:
    """Files by their absolute paths."""

    protocol = ("file", "local")

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """The bytes of a range of a file. Not negative, unlike fsspec's."""
        with open(path, "rb") as file:
            file.seek(start or 0)
            return file.read(-1 if end is None else max(0, end - (start or 0)))

    def open(self, path: str, mode: str = "rb") -> IO[Any]:
        return open(path, mode)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def isdir(self, path: str) -> bool:
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def info(self, path: str) -> dict[str, Any]:
        facts = os.stat(path)
        kind = "directory" if os.path.isdir(path) else "file"
        return {"name": path, "size": facts.st_size, "type": kind, "mtime": facts.st_mtime}

    def ls(self, path: str, detail: bool = False, refresh: bool = True) -> list[Any]:
        """What lies directly in a directory: paths, or what `info` says of each. Raises FileNotFoundError."""
        paths = [os.path.join(path, name) for name in os.listdir(path)]
        if not detail:
            return paths
        infos = []
        for name in paths:
            try:
                infos.append(self.info(name))
            except FileNotFoundError:  # gone since it was listed
                continue
        return infos

    def find(self, path: str, detail: bool = False) -> Any:
        """All files below, sorted: paths, or what `info` says of each by its path."""
        paths = sorted(os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
        return {name: self.info(name) for name in paths} if detail else paths

    def du(self, path: str) -> int:
        """Bytes of all files below, or of this one."""
        return sum(self.size(name) for name in self.find(path)) if self.isdir(path) else self.size(path)

    def rm_file(self, path: str) -> None:
        os.remove(path)

    def rm(self, path: str, recursive: bool = False) -> None:
        if recursive and self.isdir(path):
            shutil.rmtree(path)
        else:
            os.remove(path)

    def unstrip_protocol(self, path: str) -> str:
        """As a URL."""
        return f"file://{path}"


def local_path(url: str) -> str | None:
    """The absolute path of a URL on this machine's disk; None of any other."""
    bare = next((url[len(protocol) :] for protocol in _PROTOCOLS if url.startswith(protocol)), url)
    if "://" in bare or "::" in bare:
        return None
    return str(Path(os.path.abspath(os.path.expanduser(bare))))
