"""The laws under phases: every packer and op, every size, a restart at every step, skips and quarantine."""

from __future__ import annotations

from typing import Any

import pytest

from tests.laws import Job, Step, assert_restarts, assert_same_data, reference
from tests.ops.recipes import GLOBAL_BATCH, LANES, PIPELINES, phased_source, recipe
from zephon import Address, Pipeline

STEPS = 24
WRAP = "wrap, streaming shuffle"
COMPOSED = [name for name in PIPELINES if "group" not in name or name == "wrap by group, shuffle"]


@pytest.mark.parametrize("name", COMPOSED)
def test_every_op_delivers_the_same_steps_at_every_size_and_over_restarts(name: str) -> None:
    make = recipe(PIPELINES[name], phased_source)
    expected = reference(make, 12)
    assert len(expected) == 12
    assert_same_data(make, expected[:6], sizes=(4,))
    assert_restarts(make, expected, sizes=(1, 4, 2), every=3)


def test_a_restart_at_every_step_and_size_crosses_every_phase() -> None:
    make = recipe(PIPELINES[WRAP], phased_source)
    expected = reference(make, STEPS)
    assert_same_data(make, expected, sizes=(2, 8))
    assert_restarts(make, expected, sizes=(1, 2, 4, 8))
    shares = by_step(make, STEPS)
    assert all(step["c"] == 0 for step in shares[:2])
    assert all(step["b"] == 0 for step in shares[-4:])


def by_step(make: Any, steps: int) -> list[dict[str, int]]:
    """Tokens of each dataset in each step."""
    pipeline: Pipeline = make(microbatch_size=2)
    found = []
    for step, _ in zip(pipeline.steps(), range(steps), strict=False):
        tokens: dict[str, int] = {}
        for batch in step:
            for name, count in batch.tokens.items():
                tokens[name] = tokens.get(name, 0) + count
        found.append(tokens)
    pipeline.close()
    return found


def test_skipped_steps_and_documents_stay_skipped_across_phases() -> None:
    make = recipe(PIPELINES[WRAP], phased_source)

    def run(sizes: tuple[int, ...], every: int) -> list[Step]:
        got: list[Step] = []
        states: Any = None
        turn = 0
        while len(got) < 16:
            with Job(make, sizes[turn % len(sizes)], states=states) as job:
                if states is None:
                    for pipeline in job.pipelines:
                        pipeline.skip(steps=range(3, 6), documents=[Address("b", "s1", row) for row in range(9)])
                    job.iterators = [pipeline.steps() for pipeline in job.pipelines]
                got += job.steps(min(every, 16 - len(got)))
                states = job.states()
            turn += 1
        return got

    assert run((1,), 99) == run((2, 8, 1), 2)


def test_with_wrap_alone_a_phase_begins_at_its_step_to_within_a_chunk() -> None:
    """Rows hold 24 tokens and chunks 12 documents of 24: the plan's steps are those of the run."""
    from zephon import Dataset, InMemoryShard, Phase, PhasedMixtureWorkSource, TokenEstimation

    sets = [Dataset.from_dict(n, {"s": InMemoryShard([{"text": n * 23} for _ in range(900)])}) for n in "ab"]
    size = sets[0].size // 900
    source = PhasedMixtureWorkSource(
        sets,
        [Phase({"a": 1}, "10 steps"), Phase({"b": 1})],
        chunk_bytes=2 * size,
        token_estimation=TokenEstimation(24 / size),
    )
    pipeline = (
        Pipeline(source)
        .options(canonical_replicas=LANES, global_batch_size=GLOBAL_BATCH, runner="inline", prefetch_batches=0)
        .tokenize(tokenizer_id="bytes", field="text", special_tokens="eos")
        .pack_flat(24, algorithm="wrap")
        .batch(2)
    )
    shares = by_step(lambda **_: pipeline, 14)
    assert [step["b"] for step in shares] == [0] * 10 + [24 * GLOBAL_BATCH] * 4
