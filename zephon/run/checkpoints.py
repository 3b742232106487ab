"""Checkpoints of a run: which there are, which are complete, and what each says about itself; the tensors are PyTorch's.

    checkpoints/step-00000030/
        __0_0.distcp ...  .metadata      tensors and lane cursors, loadable at any size and sharding
        meta.json                        ``Meta``: what a reader without torch may want
        COMPLETE                         ``Marker``, written last: every file with its size and SHA-256

Without ``COMPLETE`` a folder is an interrupted save or an interrupted removal. ``saved.json`` in the run directory has the
step of the newest one that was completed, so that a run whose checkpoints are gone does not begin again in silence.
"""

from __future__ import annotations

import dataclasses
import hashlib
import posixpath
import re
import time
from collections.abc import Mapping
from typing import Any, Self

from zephon.errors import StateError
from zephon.run.directory import RunDir

VERSION = 1
MARK, META = "COMPLETE", "meta.json"
_FOLDER, _SAVED = "checkpoints", "saved.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Meta:
    """What a checkpoint says about itself, beside its tensors.

    Args:
        step: optimizer steps done, so also the index of the next step.
        tokens: trained tokens so far.
        loader: the loader's state without its lanes (version, fingerprint, step).
        pinned, guarded: the RunSpec's fields of that kind by dotted name.
        rng: what randomness follows from.
        skipped: steps without an update, by design or after a rollback.
        average: of the loss, which spikes are compared with.
    """

    step: int
    tokens: int
    loader: dict[str, Any]
    pinned: dict[str, Any]
    guarded: dict[str, Any]
    rng: dict[str, Any]
    skipped: tuple[int, ...] = ()
    average: float | None = None


@dataclasses.dataclass(frozen=True)
class SavedFile:
    """A file of a checkpoint as it was written: its bytes and their hexadecimal SHA-256."""

    size: int
    sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Marker:
    """The content of ``COMPLETE``: the ranks that saved, and every file but itself, by name."""

    step: int
    world_size: int
    files: Mapping[str, SavedFile]

    def to_dict(self) -> dict[str, Any]:
        return {"version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        files = {name: SavedFile(**file) for name, file in data["files"].items()}
        return cls(step=data["step"], world_size=data["world_size"], files=files)


def name_of(step: int) -> str:
    """The folder's name: ``step-00000030``."""
    return f"step-{step:08d}"


def path_of(rundir: RunDir, step: int, *parts: str) -> str:
    """The file system's path of a checkpoint's folder, or of a file in it."""
    return rundir.path(_FOLDER, name_of(step), *parts)


def folder_of(rundir: RunDir) -> str:
    """The folder of all checkpoints: a path on this machine's file system, else a URL."""
    return rundir.path(_FOLDER) if rundir.local else posixpath.join(rundir.url, _FOLDER)


def url_of(rundir: RunDir, step: int) -> str:
    """The URL of a checkpoint's folder."""
    return posixpath.join(rundir.url, _FOLDER, name_of(step))


def steps_on_disk(rundir: RunDir) -> list[int]:
    """Steps that have a folder, complete or not, ascending."""
    if not rundir.exists(_FOLDER):
        return []
    paths = rundir.fs.ls(rundir.path(_FOLDER), detail=False, refresh=True)
    names = (posixpath.basename(str(path).rstrip("/")) for path in paths)
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(r"step-(\d+)", name)))


def is_complete(rundir: RunDir, step: int) -> bool:
    """Whether the save of this step ended."""
    return rundir.exists(_FOLDER, name_of(step), MARK)


def complete_steps(rundir: RunDir) -> list[int]:
    """Steps with a complete checkpoint, ascending."""
    return [step for step in steps_on_disk(rundir) if is_complete(rundir, step)]


def newest_checkpoint(rundir: RunDir) -> int:
    """The step of the newest complete checkpoint; -1 when there is none."""
    return next((step for step in reversed(steps_on_disk(rundir)) if is_complete(rundir, step)), -1)


def completed_at(rundir: RunDir, step: int) -> float:
    """When the save of a complete checkpoint ended, in unix seconds; now, where the storage does not say."""
    info = rundir.fs.info(path_of(rundir, step, MARK))
    modified = info.get("mtime") or info.get("LastModified") or info.get("created")
    if not modified:
        return time.time()
    return float(modified if isinstance(modified, (int, float)) else modified.timestamp())


def sha256_of(rundir: RunDir, path: str) -> str:
    """Of a file of a checkpoint, by its path on the file system; hexadecimal."""
    digest = hashlib.sha256()
    with rundir.fs.open(path, "rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest()


def read_marker(rundir: RunDir, step: int) -> Marker | None:
    """None where the save never ended."""
    if not is_complete(rundir, step):
        return None
    return Marker.from_dict(rundir.read_json(_FOLDER, name_of(step), MARK))


def write_marker(rundir: RunDir, marker: Marker) -> None:
    """Completes a checkpoint."""
    rundir.write_json(_FOLDER, name_of(marker.step), MARK, data=marker.to_dict())
    rundir.write_json(_SAVED, data={"step": marker.step})


def last_saved(rundir: RunDir) -> int:
    """The step of the checkpoint that was completed last, whether or not it is still there; -1 before the first."""
    data = rundir.find_json(_SAVED)
    return int(data["step"]) if isinstance(data, dict) else -1


def check_kept(rundir: RunDir) -> None:
    """Raises StateError: checkpoints were completed, and there is none now."""
    if (saved := last_saved(rundir)) >= 0 and newest_checkpoint(rundir) < 0:
        raise begins_again(rundir, f"{rundir.path(_FOLDER)} has no complete checkpoint, and one was completed at step {saved}")


def begins_again(rundir: RunDir, what: str) -> StateError:
    """The refusal to train again from step 0 what a checkpoint had."""
    return StateError(
        what,
        follows="the run would begin again at step 0",
        remedy=f"restore the checkpoints from a copy, or start a new run with another name=; to begin this one again, "
        f"delete {rundir.path(_FOLDER)} and {rundir.path(_SAVED)}",
    )


def read_meta(rundir: RunDir, step: int) -> Meta:
    data = rundir.read_json(_FOLDER, name_of(step), META)["meta"]
    return Meta(**{**data, "skipped": tuple(data["skipped"])})


def begin(rundir: RunDir, meta: Meta) -> None:
    """Begins the folder of a save with its meta data, in the place of an interrupted one."""
    if rundir.exists(_FOLDER, name_of(meta.step)):
        rundir.fs.rm(path_of(rundir, meta.step), recursive=True)
    rundir.write_json(_FOLDER, name_of(meta.step), META, data={"version": VERSION, "meta": dataclasses.asdict(meta)})


def remove(rundir: RunDir, step: int) -> None:
    """Removes a checkpoint, or what is left of one. The marker goes first: an interrupted removal is no checkpoint."""
    if is_complete(rundir, step):
        rundir.fs.rm_file(path_of(rundir, step, MARK))
    rundir.fs.rm(path_of(rundir, step), recursive=True)
