"""Far stores: a good answer in the end, or an error with the object's name; never other data than was asked for."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from tests.io import web
from tests.io.web import Fault, Web, serving, serving_without_ranges
from zephon.errors import ConfigError, DataError, NotFound, StoreFailed
from zephon.io import Dataset, answers, read, remote
from zephon.io.remote import Remote
from zephon.types import Chunk, ShardRange


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(remote, "LONGEST_WAIT_S", 0.002)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Web]:
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "a.jsonl", 200)
    with serving(tmp_path / "data") as running:
        yield running


def write(place: Path, count: int, word: str = "document") -> None:
    place.write_text("".join(json.dumps({"text": f"{word} {i}"}) + "\n" for i in range(count)))


def texts(dataset: Dataset, parts: int = 5) -> list[str]:
    """All documents, read in parts of the shards."""
    documents = []
    for shard, size in enumerate(dataset.sizes.tolist()):
        for start, stop in itertools.pairwise(size * i // parts for i in range(parts + 1)):
            chunk = Chunk(0, 0, 0, (ShardRange(shard, start, stop),))
            documents += [document["text"] for document in read(dataset, chunk).dicts()]
    return documents


EXPECTED = [f"document {i}" for i in range(200)]


def test_a_server_with_ranges_is_asked_for_parts_and_gives_the_files_documents(
    server: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zephon.io.formats.jsonl._TAIL", 50)
    assert texts(Dataset.from_path("d", f"{server.url}/a.jsonl")) == EXPECTED
    assert all(request[2] for request in server.requests if request[0] == "GET")


def test_a_server_without_ranges_gives_the_same_documents_and_each_file_once(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", 4000)
    with serving_without_ranges(tmp_path) as url:
        assert texts(Dataset.from_path("d", f"{url}/a.jsonl")) == [f"document {i}" for i in range(4000)]


def test_a_folder_of_a_web_server_is_listed_with_sizes(server: Web) -> None:
    write(server.folder / "b.jsonl", 3, "second")
    dataset = Dataset.from_path("d", f"{server.url}/")
    assert dataset.shards == ("a.jsonl", "b.jsonl")
    assert dataset.sizes.tolist() == [(server.folder / name).stat().st_size for name in dataset.shards]
    assert texts(dataset) == [*EXPECTED, "second 0", "second 1", "second 2"]


@pytest.mark.parametrize(
    "fault", [web.status(503), web.status(429), web.status(500), web.short_body, web.cut_off, web.reset, web.other_range]
)
def test_what_may_pass_is_tried_again_until_the_answer_is_what_was_asked(server: Web, fault: Fault) -> None:
    dataset = Dataset.from_path("d", f"{server.url}/a.jsonl")
    server.faults = [fault, fault]
    assert texts(dataset) == EXPECTED


def test_a_listing_is_tried_again_too_and_a_store_that_is_down_is_not_a_file_that_is_missing(server: Web) -> None:
    server.faults = [web.status(503)] * 100
    dataset = Dataset.from_path("d", f"{server.url}/a.jsonl")
    server.faults = []
    assert texts(dataset) == EXPECTED
    with pytest.raises(StoreFailed, match=r"http://127.0.0.1:1/a.jsonl: no good answer in 8 tries"):
        Dataset.from_path("d", "http://127.0.0.1:1/a.jsonl")


def test_a_fault_that_stays_ends_in_one_sentence_with_the_object_and_the_cause(server: Web) -> None:
    dataset = Dataset.from_path("d", f"{server.url}/a.jsonl")
    server.faults = [web.status(503)] * 100
    with pytest.raises(StoreFailed) as caught:
        texts(dataset)
    assert "a.jsonl: no good answer in 8 tries" in caught.value.what
    assert "503" in caught.value.what
    assert len(caught.value.what.splitlines()) == 1
    assert len(server.faults) == 100 - remote.TRIES


def test_a_server_that_goes_silent_is_left_in_bounded_time(server: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "SILENT_S", 0.2)
    dataset = Dataset.from_path("d", f"{server.url}/a.jsonl")
    server.faults = [web.dead]
    assert texts(dataset) == EXPECTED


def test_what_is_refused_is_not_tried_again(server: Web) -> None:
    dataset = Dataset.from_path("d", f"{server.url}/a.jsonl")
    server.faults = [web.status(403)] * 3
    with pytest.raises(ConfigError, match=r"a\.jsonl: the store refuses: .*403"):
        texts(dataset)
    assert len(server.faults) == 2


def test_an_object_of_the_same_length_that_changed_after_the_listing_is_an_error(server: Web) -> None:
    dataset = Dataset.from_path("d", f"{server.url}/a.jsonl")
    write(server.folder / "a.jsonl", 200, "DOCUMENT")
    with pytest.raises(DataError, match=r"a.jsonl has changed since it was listed: it was .* bytes, ETag .*, and is"):
        texts(pickle.loads(pickle.dumps(dataset)))
    assert texts(Dataset.from_path("d", f"{server.url}/a.jsonl"))[0] == "DOCUMENT 0"


@pytest.mark.parametrize("count", [100, 300])
def test_an_object_that_shrank_or_grew_after_the_listing_is_an_error(server: Web, count: int) -> None:
    dataset = Dataset.from_path("d", f"{server.url}/a.jsonl")
    write(server.folder / "a.jsonl", count)
    with pytest.raises(DataError, match="has changed since it was listed"):
        texts(dataset)


def test_an_object_that_is_gone_after_the_listing_is_named(server: Web) -> None:
    dataset = Dataset.from_path("d", f"{server.url}/a.jsonl")
    (server.folder / "a.jsonl").unlink()
    with pytest.raises(NotFound, match=r"a\.jsonl is not there"):
        texts(dataset)


def test_a_store_that_does_not_say_how_long_an_object_is_is_refused(server: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    def chunked(handler: web.Handler, data: bytes, *, head: bool = False) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        if not head:
            handler.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data))

    monkeypatch.setattr(web.Handler, "whole_or_part", chunked)
    with pytest.raises(ConfigError, match=r"a\.jsonl: the store does not say how long it is"):
        Dataset.from_path("d", f"{server.url}/a.jsonl")


def test_a_store_whose_answers_do_not_name_the_content_is_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/changing/a", b"0123456789")
    try:
        fs = Remote(memory)
        assert fs.cat_file("/changing/a", 2, 4) == b"23"
        memory.pipe_file("/changing/a", b"9876543210")
        monkeypatch.setattr(remote, "RECHECK_S", 0.0)
        with pytest.raises(DataError, match="memory:///changing/a has changed since it was listed"):
            fs.cat_file("/changing/a", 2, 4)
    finally:
        memory.rm("/changing", recursive=True)


def test_a_fault_of_ours_is_not_taken_for_one_of_the_store() -> None:
    class Broken(fsspec.AbstractFileSystem):  # type: ignore[misc]
        def info(self, path: str, **_: object) -> dict[str, object]:
            raise TypeError("a mistake in a program")

    with pytest.raises(TypeError, match="a mistake"):
        Remote(Broken()).size("a")


def put(url: str, count: int, word: str = "document") -> None:
    lines = "".join(json.dumps({"text": f"{word} {i}"}) + "\n" for i in range(count))
    fsspec.filesystem("s3").pipe_file(url, lines.encode())


def test_an_object_in_s3_is_read_as_it_was_listed_or_not_at_all(objects: str) -> None:
    put(f"{objects}/data/a.jsonl", 200)
    dataset = Dataset.from_path("d", f"{objects}/data")
    assert texts(dataset) == EXPECTED
    put(f"{objects}/data/a.jsonl", 200, "DOCUMENT")
    with pytest.raises(DataError, match=r"s3://bucket.*a\.jsonl has changed since it was listed: it was .*ETag"):
        texts(pickle.loads(pickle.dumps(dataset)))
    assert texts(Dataset.from_path("d", f"{objects}/data"))[0] == "DOCUMENT 0"


def test_a_bucket_that_is_not_there_is_said_at_once(objects: str) -> None:
    with pytest.raises(NotFound):
        Dataset.from_path("d", f"{objects}-of-nobody/data")


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[tuple[Remote, Web]]:
    """A client for S3, and the faulty server that it speaks with."""
    s3fs = pytest.importorskip("s3fs")
    (tmp_path / "bucket").mkdir()
    write(tmp_path / "bucket" / "a.jsonl", 200)
    with serving(tmp_path) as running:
        alone = {"retries": {"max_attempts": 0}}
        fs = s3fs.S3FileSystem(
            key="k",
            secret="s",
            endpoint_url=running.url,
            config_kwargs=alone,
            skip_instance_cache=True,
            use_listings_cache=False,
        )
        fs.retries = 1
        yield Remote(fs), running


SLOW_DOWN = web.s3_error(503, "SlowDown", "Please reduce your request rate.")
INTERNAL = web.s3_error(500, "InternalError", "We encountered an internal error.")


@pytest.mark.parametrize("fault", [SLOW_DOWN, INTERNAL, web.short_body, web.cut_off, web.reset, web.other_range])
def test_s3_is_tried_again_until_the_answer_is_what_was_asked(bucket: tuple[Remote, Web], fault: Fault) -> None:
    fs, server = bucket
    server.faults = [fault, fault]
    assert fs.cat_file("bucket/a.jsonl", 100, 300) == (server.folder / "bucket" / "a.jsonl").read_bytes()[100:300]
    assert server.faults == []


@pytest.mark.parametrize(
    "fault, words",
    [
        (web.s3_error(400, "ExpiredToken", "The provided token has expired."), "token has expired"),
        (web.s3_error(403, "AccessDenied", "Access Denied"), "Access Denied"),
        (web.s3_error(400, "AuthorizationHeaderMalformed", "the region is wrong; expecting 'eu-west-1'"), "eu-west-1"),
    ],
)
def test_expired_credentials_missing_rights_and_another_region_are_refused_at_once_in_the_stores_words(
    bucket: tuple[Remote, Web], fault: Fault, words: str
) -> None:
    fs, server = bucket
    server.faults = [fault] * 3
    with pytest.raises(ConfigError, match=f"s3://bucket/a.jsonl: the store refuses: .*{words}"):
        fs.cat_file("bucket/a.jsonl", 0, 10)


def test_a_dataset_whose_files_are_far_is_the_same_one_by_its_identity(server: Web) -> None:
    far = Dataset.from_path("d", f"{server.url}/a.jsonl")
    near = Dataset.from_path("d", str(server.folder / "a.jsonl"))
    assert far.identity == near.identity
    assert dataclasses.replace(far, name="other").shards == near.shards
