from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource
from zephon.engine.measure import few_documents
from zephon.errors import DataError
from zephon.types import Sampled


def rows(count: int, *, text: int, beside: int = 0) -> list[dict[str, Any]]:
    """Documents of ``text`` tokens and as many bytes, with some bytes beside them that are no text."""
    return [{"text": "x" * text, "more": "y" * beside} for _ in range(count)]


def data(name: str, *parts: list[dict[str, Any]]) -> Dataset:
    return Dataset.from_dict(name, {f"{i}": InMemoryShard(part) for i, part in enumerate(parts)})


def pipeline(*datasets: Dataset, **options: Any) -> Pipeline:
    source = StaticMixtureWorkSource(datasets, {d.name: 1 for d in datasets}, exhausted_policy="repeat", chunk_bytes=1 << 18)
    made = Pipeline(source).options(**options).tokenize(tokenizer_id="bytes", field="text", special_tokens="none")
    return made.pack_flat(4096, algorithm="wrap").batch(8)


SMALL = data("small", rows(3000, text=1000))


def ratio(sampled: Sampled) -> float:
    return sampled.tokens / sampled.size


def test_large_documents_count_with_their_own_bytes_and_the_realized_shares_are_the_asked_ones() -> None:
    large = data("large", rows(240, text=75_000, beside=25_000))
    made = pipeline(large, SMALL, max_workers=0)
    counts = made.calibrate()
    assert ratio(counts["large"]) == pytest.approx(0.75)
    tokens: Counter[str] = Counter()
    for batch in made:
        tokens.update(batch.tokens)
        if batch.step == 600:
            break
    assert tokens["large"] / tokens.total() == pytest.approx(0.5, abs=0.03)


def test_a_beginning_that_is_unlike_the_rest_has_no_more_than_its_share() -> None:
    changed = data("changed", rows(2000, text=500, beside=3500), rows(8000, text=3500, beside=500))
    found = pipeline(changed, SMALL).calibrate()["changed"]
    assert ratio(found) == pytest.approx(0.2 * 0.125 + 0.8 * 0.875, rel=0.02)
    assert 0 < found.error < 20_000


def test_data_of_one_kind_is_measured_in_few_places_and_small_data_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    sample = StaticMixtureWorkSource.sample
    monkeypatch.setattr(StaticMixtureWorkSource, "sample", lambda self, d, n: asked.append(n) or sample(self, d, n))
    found = pipeline(data("even", rows(10_000, text=1000)), data("few", rows(7, text=5, beside=5))).calibrate()
    assert {name: sampled[:3] for name, sampled in found.items()} == {
        "even": (pytest.approx(8 * 256 * 1024, rel=0.01), pytest.approx(8 * 256 * 1024, rel=0.01), 0),
        "few": (35, 70, 0),
    }
    assert asked == [8, 8]


def test_the_error_is_about_how_far_the_measured_value_is_from_the_true_one() -> None:
    mixed = [rows(1, text=200 + 37 * i % 3000, beside=5000 * i * i % 7919)[0] for i in range(4000)]
    true = sum(len(row["text"]) for row in mixed) / sum(len(row["text"]) + len(row["more"]) for row in mixed)
    found = pipeline(data("mixed", mixed), SMALL).calibrate()["mixed"]
    assert 0 < found.error < 30_000
    assert abs(ratio(found) / true - 1) < 3 * found.error / 1e6


def test_a_dataset_without_a_document_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text((" " * 9_999 + "\n") * 300)
    blank = Dataset.from_path("blank", str(tmp_path))
    with pytest.raises(DataError, match="'blank' holds no document"):
        pipeline(blank, SMALL).calibrate()


def test_a_document_that_is_larger_than_all_that_was_looked_at_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text((" " * 9_999 + "\n") * 295 + json.dumps({"text": "a" * 100_000}) + "\n")
    found = pipeline(Dataset.from_path("late", str(tmp_path)), SMALL).calibrate()["late"]
    assert found.tokens == 100_000


@pytest.mark.parametrize("compressed", [False, True])
def test_every_document_of_a_file_counts_once_with_all_its_bytes(tmp_path: Path, *, compressed: bool) -> None:
    text = "".join(json.dumps({"text": "é" * (n % 1000)}) + "\n" for n in range(0, 500_000, 977))
    path = tmp_path / ("a.jsonl.gz" if compressed else "a.jsonl")
    path.write_bytes(gzip.compress(text.encode()) if compressed else text.encode())
    dataset = Dataset.from_path("file", str(tmp_path))
    found = pipeline(dataset, SMALL).calibrate()["file"]
    if not compressed:
        assert dataset.size < 8 << 18, "looked at completely"
    assert found.size == pytest.approx(dataset.size, rel=0.001)
    assert found.tokens == sum(2 * (n % 1000) for n in range(0, 500_000, 977))
    assert found.error == 0


def test_documents_that_a_filter_or_quarantine_drops_count_with_their_bytes() -> None:
    text, none = rows(500, text=1000), rows(500, text=0, beside=1000)
    half = data("half", [row for both in zip(text, none, strict=True) for row in both])
    source = StaticMixtureWorkSource([half, SMALL], {"half": 1, "small": 1})
    made = Pipeline(source).map_transform(keep_text, version="1")
    made.tokenize(tokenizer_id="bytes", field="text", special_tokens="none")
    assert ratio(made.batch(1).calibrate()["half"]) == pytest.approx(0.5, rel=0.02)


def keep_text(document: dict[str, Any]) -> dict[str, Any] | None:
    return document if document["text"] else None


def test_a_source_with_fewer_documents_than_lanes_is_told_with_how_many_would_fit() -> None:
    def said(lanes: int, *counts: int) -> str | None:
        parts = [data(f"{i}", rows(count, text=100)) for i, count in enumerate(counts)]
        return few_documents(StaticMixtureWorkSource(parts), lanes)

    assert "holds 5 documents for 8 lanes" in str(said(8, 2, 3))
    assert "at most 5 lanes" in str(said(8, 2, 3))
    assert said(5, 2, 3) is said(8, 3000) is None


def test_large_documents_that_are_fewer_than_the_lanes_are_told_by_an_estimate() -> None:
    """Each is longer than a sampled piece, so that the data has enough bytes, and chunks, for all lanes."""
    large = StaticMixtureWorkSource([data("large", rows(20, text=700_000))])
    found = re.search(r"holds about (\d+) documents for 40 lanes", str(few_documents(large, 40)))
    assert found is not None
    assert 10 <= int(found[1]) < 40
    assert few_documents(large, 4) is None
