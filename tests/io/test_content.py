"""Content identity: an edit that keeps a file's length is noticed by name, and a file is hashed once; data that grow."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.io.web import serving
from zephon import StaticMixtureWorkSource
from zephon.io import Dataset, content
from zephon.io.content import content_of
from zephon.io.named import listings
from zephon.launch.contract import Seen, contract_of, differences
from zephon.spec.experiment import RunSpec


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the shards that were read to be hashed."""
    names: list[str] = []
    real = content._digest
    monkeypatch.setattr(content, "_digest", lambda dataset, n: names.append(dataset.shards[n]) or real(dataset, n))
    return names


def write(folder: Path, **files: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.jsonl").write_text(f'{{"text": "{text}"}}\n' * 3)


@pytest.mark.parametrize("far", [False, True])
def test_each_shard_is_hashed_once_and_an_edit_of_the_same_length_is_seen(tmp_path: Path, hashed: list[str], far: bool) -> None:
    folder = tmp_path / "data"
    write(folder, a="first", b="other")
    with serving(folder) as web:
        path = f"{web.url}/" if far else str(folder)
        before = content_of(Dataset.from_path("d", path))
        assert sorted(hashed) == ["a.jsonl", "b.jsonl"]
        assert content_of(Dataset.from_path("d", path)) == before
        assert len(hashed) == 2
        write(folder, b="OTHER")
        after = content_of(Dataset.from_path("d", path))
    assert hashed[2:] == ["b.jsonl"]
    assert [name for name in before if before[name] != after[name]] == ["b.jsonl"]


def test_a_contract_by_content_refuses_the_edit_by_name_and_one_by_names_does_not_see_it(tmp_path: Path) -> None:
    write(tmp_path / "data", a="first", b="other")
    fields = {
        "name": "x",
        "global_batch_size": 1,
        "pipeline": {"context_length": 8},
        "trainer": {"steps": 1},
        "data": {"datasets": {"web": {"path": str(tmp_path / "data")}}},
    }
    spec = RunSpec.from_dict(fields)
    by_content = dataclasses.replace(spec, data=dataclasses.replace(spec.data, identity="content"))

    def seen(of: RunSpec) -> Seen:
        return Seen(files=listings(of.data.datasets, content=of.data.identity == "content"))

    named, hashed = contract_of(spec, seen=seen(spec)), contract_of(by_content, seen=seen(by_content))
    assert differences(named, spec, seen=seen(spec)) == differences(hashed, by_content, seen=seen(by_content)) == []
    write(tmp_path / "data", b="OTHER")
    assert differences(named, spec, seen=seen(spec)) == []
    (difference,) = differences(hashed, by_content, seen=seen(by_content))
    assert difference.field == "data.datasets.web (its files)"
    assert "'b.jsonl' is " in str(difference.run)
    assert "'b.jsonl' is " in str(difference.now)
    assert difference.run != difference.now


def test_new_files_as_a_dataset_of_their_own_change_nothing_in_the_order_of_those_that_were_there(tmp_path: Path) -> None:
    write(tmp_path / "old", **{f"f{i}": f"text {i} " * 300 for i in range(20)})
    write(tmp_path / "new", **{f"g{i}": f"more {i} " * 300 for i in range(7)})
    old, new = (Dataset.from_path(name, str(tmp_path / name)) for name in ("old", "new"))

    def visits(*datasets: Dataset) -> list[object]:
        source = StaticMixtureWorkSource(datasets, {of.name: 1.0 for of in datasets}, chunk_bytes=4096)
        plan = source.plan(4)
        chunks = [plan.chunk(lane, position) for position in range(60) for lane in range(4)]
        return [(chunk.epoch, chunk.index, chunk.ranges) for chunk in chunks if chunk is not None and chunk.dataset == 0]

    alone, beside = visits(old), visits(old, new)
    by_visit = [sorted(map(str, part[:40])) for part in (alone, beside)]
    assert by_visit[0] == by_visit[1]
