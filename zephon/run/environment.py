"""What an attempt ran with: versions, code, machine, words typed. No environment variables, so no secrets."""

from __future__ import annotations

import getpass
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil

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
_MAX_DIFF = 1 << 20


def environment(words: Sequence[str], choices: Mapping[str, str]) -> dict[str, Any]:
    """The record written to ``attempts/NNNN/environment.json``."""
    return {
        "time": time.time(),
        "words": list(words),
        "choices": dict(choices),
        "cwd": os.getcwd(),
        "user": _user(),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "cpus": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "packages": packages(),
        "git": git_state(os.getcwd()),
    }


def packages() -> dict[str, str]:
    """Versions of the packages that matter to a result."""
    return {name: found for name in _PACKAGES if (found := _version(name))}


def git_state(directory: str) -> dict[str, Any] | None:
    """Commit, branch and uncommitted changes of the checkout that holds ``directory``; None outside of one."""
    commit = _git(directory, "rev-parse", "HEAD")
    if commit is None:
        return None
    diff = _git(directory, "diff", "HEAD") or ""
    return {
        "commit": commit.strip(),
        "branch": (_git(directory, "rev-parse", "--abbrev-ref", "HEAD") or "").strip(),
        "dirty": bool(diff.strip()),
        "diff": diff[:_MAX_DIFF],
        "diff_cut": len(diff) > _MAX_DIFF,
    }


def _git(directory: str, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", directory, *arguments], capture_output=True, timeout=10, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def _version(name: str) -> str | None:
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
    return "zephon-elastic " + (_version("zephon-elastic") or "from a checkout")
