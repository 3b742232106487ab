"""Text to token ids, a chunk at a time, with the special tokens put in."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import numpy as np

from zephon.errors import ConfigError, DataError
from zephon.io.field import column_of
from zephon.ops.fields import bad_document, with_fields
from zephon.ops.op import StageOp, free
from zephon.ops.tokenizers import Tokenizer, Unencodable
from zephon.spec.fields import OnError, Positive, SpecialTokens
from zephon.types import Array, Column, Columns, IntArray, Json, Ragged, Stage

REMEDY = "name the right field, repair the document, or use missing_field='skip' or on_error='quarantine'"
MissingField = Literal["error", "skip"]
SPECIAL = {"bos_eos": (True, True), "bos": (True, False), "eos": (False, True), "none": (False, False)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokenize(StageOp):
    """See `Pipeline.tokenize`."""

    name: ClassVar[str] = "tokenize"

    tokenizer: Tokenizer
    field: str = "text"
    missing_field: MissingField = "error"
    max_length: Positive | None = None
    padding: bool = False
    truncation: bool = False
    split_long_samples: bool = False
    add_attention_mask: bool = True
    special_tokens: SpecialTokens = "eos"
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    preserve_upstream_payload: bool = False
    on_error: OnError | None = None
    parallelism: Positive | None = free()

    def describe(self) -> Json:
        return StageOp.describe(self) | self.tokenizer.describe()

    @property
    def bos(self) -> int | None:
        return self.bos_token_id if self.bos_token_id is not None else self.tokenizer.bos_id

    @property
    def eos(self) -> int | None:
        return self.eos_token_id if self.eos_token_id is not None else self.tokenizer.eos_id

    @property
    def _wants(self) -> tuple[bool, bool]:
        if self.special_tokens == "tokenizer_default":
            return self.bos is not None, self.eos is not None
        return SPECIAL[self.special_tokens]

    def check(self) -> None:
        super().check()
        for wanted, token, word in zip(self._wants, (self.bos, self.eos), ("bos", "eos"), strict=True):
            if wanted and token is None:
                raise ConfigError(
                    f"tokenizer {self.tokenizer.id!r} has no {word.upper()} token, "
                    f"which special_tokens={self.special_tokens!r} needs",
                    follows="documents would run into each other",
                    remedy=f"give {word}_token_id=, or another special_tokens",
                )
        if self.truncation and self.split_long_samples:
            raise ConfigError(
                "truncation and split_long_samples are both on",
                follows="the end of a long document would be both dropped and kept",
                remedy="choose one",
            )
        needs = [word for word in ("truncation", "split_long_samples", "padding") if getattr(self, word)]
        if needs and self.max_length is None:
            raise ConfigError(f"{needs[0]} without max_length", remedy="give max_length=")
        if self.max_length is not None and self.max_length <= sum(self._wants):
            raise ConfigError(
                f"max_length={self.max_length} leaves no room beside {sum(self._wants)} special tokens",
                remedy=f"use at least {sum(self._wants) + 1}",
            )

    def stage(self) -> Stage:
        return self._run

    def _run(self, columns: Columns) -> Columns:
        texts, present = column_of(columns, self.field)
        if present is not None:
            if self.missing_field == "error":
                raise missing(columns, int(np.flatnonzero(~present)[0]), self.field)
            keep = np.flatnonzero(present)
            columns, texts = columns.keep(keep, "tokenize: no field"), [texts[i] for i in keep.tolist()]
        if list in {*map(type, texts)}:
            texts = ["\n".join(text) if _is_texts(text) else text for text in texts]
        try:
            whole = self._encode_whole(texts)
            ids = self.tokenizer.encode(texts) if whole is None else whole
        except Unencodable as error:
            raise bad_document(columns, error.index, f"field {self.field!r}: {error}", REMEDY) from error
        except (TypeError, UnicodeEncodeError, AttributeError) as error:
            raise self._not_text(columns, texts) from error
        source, piece, ids = self._pieces(ids) if whole is None else (None, None, whole)
        fields: dict[str, Column] = {"input_ids": ids}
        if source is not None and piece is not None:
            columns = columns.take(source)
            fields["piece"] = piece
        if self.padding:
            fields.update(self._padded(ids))
        if not self.preserve_upstream_payload:
            return with_fields(columns, None, fields)
        return with_fields(columns, columns.records, {**columns.fields, **fields})

    def _padded(self, ids: Ragged) -> dict[str, Column]:
        """Rows of at least ``max_length``, EOS (or 0) after the text; longer ones stay as they are."""
        lengths = ids.lengths()
        totals = np.maximum(lengths, self.max_length or 0)
        offsets = np.zeros(len(totals) + 1, np.int64)
        np.cumsum(totals, out=offsets[1:])
        real = np.arange(offsets[-1]) - np.repeat(offsets[:-1], totals) < np.repeat(lengths, totals)
        values = np.full(int(offsets[-1]), self.eos or 0, ids.values.dtype)
        values[real] = ids.values
        padded: dict[str, Column] = {"input_ids": Ragged(values, offsets)}
        if self.add_attention_mask:
            padded["attention_mask"] = Ragged(real.astype(np.uint8), offsets)
        return padded

    def _encode_whole(self, texts: list[str]) -> Ragged | None:
        """With special tokens by the back end itself, where it can and documents are neither cut nor split."""
        if self.truncation or self.split_long_samples:
            return None
        wants_bos, wants_eos = self._wants
        return self.tokenizer.backend.encode_between(texts, self.bos if wants_bos else None, self.eos if wants_eos else None)

    def _pieces(self, ids: Ragged) -> tuple[IntArray | None, IntArray | None, Ragged]:
        """Splits or truncates, then puts in BOS and EOS. Returns each piece's document when there are several pieces."""
        wants_bos, wants_eos = self._wants
        n = len(ids)
        starts, lengths = ids.offsets[:-1], ids.lengths()
        has_bos, has_eos = np.full(n, wants_bos), np.full(n, wants_eos)
        source = first = None
        if self.truncation and self.max_length is not None:
            lengths = np.minimum(lengths, self.max_length - wants_bos - wants_eos)
        elif self.split_long_samples and self.max_length is not None:
            # The first piece gives one place to BOS and the last one to EOS; those between are all text.
            full = lengths + wants_bos + wants_eos
            count = np.maximum(1, -(-full // self.max_length))
            source = np.repeat(np.arange(n), count)
            first = np.arange(len(source)) - np.repeat(np.cumsum(count) - count, count)
            last = first == count[source] - 1
            begin = np.where(first == 0, 0, first * self.max_length - wants_bos)
            end = np.minimum((first + 1) * self.max_length - wants_bos, lengths[source])
            starts, lengths = starts[source] + np.minimum(begin, lengths[source]), np.maximum(end - begin, 0)
            has_bos, has_eos = wants_bos & (first == 0), wants_eos & last
        return source, first, assemble(ids.values, starts, lengths, has_bos, has_eos, self.bos, self.eos)

    def _not_text(self, columns: Columns, texts: list[str]) -> DataError:
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                what = f"field {self.field!r} holds {type(text).__name__} {str(text)[:40]!r}, not text"
                if isinstance(text, (bytes, bytearray)):
                    return bad_document(columns, i, what, "put .decode_text() before tokenize")
                return bad_document(columns, i, what, REMEDY)
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                return bad_document(columns, i, f"field {self.field!r} cannot be written as UTF-8: {error.reason}", REMEDY)
        return bad_document(columns, 0, f"field {self.field!r} could not be tokenized", REMEDY)


def _is_texts(value: object) -> bool:
    """Whether a field holds a list of texts, such as paragraphs: they are joined by line ends."""
    return isinstance(value, list) and all(isinstance(part, str) for part in value)


def assemble(
    values: Array, starts: IntArray, lengths: IntArray, has_bos: Array, has_eos: Array, bos: int | None, eos: int | None
) -> Ragged:
    """Slices of ``values`` with BOS before and EOS after where asked."""
    totals = lengths + has_bos + has_eos
    offsets = np.zeros(len(totals) + 1, np.int64)
    np.cumsum(totals, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint32)
    inner = offsets[:-1] + has_bos
    contiguous = len(starts) > 0 and lengths.sum() == len(values) and np.array_equal(starts[1:], (starts + lengths)[:-1])
    if contiguous and len(totals) * 256 > len(out):
        keep = np.ones(len(out), bool)  # many short documents: one masked copy
        keep[offsets[:-1][has_bos]] = False
        keep[offsets[1:][has_eos] - 1] = False
        out[keep] = values
    else:
        for to, start, length in zip(inner.tolist(), starts.tolist(), lengths.tolist(), strict=True):
            out[to : to + length] = values[start : start + length]
    if bos is not None:
        out[offsets[:-1][has_bos]] = bos
    if eos is not None:
        out[offsets[1:][has_eos] - 1] = eos
    return Ragged(out, offsets)


def missing(columns: Columns, index: int, field: str) -> DataError:
    known = sorted({*columns.fields, *(columns.records[index] if columns.records else ())})
    return bad_document(columns, index, f"a document has no field {field!r}; it has {known}", REMEDY)
