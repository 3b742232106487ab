"""Faults reported of other loaders that are about processes, memory and the end of data (sections A to F of tests/cases.md)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.engine.parts import until
from tests.engine.recipes import TEXTS, small
from tests.laws import Job, reference
from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource
from zephon.io.formats.base import format_named
from zephon.ops.tokenizers import load_tokenizer


def numbered(rows: int, shards: int) -> Dataset:
    parts = np.array_split(np.arange(rows), shards)
    return Dataset.from_dict("d", {f"s{i}": InMemoryShard([{"id": int(n)} for n in part]) for i, part in enumerate(parts)})


@pytest.mark.parametrize("runner", ["inline", "threads", "process"])
def test_a25_a_state_does_not_know_how_many_workers_made_it(runner: str) -> None:
    with Job(small, runner="threads", max_workers=2) as job:
        job.steps(3)
        states = job.states()
        follows = job.steps(2)
    with Job(small, runner=runner, max_workers=1, states=states) as job:
        assert job.states() == states
        assert job.steps(2) == follows


def test_a29_saving_right_after_a_load_and_one_step_later_gives_the_states_of_the_unbroken_run() -> None:
    with Job(small, 2) as job:
        job.steps(3)
        third = job.states()
        job.steps(1)
        fourth = job.states()
    with Job(small, 2, states=third) as job:
        assert job.states() == third
        job.steps(1)
        assert job.states() == fourth


def ranks(dataset: Dataset, dp: int, *, lanes: int, batch: int, **options: Any) -> list[list[int]]:
    """Each rank's forwards by step, of one pass."""
    found = []
    for rank in range(dp):
        source = StaticMixtureWorkSource([dataset], shuffle_shards=False, chunk_bytes=16)
        place = {"dp_degree": dp, "dp_group_id": rank, "canonical_replicas": lanes, "global_batch_size": batch}
        pipeline = Pipeline(source).options(**{**place, "runner": "inline", "lanes_allow": "uneven", **options}).batch(1)
        found.append([sum(1 for _ in step) for step in pipeline.steps()])
    return found


@pytest.mark.parametrize("dp", [1, 2, 3, 4])
def test_b09_and_d07_the_end_of_data_comes_at_the_same_step_at_every_size_with_equally_many_forwards(dp: int) -> None:
    """Without any exchange between ranks: a rank's lanes may hold a step more, and a trainer stops at the first that ends."""
    dataset = numbered(50, 7)
    whole = len(ranks(dataset, 1, lanes=4, batch=4)[0])
    found = ranks(dataset, dp, lanes=4, batch=4)
    assert min(map(len, found)) == whole
    forwards = [steps[:whole] for steps in found]
    assert all(steps == forwards[0] for steps in forwards)


def test_b13_every_rank_and_lane_gets_data_though_there_are_fewer_shards_than_lanes() -> None:
    got = [next(iter(small(dp, rank))).real_rows for dp in (1, 2, 4) for rank in range(dp)]
    assert got == [2] * 7


def test_d03_an_evaluation_in_between_neither_starves_nor_restarts_training() -> None:
    expected = reference(small, 10)
    with Job(small, max_workers=1) as job, Job(lambda **options: small(function=slowly, **options), max_workers=1) as other:
        got = job.steps(5)
        assert len(other.steps(2)) == 2
        got += job.steps(5)
    assert got == expected


def slowly(document: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.002)
    return document


@pytest.mark.parametrize(("runner", "workers"), [("threads", 64), ("process", 12)])
def test_e03_many_workers_start_reliably_for_little_data(runner: str, workers: int) -> None:
    rows = [{"text": text} for text in TEXTS[:20]]
    source = StaticMixtureWorkSource([Dataset.from_dict("d", {"s": InMemoryShard(rows)})], chunk_bytes=50)
    pipeline = (
        Pipeline(source).options(runner=runner, max_workers=workers).tokenize(tokenizer_id="bytes", field="text").batch(1)
    )
    assert len(list(pipeline)) == 20


@pytest.mark.parametrize("mode", [{"runner": "process"}, {"isolated": True}], ids=str)
def test_e05_a_tokenizer_used_before_the_workers_start_does_not_hang_them(mode: dict[str, Any]) -> None:
    load_tokenizer("gpt2").encode(["used in the parent first"] * 100)
    source = StaticMixtureWorkSource([Dataset.from_dict("d", {"s": InMemoryShard([{"text": t} for t in TEXTS[:50]])})])
    pipeline = (
        Pipeline(source).options(max_workers=2, **mode).tokenize(tokenizer_id="gpt2", field="text").pack_flat(32).batch(1)
    )
    begun = time.monotonic()
    assert len(list(pipeline)) > 5
    assert time.monotonic() - begun < 60


