"""Which data-parallel rank of how many a pipeline is for. No rank is ignored: where others exist, the division follows them.

    an initialised torch process group, else RANK and WORLD_SIZE, else options(world_size=, global_rank=), else one rank

``dp_degree`` and ``dp_group_id`` say which part of these ranks divides the data (the others are tensor, pipeline or context
peers, which read the same). What contradicts the ranks that exist is refused.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

from zephon.errors import ConfigError
from zephon.pipeline.options import Options, check_rank


class Ranks(NamedTuple):
    """This process among those that run together; ``source`` says who knows it."""

    rank: int
    size: int
    source: str


class Division(NamedTuple):
    """Rank ``dp_group_id`` of ``dp_degree``; ``beside`` are the ranks that exist, None for a process alone.

    ``named`` says that the options name the degree.
    """

    dp_degree: int
    dp_group_id: int
    beside: Ranks | None
    named: bool


def existing_ranks(environment: Mapping[str, str] = os.environ) -> Ranks | None:
    """The process group's, else what RANK and WORLD_SIZE say; None where neither is there."""
    distributed = sys.modules.get("torch.distributed")  # not imported here: nobody can have initialised it then
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Ranks(distributed.get_rank(), distributed.get_world_size(), "the torch process group")
    size, rank = environment.get("WORLD_SIZE"), environment.get("RANK")
    if size is None or size == "1":
        return None
    try:
        ranks = Ranks(int(rank or ""), int(size), "RANK and WORLD_SIZE")
    except ValueError:
        ranks = Ranks(-1, 0, "")
    if not 0 <= ranks.rank < ranks.size:
        raise ConfigError(
            f"RANK={rank!r} and WORLD_SIZE={size!r} do not say which rank of how many this is",
            follows="several processes would train on the same rows",
            remedy="start with torchrun, which sets both; or unset WORLD_SIZE for a single process",
        )
    return ranks


def divide(options: Options) -> Division:
    """This process's part of the data.

    Raises:
        ConfigError: the options contradict the ranks that exist, or each other.
    """
    beside = existing_ranks() or _said_by(options)
    if beside is None:
        alone = Division(options.dp_degree or 1, options.dp_group_id or 0, None, options.dp_degree is not None)
        check_rank(alone.dp_degree, alone.dp_group_id)
        return alone
    stated = {"world_size": (options.world_size, beside.size), "global_rank": (options.global_rank, beside.rank)}
    for name, (given, exists) in stated.items():
        if given is not None and given != exists:
            raise _contradiction(f"{name}={given}", beside, f"leave {name} out")
    degree = beside.size if options.dp_degree is None else options.dp_degree
    if beside.size % degree:
        raise _contradiction(f"dp_degree={degree}", beside, f"leave dp_degree out, or give a divisor of {beside.size}")
    rank = options.dp_group_id
    if degree == beside.size and rank not in (None, beside.rank):
        raise _contradiction(f"dp_group_id={rank}", beside, "leave dp_group_id out")
    if rank is None and 1 < degree < beside.size:
        raise ConfigError(
            f"dp_degree={degree} without dp_group_id, where {_said(beside)}",
            follows="ranks could read the same data that should read different data",
            remedy="give dp_group_id=, for instance of the device mesh: mesh.get_local_rank('dp')",
        )
    own = beside.rank if degree == beside.size else rank or 0
    return Division(degree, own, beside, options.dp_degree is not None)


def confirm(division: Division, options: Options) -> None:
    """Raises ConfigError where other ranks exist now than when the division was looked up."""
    if existing_ranks() is not None and divide(options)[:2] != division[:2]:
        raise ConfigError(
            f"this pipeline was divided as rank {division.dp_group_id} of {division.dp_degree}, before the ranks that exist "
            "now had met",
            follows="some ranks would get the same rows",
            remedy="initialise the process group before the pipeline is first asked for its world, state or batches",
        )


def lanes_must_be_named(division: Division, microbatch_size: int) -> ConfigError:
    """The error that lanes would follow from a number of ranks that nobody named."""
    assert division.beside is not None
    size = division.dp_degree
    lanes = size * max(1, 8 // size)
    return ConfigError(
        f"the number of lanes is not given, where {_said(division.beside)}",
        follows="the global batch would be made for this number of ranks, and be another one for any other number",
        remedy=f"write .options(lanes={lanes}, global_batch_size={lanes * microbatch_size}): every number of ranks that "
        "divides the lanes then gets the same global batch",
    )


def _said_by(options: Options) -> Ranks | None:
    rank, size = options.global_rank, options.world_size
    if not rank and size in (None, 1):
        return None
    if rank is None or size is None or rank >= size:
        raise ConfigError(
            f"options(world_size={size}, global_rank={rank}) does not say which rank of how many this is",
            follows="several processes would train on the same rows",
            remedy="give both, or neither: torchrun and an initialised process group say the same",
        )
    return Ranks(rank, size, "options(world_size=, global_rank=)")


def _said(beside: Ranks) -> str:
    return f"{beside.source} say{'s' if 'group' in beside.source else ''} rank {beside.rank} of {beside.size}"


def _contradiction(given: str, beside: Ranks, remedy: str) -> ConfigError:
    return ConfigError(
        f"options({given}), but {_said(beside)}",
        follows="some ranks would get the same rows, or some rows no rank",
        remedy=f"{remedy}: the division follows the ranks that exist",
    )
