"""The gradient of one global batch, two ways.

``default``: every rank sums over its microbatches, PyTorch sums over ranks (DDP or FSDP2). The order of additions, and so
the last bits, depend on the number of ranks and on the microbatch size.

``canonical``: the global batch is cut into fixed blocks of sequences. Each block's gradient is computed alone, and blocks
are added over a fixed binary tree. A rank owns a whole subtree; above it, ranks add by recursive doubling::

    step              +                    one rank owns all;      two ranks own the halves and swap once;
                  /       \\               four ranks own the quarters and swap twice; ... the same additions
                +           +              on the same numbers, so the same bits.
               / \\         / \\
    blocks    0   1       2   3

It costs a backward per block instead of per microbatch, about log2(blocks of a rank) extra gradients in memory, and
log2(ranks) full gradients sent per rank. It holds for power-of-two numbers of ranks on one kind of hardware.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from zephon.errors import ConfigError
from zephon.spec.experiment import RunSpec
from zephon.train.distributed import Membership
from zephon.train.step import TokenRows

Sums = Callable[[TokenRows], tuple[Tensor, Tensor]]


def gradients(spec: RunSpec, model: nn.Module, sums: Sums, rows: TokenRows, *, tokens: int, membership: Membership) -> Tensor:
    """``default_gradients`` or ``canonical_gradients``, as the experiment says."""
    if spec.trainer.reduction == "canonical":
        return canonical_gradients(model, sums, rows, tokens=tokens, block=block_size(spec), membership=membership)
    microbatch = spec.trainer.microbatch_size
    return default_gradients(model, sums, rows, tokens=tokens, microbatch=microbatch, membership=membership)


def default_gradients(
    model: nn.Module, sums: Sums, rows: TokenRows, *, tokens: int, microbatch: int, membership: Membership
) -> Tensor:
    """Puts the gradient of (sum of losses / tokens) into ``.grad`` and returns the sums of losses, float64 [k].

    Args:
        sums: forward of some rows: (what is minimised, summed over trained tokens; [k] sums of cross entropy).
        rows: this rank's sequences; their number is the same on all ranks.
        tokens: trained tokens of the whole step, at least 1.
        microbatch: rows in one forward.
    """
    losses = []
    parts = rows.split(microbatch)
    for index, part in enumerate(parts):
        with reducing(model, last=index == len(parts) - 1):
            minimised, entropy = sums(part)
            (minimised / tokens).backward()  # type: ignore[no-untyped-call]
            losses.append(entropy.detach().double().reshape(-1))
    return membership.sum(torch.stack(losses).sum(0))


def canonical_gradients(
    model: nn.Module, sums: Sums, rows: TokenRows, *, tokens: int, block: int, membership: Membership
) -> Tensor:
    """``default_gradients`` with the same bits at every power-of-two number of ranks. ``model`` must be unwrapped."""
    parameters = [p for p in model.parameters() if p.requires_grad]

    def leaf(part: TokenRows) -> Tensor:
        minimised, entropy = sums(part)
        gradients = torch.autograd.grad(minimised, parameters)
        return torch.cat([g.reshape(-1).float() for g in gradients] + [entropy.detach().float().reshape(-1)])

    total = add_over_ranks(tree_sum(rows.split(block), leaf), membership)
    size = sum(p.numel() for p in parameters)
    losses, gradient = total[size:].double(), total[:size].div_(tokens)
    begin = 0
    for parameter in parameters:
        parameter.grad = gradient[begin : begin + parameter.numel()].view_as(parameter)
        begin += parameter.numel()
    return losses


def tree_sum(parts: list[TokenRows], leaf: Callable[[TokenRows], Tensor]) -> Tensor:
    """Adds the leaves' values over the binary tree that halves the list; at most one value waits per level."""
    if len(parts) == 1:
        return leaf(parts[0])
    middle = len(parts) // 2
    left = tree_sum(parts[:middle], leaf)
    left += tree_sum(parts[middle:], leaf)
    return left


def add_over_ranks(value: Tensor, membership: Membership) -> Tensor:
    """Adds over ranks by recursive doubling, in place: ranks that differ in bit 0 swap and add, then bit 1, ..."""
    rank, distance = membership.process.rank, 1
    while distance < membership.process.size:
        received = torch.empty_like(value)
        peer = rank ^ distance
        swap = [dist.P2POp(dist.isend, value, peer), dist.P2POp(dist.irecv, received, peer)]
        for work in dist.batch_isend_irecv(swap):
            work.wait()
        value += received
        distance *= 2
    return value


@contextmanager
def reducing(model: nn.Module, *, last: bool) -> Iterator[None]:
    """Lets gradients cross ranks in the last backward of a step only."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
        yield
    elif isinstance(model, DistributedDataParallel) and not last:
        with model.no_sync():
            yield
    else:
        yield


def block_size(spec: RunSpec) -> int:
    """Sequences in one canonical block: ``trainer.canonical_block``, or a lane's share of the global batch."""
    return spec.trainer.canonical_block or max(1, spec.global_batch_size // spec.lanes.count)


def use_deterministic_kernels(device: torch.device) -> None:
    """Lets PyTorch choose only kernels that give the same bits twice; call it before the device is used."""
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.backends.cudnn.benchmark = False


def check_consistent(membership: Membership) -> None:
    """Refuses canonical reduction over ranks whose kernels, and so whose last bits, would differ."""
    gpu = membership.device.type == "cuda"
    kind = torch.cuda.get_device_name(membership.device) if gpu else f"CPU with {torch.backends.cpu.get_cpu_capability()}"
    platforms = membership.exchange(f"{kind}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    other = next((rank for rank, platform in enumerate(platforms) if platform != platforms[0]), None)
    if other is not None:
        raise ConfigError(
            f"trainer.reduction=canonical cannot hold: rank 0 runs on {platforms[0]} and rank {other} on {platforms[other]}",
            follows="losses and weights would not be bit-identical to the one-rank run",
            remedy="use one kind of hardware, one torch and one trainer.torch_threads, or set trainer.reduction=default",
        )


def check_canonical(spec: RunSpec, *, dp_size: int) -> None:
    """Refuses canonical reduction where its promise could not hold."""
    block = block_size(spec)
    blocks, odd = divmod(spec.global_batch_size, block)
    problem = None
    if dp_size & (dp_size - 1):
        lower = 1 << (dp_size.bit_length() - 1)
        problem = (f"{dp_size} ranks are not a power of two", f"use {lower} or {2 * lower} ranks")
    elif odd or blocks % dp_size:
        problem = (
            f"{spec.global_batch_size} sequences in blocks of {block} do not divide over {dp_size} ranks",
            "use fewer ranks, or a smaller trainer.canonical_block in a new run",
        )
    elif spec.trainer.parallel != "ddp" or spec.trainer.tensor_parallel > 1:
        problem = (
            f"trainer.parallel={spec.trainer.parallel} with tensor_parallel={spec.trainer.tensor_parallel} has its own order",
            "use trainer.parallel=ddp without tensor parallelism",
        )
    elif spec.trainer.compile:
        problem = ("trainer.compile=true may choose other kernels for other shapes", "set trainer.compile=false")
    if problem is not None:
        what, remedy = problem
        raise ConfigError(
            f"trainer.reduction=canonical cannot hold: {what}",
            follows="losses and weights would not be bit-identical to the one-rank run",
            remedy=f"{remedy}, or set trainer.reduction=default",
        )
