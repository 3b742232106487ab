"""Checkpoints: PyTorch distributed checkpoint inside, one marker file outside.

    checkpoints/step-00000030/      meta.json, COMPLETE (see zephon/run/checkpoints.py) and, by PyTorch,
        __0_0.distcp ...  .metadata      tensors and lane cursors, loadable at any size and sharding

A folder without ``COMPLETE`` is an interrupted save: a line in the log names it, and the next save of that step replaces it.
With ``COMPLETE``, a file that is missing, short or altered is damage: the run refuses to resume, or goes back to the checkpoint
before where ``checkpoint.resume=last_good`` allows that. All ranks take the same checkpoint, the newest that each of them sees.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import NamedTuple, TypeVar, cast

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import STORAGE_TYPES, TensorStorageMetadata
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from zephon.cursor import LANE_KEY, SavedState
from zephon.errors import SaveFailed, StateError, ZephonError
from zephon.run.checkpoints import (
    MARK,
    Marker,
    Meta,
    SavedFile,
    begin,
    begins_again,
    complete_steps,
    is_complete,
    last_saved,
    name_of,
    path_of,
    read_marker,
    read_meta,
    remove,
    sha256_of,
    steps_on_disk,
    url_of,
    write_marker,
)
from zephon.run.directory import RunDir
from zephon.spec.experiment import CheckpointSpec, RunSpec
from zephon.train.distributed import Membership
from zephon.work.curriculum import curriculum_change

LANE = f"loader.{LANE_KEY}"  # and the lane's number: the key of its cursor

Result = TypeVar("Result")


class Failure(NamedTuple):
    """What a rank reports to the others when its part of a save failed; an error of another kind travels as text."""

    error: ZephonError | str


def damage(run: RunDir, step: int, *, part: int = 0, parts: int = 1) -> str | None:
    """What is wrong with a complete checkpoint's files; a rank checks every ``parts``-th of them. None when nothing is."""
    marker = read_marker(run, step)
    if marker is None:
        return f"{MARK} is missing"
    for name in sorted(marker.files)[part::parts]:
        path, wanted = path_of(run, step, name), marker.files[name]
        if not run.fs.exists(path):
            return f"{name} is missing"
        size = run.fs.size(path)
        if size != wanted.size:
            return f"{name} has {size} bytes and should have {wanted.size}"
        if sha256_of(run, path) != wanted.sha256:
            return f"{name} has the right size and other content (its SHA-256 differs)"
    return None


def choose(run: RunDir, membership: Membership, *, policy: str, log: Callable[[str], None]) -> int | None:
    """The step to resume from, the same on every rank; None where there has never been a complete checkpoint.

    Args:
        policy: ``latest`` refuses a damaged newest checkpoint, ``last_good`` goes back to the one before.
        log: receives a line for each folder that is skipped.

    Raises:
        StateError: the newest complete checkpoint is damaged and the policy is ``latest``; or there were checkpoints, and
            none of them can be used.
    """
    on_disk = steps_on_disk(run)
    local = {
        step: hashlib.sha256(json.dumps(marker.to_dict(), sort_keys=True).encode()).hexdigest()
        for step in on_disk
        if (marker := read_marker(run, step)) is not None
    }
    gathered = membership.exchange(local)
    common = [step for step in on_disk if step in local and all(other.get(step) == local[step] for other in gathered)]
    for step in on_disk:
        if step in common:
            continue
        why = "is not the same on every rank" if step in local else "was never completed"
        log(f"checkpoint {name_of(step)} {why}: skipped")
    for step in reversed(common):
        reasons = membership.exchange(damage(run, step, part=membership.process.rank, parts=membership.process.size))
        reason = next((reason for reason in reasons if reason is not None), None)
        if reason is None:
            return step
        older = [s for s in common if s < step]
        if policy == "latest":
            what = f"checkpoint {name_of(step)} of {run.url} is damaged: {reason}"
            if not older:
                raise begins_again(run, what)
            raise StateError(
                what,
                follows="training would go on from other weights, or from none",
                remedy=f"resume with checkpoint.resume=last_good to go back to {name_of(older[-1])}",
            )
        log(f"checkpoint {name_of(step)} is damaged ({reason}): skipped")
    saved = max(membership.exchange(last_saved(run)))
    if common or saved >= 0:
        why = "every checkpoint is damaged" if common else "there is no complete checkpoint that all ranks see"
        raise begins_again(run, f"{run.url}: {why}, and one was completed at step {max([saved, *common])}")
    return None


