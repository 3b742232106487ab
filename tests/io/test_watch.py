"""A read that does not return, as of a network mount whose server has gone, is said with its place and ends in an error."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from tests.engine.parts import quiet, until
from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource
from zephon.errors import StoreFailed
from zephon.io import watch


class Rows(Sequence[Mapping[str, Any]]):
    """Rows that do not come from a place on, once the server has gone, until it is back."""

    def __init__(self, count: int, missing: int) -> None:
        self._rows = [{"text": f"{i:03} a few words"} for i in range(count)]
        self._missing = missing
        self.gone, self.back = False, threading.Event()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        if self.gone and index >= self._missing:
            self.back.wait(60)
        return self._rows[index]


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rows]:
    quiet()  # each loader looks after the reads of the whole process
    monkeypatch.setattr(watch, "PATIENCE", 0.5)
    made = Rows(200, 100)
    yield made
    made.back.set()
    assert until(lambda: not any(thread.name.startswith("zephon-") for thread in threading.enumerate()))


def pipeline_of(rows: Rows, **options: Any) -> Pipeline:
    dataset = Dataset.from_dict("d", {"server/a": InMemoryShard(rows)})
    source = StaticMixtureWorkSource([dataset], shuffle_shards=False, shuffle_within_shard=False, chunk_bytes=160)
    rows.gone = True
    pipeline = Pipeline(source).options(global_batch_size=1, **{"max_workers": 2, **options})
    return pipeline.tokenize(tokenizer_id="bytes", field="text").pack_flat(16, algorithm="wrap").batch(1)


@pytest.mark.filterwarnings("ignore:.*has not returned")
def test_a_read_that_never_returns_is_an_error_of_the_loop_with_the_shard_and_the_byte(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LIMIT", 2.0)
    pipeline, begun, steps = pipeline_of(rows), time.monotonic(), 0
    batches = iter(pipeline)
    try:
        for _ in batches:
            steps += 1
    except StoreFailed as error:
        assert re.match(r"server/a: reading from byte \d+ on has not returned for [\d.]+ s", error.what)  # noqa: PT017
    else:
        pytest.fail("no error")
    assert steps
    assert time.monotonic() - begun < 30
    rows.gone = False
    assert len(list(pipeline)) > 50, "when the server is back the loop goes on where it was"


@pytest.mark.parametrize("options", [{"runner": "inline"}, {"isolated": False}])
def test_a_read_that_takes_long_is_said_and_goes_on(rows: Rows, options: dict[str, Any]) -> None:
    pipeline = pipeline_of(rows, **options)
    threading.Timer(1.5, rows.back.set).start()
    with pytest.warns(UserWarning, match=r"server/a: reading from byte \d+ on has not returned for") as said:
        assert len(list(pipeline)) > 100
    assert 1 <= len([some for some in said if "has not returned" in str(some.message)]) <= 6


def test_nothing_is_said_of_reads_that_return(rows: Rows) -> None:
    rows.back.set()
    pipeline = pipeline_of(rows)
    for _ in pipeline:
        time.sleep(0.004)
