"""Twenty random events on a run on real nodes: the ledger is that of a run that nobody disturbed."""

from __future__ import annotations

import itertools

import pytest

from tests.chaos import chaos
from tests.kubernetes.machines import Machines
from tests.kubernetes.nodes_chaos import OnNodes

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(1200)]
EVENTS, SEED = 20, 7
_numbers = itertools.count(1)


@pytest.mark.filterwarnings("ignore:a torn line:UserWarning")
def test_twenty_random_events_on_real_nodes_leave_the_ledger_of_a_run_that_nobody_disturbed(machines: Machines) -> None:
    run = OnNodes(machines, machines.name(f"chaos-{next(_numbers)}"))
    away = run.api_away if machines.ours else None
    print(chaos(run, events=EVENTS, seed=SEED, disk=machines.disk, away=away))
