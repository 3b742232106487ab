"""User code on documents: decode_text, map_transform, stateful_transform."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from zephon.errors import ConfigError, DataError
from zephon.io.field import column_of
from zephon.ops.block import Block, concatenate_filled
from zephon.ops.fields import bad_document, extract_token_columns, mark, put, with_fields
from zephon.ops.functions import identity_of
from zephon.ops.op import Accumulator, AccumulatorOp, Counting, LaneContext, StageOp, free
from zephon.ops.records import SampleRecord, block_of, is_packed, metas, payloads, rows_of
from zephon.spec.fields import OnError, Positive
from zephon.types import Columns, Json, Ragged, Stage

DecodeErrors = Literal["strict", "replace", "ignore", "surrogateescape", "backslashreplace"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeText(StageOp):
    """See `Pipeline.decode_text`."""

    name: ClassVar[str] = "decode_text"

    fields: tuple[str, ...] = ("text",)
    encoding: str = "utf-8"
    errors: DecodeErrors = "strict"
    normalize_newlines: bool = True
    lowercase: bool = False
    on_error: OnError | None = None
    parallelism: Positive | None = free()

    def check(self) -> None:
        super().check()
        try:
            "".encode(self.encoding)
        except LookupError as error:
            raise ConfigError(f"encoding={self.encoding!r} is not known", remedy="use 'utf-8'") from error
        if not self.fields or isinstance(self.fields, str):
            raise ConfigError(f"fields={self.fields!r}", remedy='use fields=("text",)')

    def stage(self) -> Stage:
        return self._run

    def _run(self, columns: Columns) -> Columns:
        records = [dict(record) for record in columns.records] if columns.records is not None else None
        fields = dict(columns.fields)
        for field in self.fields:
            values, present = column_of(columns, field)
            if present is not None:
                missing = int(np.flatnonzero(~present)[0])
                raise bad_document(columns, missing, f"a document has no field {field!r}", "name the right field")
            decoded = [self._decode(columns, i, field, value) for i, value in enumerate(values)]
            if field in fields or records is None:
                fields[field] = decoded
            else:
                for record, text in zip(records, decoded, strict=True):
                    put(record, field, text)
        return with_fields(columns, records, fields)

    def _decode(self, columns: Columns, i: int, field: str, value: Any) -> str:
        if isinstance(value, np.ndarray):
            value = value.tobytes()
        if isinstance(value, (bytes, bytearray, memoryview)):
            try:
                value = str(bytes(value), self.encoding, self.errors)
            except UnicodeDecodeError as error:
                what = f"field {field!r} is not {self.encoding}: {error.reason} at byte {error.start}"
                raise bad_document(columns, i, what, "name the right encoding, or use errors='replace'") from error
        if not isinstance(value, str):
            what = f"field {field!r} holds {type(value).__name__} {str(value)[:40]!r}, neither bytes nor text"
            raise bad_document(columns, i, what, "name the right field")
        if self.normalize_newlines and "\r" in value:
            value = value.replace("\r\n", "\n").replace("\r", "\n")
        text: str = value.lower() if self.lowercase else value
        return text


@dataclasses.dataclass(frozen=True, kw_only=True)
class MapTransform(StageOp):
    """See `Pipeline.map_transform`."""

    name: ClassVar[str] = "map_transform"
    packed: ClassVar[bool] = True

    fn: Callable[[Json], Json | None]
    drop_none: bool = True
    on_error: OnError | None = None
    version: str | None = None
    parallelism: Positive | None = free()

    @functools.cached_property
    def _identity(self) -> Json:
        return identity_of(self.fn, self.version, where=self.name)  # reads source text: too slow for every checkpoint

    def describe(self) -> Json:
        return {"op": self.name, "fn": self._identity, "drop_none": self.drop_none, "on_error": self.on_error}

    def check(self) -> None:
        super().check()
        self.describe()

    def stage(self) -> Stage:
        return self._run

    def _run(self, columns: Columns) -> Columns:
        results, kept = [], []
        for i, document in enumerate(columns.dicts()):
            try:
                result = self._call(document)
            except Exception as error:
                mark(error, columns, i)
                raise
            if result is not None:
                results.append(result)
                kept.append(i)
        rows = np.array(kept, np.int64)
        kept_columns = columns.keep(rows, "map_transform: None")
        # A function may return one object twice, or keep it: what travels on is a copy of the dict.
        mapped = with_fields(kept_columns, [dict(result) for result in results], {})
        return extract_token_columns(mapped) if _had_tokens(columns) else mapped

    def on_rows(self, block: Block) -> tuple[Block, list[int]]:
        results, kept = [], []
        for i, payload in enumerate(payloads(block)):
            result = self._call(payload)
            if result is not None:
                results.append(dict(result))
                kept.append(i)
        rows = block.take(np.array(kept, np.int64))
        return (rows_of(results, rows) if results else rows), kept

    def _call(self, document: Json) -> Json | None:
        result = self.fn(document)
        if result is None and self.drop_none:
            return None
        if not isinstance(result, dict):
            raise DataError(
                f"the function of map_transform returned {type(result).__name__}, not a dict",
                follows="the document would have no fields",
                remedy="return a dict" + ("" if self.drop_none else ", or allow None with drop_none=True"),
            )
        return result


def _had_tokens(columns: Columns) -> bool:
    return any(isinstance(column, Ragged) for column in columns.fields.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatefulTransform(AccumulatorOp):
    """See `Pipeline.stateful_transform`."""

    name: ClassVar[str] = "stateful_transform"

    label: str
    init_state: Callable[[], Any]
    push: Callable[[Any, list[SampleRecord]], tuple[Any, Sequence[SampleRecord | Json]]]
    flush: Callable[[Any], Sequence[SampleRecord | Json]] | None = None
    should_flush: Callable[[Any], bool] | None = None
    transform: Callable[[Json], Json | None] | None = None
    version: str | None = None
    parallelism: Positive | None = free(1)

    @functools.cached_property
    def _identities(self) -> Json:
        functions = {name: getattr(self, name) for name in ("init_state", "push", "flush", "should_flush", "transform")}
        return {
            name: None if fn is None else identity_of(fn, self.version, where=f"stateful_transform {self.label!r}")
            for name, fn in functions.items()
        }

    def describe(self) -> Json:
        return {"op": self.name, "label": self.label, **self._identities}

    def check(self) -> None:
        super().check()
        self.describe()

    def open(self, context: LaneContext) -> Accumulator:
        return _Stateful(self, context)


class _Stateful(Counting):
    """A lane's user state: fresh after each sentinel, so that it never has to be saved."""

    def __init__(self, op: StatefulTransform, context: LaneContext) -> None:
        super().__init__()
        self._op, self._context = op, context
        self._state = self._new_state()
        self._last: Block | None = None

    def push(self, block: Block) -> Block | None:
        op, where = self._op, metas(block, self._context.lane, self._context.sources)
        records = [SampleRecord(payload, meta) for payload, meta in zip(payloads(block), where, strict=True)]
        self._last = block.take(np.array([len(block) - 1]))
        try:
            self._state, out = op.push(self._state, records)
            outputs = [self._block(out, block, records)]
            if op.should_flush is not None and op.should_flush(self._state):
                outputs.append(self._finish(block, records))
        except Exception as error:
            first = records[0].meta
            error.add_note(f"in stateful_transform {op.label!r}, lane {first.lane}, given records from {first} on")
            raise
        return concatenate_filled(outputs)

    def flush(self, *, final: bool) -> Block | None:
        if self._last is None:
            return None
        output = self._finish(self._last, [])
        self._last = None
        return output

    def _finish(self, origins: Block, records: list[SampleRecord]) -> Block | None:
        out: Sequence[SampleRecord | Json] = () if self._op.flush is None else self._op.flush(self._state)
        self._state = self._new_state()
        return self._block(out, origins, records)

    def _new_state(self) -> object:
        try:
            return self._op.init_state()
        except Exception as error:
            error.add_note(f"in init_state of stateful_transform {self._op.label!r}, lane {self._context.lane}")
            raise

    def _block(self, out: Sequence[SampleRecord | Json], origins: Block, records: list[SampleRecord]) -> Block | None:
        """Outputs keep the address of the record they are; what is new has that of the last record pushed."""
        place = {id(record): i for i, record in enumerate(records)}
        new, rows = [], []
        for item in out:
            payload = item.payload if isinstance(item, SampleRecord) else item
            result = payload if self._op.transform is None else self._op.transform(payload)
            if result is None:
                continue
            new.append(dict(result))
            rows.append(place.get(id(item), len(origins) - 1))
        if not new:
            return None
        chosen = origins.take(np.array(rows, np.int64))
        return rows_of(new, chosen) if is_packed(chosen) else block_of(new, chosen, self._context.datasets)
