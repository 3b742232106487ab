"""How memberships form: the rules of one experiment, from its spec."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from zephon.spec.experiment import RunSpec
from zephon.world import World


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """How memberships form.

    Args:
        minimum, maximum: nodes in a generation.
        allowed: whether a number of nodes divides the work.
        budget: crashes without a new checkpoint that are forgiven.
        heartbeat_s: a node silent for two of these is lost.
        return_s: how much longer a new coordinator waits for the nodes that worked under the one before it: they notice its
            death, names are cached for half a minute, and an attempt to connect that nobody answers takes 5 s.
        drain_s: how long workers may take to finish their step and save.
        record_s: how long ledger and checkpoint may take to show what workers that are done have written: network file
            systems keep for up to a minute what they have seen.
        window_s: how long to wait for a further node when more may come.
        rendezvous_s: how long the first generation waits for the target size.
        join_timeout_s: how long fewer than ``minimum`` nodes are waited for.
    """

    minimum: int
    maximum: int
    allowed: Callable[[int], bool]
    budget: int = 3
    heartbeat_s: float = 5.0
    return_s: float = 45.0
    drain_s: float = 60.0
    record_s: float = 60.0
    window_s: float = 1.0
    rendezvous_s: float = 60.0
    join_timeout_s: float = 300.0

    def silence(self, *, returning: bool) -> float:
        """How long a node may be silent before it is lost; ``returning``: it has not found this new coordinator yet."""
        return 2 * self.heartbeat_s + (self.return_s if returning else 0.0)


def rules_of(spec: RunSpec) -> Rules:
    """The membership rules of one experiment."""
    return Rules(
        minimum=spec.elastic.nodes_min,
        maximum=spec.elastic.nodes_max,
        allowed=allowed_nodes(spec),
        budget=spec.elastic.failure_budget,
        heartbeat_s=spec.elastic.heartbeat_s,
        drain_s=spec.elastic.drain_s,
        join_timeout_s=spec.elastic.join_timeout_s,
    )


def allowed_nodes(spec: RunSpec) -> Callable[[int], bool]:
    """Whether a number of nodes divides the lanes and the global batch as ``lanes.allow`` permits."""
    allowed = frozenset(World(spec.lanes.count, spec.global_batch_size, 1, spec.lanes.allow).allowed())
    procs, tensor = spec.elastic.procs_per_node, spec.trainer.tensor_parallel

    def test(nodes: int) -> bool:
        return nodes * procs % tensor == 0 and nodes * procs // tensor in allowed

    return test
