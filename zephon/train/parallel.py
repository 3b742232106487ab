"""The model of a membership, wrapped for its kind of parallelism."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from zephon.spec.experiment import RunSpec
from zephon.train import ddp, tensor
from zephon.train.distributed import Membership
from zephon.train.model import Decoder


def built(
    spec: RunSpec, vocab_size: int, membership: Membership, *, kept: nn.Module | None = None
) -> tuple[nn.Module, nn.Module]:
    """(module on the device, the same one wrapped for its kind of parallelism); ``kept`` is that of an earlier membership.

    The parameters of a new one are empty, and the compiled code of a kept one stays.
    """
    trainer = spec.trainer
    module = kept or _new_module(spec, vocab_size, membership)
    if trainer.parallel == "ddp" and trainer.tensor_parallel == 1:
        if kept is None:
            module.to_empty(device=membership.device)
        module.zero_grad(set_to_none=True)
        if trainer.reduction == "canonical" or membership.process.size == 1:
            return module, module
        group = membership.mesh["replicate"].get_group()
        wrapped = DistributedDataParallel(module, process_group=group, init_sync=False, gradient_as_bucket_view=True)
        wrapped.register_comm_hook(group, ddp.sum_over_ranks)
        return module, wrapped
    mesh = membership.mesh["shard"] if trainer.parallel == "fsdp" else membership.mesh["replicate", "shard"]
    low = torch.bfloat16 if trainer.precision == "bfloat16" else None
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32)
    assert isinstance(module, Decoder)
    for block in module.blocks():
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(module, mesh=mesh, mp_policy=policy)
    for part in module.modules():
        if isinstance(part, FSDPModule):  # the loss is divided by the global count already: sum, do not average
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
    module.to_empty(device=membership.device)
    return module, module


def _new_module(spec: RunSpec, vocab_size: int, membership: Membership) -> Decoder:
    trainer = spec.trainer
    with torch.device("meta"):
        module = Decoder(spec.model, vocab_size, recompute=trainer.activation_checkpointing)
    if trainer.tensor_parallel > 1:
        tensor.split(module, spec.model, membership.mesh["tensor"])
    if trainer.compile:
        for block in module.blocks():
            block.compile()
    return module
