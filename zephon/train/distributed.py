"""One membership of ranks: who is there, on which devices, and how they talk.

``join`` makes a ``Membership`` and ``leave`` ends it; the process itself lives on and may join another. Everything else that
depends on the membership is built from it (session.py). A single process is a membership of one and takes the same path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from zephon.errors import ConfigError, StateError
from zephon.spec.experiment import TrainerSpec

Item = TypeVar("Item")

# What gloo says where a peer has closed its connection, or answers no more; NCCL's errors are of torch's own kind.
_GONE = ("Connection closed by peer", "Connection reset by peer", "gloo/transport", "Broken pipe")

SAVE_TIMEOUT = timedelta(hours=1)  # a slow disk is not a dead rank


@dataclass(frozen=True, kw_only=True)
class ProcessInfo:
    """This process's place in a membership, as the launcher decided it."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @staticmethod
    def from_environment(env: Mapping[str, str] = os.environ) -> ProcessInfo:
        """Reads what torch elastic sets; a plain process without RANK and WORLD_SIZE is a membership of one."""
        if ("RANK" in env) != ("WORLD_SIZE" in env):
            raise ConfigError(
                f"RANK={env.get('RANK')!r} and WORLD_SIZE={env.get('WORLD_SIZE')!r}: only one of the two is set",
                follows="this process would train alone, or wait for ranks that do not exist",
                remedy="set both (torch elastic does), or neither for a single process",
            )
        variables = {
            "rank": ("RANK", 0),
            "size": ("WORLD_SIZE", 1),
            "local_rank": ("LOCAL_RANK", 0),
            "local_size": ("LOCAL_WORLD_SIZE", 1),
        }
        return ProcessInfo(**{field: int(env.get(name, default)) for field, (name, default) in variables.items()})


