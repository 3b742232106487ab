"""Short trainings for the tests: a job on synthetic rows, some steps of it, and hashes of what came out."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from tests.train.ranks import Meet
from tests.train.synthetic import VOCAB, SyntheticFeed
from zephon.run.directory import RunDir
from zephon.spec.experiment import RunSpec
from zephon.train import optim
from zephon.train.pieces import local_rows
from zephon.train.session import Job, Session, build
from zephon.train.snapshot import Snapshot


def job(spec: RunSpec, folder: str, **feed: Any) -> Job:
    return Job(
        spec=spec,
        run=RunDir(folder),
        feed=lambda rank, size: SyntheticFeed(spec, rank, size, **feed),
        vocab_size=VOCAB,
        log=lambda text: None,
    )


def some_steps(session: Session, count: int) -> list[tuple[float, ...]]:
    """(loss, gradient norm, loss of each dataset) of the next ``count`` steps."""
    found: list[tuple[float, ...]] = []
    if not count:
        return found
    for step in session.steps(leaving=lambda: False):
        update = session.update(step)
        found.append((update.loss, update.norm, *(dataset.mean for dataset in update.datasets.values())))
        if len(found) == count:
            break
    return found


def state_hash(session: Session) -> str:
    """SHA-256 of weights and optimizer state, full tensors in name order; a collective when sharded."""
    digest = hashlib.sha256()
    for name, tensor in sorted(optim.tensors(session.module, session.optimizer).items()):
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        digest.update(name.encode() + full.contiguous().numpy().tobytes())
    return digest.hexdigest()


def run_steps(
    meet: Meet, rank: int, spec: RunSpec, folder: str, count: int, feed: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Builds a session at this size, trains ``count`` steps, and returns what came out."""
    membership = meet(parallel=spec.trainer.parallel, tensor=spec.trainer.tensor_parallel, local_size=max(1, meet.size // 2))
    session = build(job(spec, folder, **(feed or {})), membership)
    before = state_hash(session)
    losses = some_steps(session, count)
    found = {
        "losses": losses,
        "begin": before,
        "end": state_hash(session),
        "skipped": session.skipped,
        "weights": {
            n: (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone().numpy()
            for n, p in session.module.named_parameters()
        },
    }
    session.close()
    membership.leave()
    return found


def resize(meet: Meet, rank: int, spec: RunSpec, folder: str, sizes: list[int], each: int) -> dict[str, Any]:
    """Takes the same processes through memberships of the given sizes, ``each`` steps in each, in memory only."""
    the_job, snapshot, losses = job(spec, folder), None, []  # type: tuple[Job, Snapshot | None, list[Any]]
    state = ""
    for number, size in enumerate(sizes):
        if rank >= size:
            continue
        # Those without a part in earlier memberships wait here for the end of these.
        membership = meet(size=size, name=f"generation-{number}", parallel=spec.trainer.parallel, timeout_s=120.0)
        session = build(the_job, membership, snapshot)
        losses += some_steps(session, each)
        state = state_hash(session)
        snapshot = whole(session)
        session.close()
        membership.leave()
    return {"losses": losses, "end": state}


def whole(session: Session) -> Snapshot:
    """The whole state, copied, also where it is sharded; a collective then."""
    live = optim.tensors(session.module, session.optimizer)
    full = {name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for name, tensor in live.items()}
    tensors = {name: local_rows(tensor.clone()) for name, tensor in full.items()}
    return Snapshot(position=session.position(), tensors=tensors)


def weights_gap(a: dict[str, Any], b: dict[str, Any]) -> float:
    return max(float(torch.from_numpy(a[n] - b[n]).abs().max()) for n in a)
