from __future__ import annotations

import datetime
import functools
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.train.ranks import Meet, on_ranks
from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource
from zephon.errors import WorkerDied
from zephon.pipeline.agreed_end import AgreedEnd


def rank_of(rank: int, ranks: int, *, documents: int = 9, **options: Any) -> Pipeline:
    rows = [{"input_ids": list(range(i, i + 3 + 7 * i % 11))} for i in range(documents)]
    source = StaticMixtureWorkSource([Dataset.from_dict("d", {"s": InMemoryShard(rows)})], chunk_bytes=64)
    made = Pipeline(source).options(lanes=4, global_batch_size=4, dp_degree=ranks, dp_group_id=rank, **options)
    return made.pack_flat(8, algorithm="wrap").batch(1)


def in_threads(*functions: Callable[[], Any]) -> list[Any]:
    found: list[Any] = [None] * len(functions)

    def run(index: int) -> None:
        found[index] = functions[index]()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


def begun(rank: AgreedEnd, own: int, *, slow: float = 0) -> int:
    """How many steps a rank begins that has ``own`` of them."""
    for step in range(own):
        time.sleep(slow)
        if not rank.has(step):
            return step
    rank.ended(own)
    return own


@pytest.mark.parametrize("own", [*itertools.permutations((0, 2, 5)), (3, 3, 3), (9, 9, 8)])
def test_all_ranks_begin_as_many_steps_as_the_one_with_the_fewest_has(own: tuple[int, ...]) -> None:
    store = dist.HashStore()
    ranks = [AgreedEnd(store, "s", number, len(own)) for number in range(len(own))]
    found = in_threads(
        *(lambda r=r, n=n, i=i: begun(r, n, slow=0.002 * i) for i, (r, n) in enumerate(zip(ranks, own, strict=True)))
    )
    assert found == [min(own)] * len(own)
    again = AgreedEnd(store, "s", 1, len(own))
    assert begun(again, own[1]) == min(own), "what is known holds for a rank that comes later and alone"


def test_a_rank_that_nobody_follows_says_for_whom_it_waits_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zephon.pipeline.agreed_end.PATIENCE", 0.05)
    store = dist.HashStore()
    store.set_timeout(datetime.timedelta(seconds=0.2))
    in_threads(functools.partial(AgreedEnd(store, "s", 2, 3).ended, 4))
    told = pytest.warns(UserWarning, match="step 0 is ready here and waits for rank 1")
    with told, pytest.raises(WorkerDied, match=r"rank 1 did not ask for step 0(.|\n)*last_step='own'"):
        AgreedEnd(store, "s", 0, 3).has(0)


CASES: list[dict[str, Any]] = [{"max_workers": 1}, {"isolated": True}, {"documents": 40, "max_workers": 0}]


def own_loops(meet: Meet, rank: int) -> list[tuple[int, int, int]]:
    """For each case, the steps of a loop with a collective for each batch, of one from a state on, and of one that is alone."""
    membership = meet()
    found = []
    for options in CASES:
        first, state = rank_of(rank, meet.size, **options), None
        steps = [0, 0]
        for batch in first:
            dist.all_reduce(torch.ones(1))
            steps[0] = batch.step + 1
            state = state or first.checkpoint()
        assert state is not None
        for batch in rank_of(rank, meet.size, **options).restore(state):
            dist.all_reduce(torch.ones(1))
            steps[1] = batch.step + 1
        alone = sum(1 for _ in rank_of(rank, meet.size, **options)) if rank == 1 else steps[0]
        found.append((*steps, alone))
    membership.leave()
    return found


@pytest.mark.slow
def test_ranks_of_a_process_group_end_together_in_a_loop_with_a_collective_a_step() -> None:
    whole = [max(batch.step for batch in rank_of(0, 1, **case)) + 1 for case in CASES]
    assert on_ranks(own_loops, 4) == [[(steps, steps, steps) for steps in whole]] * 4
