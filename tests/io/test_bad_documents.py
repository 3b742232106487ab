"""Documents that cannot be used, whatever the format: an error with the address, or quarantine, the same at every size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.laws import assert_restarts, assert_same_data, reference
from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.errors import DataError

GARBLED = b"caf\xe9"  # Latin-1
GOOD = [f"document {i}" for i in range(40)]
BAD = {5: GARBLED, 6: None, 21: GARBLED, 39: GARBLED}


def text_files(folder: Path) -> None:
    for i, text in enumerate(GOOD):
        (folder / f"{i:02}.txt").write_bytes(GARBLED if i in BAD else text.encode())


def parquet_with_bad_text(folder: Path) -> None:
    """Arrow writes what it is told is text without a look at it."""
    raw = pa.array([BAD.get(i, text.encode()) for i, text in enumerate(GOOD)], pa.binary())
    text = pa.StringArray.from_buffers(len(raw), raw.buffers()[1], raw.buffers()[2], raw.buffers()[0], raw.null_count)
    pq.write_table(pa.table({"n": list(range(len(GOOD))), "text": text}), folder / "a.parquet", row_group_size=7)


def parquet_with_binary(folder: Path) -> None:
    """Bytes where text is wanted: bytes that decode_text cannot read, and null."""
    raw = [BAD.get(i, text.encode()) for i, text in enumerate(GOOD)]
    pq.write_table(pa.table({"text": pa.array(raw, pa.binary())}), folder / "a.parquet")


CASES = {"text": (text_files, False), "string": (parquet_with_bad_text, False), "binary": (parquet_with_binary, True)}


@pytest.fixture(params=sorted(CASES))
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Dataset, bool]:
    write, raw = CASES[request.param]
    write(tmp_path)
    return Dataset.from_path("d", str(tmp_path)), raw


def pipeline(case: tuple[Dataset, bool], *, repeat: bool = False, microbatch_size: int = 1, **options: Any) -> Pipeline:
    dataset, raw = case
    policy = "repeat" if repeat else None
    source = StaticMixtureWorkSource(
        [dataset], shuffle_within_shard=False, chunk_bytes=dataset.size // 5, shuffle_shards=repeat, exhausted_policy=policy
    )
    made = Pipeline(source).options(**{"runner": "inline", "on_error": "quarantine", **options})
    if raw:
        made.decode_text(fields=("text",))
    return made.tokenize(tokenizer_id="bytes", field="text", special_tokens="none").batch(microbatch_size)


def test_the_rest_of_the_file_is_delivered_and_what_is_left_out_is_named(case: tuple[Dataset, bool]) -> None:
    batches = list(pipeline(case))
    assert [bytes(b.payload["input_ids"][0].tolist()).decode() for b in batches] == [
        text for i, text in enumerate(GOOD) if i not in BAD
    ]
    left = [some for batch in batches for some in batch.dropped]
    names = {
        address.row if case[0].format.name == "parquet" else int(address.shard[:2]) for s in left for address in s.addresses
    }
    assert names == set(BAD) - {39}, "what comes behind the last delivered document has no batch to be told with"
    reasons = {some.reason for some in left}
    assert all(reason.startswith("quarantined: ") for reason in reasons)
    assert not any(".parquet" in reason or ".txt" in reason for reason in reasons), "the address says where"
    assert len(reasons) <= 2, "the same fault counts together"


def test_without_quarantine_the_first_of_them_ends_the_run_with_its_address(case: tuple[Dataset, bool]) -> None:
    with pytest.raises(DataError, match=r"UTF-8|utf-8|not text") as caught:
        list(pipeline(case, on_error="raise"))
    place = "shard '05.txt', row 0" if case[0].format.name == "text" else "shard 'a.parquet', row 5"
    assert f"dataset 'd', {place}" in "\n".join(caught.value.__notes__)


def test_they_stay_out_at_every_restart_and_size(case: tuple[Dataset, bool]) -> None:
    def recipe(dp_degree: int = 1, dp_group_id: int = 0, microbatch_size: int = 1, **options: Any) -> Pipeline:
        place = {"dp_degree": dp_degree, "dp_group_id": dp_group_id, "canonical_replicas": 2, "global_batch_size": 4}
        return pipeline(case, repeat=True, microbatch_size=microbatch_size, **{**place, **options})

    expected = reference(recipe, 14)
    assert len(expected) == 14
    assert_same_data(recipe, expected, sizes=(1, 2), runner="threads", max_workers=2)
    assert_restarts(recipe, expected, sizes=(1, 2), every=3)
