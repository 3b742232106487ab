"""A training state in the memory of a process, between two memberships of ranks.

A new membership finds its state in this order: the newest snapshot of which every part has a living owner, given to the ranks
that lack it (pieces.py); the checkpoint that all ranks agree on; or step 0, where weights follow from the seed alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from zephon.cursor import SavedState
from zephon.run.checkpoints import Meta
from zephon.spec.experiment import RunSpec
from zephon.train.checkpoint import rng_meta
from zephon.train.distributed import Membership
from zephon.train.pieces import WHOLE, Held, Part, deal, newest_complete, part_of
from zephon.train.step import GlobalStep
from zephon.train.update import Update


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a training is after ``step`` steps, beside its tensors.

    Args:
        state: the loader's, with the lanes of all ranks; None before the first step.
        skipped: steps whose update was not made.
        average: of the loss.
        last: the newest step and its update, which the ledger may lack where the rank that writes it was lost.
    """

    step: int
    tokens: int
    state: SavedState | None
    skipped: tuple[int, ...] = ()
    average: float | None = None
    last: tuple[GlobalStep, Update] | None = None

    def meta(self, spec: RunSpec) -> Meta:
        """What a checkpoint says of it."""
        return Meta(
            step=self.step,
            tokens=self.tokens,
            loader={key: value for key, value in (self.state or {}).items() if key != "lanes"},
            pinned=spec.fields_of("pinned"),
            guarded=spec.fields_of("guarded"),
            rng=rng_meta(spec.trainer.seed),
            skipped=self.skipped,
            average=self.average,
        )


@dataclass(kw_only=True)
class Snapshot:
    """This process's part of a training state.

    Args:
        tensors: rows by name, as ``pieces.local_rows`` gives them; live, so that nothing is copied.
        part: which part they are.
        saved: whether a checkpoint has the same state.
        first: whether the rank wrote the run's files.
        module, optimizer: where every rank holds the whole, so that the next membership need not make them anew.
        intact: whether the tensors are still those of the position: a newer state may have begun to replace them.
    """

    position: Position
    tensors: dict[str, Tensor]
    part: Part = WHOLE
    saved: bool = False
    first: bool = False
    module: nn.Module | None = None
    optimizer: torch.optim.AdamW | None = None
    intact: bool = True


def take_over(
    membership: Membership, snapshot: Snapshot | None, target: dict[str, Tensor], *, recorded: int | None
) -> Position | None:
    """Fills ``target`` on every rank with the newest state that the ranks hold together. A collective.

    Args:
        snapshot: what this rank holds.
        target: this rank's live tensors.
        recorded: on the first rank, how many steps the ledger has: a state that is further ahead than the one step that a
            lost rank may have left unrecorded is not used, for the ledger would have a gap. None does not look.

    Returns:
        The state's position; None where there is none to use.
    """
    held = None if snapshot is None else Held(snapshot.position.step, snapshot.part)
    reports = membership.exchange((held, part_of(membership, target), recorded))
    newest = newest_complete([report[0] for report in reports])
    if newest is None or any(report[1] is None for report in reports):
        return None
    step, owners = newest
    source = owners[0][0]
    own = snapshot if snapshot is not None and snapshot.position.step == step else None
    position = membership.broadcast(own.position if own and source == membership.process.rank else None, source=source)
    assert position is not None  # the source holds it
    known = reports[0][2]
    if known is not None and step - known > (0 if position.last is None else 1):
        return None
    if snapshot is not None and own is None:
        snapshot.intact = False  # from here on its tensors are overwritten
    deal(membership, owners, [report[1] or WHOLE for report in reports], own.tensors if own else {}, target)
    return position
