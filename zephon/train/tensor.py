"""Tensor parallelism by PyTorch's own plans: matrices are split over the ranks of a node, columns first, then rows.

    x --(whole)--> query, key, value, gate, up   split by output: each rank has some heads and some hidden units
                   out, down                     split by input: the ranks' results are added up, whole again

Norms, embedding and output layer stay whole. Peers see the same data and count as one data-parallel rank.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from zephon.spec.experiment import ModelSpec
from zephon.spec.model_shape import check_shape

COLUMNS = ("attention.query", "attention.key", "attention.value", "feed_forward.gate", "feed_forward.up")
ROWS = ("attention.out", "feed_forward.down")


def split(module: nn.Module, spec: ModelSpec, mesh: DeviceMesh) -> None:
    """Splits a Decoder's layers over a one-dimensional mesh, in place; before any other wrapping.

    Raises:
        ConfigError: the heads do not divide over the ranks.
    """
    check_shape(spec, tensor_parallel=mesh.size())
    for index in range(spec.layers):
        plan: dict[str, ParallelStyle] = {f"layers.{index}.{name}": ColwiseParallel() for name in COLUMNS}
        plan |= {f"layers.{index}.{name}": RowwiseParallel() for name in ROWS}
        parallelize_module(module, mesh, plan)
