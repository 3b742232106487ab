"""Parts of a dataset by filter, fraction and shard; text of nested and several fields. All of it defines the data."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.io.samples import WRITERS
from zephon import InMemoryShard, Pipeline, StaticMixtureWorkSource
from zephon.errors import ConfigError, DataError
from zephon.io import Dataset, read
from zephon.io.formats import row_groups
from zephon.io.selection import Selection
from zephon.io.where import Range, fields_of, may_hold, rows_where

ROWS = [
    {
        "text": f"document {i}",
        "lang": "en" if i % 3 else "de",
        "score": i / 10,
        "meta": {"by": f"a{i % 4}"},
        "tags": ["t", str(i)],
    }
    for i in range(30)
]


def documents(dataset: Dataset, chunk_bytes: int = 200) -> list[dict[str, Any]]:
    source = StaticMixtureWorkSource(
        [dataset], shuffle_shards=False, shuffle_within_shard=False, stop_after_passes=1, chunk_bytes=chunk_bytes
    )
    chunks = itertools.takewhile(lambda chunk: chunk is not None, (source.plan(1).chunk(0, k) for k in itertools.count()))
    return [row for chunk in chunks if chunk is not None for row in read(dataset, chunk).dicts()]


def write(folder: Path, suffix: str, rows: Sequence[dict[str, Any]] = ROWS) -> Dataset:
    folder.mkdir(exist_ok=True)
    (folder / f"a.{suffix}").write_bytes(WRITERS[suffix](rows))
    return Dataset.from_path("d", str(folder))


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("lang == 'en' and score > 0.8", lambda row: row["lang"] == "en" and row["score"] > 0.8),
        ("not (lang == 'en') or score < .3", lambda row: row["lang"] != "en" or row["score"] < 0.3),
        ("0.5 <= score < 1", lambda row: 0.5 <= row["score"] < 1),
        ("meta.by in ('a1', 'a2') and 't' in tags", lambda row: row["meta"]["by"] in ("a1", "a2")),
        ("len(text) > 10 and '7' not in tags", lambda row: len(row["text"]) > 10 and "7" not in row["tags"]),
        ("2 > score and field('lang') != 'de'", lambda row: row["score"] < 2 and row["lang"] == "en"),
        ("nothing is None and tags is not None", lambda row: True),
        ("nothing < 3 or nothing != 3", lambda row: False),
    ],
)
@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "arrow"])
def test_a_filter_keeps_the_same_documents_in_every_format(tmp_path: Path, suffix: str, where: str, kept: Any) -> None:
    dataset = write(tmp_path, suffix, [row | {"nothing": None} for row in ROWS])
    got = documents(dataset.select(where=where))
    assert [row["text"] for row in got] == [row["text"] for row in ROWS if kept(row)]


def test_row_groups_in_which_no_row_can_pass_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"text": [f"document {i}" for i in range(100)], "year": [1900 + i for i in range(100)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    decoded: list[int] = []
    real = row_groups._read
    monkeypatch.setattr(row_groups, "_read", lambda *args: decoded.append(args[2]) or real(*args))
    dataset = Dataset.from_path("d", str(tmp_path)).select(where="year >= 1955 and year < 1972")
    sizes: list[int] = []
    chunk = StaticMixtureWorkSource([dataset], shuffle_within_shard=False).plan(1).chunk(0, 0)
    assert chunk is not None
    assert [row["year"] for row in read(dataset, chunk, None, sizes).dicts()] == list(range(1955, 1972))
    assert decoded == [5, 6, 7]
    assert sizes == [dataset.size]  # what is measured a byte is measured a byte of the plan


numbers = st.integers(-5, 5)
leaves = st.builds(
    "{} {} {}".format, st.sampled_from("ab"), st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), numbers
) | st.builds("{} in ({}, {})".format, st.sampled_from("ab"), numbers, numbers)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or"]), inner) | st.builds("not ({})".format, inner)
    ),
    max_leaves=5,
)


@settings(max_examples=60)
@given(trees, st.lists(st.tuples(st.none() | numbers, st.none() | numbers), min_size=1, max_size=8))
def test_what_statistics_rule_out_no_document_passes(where: str, rows: list[tuple[int | None, int | None]]) -> None:
    columns = {"a": [a for a, _ in rows], "b": [b for _, b in rows]}
    filled = {name: [value for value in column if value is not None] for name, column in columns.items()}
    ranges = {name: Range(min(column), max(column)) for name, column in filled.items() if column}
    if rows_where(where, columns.__getitem__, len(rows)):
        assert may_hold(where, ranges.get)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("lang = 'en'", "write == to compare"),
        ("__import__('os').system('true')", "is no part of a filter"),
        ("lang.upper() == 'EN'", "is no part of a filter"),
        ("score + 1 > 2", "is no part of a filter"),
        ("score == None", "write `is None`"),
        ("[x for x in score]", "is no part of a filter"),
        ("'a'", "is no part of a filter"),
        ("", "cannot be read"),
    ],
)
def test_what_is_no_filter_is_refused_when_the_dataset_is_made(where: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Selection(where=where)


def test_a_value_that_cannot_be_compared_is_a_bad_document_and_a_column_that_is_not_there_an_error(tmp_path: Path) -> None:
    dataset = write(
        tmp_path / "b", "jsonl", [{"text": "a", "score": 1}, {"text": "b", "score": "high"}, {"text": "c", "score": 2}]
    )
    dataset = dataset.select(where="score > 0")
    with pytest.raises(DataError, match="where='score > 0' cannot be asked"):
        documents(dataset)
    bad: list[DataError] = []
    chunk = StaticMixtureWorkSource([dataset]).plan(1).chunk(0, 0)
    assert chunk is not None
    assert len(read(dataset, chunk, bad)) == 2
    assert len(bad) == 1
    with pytest.raises(ConfigError, match=r"where names the field 'langs', which shard 'a.parquet' does not have; it has"):
        documents(write(tmp_path / "c", "parquet").select(where="langs == 'en'"))


def test_fractions_share_no_document_miss_none_and_do_not_depend_on_the_path(tmp_path: Path) -> None:
    rows = [{"text": f"document {i}"} for i in range(2000)]
    whole = write(tmp_path / "deep", "jsonl", rows)
    above = Dataset.from_path("other", str(tmp_path))
    train, held = whole.select(fraction=(0, 0.9)), above.select(fraction=(0.9, 1))
    first, second = ([row["text"] for row in documents(part, 5000)] for part in (train, held))
    assert sorted(first + second) == sorted(row["text"] for row in rows)
    assert 1740 < len(first) < 1860
    assert [row["text"] for row in documents(train, 700)] == first  # whatever the chunks
    with pytest.raises(ConfigError, match="is no part of all documents"):
        whole.select(fraction=(0.5, 0.5))


def test_shards_are_chosen_by_a_glob_of_their_names(tmp_path: Path) -> None:
    for name in ("web/a.jsonl", "web/b.jsonl", "books/a.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"text": name}) + "\n")
    dataset = Dataset.from_path("d", str(tmp_path))
    assert [row["text"] for row in documents(dataset.select(shards="web/*"))] == ["web/a.jsonl", "web/b.jsonl"]
    with pytest.raises(ConfigError, match=r"none of its 3 shards matches shards='wed/\*'; the first is 'books/a.jsonl'"):
        dataset.select(shards="wed/*")


def test_every_part_of_a_selection_is_part_of_the_datasets_identity() -> None:
    whole = Dataset.from_dict("d", {"a": InMemoryShard(ROWS), "b": InMemoryShard(ROWS)})
    parts = [
        whole,
        whole.select(shards="a"),
        whole.select(where="lang == 'en'"),
        whole.select(where="lang == 'de'"),
        whole.select(fraction=(0, 0.5)),
        whole.select(fraction=(0.5, 1)),
        whole.renamed({"{text} {lang}": "text"}),
    ]
    assert len({part.identity for part in parts}) == len(parts)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "arrow"])
def test_text_is_taken_from_nested_fields_templates_and_lists_of_texts(tmp_path: Path, suffix: str) -> None:
    dataset = write(tmp_path, suffix)
    joined = documents(dataset.renamed({"{{{lang}}} {meta.by}: {text}, {score}\n{tags}": "text"}))
    assert joined[4]["text"] == "{en} a0: document 4, 0.4\nt\n4"
    tokens = {}
    for field in ("meta.by", "tags"):
        source = StaticMixtureWorkSource([dataset], shuffle_shards=False, shuffle_within_shard=False, stop_after_passes=1)
        pipeline = Pipeline(source).options(runner="inline").tokenize(tokenizer_id="bytes", field=field, special_tokens="none")
        ids = np.concatenate([np.asarray(row) for batch in pipeline.batch(1) for row in batch.payload["input_ids"]])
        tokens[field] = bytes(ids.astype(np.uint8)).decode()
    assert tokens["meta.by"] == "".join(row["meta"]["by"] for row in ROWS)
    assert tokens["tags"] == "".join("\n".join(row["tags"]) for row in ROWS)


def test_a_template_whose_field_is_missing_is_a_bad_document_and_one_without_names_is_refused(tmp_path: Path) -> None:
    dataset = write(tmp_path, "jsonl", [{"title": "a", "body": "b"}, {"title": "c"}])
    with pytest.raises(DataError, match=r"field 'body' of '{title}: {body}' holds nothing, not text"):
        documents(dataset.renamed({"{title}: {body}": "text"}))
    for template in ("{}", "{a!r}", "{a:>3}", "{a[0]}", "{a", "a}", "{{a}}"):
        with pytest.raises(ConfigError, match="field="):
            dataset.renamed({template: "text"})


def test_what_two_selections_have_in_common_is_known_where_it_can_be() -> None:
    assert Selection(fraction=(0, 0.9)).disjoint(Selection(fraction=(0.9, 1)))
    assert not Selection(fraction=(0, 0.9)).disjoint(Selection(fraction=(0.8, 1)))
    assert Selection("split == 'a' and x > 1").disjoint(Selection("y < 3 and split == 'b'"))
    assert not Selection("split == 'a' or x > 1").disjoint(Selection("split == 'b'"))
    assert fields_of("a.b == 1 and len(c) > 2 and field('d e') in (1, 2)") == ["a.b", "c", "d e"]