def load(run: RunDir, step: int, tensors: dict[str, Tensor], membership: Membership) -> tuple[Meta, SavedState]:
    """Fills ``tensors`` in place, whatever their sharding, and returns the meta data and the merged loader state.

    Raises:
        StateError: the checkpoint has other tensors, or other shapes, than asked for.
    """
    meta = read_meta(run, step)
    source = reader(run, step)
    saved = source.read_metadata().state_dict_metadata
    _check_names(run, step, tensors, saved)
    lanes: dict[str, object] = {name: b"" for name in saved if name.startswith(LANE)}
    state: dict[str, object] = {**tensors, **lanes}
    dcp.load(state, storage_reader=source, process_group=membership.saving)
    loader = {**meta.loader, "lanes": {int(name.removeprefix(LANE)): state[name] for name in lanes}}
    return meta, loader


def _check_names(run: RunDir, step: int, tensors: dict[str, Tensor], saved: Mapping[str, STORAGE_TYPES]) -> None:
    shapes = {name: tuple(entry.size) for name, entry in saved.items() if isinstance(entry, TensorStorageMetadata)}
    wanted = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes == wanted:
        return
    missing, surplus = sorted(set(wanted) - set(shapes)), sorted(set(shapes) - set(wanted))
    other = [f"{n} {shapes[n]} instead of {wanted[n]}" for n in sorted(set(wanted) & set(shapes)) if shapes[n] != wanted[n]]
    raise StateError(
        f"checkpoint {name_of(step)} of {run.url} holds another model or optimizer: "
        f"missing {missing[:3]}, surplus {surplus[:3]}, other shapes {other[:3]}",
        follows="parts of the training state would silently begin from zero",
        remedy="resume with the model and optimizer that this run was started with, or begin a new run",
    )


def check_pinned(meta: Meta, spec: RunSpec) -> None:
    """Refuses to continue a run whose data stream would be another one; phases that have not begun may be others."""
    current = json.loads(json.dumps(spec.fields_of("pinned")))
    before, now = (spec.assumed("pinned") | fields for fields in (meta.pinned, current))
    curriculum = curriculum_change(meta.pinned, spec)
    future = curriculum.fields if curriculum.is_future(meta.step) else ()
    names = sorted((before.keys() | now.keys()) - {*future})
    changed = [name for name in names if before.get(name) != now.get(name)]
    if changed:
        name = changed[0]
        raise StateError(
            f"{name} was {before.get(name)!r} when this checkpoint was made and is {now.get(name)!r} now"
            + (f" (also changed: {', '.join(changed[1:])})" if changed[1:] else ""),
            follows="the rest of the run would train on another stream of data than its beginning",
            remedy=f"set {name} back, or start a new run from this checkpoint with fork=NEW_NAME",
        )


class Saver:
    """Saves in the background, one save at a time; owned by a session, which closes it.

    Args:
        fence: called before the first file and before the marker; raises where a newer generation has taken the run over.
    """

    def __init__(self, run: RunDir, membership: Membership, spec: CheckpointSpec, *, fence: Callable[[], None]) -> None:
        self._run, self._membership, self._spec, self._fence = run, membership, spec, fence
        self._stager: DefaultStager | None = None
        self._pending: Future[None] | None = None
        self.last: int | None = None  # the step of the newest save, begun or resumed from
        self.seconds: float | None = None  # that the newest save took, from its beginning to its marker

    def save(self, tensors: dict[str, Tensor], lanes: Mapping[int, bytes], meta: Meta, *, wait: bool = False) -> None:
        """Begins a save of this step; returns when the tensors are copied, with ``wait`` when it is complete.

        Raises:
            SaveFailed: this save or the one before could not be completed; on every rank.
        """
        self.wait()
        state: dict[str, object] = dict(tensors)
        self.last = meta.step
        state.update({f"{LANE}{lane}": value for lane, value in lanes.items()})
        if not self._spec.background or wait:
            self._write(state, meta)
            return
        if self._stager is None:
            on_gpu = self._membership.device.type == "cuda"
            self._stager = DefaultStager(StagingOptions(on_gpu, False, False, False))
        staged = cast("dict[str, object]", self._stager.stage(state))
        self._pending = _in_background(lambda: self._write(staged, meta))

    def failed(self) -> ZephonError | None:
        """The error of a background save that has ended badly, without waiting."""
        if self._pending is not None and self._pending.done():
            error = self._pending.exception()
            if error is not None:
                return error if isinstance(error, ZephonError) else _save_failed(self._run, self.last or 0, repr(error))
        return None

    def wait(self) -> None:
        """Waits for the save in the background and raises its error, once."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self, *, abandon: bool = False) -> None:
        """Completes a save that is still running; with ``abandon`` leaves it unfinished, as after the loss of a peer."""
        try:
            if not abandon:
                self.wait()
        finally:
            if self._stager is not None:
                self._stager.close()
                self._stager = None

    def _write(self, state: dict[str, object], meta: Meta) -> None:
        run, first, began = self._run, self._membership.first, time.monotonic()
        try:
            if self._on_all_ranks(lambda: self._begin(meta))[0]:
                return  # the same step is complete already
            dcp.save(state, storage_writer=_writer(run, meta.step), process_group=self._membership.saving)
            files = {}
            for part in self._on_all_ranks(lambda: own_files(run, meta.step, self._membership.process.rank)):
                files.update(part)
            self._on_all_ranks(lambda: self._finish(files, meta) if first else None)
            self.seconds = time.monotonic() - began
        except dcp.CheckpointException as error:
            rank, (cause, _) = min(error.failures.items())
            raise _save_failed(run, meta.step, f"rank {rank}: {cause!r}") from error

    def _begin(self, meta: Meta) -> bool:
        """Whether there is nothing to write. No rank writes a file where a newer generation may write the same one."""
        self._fence()
        return self._membership.first and _prepare(self._run, meta)

    def _finish(self, files: dict[str, SavedFile], meta: Meta) -> None:
        self._fence()
        write_marker(self._run, Marker(step=meta.step, world_size=self._membership.process.size, files=files))
        prune(self._run, self._spec, newest=meta.step)

    def _on_all_ranks(self, work: Callable[[], Result]) -> list[Result]:
        """Runs ``work`` on every rank and gives every rank all results, or raises the first rank's error on all."""
        outcome: Result | Failure
        try:
            outcome = work()
        except Exception as error:  # noqa: BLE001 - the other ranks wait for this one, whatever happened
            outcome = Failure(error if isinstance(error, ZephonError) else repr(error))
        results: list[Result] = []
        for rank, reported in enumerate(self._membership.exchange(outcome, group=self._membership.saving)):
            if not isinstance(reported, Failure):
                results.append(reported)
            elif isinstance(reported.error, ZephonError):
                raise reported.error
            else:
                raise _save_failed(self._run, self.last or 0, f"rank {rank}: {reported.error}")
        return results


