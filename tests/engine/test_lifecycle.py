"""Starting and stopping: a hundred times, with an error, with few descriptors, under fork; threads end with their owner."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.engine.parts import quiet, until
from tests.engine.recipes import small, upper
from tests.laws import reference, row_digest
from zephon import Pipeline
from zephon.ops.tokenizers import load_tokenizer


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("zephon-")]


@pytest.fixture(autouse=True)
def nobody_left() -> None:
    quiet()


def test_starting_and_breaking_off_a_hundred_times_leaves_no_thread() -> None:
    for _ in range(100):
        pipeline = small()
        for _batch in pipeline:
            break
        pipeline.close()
    gc.collect()
    assert threads() == []


def test_a_forgotten_pipeline_ends_its_threads() -> None:
    pipeline = small()
    next(iter(pipeline))
    assert threads()
    del pipeline
    gc.collect()
    assert until(lambda: threads() == [])


@pytest.mark.parametrize("options", [{}, {"runner": "process"}, {"isolated": True}], ids=str)
def test_the_descriptors_of_a_process_are_bounded_however_many_batches_it_takes(options: dict[str, Any]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    pipeline = small(**options)
    try:
        kept: list[Any] = []
        batches = iter(pipeline)
        kept += [next(batches) for _ in range(10)]
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(2000):
            kept = [*kept[-9:], next(batches)]
        assert len(os.listdir("/proc/self/fd")) <= before
        digests = [row_digest(batch, 0) for batch in kept]
        next(batches)
        assert digests == [row_digest(batch, 0) for batch in kept]  # kept batches are not written over
    finally:
        pipeline.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_exception_in_the_loop_ends_the_process_at_once(tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text("from tests.engine.recipes import small\nfor batch in small():\n    raise RuntimeError('in the loop')\n")
    done = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": os.getcwd()}, capture_output=True, timeout=30, text=True
    )
    assert done.returncode == 1
    assert "in the loop" in done.stderr


def test_a_second_pass_over_ended_data_is_empty_and_does_not_hang() -> None:
    from zephon import Dataset, InMemoryShard, StaticMixtureWorkSource

    dataset = Dataset.from_dict("d", {"s": InMemoryShard([{"text": "abcdefg"} for _ in range(9)])})
    pipeline = (
        Pipeline(StaticMixtureWorkSource([dataset], shuffle_within_shard=False))
        .tokenize(tokenizer_id="bytes", field="text")
        .pack_flat(8, algorithm="wrap")
    )
    pipeline.batch(2)
    assert len(list(pipeline)) == 4  # 72 tokens: nine rows
    with pytest.warns(UserWarning, match="used up"):
        assert list(pipeline) == []


def _in_fork(function: Any) -> None:
    """Runs a function in a forked child of this process, which has threads; fails when it raises or hangs."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            function()
            status = 0
        finally:
            os._exit(status)
    ended: list[int] = []

    def waited() -> bool:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            ended.append(status)
        return bool(done)

    if not until(waited, 60):
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        pytest.fail("the forked child hung")
    assert ended == [0]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("options", [{}, {"runner": "process"}, {"isolated": True}], ids=str)
def test_a_fork_of_a_running_pipeline_iterates_for_itself_and_disturbs_nobody(options: dict[str, Any]) -> None:
    load_tokenizer("gpt2").encode(["used before the fork"])
    pipeline = small(**options)
    batches = iter(pipeline)
    first = [row_digest(next(batches), 0) for _ in range(3)]

    def child() -> None:
        load_tokenizer("gpt2").encode(["and after it"])
        pipeline.close()
        fresh = small(**options)
        assert [row_digest(batch, 0) for batch, _ in zip(fresh, range(3), strict=False)] == first
        fresh.close()

    _in_fork(child)
    expected = [row_digest(batch, 0) for batch, _ in zip(small(runner="inline", prefetch_batches=0), range(6), strict=False)]
    assert first + [row_digest(next(batches), 0) for _ in range(3)] == expected
    pipeline.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataloader_gives_the_same_batches_with_and_without_a_worker(workers: int) -> None:
    expected = [batch.to_training(return_labels=True) for batch, _ in zip(small(), range(12), strict=False)]
    loader = DataLoader(small().to_torch_dataset(to_training={"return_labels": True}), batch_size=None, num_workers=workers)
    for got, wanted in zip(loader, expected, strict=False):
        assert got.keys() == wanted.keys()
        assert all(torch.equal(got[name], wanted[name]) for name in wanted if isinstance(wanted[name], torch.Tensor))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning")  # torchdata calls it
@pytest.mark.parametrize("workers", [0, 1])
def test_a_stateful_dataloader_resumes_where_it_was_saved(workers: int) -> None:
    def loader() -> Any:
        return StatefulDataLoader(small().to_torch_dataset(), batch_size=None, num_workers=workers)

    expected = [batch.to_training()["input_ids"] for batch, _ in zip(small(), range(12), strict=False)]
    first = loader()
    batches = iter(first)
    for number in range(5):
        assert torch.equal(next(batches)["input_ids"], expected[number])
    state = first.state_dict()
    del batches
    second = loader()
    second.load_state_dict(state)
    for number, batch in zip(range(5, 12), second, strict=False):
        assert torch.equal(batch["input_ids"], expected[number])


def test_two_dataloader_workers_are_refused_because_they_would_repeat_the_data() -> None:
    with pytest.raises(RuntimeError, match=r"ConfigError: DataLoader\(num_workers=2\)"):
        next(iter(DataLoader(small().to_torch_dataset(), batch_size=None, num_workers=2)))


def test_a_pipeline_built_before_its_workers_are_started_is_a_value() -> None:
    gc.collect()  # pipelines that other tests have left behind
    before = threads()
    pipeline = small(function=upper)
    assert pipeline.checkpoint()["step"] == 0
    assert threads() == before
    assert reference(lambda **options: small(function=upper, **options), 2)