@dataclass(frozen=True, kw_only=True)
class Membership:
    """A membership that this process has joined.

    Args:
        process: rank and size, over all kinds of parallelism.
        device: where this rank computes.
        mesh: named dimensions ``replicate``, ``shard`` and ``tensor``; their product is the size.
        saving: a second group, so that a save in the background never waits for a training step.
    """

    process: ProcessInfo
    device: torch.device
    mesh: DeviceMesh
    saving: dist.ProcessGroup

    @property
    def dp_size(self) -> int:
        """How many ranks see different data: all but tensor-parallel peers."""
        return int(self.mesh["replicate"].size() * self.mesh["shard"].size())

    @property
    def dp_rank(self) -> int:
        return int(self.mesh["replicate"].get_local_rank() * self.mesh["shard"].size() + self.mesh["shard"].get_local_rank())

    @property
    def first(self) -> bool:
        """Whether this rank writes the run's files."""
        return self.process.rank == 0

    def exchange(self, item: Item, *, group: dist.ProcessGroup | None = None) -> list[Item]:
        """Gives every rank the items of all ranks, by rank. Small picklable things; travels over the CPU."""
        if self.process.size == 1:
            return [item]
        items: list[Item | None] = [None] * self.process.size
        dist.all_gather_object(items, item, group=group)
        return cast("list[Item]", items)

    def exchange_data_parallel(self, item: Item) -> list[Item]:
        """The same by data-parallel rank: of tensor-parallel peers, which hold the same item, the first one's."""
        return self.exchange(item)[:: self.process.size // self.dp_size]

    def broadcast(self, item: Item, *, source: int = 0) -> Item:
        """Gives every rank the ``item`` of one."""
        box = [item]
        if self.process.size > 1:
            dist.broadcast_object_list(box, src=source)
        return box[0]

    def sum(self, value: Tensor) -> Tensor:
        """The sum over data-parallel ranks, in place."""
        if self.process.size > 1:
            dist.all_reduce(value)
            value /= self.process.size // self.dp_size  # tensor-parallel peers hold the same value
        return value

    def leave(self) -> None:
        """Ends the membership; safe when a peer is already gone."""
        dist.destroy_process_group()


def lost_peer(error: BaseException) -> bool:
    """Whether an error, or what caused it, says that a rank has gone in the middle of a collective."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, dist.DistError) or (isinstance(seen, RuntimeError) and any(word in str(seen) for word in _GONE)):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def choose_device(wanted: str, *, local_rank: int) -> torch.device:
    """The device of this process for ``trainer.device``."""
    devices = torch.cuda.device_count()
    if wanted == "cpu" or (wanted == "auto" and not devices):
        return torch.device("cpu")
    if local_rank >= devices:
        raise ConfigError(
            f"local rank {local_rank} needs its own CUDA device, and {devices} are visible (trainer.device={wanted})",
            follows="two ranks would share a device, or there would be none",
            remedy="start as many processes on a node as it has devices, or set trainer.device=cpu",
        )
    return torch.device("cuda", local_rank)


def mesh_shape(*, parallel: str, tensor: int, size: int, local_size: int) -> tuple[int, int, int]:
    """(replicate, shard, tensor) for ``trainer.parallel``; hsdp shards inside a node and replicates between nodes.

    >>> mesh_shape(parallel="hsdp", tensor=1, size=8, local_size=4)
    (2, 4, 1)
    """
    if size % tensor:
        raise ConfigError(
            f"trainer.tensor_parallel={tensor} does not divide the {size} ranks",
            follows="some ranks would belong to no tensor-parallel group",
            remedy=f"use a number of ranks that is a multiple of {tensor}",
        )
    data = size // tensor
    if parallel == "ddp":
        return data, 1, tensor
    if parallel == "fsdp":
        return 1, data, tensor
    shard = max(1, local_size // tensor)
    if data % shard:
        raise ConfigError(
            f"trainer.parallel=hsdp shards over the {shard} ranks of a node, which do not divide {data} data-parallel ranks",
            follows="the nodes would hold differently sharded replicas",
            remedy="start the same number of processes on every node, or use trainer.parallel=fsdp",
        )
    return data // shard, shard, tensor


def join(
    process: ProcessInfo,
    *,
    device: torch.device,
    parallel: str = "ddp",
    tensor: int = 1,
    timeout_s: float = 120.0,
    store: dist.Store | None = None,
) -> Membership:
    """Meets the other ranks of a membership and returns it.

    Args:
        store: where they meet; by default what MASTER_ADDR and MASTER_PORT name, or nothing for a single process.
        timeout_s: how long a collective may wait for a rank before this process gives up.
    """
    shape = mesh_shape(parallel=parallel, tensor=tensor, size=process.size, local_size=process.local_size)
    if store is None and process.size == 1:
        store = dist.HashStore()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        timeout=timedelta(seconds=timeout_s),
        store=store,
        rank=process.rank,
        world_size=process.size,
    )
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard", "tensor"))
    saving = dist.new_group(backend="gloo", timeout=SAVE_TIMEOUT)
    assert isinstance(saving, dist.ProcessGroup)
    return Membership(process=process, device=device, mesh=mesh, saving=saving)


def check_replicas(membership: Membership, trainer: TrainerSpec, parameters: Sequence[Tensor], *, step: int) -> None:
    """Compares a checksum of the weights between ranks that must hold the same weights.

    Raises:
        StateError: other weights than rank 0.
    """
    if trainer.parallel != "ddp" or trainer.tensor_parallel > 1:
        return
    sums = torch.stack([p.detach().double().sum() for p in parameters]).cpu()
    checksums = membership.exchange(sums.numpy().tobytes())
    different = [rank for rank, checksum in enumerate(checksums) if checksum != checksums[0]]
    if different:
        raise StateError(
            f"ranks {different} begin step {step} with other weights than rank 0",
            follows="the replicas would drift apart",
            remedy="restart from a checkpoint; if it happens again, compare the ranks' hardware and library versions",
        )
