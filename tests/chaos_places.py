"""Where a disturbed run lives, and what happens there: a full disk, a frozen store, a torn file."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.agent.objects import variables


@contextlib.contextmanager
def frozen(processes: list[psutil.Process]) -> Iterator[None]:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


def cut(path: Path, size: int, *, zeros: int) -> None:
    data = path.read_bytes()[: max(0, size)]
    path.write_bytes(data + bytes(zeros))


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A file system of 64 MiB at ``folder``; None where this user may not mount one, and the folder is a plain one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def bucket(port: int) -> str:
    """The URL of an empty bucket of a server that every process from now on finds."""
    os.environ.update(variables(port))
    import s3fs

    s3fs.S3FileSystem().mkdir("chaos")
    return "s3://chaos"
