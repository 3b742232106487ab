"""The run directory: paths and atomic writes below one URL. What is in it, who writes it, which module owns its type:

    spec.json              RunSpec of the first start              launcher                           run/specs.py
    contract.json          what the run has promised               launcher                           run/contract_file.py
    lease.json lease.lock  who holds the run                       launcher, supervisor               run/lease.py
    decisions.json         mixtures that a controller decided on   rank 0                             run/decisions.py
    calibration.json       tokens a byte of each dataset           rank 0, stage calibrate            run/calibration.py
    evaluation.json        loss on held-out data                   stage evaluate                     run/evaluation.py
    tasks.json             accuracy on tasks                       zephon evaluate                    run/evaluation.py
    report.html            the page of the run                     stage report, launcher             report/stage.py
    generation.json        the membership that may write           coordinator                        run/generation.py
    generations/           every membership that was claimed       coordinator                        run/generation.py
    ledger.jsonl           one line per step, with its digest      rank 0                             run/ledger.py
    metrics.jsonl          one line per step, with its numbers     rank 0                             run/metrics.py
    data_end.json          where data ended before the last step   rank 0                             run/data_end.py
    events.jsonl events/   what happened to the run                launcher, supervisor, coordinator  run/events.py
    saved.json             the checkpoint completed last           rank 0                             run/checkpoints.py
    checkpoints/           step-00000030/ with meta.json, COMPLETE all ranks                          run/checkpoints.py
    stages/                NAME.json: a stage as it ran last       the stage, coordinator             run/stage_records.py
    attempts/0001/             one start of the run
        spec.json          what this attempt runs                  launcher                           run/specs.py
        environment.json   versions, code, machine, arguments     launcher                           run/environment.py
        handle.json        which backend has the attempt           launcher                           run/handle.py
        placement.json     which cluster, and which Job there      launcher                           run/placement.py
        progress.json      the newest step                         rank 0                             run/progress.py
        stages.json        the states of its stages, on a cluster  coordinator                        run/attempt_stages.py
        target.json        the size last asked for, on a cluster   launcher                           run/target.py
        supervisor.json    its state, on this machine              supervisor                         run/state.py
        stop.json          the last stop, on a cluster             launcher                           run/stop.py
        secret             who may speak to its processes         supervisor, coordinator             run/secret.py
        request.json       what the supervisor runs                launcher                           run/supervisor_files.py
        control.json       where the supervisor takes commands     supervisor                         run/supervisor_files.py
        supervisor.lock    locked while the supervisor lives       supervisor                         run/supervisor_files.py
        logs/              node-0/rank-0.log, stages/NAME.log      every process                      run/attempt.py

The secret, the supervisor's files and, while an attempt runs, its logs are on its machine; run/attempt.py says where.
Other programs read what is in parent/ (weights of a fork's parent) and tensorboard/.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import json
import os
import posixpath
import re
import uuid
from typing import TYPE_CHECKING, Any

from zephon.errors import ConfigError, install_line_of
from zephon.run.local_files import LocalFiles, local_path

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

PARENT, TENSORBOARD, REPORT = "parent", "tensorboard", "report.html"
_REFUSED = (409, 412)  # another write came in the same moment, or before
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # of a file system without locks
_ONE_PART = 64 << 20
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL)  # of a file system without hard links


class RunDir:
    """Paths and atomic writes below one URL (any fsspec scheme). Constructing touches nothing."""

    def __init__(self, url: str) -> None:
        """Raises ConfigError: no file system is known or installed for the URL's scheme."""
        here = local_path(url)
        self.url, self.local = url, here is not None
        self.fs: AbstractFileSystem | LocalFiles
        self.fs, self.root = (LocalFiles(), here) if here is not None else _far(url)

    def path(self, *parts: str) -> str:
        """The file system's own path of something below the run directory."""
        return posixpath.join(self.root, *parts)

    def holds_run(self, *below: str) -> bool:
        """Whether an attempt was ever made here, or in a directory below."""
        return self.exists(*below, "attempts")

    def exists(self, *parts: str) -> bool:
        return bool(self.fs.exists(self.path(*parts)))

    def read_json(self, *parts: str) -> Any:
        return json.loads(self.fs.cat_file(self.path(*parts)))

    def find_json(self, *parts: str) -> Any:
        """As ``read_json``, but None where there is no such file or it is torn."""
        try:
            return self.read_json(*parts)
        except (FileNotFoundError, ValueError):
            return None

    def write_json(self, *parts: str, data: Any) -> None:
        """Replaces a small file as a whole: a reader sees the old one or the new one."""
        self.write_bytes(*parts, data=as_bytes(data))

    def write_bytes(self, *parts: str, data: bytes) -> None:
        path = self.path(*parts)
        if not isinstance(self.fs, LocalFiles):
            self.fs.pipe_file(path, data)  # object stores publish whole objects
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        scratch = f"{path}.{uuid.uuid4().hex}.tmp"
        try:
            with open(scratch, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, path)
        except BaseException:
            if os.path.exists(scratch):
                os.unlink(scratch)
            raise

    def create(self, *parts: str, data: Any) -> bool:
        """Writes a small file only if it does not exist; False when it does.

        No two callers both get True on a local disk, nor on a store that passes ``check_exclusive``.
        """
        if not self.local:
            return self._conditional(*parts, data=as_bytes(data), mode="create")
        path = self.path(*parts)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        scratch = f"{path}.{uuid.uuid4().hex}.tmp"
        try:
            with open(scratch, "xb") as file:
                file.write(as_bytes(data))
            os.link(scratch, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return _create_in_place(path, as_bytes(data))
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(scratch)
        return True

    def check_exclusive(self) -> None:
        """Refuses a store on which two callers of ``create`` could both succeed: two attempts could then train at once.

        Raises:
            ConfigError: its client checks and then writes, or its server ignores the condition.
        """
        if self.local:
            return
        if not _has_exclusive_create(self.fs):
            raise self._not_exclusive(f"its client ({type(self.fs).__name__}) cannot create a file only where there is none")
        probe = ("generations", f"probe-{uuid.uuid4().hex}")
        try:
            both = self.create(*probe, data=1) and self.create(*probe, data=2)
        finally:
            with contextlib.suppress(FileNotFoundError):
                self.fs.rm_file(self.path(*probe))
        if both:
            raise self._not_exclusive("its server overwrote a file that was to be created only where there is none")

    def _not_exclusive(self, why: str) -> ConfigError:
        return ConfigError(
            f"the run directory {self.url} cannot keep two attempts apart: {why}",
            follows="two starts in one moment would train the run at the same time",
            remedy="use a store with conditional writes (S3, Google Cloud Storage, Azure) or a file system for runs=",
        )

    def version(self, *parts: str) -> str:
        """The version of a small file, for ``replace``; empty where the storage cannot replace conditionally.

        Raises FileNotFoundError: there is no such file.
        """
        info = self.fs.info(self.path(*parts))
        return str(info["ETag"]) if "s3" in self.fs.protocol else ""

    def replace(self, *parts: str, data: bytes, version: str | None) -> bool:
        """Replaces a file only if its version is still ``version`` (None: there is none); False when it is not.

        An empty ``version`` (a local disk, a store without versions) always replaces it, and so does a file that an
        object store takes in parts, which have no condition.
        """
        if version == "" or self.local or len(data) > _ONE_PART:
            self.write_bytes(*parts, data=data)
            return True
        if version is None:
            return self._conditional(*parts, data=data, mode="create")
        return self._conditional(*parts, data=data, IfMatch=version)

    def _conditional(self, *parts: str, data: bytes, **condition: str) -> bool:
        assert not isinstance(self.fs, LocalFiles)
        try:
            self.fs.pipe_file(self.path(*parts), data, **condition)
        except (FileExistsError, FileNotFoundError):
            return False
        except OSError as error:
            answer = getattr(error.__cause__, "response", {}).get("ResponseMetadata", {}).get("HTTPStatusCode")
            if answer not in _REFUSED:
                raise
            return False
        return True

    def attempts(self) -> list[int]:
        """Numbers of the attempts made so far, ascending."""
        if not self.exists("attempts"):
            return []
        names = (posixpath.basename(str(p).rstrip("/")) for p in self.fs.ls(self.path("attempts"), detail=False))
        return sorted(int(name) for name in names if re.fullmatch(r"\d{4,}", name))

    @staticmethod
    def attempt_name(attempt: int) -> str:
        return f"{attempt:04d}"

    @staticmethod
    def in_attempt(attempt: int, *parts: str) -> tuple[str, ...]:
        """The parts of a path below an attempt's directory."""
        return ("attempts", RunDir.attempt_name(attempt), *parts)


def _far(url: str) -> tuple[AbstractFileSystem, str]:
    import fsspec  # takes as long as all of `zephon list` does without it

    try:
        # A listing that is kept would hide what other processes write.
        fs, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"the run directory {url} cannot be used: {error}",
            follows="the run could not keep its state",
            remedy=f"{install_line_of(url) or 'install what the scheme needs'}, or use another runs=",
        ) from error
    return fs, str(root)


def as_bytes(data: Any) -> bytes:
    """A small file's content, as ``write_json`` writes it."""
    return (json.dumps(data, sort_keys=True, indent=2, ensure_ascii=False) + "\n").encode()


def _create_in_place(path: str, data: bytes) -> bool:
    """Creates a file where there are no hard links: one of several callers succeeds, and a reader may see half of it."""
    try:
        with open(path, "xb") as file:
            file.write(data)
    except FileExistsError:
        return False
    return True


def _has_exclusive_create(fs: AbstractFileSystem) -> bool:
    """Whether a store's client has a conditional write of its own: that of fsspec's base class looks and then writes.

    Azure's takes ``mode`` among its keywords; an old one that does not know it overwrites, which ``check_exclusive`` sees.
    """
    if "abfs" in fs.protocol:
        return True
    methods = [method for name in ("_pipe_file", "pipe_file") if (method := getattr(type(fs), name, None)) is not None]
    own = [method for method in methods if method.__module__ not in ("fsspec.spec", "fsspec.asyn")]
    return any("mode" in inspect.signature(method).parameters for method in own)
