"""What an attempt ran with: versions, code, machine, arguments. It holds neither environment variables nor what stands
in changed files, so no secrets.
"""

from __future__ import annotations

import dataclasses
import getpass
import hashlib
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from zephon.fastjson import Json
from zephon.run.directory import RunDir
from zephon.run.plain import as_record

_PACKAGES = (
    "zephon-elastic",
    "torch",
    "torchx-nightly",
    "numpy",
    "hydra-core",
    "omegaconf",
    "fsspec",
    "tokenizers",
    "fastokens",
)
_FILE = "environment.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Environment:
    """What an attempt was started with; ``attempts/NNNN/environment.json``.

    Args:
        time: of the start, in unix seconds.
        overrides, choices: the key=value arguments that were typed, and the option chosen in each config group.
        sources: where each value of the experiment came from, by dotted name; what is not named has its default.
        cwd: where relative paths began.
        packages: versions of those that matter to a result.
        git: commit and branch of the checkout at ``cwd``, and of what is not committed the names of the files and a SHA-256;
            None outside of one. What stands in the files is not recorded: it may be a key.
    """

    time: float
    overrides: tuple[str, ...]
    choices: Mapping[str, str]
    cwd: str
    user: str
    host: str
    platform: str
    python: str
    executable: str
    cpus: int | None
    memory_bytes: int
    packages: Mapping[str, str]
    git: Json | None
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)


def environment(overrides: Sequence[str], choices: Mapping[str, str], sources: Mapping[str, str] | None = None) -> Environment:
    """That of this process."""
    import psutil  # what only shows a run reads this module, and measures nothing

    return Environment(
        time=time.time(),
        overrides=tuple(overrides),
        choices=dict(choices),
        cwd=os.getcwd(),
        user=_user(),
        host=socket.gethostname(),
        platform=platform.platform(),
        python=sys.version.split()[0],
        executable=sys.executable,
        cpus=os.cpu_count(),
        memory_bytes=psutil.virtual_memory().total,
        packages=packages(),
        git=git_state(os.getcwd()),
        sources=dict(sources or {}),
    )


def write_environment(rundir: RunDir, attempt: int, record: Environment) -> None:
    rundir.write_json(*RunDir.in_attempt(attempt, _FILE), data=dataclasses.asdict(record))


def read_environment(rundir: RunDir, attempt: int) -> Environment | None:
    """None where the attempt was not started by a launcher."""
    return as_record(Environment, rundir.find_json(*RunDir.in_attempt(attempt, _FILE)))


def packages() -> dict[str, str]:
    """Versions of the packages that matter to a result."""
    return {name: installed for name in _PACKAGES if (installed := version_of(name))}


def git_state(directory: str) -> Json | None:
    """Of the checkout that holds ``directory``: commit, branch, and which files differ; None outside of one.

    ``diff_sha256`` is that of ``git diff HEAD --binary``, so that who has the changes can see whether they are the same.
    """
    commit = _git(directory, "rev-parse", "HEAD")
    if commit is None:
        return None
    diff = _git(directory, "diff", "HEAD", "--binary") or ""
    changed = _git(directory, "diff", "HEAD", "--name-only", "-z") or ""
    return {
        "commit": commit.strip(),
        "branch": (_git(directory, "rev-parse", "--abbrev-ref", "HEAD") or "").strip(),
        "dirty": bool(diff.strip()),
        "changed": [name for name in changed.split("\0") if name],
        "diff_sha256": hashlib.sha256(diff.encode()).hexdigest() if diff.strip() else None,
    }


def _git(directory: str, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", directory, *arguments], capture_output=True, timeout=10, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def version_of(name: str) -> str | None:
    """The installed version of a package; None where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def version_line() -> str:
    """What ``--version`` prints."""
    return "zephon-elastic " + (version_of("zephon-elastic") or "from a checkout")
