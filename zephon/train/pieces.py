"""A training state in the memory of its ranks, given to the ranks of another membership: no disk, and no rank holds all of it.

    old ranks      part 0 of 2   part 1 of 2                 (shards of dimension 0, or every rank the whole)
                        |    \\_______/    |
    new ranks      part 0 of 3   1 of 3   2 of 3             each takes the rows it needs from a rank that has them

Every rank computes the same plan from one small exchange. Rows travel directly from rank to rank, tensor by tensor, and those
that several ranks hold come from different ones for different tensors, so that no rank sends everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from zephon.train.distributed import Membership


class Part(NamedTuple):
    """Which rows of dimension 0 a rank has of every tensor: part ``number`` of ``parts``, as ``torch.chunk`` divides."""

    number: int
    parts: int

    def rows(self, total: int) -> range:
        """
        >>> Part(1, 3).rows(4)
        range(2, 4)
        """
        size = rows_a_part(total, self.parts)
        return range(min(self.number * size, total), min((self.number + 1) * size, total))


def rows_a_part(total: int, parts: int) -> int:
    return max(1, -(-total // parts))


WHOLE = Part(0, 1)


class Held(NamedTuple):
    """What one rank holds: its part of the state after ``step`` steps."""

    step: int
    part: Part


def part_of(membership: Membership, tensors: Mapping[str, Tensor]) -> Part | None:
    """This rank's part of live tensors; None where they are divided along another dimension than the first."""
    shards = {p for t in tensors.values() if isinstance(t, DTensor) for p in t.placements if p.is_shard()}
    if not shards:
        return WHOLE
    if shards != {Shard(0)} or membership.mesh["tensor"].size() > 1:
        return None
    return Part(membership.mesh["shard"].get_local_rank(), membership.mesh["shard"].size())


def local_rows(tensor: Tensor) -> Tensor:
    """This rank's rows, [rows, ...], sharing memory; a number counts as one row."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.detach().reshape(1) if local.ndim == 0 else local.detach()


def newest_complete(held: Sequence[Held | None]) -> tuple[int, list[list[int]]] | None:
    """(step, by part the ranks that hold it) of the newest state of which every part has a living owner; None without one.

    >>> newest_complete([Held(7, Part(0, 2)), None, Held(7, Part(1, 2)), Held(6, WHOLE)])
    (7, [[0], [2]])
    """
    owners: dict[tuple[int, int], dict[int, list[int]]] = {}
    for rank, of_rank in enumerate(held):
        if of_rank is not None:
            step, part = of_rank
            owners.setdefault((step, part.parts), {}).setdefault(part.number, []).append(rank)
    complete = [key for key, parts in owners.items() if len(parts) == key[1]]
    if not complete:
        return None
    step, count = max(complete)
    return step, [owners[step, count][index] for index in range(count)]


@torch.no_grad()
def deal(
    membership: Membership,
    owners: Sequence[Sequence[int]],
    wanted: Sequence[Part],
    source: Mapping[str, Tensor],
    target: Mapping[str, Tensor],
) -> None:
    """Fills ``target`` on every rank. A collective.

    Args:
        owners: by part, the ranks that hold it in ``source``.
        wanted: by rank, the part that its ``target`` is.
        source: the rows that this rank holds, as `local_rows` gives them; not used where it is in no list of owners.
        target: this rank's tensors, in the same order on every rank.
    """
    me, everyone = membership.process.rank, [sorted({rank for ranks in owners for rank in ranks})]
    sharded = any(isinstance(tensor, DTensor) for tensor in target.values())
    for number, (name, tensor) in enumerate(target.items()):
        # Beside shards there are numbers that every rank has whole: the optimizer's count of steps.
        if sharded and not isinstance(tensor, DTensor):
            plan = _Plan(everyone, [WHOLE] * len(wanted))
        else:
            plan = _Plan(owners, wanted)
        own, total = local_rows(tensor), tensor.shape[0] if tensor.ndim else 1
        if plan.has(me) and own.data_ptr() != source[name].data_ptr():
            own.copy_(source[name])
        transfers: list[dist.P2POp] = []
        for owner, rank, have, need in plan.transfers(total, number, me):
            first, last = max(need.start, have.start), min(need.stop, have.stop)
            put = own[first - need.start : last - need.start] if me == rank else None
            taken = source[name][first - have.start : last - have.start] if me == owner else None
            if put is not None and taken is not None:
                put.copy_(taken)
            elif taken is not None:
                transfers.append(dist.P2POp(dist.isend, taken.contiguous(), rank))
            elif put is not None:
                transfers.append(dist.P2POp(dist.irecv, put, owner))
        for request in dist.batch_isend_irecv(transfers) if transfers else ():
            request.wait()


class _Plan:
    """Who gives which rows to whom: ``owners`` by part, and the part that each rank wants."""

    def __init__(self, owners: Sequence[Sequence[int]], wanted: Sequence[Part]) -> None:
        self._owners, self._wanted = owners, wanted
        self._needy = [rank for rank in range(len(wanted)) if not self.has(rank)]

    def has(self, rank: int) -> bool:
        """Whether a rank holds just what it wants."""
        part = self._wanted[rank]
        return part.parts == len(self._owners) and rank in self._owners[part.number]

    def transfers(self, total: int, number: int, me: int) -> Iterator[tuple[int, int, range, range]]:
        """(owner, receiver, rows that the owner has, rows that the receiver needs) where this rank is one of the two."""
        parts, size = len(self._owners), rows_a_part(total, len(self._owners))
        for rank in self._needy:
            need = self._wanted[rank].rows(total)
            for part in range(need.start // size, -(-need.stop // size)) if need else ():
                ranks = self._owners[part]
                owner = rank if rank in ranks else ranks[(number + rank) % len(ranks)]
                if me in (owner, rank):
                    yield owner, rank, Part(part, parts).rows(total), need
