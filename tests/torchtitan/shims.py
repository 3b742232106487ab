"""What TorchTitan 0.3 lacks on a machine without an accelerator: tests alone use this, before anything of it is imported.

device type and memory   it asks for CUDA where no accelerator is
attention                FlexAttention has no backward on the CPU: a dense mask of the same documents
reduction                gloo has no PREMUL_SUM, which FSDP uses to divide by one
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any


def install() -> None:
    device()
    attention_and_reduction()


def device() -> None:
    """Before TorchTitan is imported."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # the first step otherwise compiles for minutes
    import torch

    cpu: Any = torch.cpu
    cpu.get_device_name = lambda device=None: "CPU"
    cpu.get_device_properties = lambda device=None: SimpleNamespace(total_memory=1 << 34)
    cpu.memory_stats = lambda device=None: {}
    cpu.reset_peak_memory_stats = cpu.empty_cache = lambda *_: None
    cpu.device_count = lambda: 1
    cpu.current_device = lambda: 0
    import torch._utils

    torch._utils._get_available_device_type = lambda: "cpu"


def attention_and_reduction() -> None:
    import torch
    from torchtitan.models.common import attention, decoder

    def masks(self: Any, positions: Any) -> Any:
        documents = positions.eq(0).cumsum(1)
        same = documents[:, None, :, None].eq(documents[:, None, None, :])
        return same & torch.ones(positions.shape[1], positions.shape[1], dtype=torch.bool).tril()

    def forward(
        self: Any,
        q_BLNH: Any,
        k_BLNH: Any,
        v_BLNH: Any,
        *,
        attention_masks: Any,
        scale: Any = None,
        **_: Any,
    ) -> Any:
        heads = q_BLNH.shape[2] // k_BLNH.shape[2]
        keys, values = (x.repeat_interleave(heads, 2).transpose(1, 2) for x in (k_BLNH, v_BLNH))
        queries = q_BLNH.transpose(1, 2)
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(queries, keys, values, attn_mask=attention_masks, scale=scale).transpose(1, 2)

    attention.FlexAttention.forward = forward
    decoder.Decoder.get_attention_masks = masks
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives

    divided = collectives._get_gradient_divide_factors

    def summed(*args: Any, **_: Any) -> Any:
        return divided(*args[:5], force_sum_reduction_for_comms=True)

    collectives._get_gradient_divide_factors = summed
