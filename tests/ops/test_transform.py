"""decode_text, map_transform, map_batch, stateful_transform, prefetch: what they do and what they refuse."""

from __future__ import annotations

import dataclasses
import functools
import timeit
from typing import Any

import numpy as np
import pytest

from zephon import Dataset, InMemoryShard, Pipeline, SampleBatch, StaticMixtureWorkSource
from zephon.errors import ConfigError, DataError
from zephon.ops.records import SampleRecord


def pipeline_of(rows: list[dict[str, Any]], **options: Any) -> Pipeline:
    dataset = Dataset.from_dict("d", {"s": InMemoryShard(rows)})
    source = StaticMixtureWorkSource([dataset], shuffle_within_shard=False, shuffle_shards=False, chunk_bytes=40)
    return Pipeline(source).options(**{"runner": "inline", "prefetch_batches": 0, "global_batch_size": 1, **options})


def numbered(n: int) -> list[dict[str, Any]]:
    return [{"id": i, "text": f"{i:06d}"} for i in range(n)]


def column(pipeline: Pipeline, name: str) -> list[Any]:
    return [row for batch in pipeline.batch(1) for row in batch.payload[name]]


# ---- decode_text


def test_bytes_become_text_with_line_feeds_only() -> None:
    rows = [{"text": b"A\r\nb\rc", "meta": {"raw": "\u00c4".encode("latin-1")}, "other": 1}]
    assert column(pipeline_of(rows).decode_text(), "text") == ["A\nb\nc"]
    assert column(pipeline_of(rows).decode_text(normalize_newlines=False, lowercase=True), "text") == ["a\r\nb\rc"]
    assert column(pipeline_of(rows).decode_text(["meta.raw"], encoding="latin-1"), "meta") == [{"raw": "\u00c4"}]
    assert rows[0]["meta"] == {"raw": b"\xc4"}, "the source's own row was changed"


def test_text_that_is_text_already_passes_and_other_things_are_an_error_with_the_address() -> None:
    assert column(pipeline_of([{"text": "as it is"}]).decode_text(), "text") == ["as it is"]
    for value, why in ((3, "neither bytes nor text"), (b"\xff", "is not utf-8: invalid start byte at byte 0")):
        with pytest.raises(DataError, match=why) as caught:
            column(pipeline_of([{"text": "x"}, {"text": value}]).decode_text(), "text")
        assert "row 1" in "".join(caught.value.__notes__)
    assert column(pipeline_of([{"text": b"\xff"}]).decode_text(errors="replace"), "text") == ["\ufffd"]