KILLED = """
import sys
from tests.engine.parts import until
from tests.engine.recipes import small
if __name__ == "__main__":
    for batch in small(**eval(sys.argv[1])):
        print(batch.step, flush=True)
"""


def run_script(folder: Path, text: str, *arguments: str) -> subprocess.Popen[str]:
    script = folder / "script.py"
    script.write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [{"runner": "process"}, {"isolated": True}], ids=str)
def test_e01_killed_and_started_again_five_times_without_cleaning_up(tmp_path: Path, mode: dict[str, Any]) -> None:
    before = set(os.listdir("/dev/shm"))
    for _ in range(5):
        with run_script(tmp_path, KILLED, repr(mode)) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "0\n"
            process.kill()
    assert until(lambda: set(os.listdir("/dev/shm")) <= before)


ASKED_TO_END = """
import json, os, signal, sys
from tests.engine.parts import until
from tests.engine.recipes import small
from tests.laws import row_digest
if __name__ == "__main__":
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    pipeline = small(**eval(sys.argv[1]))
    pipeline.restore(eval(sys.argv[2])) if len(sys.argv) > 2 else None
    for step in pipeline.steps():
        digest = [row_digest(batch, i) for batch in step for i in range(batch.real_rows)]
        state = pipeline.checkpoint()
        print(json.dumps([digest, repr(state)]), flush=True)
        if asked:
            break
    pipeline.close()
"""


@pytest.mark.parametrize("mode", [{"runner": "process"}, {"isolated": True}], ids=str)
def test_e13_a_sigterm_to_the_whole_group_lets_the_step_finish_and_the_state_be_saved(
    tmp_path: Path, mode: dict[str, Any]
) -> None:
    with run_script(tmp_path, ASKED_TO_END, repr(mode)) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        os.killpg(process.pid, signal.SIGTERM)
        lines = [first, *process.stdout]
        assert process.wait(30) == 0
    taken = [json.loads(line) for line in lines]
    with run_script(tmp_path, ASKED_TO_END, repr(mode), taken[-1][1]) as process:
        assert process.stdout is not None
        follows = json.loads(process.stdout.readline())[0]
        process.kill()
    with Job(small, runner="inline", prefetch_batches=0, addresses=False) as job:  # the script's digests are of rows alone
        expected = job.steps(len(taken) + 1)
    assert [tuple(digest) for digest, _ in taken] == expected[:-1]
    assert tuple(follows) == expected[-1]


def test_f03_starting_on_ten_terabytes_takes_no_memory_and_no_index() -> None:
    before = psutil.Process().memory_info().rss
    sizes = np.full(10_000, 1 << 30, np.int64)  # listed, not there: nothing is read before the first chunk
    dataset = Dataset("huge", format_named("jsonl"), tuple(f"{i:05}.jsonl" for i in range(10_000)), sizes, root="/nowhere")
    source = StaticMixtureWorkSource([dataset], exhausted_policy="repeat")
    plan = source.plan(64)
    chunks = [plan.chunk(lane, position) for lane in range(64) for position in (0, 10**3, 10**6)]
    assert len({(chunk.index, chunk.epoch) for chunk in chunks if chunk is not None}) == len(chunks)
    assert psutil.Process().memory_info().rss - before < 50 << 20


def test_f11_a_rank_reads_and_transforms_its_own_part_only() -> None:
    rows = [{"id": i} for i in range(700)]
    dataset = Dataset.from_dict("d", {f"s{i}": InMemoryShard(rows[i * 100 : (i + 1) * 100]) for i in range(7)})
    seen: list[int] = []
    for rank in range(2):
        calls: list[int] = []

        def count(document: dict[str, Any], calls: list[int] = calls) -> dict[str, Any]:
            calls.append(document["id"])
            return document

        source = StaticMixtureWorkSource([dataset], chunk_bytes=80)
        place = {"dp_degree": 2, "dp_group_id": rank, "canonical_replicas": 4, "global_batch_size": 4, "runner": "inline"}
        list(Pipeline(source).options(**place).map_transform(count, version="1").batch(1))
        assert len(calls) <= 0.6 * len(rows)
        seen += calls
    assert len(set(seen)) == len(seen)