def _in_background(work: Callable[[], None]) -> Future[None]:
    """Runs ``work`` in a thread that does not keep a dying process alive."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            work()
            future.set_result(None)
        except BaseException as error:  # noqa: BLE001 - the waiter raises it
            future.set_exception(error)

    threading.Thread(target=run, name="zephon-save", daemon=True).start()
    return future


def prune(run: RunDir, spec: CheckpointSpec, *, newest: int) -> None:
    """Removes what the checkpoint of step ``newest`` makes needless, once it is complete.

    Kept are the last ``keep_last`` complete ones and each step that ``keep_every`` divides. Beside the other complete ones go
    what an interrupted save or removal left before ``newest``, and damaged ones after it, over which the run has gone back:
    the next start would take such a one for the newest.
    """
    complete = complete_steps(run)
    before = [step for step in complete if step <= newest]
    kept = set(before[-spec.keep_last :])
    if spec.keep_every:
        kept |= {step for step in before if step % spec.keep_every == 0}
    for step in steps_on_disk(run):
        if (step < newest and step not in kept) or (step > newest and step in complete and damage(run, step) is not None):
            remove(run, step)


def _prepare(run: RunDir, meta: Meta) -> bool:
    """Whether an undamaged checkpoint of this step is complete already; begins the folder where there is none."""
    if is_complete(run, meta.step) and damage(run, meta.step) is None:
        return True
    begin(run, meta)
    return False


def own_files(run: RunDir, step: int, rank: int) -> dict[str, SavedFile]:
    """The files of a checkpoint that this rank has written; the first rank's are also those that are nobody's."""
    files = {}
    for path in run.fs.ls(path_of(run, step), detail=False, refresh=True):
        name = posixpath.basename(str(path))
        if name.startswith(f"__{rank}_") or (rank == 0 and not name.startswith("__")):
            files[name] = SavedFile(run.fs.size(path), sha256_of(run, path))
    return files


def _writer(run: RunDir, step: int) -> dcp.StorageWriter:
    if run.local:
        return dcp.FileSystemWriter(path_of(run, step))
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

    return FsspecWriter(url_of(run, step))


def reader(run: RunDir, step: int) -> dcp.StorageReader:
    """PyTorch's reader of one checkpoint, local or on any fsspec file system."""
    if run.local:
        return dcp.FileSystemReader(path_of(run, step))
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

    return FsspecReader(url_of(run, step))


def _save_failed(run: RunDir, step: int, reason: str) -> SaveFailed:
    return SaveFailed(
        f"checkpoint {name_of(step)} of {run.url} could not be written: {reason}",
        follows="a crash would lose every step since the checkpoint before, which is untouched",
        remedy="make room or restore access to the run directory; the next start resumes from the newest complete checkpoint",
    )


def rng_meta(seed: int) -> dict[str, object]:
    """What a checkpoint records about randomness: it follows from seed and step, so there is nothing else to save."""
    return {"scheme": "seed-and-step", "seed": seed, "torch": torch.__version__}
