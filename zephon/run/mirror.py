"""Appends to files of a run directory. An object store cannot append: there this node appends to a copy and uploads it.

In a local run directory the copy is the file itself.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path

from zephon.errors import Superseded
from zephon.run.directory import RunDir


class Mirror:
    """A file of the run directory as a local path that can be appended to.

    Call ``push`` before every checkpoint and ``close`` at the end: then the file holds every step of every checkpoint. Steps
    that a crash costs are trained and recorded again.

    Args:
        fence: raises Superseded where a newer generation has the run.
    """

    def __init__(self, rundir: RunDir, name: str, *, fence: Callable[[], None] = lambda: None) -> None:
        self._rundir, self._name, self._fence, self._pushed = rundir, name, fence, 0
        self._version: str | None = None  # of the file that the copy began with; None where there was none
        self._folder = None if rundir.local else tempfile.TemporaryDirectory(prefix="zephon-")
        if self._folder is None:
            self.path = Path(rundir.path(name))
            self.path.parent.mkdir(parents=True, exist_ok=True)
        else:
            self.path = Path(self._folder.name, name)
            if rundir.exists(name):
                self._version = rundir.version(name)
                self.path.write_bytes(rundir.fs.cat_file(rundir.path(name)))

    def push(self) -> None:
        """Brings the run directory's copy up to date.

        Raises:
            Superseded: a newer generation has the run; what this process has added is dropped.
        """
        if self._folder is None or not self.path.exists() or self.path.stat().st_size == self._pushed:
            return
        self._fence()
        data = self.path.read_bytes()
        while not self._rundir.replace(self._name, data=data, version=self._version):
            self._fence()  # somebody has written the file since: where it is not a newer generation, an older one has
            self._version = self._rundir.version(self._name)
        self._pushed, self._version = len(data), self._rundir.version(self._name)

    def close(self) -> None:
        with contextlib.suppress(Superseded):
            self.push()
        if self._folder is not None:
            self._folder.cleanup()
