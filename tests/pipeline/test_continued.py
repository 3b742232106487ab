"""A run whose later phases change on a resume: the past is the same at every size, and another past is refused."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.laws import Job, Recipe, Step, reference
from tests.ops.recipes import GLOBAL_BATCH, LANES, document
from zephon import Dataset, InMemoryShard, Phase, PhasedMixtureWorkSource, Pipeline, StaticMixtureWorkSource, TokenEstimation
from zephon.errors import StateError

BEGIN = Phase({"m": 3, "n": 1}, "20 steps")
RATE = TokenEstimation(0.0525)


@functools.cache
def data(name: str, count: int = 60, most: int = 50) -> Dataset:
    rows = [document(ord(name) * 1000 + i, (i * 37) % most + 1) for i in range(count)]
    return Dataset.from_dict(name, {"s": InMemoryShard(rows)})


def recipe(phases: Sequence[Phase] | None, names: str = "mn", *, homogeneity: str = "none", packing: str = "wrap") -> Recipe:
    sets = [data(name) for name in names]

    def make(dp_degree: int = 1, dp_group_id: int = 0, microbatch_size: int = 2, **options: Any) -> Pipeline:
        source: Any
        if phases is None:
            source = StaticMixtureWorkSource(
                sets, {"m": 3, "n": 1}, 7, exhausted_policy="repeat", chunk_bytes=300, token_estimation=RATE
            )
        else:
            source = PhasedMixtureWorkSource(sets, phases, 7, chunk_bytes=300, token_estimation=RATE)
        fixed: dict[str, Any] = {
            "canonical_replicas": LANES,
            "global_batch_size": GLOBAL_BATCH,
            "flush_every_k_chunks": 2,
            "runner": "inline",
            "prefetch_batches": 0,
        }
        pipeline = Pipeline(source).options(**{**fixed, "dp_degree": dp_degree, "dp_group_id": dp_group_id, **options})
        pipeline.tokenize(tokenizer_id="bytes", field="text", special_tokens="eos")
        return pipeline.pack_flat(24, algorithm=packing, homogeneity=homogeneity).shuffle(4).batch(microbatch_size)  # type: ignore[arg-type]

    return make


def changed_at(step: int, then: Recipe, now: Recipe, steps: int) -> list[Step]:
    """A run of two ranks to a step, and from there on of four with another curriculum."""
    with Job(then, 2) as job:
        got, states = job.steps(step), job.states()
    with Job(now, 4, states=states) as job:
        return got + job.steps(steps - step)


APPENDED = [BEGIN, Phase({"m": 1, "n": 1})]
JOINING = [BEGIN, Phase({"a": 1, "m": 1}, "30 steps", "linear"), Phase({"a": 1, "n": 1})]


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (recipe([BEGIN]), (APPENDED, "mn")),
        (recipe(APPENDED), ([BEGIN, Phase({"n": 1})], "mn")),
        (recipe(None), (APPENDED, "mn")),
        (recipe([BEGIN]), (JOINING, "amn")),
        (recipe(None), (JOINING, "nma")),
        (recipe([BEGIN, Phase({"z": 1})], "mnz"), (JOINING, "amn")),
    ],
    ids=["appended", "changed", "from one mixture", "joins", "joins one mixture", "joins and never came"],
)
def test_later_phases_may_change_and_the_run_is_that_which_had_them_from_the_start(
    then: Recipe, now: tuple[list[Phase], str]
) -> None:
    whole = recipe(*now)
    assert changed_at(12, then, whole, 40) == reference(whole, 40)


def test_rows_of_one_dataset_go_on_where_a_dataset_joins() -> None:
    then, now = recipe([BEGIN], homogeneity="full"), recipe(JOINING, "amn", homogeneity="full")
    assert changed_at(9, then, now, 36) == reference(now, 36)
    alone = Phase({"m": 1}, "20 steps")
    then, now = (recipe(p, n, homogeneity="full") for p, n in (([alone], "m"), ([alone, Phase({"a": 1, "m": 1})], "am")))
    assert changed_at(9, then, now, 36) == reference(now, 36)


@pytest.mark.parametrize(
    ("phases", "names", "first"),
    [
        ([Phase({"m": 1, "n": 1}, "20 steps")], "mn", 0),
        ([Phase({"m": 3, "n": 1}, "7 steps"), Phase({"m": 1, "n": 1})], "mn", 7),
        ([Phase({"m": 3, "n": 1}, "11 steps"), Phase({"a": 1, "n": 1})], "amn", 11),
    ],
)
def test_another_past_is_refused_with_the_first_step_that_would_differ(phases: list[Phase], names: str, first: int) -> None:
    then, now = recipe([BEGIN]), recipe(phases, names)
    with pytest.raises(StateError) as caught:
        changed_at(12, then, now, 20)
    assert f"the phases differ from step {first} on, and this run is at step 12" in str(caught.value)
    differing = [a != b for a, b in zip(reference(then, 20), reference(now, 20), strict=True)]
    interval = int(re.search(r"chunks (\d+) to (\d+)", str(caught.value))[2])  # type: ignore[index]
    assert abs(differing.index(True) - first) <= max(3, interval)


def test_what_is_no_phase_is_compared_as_ever() -> None:
    with pytest.raises(StateError, match=r"ops\.1\.pack_flat\.algorithm: saved 'wrap', now 'first_fit'"):
        changed_at(3, recipe([BEGIN]), recipe(APPENDED, packing="first_fit"), 9)


def test_documents_to_skip_are_those_they_were_where_a_dataset_joins_before_them() -> None:
    then, now = recipe([BEGIN]), recipe(JOINING, "amn")

    def skipping(make: Recipe) -> Recipe:
        return lambda *a, **o: make(*a, **o).skip(documents=[("n", "s", row) for row in range(0, 60, 2)])

    with Job(skipping(then)) as job:
        got, states = job.steps(8), job.states()
    with Job(now, 2, states=states) as job:
        got += job.steps(22)
    assert got == reference(skipping(now), 30)
