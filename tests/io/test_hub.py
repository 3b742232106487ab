"""Datasets of the Hugging Face Hub through its own client, against a stand-in of its HTTP interface (`tests.io.hub`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.io.hub import TOKEN, Hub, hub
from tests.io.web import cut_off, short_body, status
from zephon import StaticMixtureWorkSource
from zephon.errors import ConfigError, DataError, NotFound
from zephon.io import Dataset, read, remote
from zephon.io import hub as module
from zephon.io.named import listings, with_revisions
from zephon.io.storage import forget_file_systems
from zephon.spec.experiment import DatasetSpec, RunSpec

huggingface_hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The client reads its endpoint when it is imported, and keeps file systems: both are put aside for a test."""
    monkeypatch.setattr(remote, "FIRST_WAIT_S", 0.001)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    with hub(tmp_path / "hub") as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", running.url + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(huggingface_hub.HfFileSystem, "cachable", False)
        huggingface_hub.HfFileSystem.clear_instance_cache()
        forget_file_systems()
        yield running
        huggingface_hub.HfFileSystem.clear_instance_cache()
        forget_file_systems()


def texts(dataset: Dataset) -> list[str]:
    plan = StaticMixtureWorkSource([dataset], shuffle_shards=False, shuffle_within_shard=False, chunk_bytes=40).plan(1)
    chunks = [plan.chunk(0, position) for position in range(-(-dataset.size // 40))]
    return sorted(row["text"] for chunk in chunks if chunk is not None for row in read(dataset, chunk).dicts())


def lines(word: str) -> dict[str, bytes]:
    return {f"data/{name}.jsonl": f'{{"text": "{word} {name}"}}\n'.encode() * 3 for name in ("a", "b")}


def test_a_branch_is_read_at_the_commit_that_it_stood_for_also_when_it_moves(served: Hub) -> None:
    first = served.commit("main", lines("first"))
    dataset = Dataset.from_path("d", "hf://datasets/org/name/data")
    second = served.commit("main", lines("other"))  # of the same names and sizes
    served.faults += [cut_off, short_body]
    assert texts(dataset) == ["first a"] * 3 + ["first b"] * 3
    assert dataset.revision == first
    later = Dataset.from_path("d", "hf://datasets/org/name@main/data/*.jsonl")
    assert texts(later) == ["other a"] * 3 + ["other b"] * 3
    assert later.identity != dataset.identity
    assert texts(Dataset.from_path("d", f"hf://datasets/org/name@{first}/data/a.jsonl")) == ["first a"] * 3
    assert second != first


def test_the_commit_of_the_first_start_is_that_of_every_later_one(served: Hub) -> None:
    first = served.commit("main", lines("first"))
    spec = RunSpec.from_dict(
        {
            "name": "x",
            "global_batch_size": 1,
            "pipeline": {"context_length": 8},
            "trainer": {"steps": 1},
            "data": {"datasets": {"web": {"path": "hf://datasets/org/name/data"}}},
        }
    )
    begun = with_revisions(spec, {})
    assert begun.data.datasets["web"].revision == first
    before = listings(begun.data.datasets)
    second = served.commit("main", lines("other"))
    again = with_revisions(spec, begun.fields_of("pinned"))
    assert again == begun
    assert listings(again.data.datasets) == before
    assert with_revisions(spec, {}).data.datasets["web"].revision == second
    with pytest.raises(ConfigError, match=r"web.revision=.* of 'here', which has no revisions"):
        listings({"web": DatasetSpec(path="here", revision=first)})


def test_what_is_not_there_or_private_is_said_with_what_to_do(served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    served.commit("main", lines("first"))
    with pytest.raises(NotFound, match=r"the Hub has no dataset 'org/none'"):
        Dataset.from_path("d", "hf://datasets/org/none/data")
    with pytest.raises(NotFound, match=r"with the revision 'v9'"):
        Dataset.from_path("d", "hf://datasets/org/name@v9/data")
    with pytest.raises(ConfigError, match="is no dataset of the Hugging Face Hub"):
        Dataset.from_path("d", "hf://org/name")
    served.private = True
    with pytest.raises((ConfigError, NotFound), match=r"(?s)set HF_TOKEN"):
        Dataset.from_path("d", "hf://datasets/org/name/data")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert len(texts(Dataset.from_path("d", "hf://datasets/org/name/data"))) == 6


def test_without_a_network_it_is_said_at_once_with_what_to_do(served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"the Hub cannot be asked: (?s:.*)hf download org/name --repo-type dataset"):
        Dataset.from_path("d", "hf://datasets/org/name/data")
    assert module.commit_of(f"hf://datasets/org/name@{'a' * 40}/x") == "a" * 40


def test_a_fault_of_the_store_that_stays_ends_with_the_name_of_the_object(served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    served.commit("main", lines("first"))
    dataset = Dataset.from_path("d", "hf://datasets/org/name/data")
    served.faults += [status(403)]
    with pytest.raises((ConfigError, DataError), match=r"data/[ab]\.jsonl: the store refuses"):
        texts(dataset)
