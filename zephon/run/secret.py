"""The secret of an attempt: a process that knows it may speak to the attempt's other processes (docs/security.md).

    attempts/NNNN/secret    readable for its owner alone; for a run in an object store in its local place (attempt.py)
    ZEPHON_SECRET_FILE      a file that is there already: on Kubernetes a mounted Secret

It is in no argument, environment variable, spec, log or event, and never in an object store.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import threading
import time
import uuid
from pathlib import Path

from zephon.errors import ConfigError
from zephon.run.attempt import attempt_directory
from zephon.run.directory import RunDir

FILE, GIVEN = "secret", "ZEPHON_SECRET_FILE"
_BYTES, _LEAST, _MOST = 32, 16, 4096
_POLL_S = 0.2


def new_secret() -> str:
    return secrets.token_hex(_BYTES)


def make_secret(rundir: RunDir, attempt: int) -> bytes:
    """The attempt's secret, which this call makes where there is none. Of two callers at once both get the same.

    Raises:
        ConfigError: the file is not private to this user, or no secret.
    """
    known = find_secret(rundir, attempt)
    if known is not None:
        return known
    path = _path(rundir, attempt)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{FILE}.{uuid.uuid4().hex}.tmp")
    try:
        with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(new_secret() + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)
    made = find_secret(rundir, attempt)
    assert made is not None
    return made


def find_secret(rundir: RunDir, attempt: int) -> bytes | None:
    """The attempt's secret; None where it has none yet.

    Raises:
        ConfigError: the file is not private to this user, or no secret.
    """
    given = os.environ.get(GIVEN)
    path = Path(given) if given else _path(rundir, attempt)
    try:
        # A link would let another user choose the file. A mounted Secret is made of links, by the cluster.
        handle = os.open(path, os.O_RDONLY | (0 if given else os.O_NOFOLLOW))
    except FileNotFoundError:
        if not given:
            return None
        raise _refused(path, "is not there") from None
    except OSError as error:
        raise _refused(path, f"cannot be read: {error.strerror}") from error
    with open(handle, "rb") as file:
        info = os.fstat(file.fileno())
        mode, user = stat.S_IMODE(info.st_mode), os.geteuid()
        if not given and mode & 0o077:
            raise _refused(path, f"has mode {mode:o}, so others know it")
        if not given and user not in (info.st_uid, 0):  # root may stop anybody's run
            raise _refused(path, f"belongs to user {info.st_uid}, and this process is of user {user}")
        secret = file.read(_MOST).strip()
    if len(secret) < _LEAST:
        raise _refused(path, f"holds {len(secret)} bytes, and a secret has at least {_LEAST}")
    return secret


def wait_secret(rundir: RunDir, attempt: int, *, timeout_s: float, leaving: threading.Event) -> bytes | None:
    """The attempt's secret, which the coordinator makes when it starts; None once ``leaving`` is set.

    Raises:
        ConfigError: there is none within ``timeout_s``, or it is not private.
    """
    deadline = time.monotonic() + timeout_s
    while (secret := find_secret(rundir, attempt)) is None:
        if time.monotonic() > deadline:
            raise _refused(_path(rundir, attempt), f"has not come within {timeout_s:g} s")
        if leaving.wait(_POLL_S):
            return None
    return secret


def forget_secret(rundir: RunDir, attempt: int) -> None:
    """The attempt has ended: removes what ``make_secret`` made."""
    _path(rundir, attempt).unlink(missing_ok=True)


def _path(rundir: RunDir, attempt: int) -> Path:
    return attempt_directory(rundir, attempt) / FILE


def _refused(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"the secret of the attempt, {path}, {why}",
        follows="this process could not tell the run's own processes from strangers",
        remedy="use a run directory that keeps owners and permissions and is the same on every machine, or put a secret "
        f"(openssl rand -hex 32) into a file on every machine and name that file in {GIVEN}",
    )
