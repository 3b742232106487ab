"""Experiments whose datasets are parts of files, joined fields or stored ids: one stream on every number of ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.laws import assert_restarts, assert_same_data, reference
from zephon import Pipeline
from zephon.errors import ConfigError
from zephon.ops.tokenizers import load_tokenizer
from zephon.pipeline.experiment import pipeline, with_tokens
from zephon.spec.experiment import RunSpec

DOCUMENTS = [
    {"text": f"document {i} " * (3 + i % 5), "title": f"title {i}", "lang": "en" if i % 3 else "de", "score": i / 300}
    for i in range(300)
]


def spec_of(datasets: dict[str, dict[str, Any]], **options: Any) -> RunSpec:
    return RunSpec.from_dict(
        {
            "name": "x",
            "global_batch_size": 4,
            "lanes": {"count": 4},
            "tokenizer": {"id": "bytes"},
            "pipeline": {"context_length": 32, "shuffle_buffer": 8},
            "trainer": {"steps": 1, "microbatch_size": 1},
            "data": {"datasets": datasets, "chunk_bytes": 1024},
            **options,
        }
    )


def recipe(spec: RunSpec) -> Any:
    def build(dp_degree: int = 1, dp_group_id: int = 0, **options: Any) -> Pipeline:
        built = pipeline(spec, load_tokenizer("bytes"), dp_rank=dp_group_id, dp_size=dp_degree).options(**options)
        built.calibrate()
        return built

    return build


def decoded(spec: RunSpec, steps: int) -> str:
    batches = iter(recipe(spec)(runner="inline"))
    rows = [row for _ in range(steps) for row in next(batches).fields["input_ids"]]
    return "".join(bytes(int(i) for i in row if i < 256).decode(errors="replace") for row in rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    pq.write_table(pa.Table.from_pylist(DOCUMENTS), tmp_path / "b.parquet", row_group_size=20)
    return tmp_path


def test_parts_and_templates_are_one_stream_on_every_number_of_ranks_and_through_every_restart(folder: Path) -> None:
    selected = {
        "lines": {"path": str(folder / "a.jsonl"), "where": "lang == 'en' and score > 0.2", "fraction": [0, 0.7]},
        "others": {"path": str(folder / "a.jsonl"), "fraction": [0.7, 1], "field": "{title}: {text}"},
        "rows": {"path": str(folder / "b.parquet"), "where": "score < 0.5", "shards": "*.parquet", "weight": 2.0},
    }
    build = recipe(spec_of(selected))
    expected = reference(build, 12)
    assert_same_data(build, expected, sizes=(1, 2, 4), runner="threads")
    assert_restarts(build, expected, sizes=(2, 4, 1), every=5)


def test_only_the_selected_documents_are_trained_on(folder: Path) -> None:
    selected = {"path": str(folder / "b.parquet"), "where": "lang == 'de' and score >= 0.9", "field": "{title}|"}
    text = decoded(spec_of({"rows": selected}), 8)
    wanted = {f"title {i}" for i in range(300) if i % 3 == 0 and i >= 270}
    assert {part for part in text.split("|") if part in {f"title {i}" for i in range(300)}} == wanted


def test_stored_ids_are_taken_where_their_tokenizer_is_named_and_no_text_is_mixed_with_them(tmp_path: Path) -> None:
    for name, column in (("a", "input_ids"), ("b", "other")):
        pq.write_table(pa.table({column: [[104, 105, 33]] * 200}), tmp_path / f"{name}.parquet")
    stored = {"a": {"path": str(tmp_path / "a.parquet"), "tokens": "bytes"}}
    stored["b"] = {"path": str(tmp_path / "b.parquet"), "tokens": "bytes", "field": "other"}
    assert set(decoded(spec_of(stored), 8).split("!")[1:-1]) == {"hi"}
    (tmp_path / "c.jsonl").write_text('{"text": "hi"}\n' * 100)
    mixed = spec_of({**stored, "c": {"path": str(tmp_path / "c.jsonl")}})
    with pytest.raises(ConfigError, match=r"data.datasets.a holds token ids, and data.datasets.c text"):
        recipe(mixed)()
    other = spec_of({"a": {"path": str(tmp_path / "a.parquet"), "tokens": "gpt2"}})
    with pytest.raises(ConfigError, match=r"data.datasets.a.tokens='gpt2': ids of another tokenizer"):
        with_tokens(recipe(spec_of(stored))(), other, load_tokenizer("bytes"), "data.datasets", other.data.datasets)


def test_one_file_in_two_datasets_is_refused_unless_its_documents_are_divided(folder: Path) -> None:
    halves = {name: {"path": str(folder / "a.jsonl"), "where": f"lang == '{name}'"} for name in ("en", "de")}
    recipe(spec_of(halves))()
    halves["rest"] = {"path": str(folder / "a.jsonl"), "fraction": [0, 0.1]}
    with pytest.raises(ConfigError, match="are the same file"):
        recipe(spec_of(halves))()