@pytest.mark.parametrize("options", [{"encoding": "utf-88"}, {"errors": "stric"}, {"fields": ()}, {"lower": True}])
def test_decode_text_refuses_what_it_does_not_know(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        pipeline_of([{"text": b""}]).decode_text(**options)


# ---- map_transform


def doubled(doc: dict[str, Any]) -> dict[str, Any]:
    return {**doc, "twice": doc["id"] * 2}


def evens(doc: dict[str, Any]) -> dict[str, Any] | None:
    return doc if doc["id"] % 2 == 0 else None


def test_a_map_gives_new_documents_and_none_leaves_one_out_counted() -> None:
    batches = list(pipeline_of(numbered(9)).map_transform(doubled).map_transform(evens).batch(1))
    assert [batch.payload["twice"][0] for batch in batches] == [0, 4, 8, 12, 16]
    assert [batch.payload["text"][0] for batch in batches] == ["000000", "000002", "000004", "000006", "000008"]
    left = [item for batch in batches for item in batch.dropped]
    assert {item.reason for item in left} == {"map_transform: None"}
    assert [address.row for item in left for address in item.addresses] == [1, 3, 5, 7][: sum(item.count for item in left)]


def test_none_is_an_error_when_it_may_not_drop_and_so_is_anything_but_a_dict() -> None:
    with pytest.raises(DataError, match="returned NoneType, not a dict"):
        column(pipeline_of(numbered(3)).map_transform(evens, drop_none=False), "id")
    with pytest.raises(DataError, match="returned int, not a dict"):
        column(pipeline_of(numbered(3)).map_transform(lambda doc: doc["id"]), "id")


def test_an_identity_map_changes_nothing_also_after_a_resume() -> None:
    def run(mapped: bool) -> list[int]:
        got, state = [], None
        for _ in range(4):
            pipeline = pipeline_of(numbered(20))
            pipeline = pipeline.map_transform(lambda doc: doc, version="1") if mapped else pipeline
            pipeline.shuffle(5).batch(1)
            if state is not None:
                pipeline.restore(state)
            batches = iter(pipeline)
            got += [next(batches).payload["id"][0] for _ in range(5)]
            state = pipeline.checkpoint()
            pipeline.close()
        return got

    assert run(True) == run(False)
    assert sorted(run(True)) == list(range(20))


def test_a_map_after_tokenize_sees_arrays_and_what_it_adds_is_packed_beside_the_tokens() -> None:
    def with_mask(doc: dict[str, Any]) -> dict[str, Any]:
        assert isinstance(doc["input_ids"], np.ndarray)
        return {**doc, "loss_mask": (doc["input_ids"] % 2).tolist()}

    pipeline = pipeline_of(numbered(9)).tokenize(tokenizer_id="bytes", field="text").map_transform(with_mask)
    for batch in pipeline.pack_flat(10, algorithm="wrap").batch(1):
        ids, mask = np.asarray(batch.fields["input_ids"]), np.asarray(batch.fields["loss_mask"])
        assert mask.dtype == np.uint8
        used = batch.used[0]
        assert (mask[0, :used] == ids[0, :used] % 2).all()


def test_a_map_behind_packing_sees_rows_and_may_not_change_their_length() -> None:
    def build(fn: Any) -> Pipeline:
        pipeline = pipeline_of(numbered(9)).tokenize(tokenizer_id="bytes", field="text", special_tokens="bos_eos")
        return pipeline.pack_flat(10, algorithm="first_fit").map_transform(fn, version="1")

    for batch in build(lambda row: {**row, "first": int(row["input_ids"][0])}).batch(1):
        assert batch.payload["first"].tolist() == [256]
        assert batch.positions()[0, 0] == 0
    with pytest.raises(DataError, match=r"a row of \(9,\) instead of \(10,\)"):
        list(build(lambda row: {**row, "input_ids": row["input_ids"][1:]}).batch(1))


def test_a_map_may_draw_new_document_boundaries_in_a_row() -> None:
    def every_three(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "positions": np.arange(len(row["input_ids"]), dtype=np.int32) % 3}

    pipeline = pipeline_of([{"text": "abcdefgh"}]).tokenize(tokenizer_id="bytes", field="text", special_tokens="none")
    (batch,) = pipeline.pack_flat(8).map_transform(every_three).batch(1)
    assert batch.positions().tolist() == [[0, 1, 2, 0, 1, 2, 0, 1]]


def test_ops_stand_where_they_make_sense_only() -> None:
    with pytest.raises(ConfigError, match="put map_transform before batch"):
        pipeline_of(numbered(1)).batch(1).map_transform(doubled)
    with pytest.raises(ConfigError, match="put it after batch"):
        pipeline_of(numbered(1)).map_batch(lambda batch: batch)
    pipeline = pipeline_of([{"tokens": [1]}]).pack_flat(8).tokenize(tokenizer_id="bytes", field="text").batch(1)
    with pytest.raises(ConfigError, match="tokenize comes after pack_flat"):
        pipeline.describe()


# ---- fingerprints of functions


def scaled(factor: int) -> Any:
    def scale(doc: dict[str, Any]) -> dict[str, Any]:
        return {**doc, "id": doc["id"] * factor}

    return scale


def add(doc: dict[str, Any], n: int) -> dict[str, Any]:
    return {**doc, "id": doc["id"] + n}


def test_a_function_is_its_source_and_what_it_holds() -> None:
    def fingerprint(fn: Any, **options: Any) -> str:
        return pipeline_of(numbered(1)).map_transform(fn, **options).batch(1).fingerprint

    assert fingerprint(scaled(2)) == fingerprint(scaled(2)) != fingerprint(scaled(3))
    assert fingerprint(functools.partial(add, n=1)) != fingerprint(functools.partial(add, n=2))
    assert fingerprint(doubled) != fingerprint(evens)
    assert fingerprint(scaled(2), version="7") == fingerprint(scaled(3), version="7") != fingerprint(scaled(3), version="8")


def test_a_function_without_source_or_with_an_object_needs_a_version() -> None:
    made: dict[str, Any] = {}
    exec("def fn(doc): return doc", made)
    with pytest.raises(ConfigError, match='give version="1"'):
        pipeline_of(numbered(1)).map_transform(made["fn"])
    pipeline_of(numbered(1)).map_transform(made["fn"], version="1")
    with pytest.raises(ConfigError, match=r"holds factor=<object"):
        pipeline_of(numbered(1)).map_transform(scaled(object()))  # type: ignore[arg-type]


def test_a_changed_function_is_refused_on_restore_with_both_values() -> None:
    state = pipeline_of(numbered(3)).map_transform(scaled(2)).batch(1).checkpoint()
    with pytest.raises(ValueError, match=r"holds.factor: saved '2', now '3'"):
        pipeline_of(numbered(3)).map_transform(scaled(3)).batch(1).restore(state)


def test_a_state_is_saved_in_well_under_a_millisecond_also_with_user_code() -> None:
    pipeline = pipeline_of(numbered(3)).map_transform(scaled(2)).map_transform(evens).shuffle(3).batch(1)
    pipeline.checkpoint()
    fastest = min(timeit.repeat(pipeline.checkpoint, number=1, repeat=30))
    assert fastest < 0.001


# ---- map_batch


def tagged(batch: SampleBatch) -> SampleBatch:
    return dataclasses.replace(batch, fields={**batch.fields, "tag": [str(i) for i in batch.payload["id"]]})


def odd_steps(batch: SampleBatch) -> SampleBatch | None:
    return batch if batch.step % 2 else None


def test_map_batch_changes_fields_and_never_the_state() -> None:
    plain, mapped = pipeline_of(numbered(6)).batch(1), pipeline_of(numbered(6)).batch(1).map_batch(tagged)
    for one, other in zip(plain, mapped, strict=True):
        assert other.payload["tag"] == [str(one.payload["id"][0])]
        assert (other.state, other.step, other.slots.tolist()) == (one.state, one.step, one.slots.tolist())
    assert plain.fingerprint != mapped.fingerprint


def test_a_batch_that_is_left_out_keeps_its_place_without_weight() -> None:
    batches = list(pipeline_of(numbered(6)).batch(1).map_batch(odd_steps))
    assert [batch.real_rows for batch in batches] == [0, 1, 0, 1, 0, 1]
    assert [len(batch.slots) for batch in batches] == [0, 1, 0, 1, 0, 1]


def test_an_exception_in_map_batch_names_step_and_slots() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        list(pipeline_of(numbered(2)).batch(1).map_batch(lambda batch: 1 // 0, version="1"))  # type: ignore[arg-type]
    assert "step 0, microbatch (0, 1), slots [0]" in caught.value.__notes__[0]


# ---- stateful_transform


def start() -> dict[str, Any]:
    return {"count": 0, "held": []}


def number(state: dict[str, Any], records: list[SampleRecord]) -> tuple[dict[str, Any], list[Any]]:
    out = []
    for record in records:
        state["count"] += 1
        state["held"].append(record)
        if len(state["held"]) == 2:
            out.append({"pair": [r.payload["id"] for r in state["held"]], "rows": [r.meta.row for r in state["held"]]})
            state["held"] = []
    return state, out


def rest(state: dict[str, Any]) -> list[Any]:
    return [{"pair": [r.payload["id"] for r in state["held"]], "rows": []}] if state["held"] else []


def test_a_state_lives_for_one_flush_interval_and_is_asked_for_the_rest() -> None:
    pipeline = pipeline_of(numbered(7), flush_every_k_chunks=100)
    got = column(pipeline.stateful_transform("pairs", init_state=start, push=number, flush=rest), "pair")
    assert got == [[0, 1], [2, 3], [4, 5], [6]]
    interval = pipeline_of(numbered(9), flush_every_k_chunks=1).stateful_transform(
        "p", init_state=start, push=number, flush=rest
    )
    assert max(len(pair) for pair in column(interval, "pair")) == 2


def test_records_say_where_they_are_from() -> None:
    seen: list[SampleRecord] = []

    def look(state: Any, records: list[SampleRecord]) -> tuple[Any, list[SampleRecord]]:
        seen.extend(records)
        return state, records

    pipeline = pipeline_of(numbered(3)).stateful_transform("look", init_state=start, push=look, version="1")
    assert column(pipeline, "id") == [0, 1, 2]
    assert [(r.meta.dataset, r.meta.shard, r.meta.row, r.meta.lane) for r in seen] == [("d", "s", i, 0) for i in range(3)]


def test_should_flush_empties_the_state_at_once_and_transform_has_the_last_word() -> None:
    def named(payload: dict[str, Any]) -> dict[str, Any] | None:
        return {"pair": payload["pair"]} if payload["pair"] != [2] else None

    def always(state: dict[str, Any]) -> bool:
        return bool(state["held"])

    pipeline = pipeline_of(numbered(3), flush_every_k_chunks=100)
    pipeline.stateful_transform("p", init_state=start, push=number, flush=rest, should_flush=always, transform=named)
    assert all(len(pair) in (1, 2) for pair in column(pipeline, "pair"))


def test_prefetch_changes_nothing_and_is_no_part_of_the_stream() -> None:
    plain, ahead = pipeline_of(numbered(5)), pipeline_of(numbered(5)).prefetch(16, parallelism=2)
    assert column(plain, "id") == column(ahead, "id") == [0, 1, 2, 3, 4]
    assert plain.fingerprint == ahead.fingerprint
