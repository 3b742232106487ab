"""Appends to files of a run directory. An object store cannot append: there this node appends to a copy and uploads it.

In a local run directory the copy is the file itself.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from zephon.run.directory import RunDir


class Mirror:
    """A file of the run directory as a local path that can be appended to.

    Call ``push`` before every checkpoint and ``close`` at the end: then the file holds every step of every checkpoint. Steps
    that a crash costs are trained and recorded again.
    """

    def __init__(self, rundir: RunDir, name: str) -> None:
        self._rundir, self._name, self._pushed = rundir, name, 0
        self._folder = None if rundir.local else tempfile.TemporaryDirectory(prefix="zephon-")
        if self._folder is None:
            self.path = Path(rundir.path(name))
            self.path.parent.mkdir(parents=True, exist_ok=True)
        else:
            self.path = Path(self._folder.name, name)
            if rundir.exists(name):
                self.path.write_bytes(rundir.fs.cat_file(rundir.path(name)))

    def push(self) -> None:
        """Brings the run directory's copy up to date."""
        if self._folder is None or not self.path.exists() or self.path.stat().st_size == self._pushed:
            return
        data = self.path.read_bytes()
        self._rundir.write_bytes(self._name, data=data)
        self._pushed = len(data)

    def close(self) -> None:
        self.push()
        if self._folder is not None:
            self._folder.cleanup()
