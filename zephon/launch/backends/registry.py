"""The backend of a name: the one object behind ``scheduler.name``."""

from __future__ import annotations

import functools

from zephon.errors import ConfigError, nearest
from zephon.launch.backends.base import Backend
from zephon.run.directory import RunDir
from zephon.run.handle import read_handle

NAMES = ("kubernetes", "local")


@functools.cache
def backend(name: str) -> Backend:
    """The backend of ``scheduler.name``; its libraries are imported now and not before.

    Raises:
        ConfigError: there is none of that name.
    """
    if name == "local":
        from zephon.launch.backends.local.backend import LocalBackend

        return LocalBackend()
    if name == "kubernetes":
        from zephon.launch.backends.kubernetes.backend import KubernetesBackend

        return KubernetesBackend()
    raise ConfigError(
        f"scheduler.name={name!r} is not a scheduler",
        follows="the job could not be submitted",
        remedy=nearest(name, NAMES),
    )


def backend_of(rundir: RunDir, attempt: int) -> Backend:
    """The backend to which an attempt was submitted; this machine where nothing has been submitted yet."""
    handle = read_handle(rundir, attempt)
    return backend(handle.scheduler if handle else "local")
