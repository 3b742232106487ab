"""Chats to token ids with a loss mask.

A template renders the messages; what the model is to learn is a list of spans of that text. Three rules:

1. The text is cut where spans begin and end, and each part is tokenized on its own. So the tokens before a span
   are those that the model will see at inference, where the prompt ends exactly there. A tokenizer that puts a space
   before every text gives each part the ids that it has inside the text (`zephon.ops.chat_inside`).
2. A special token comes from the template alone. Its spelling inside a message is ordinary text: a document cannot
   inject one.
3. A span's source is either ``{% generation %} ... {% endgeneration %}`` in the template, or the difference between the
   text with and without an assistant's message (`prefix_difference`).

    <|user|> Hi <|end|> <|assistant|> Hello! <|end|>
    0        0  0       0             1      1            loss_mask
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from zephon.errors import ConfigError
from zephon.io.field import column_of
from zephon.ops.chat_inside import Crossing, ids_inside
from zephon.ops.chat_parts import ChatPart, Unrenderable, text_of
from zephon.ops.fields import bad_document, with_fields
from zephon.ops.op import StageOp, free
from zephon.ops.tokenize import REMEDY, MissingField, missing
from zephon.ops.tokenizers import Tokenizer, Unencodable
from zephon.spec.fields import OnError, Positive
from zephon.types import Column, Columns, Json, Ragged, Stage

if TYPE_CHECKING:
    from zephon.ops.template import Renderer

_AT_A_BORDER = "let the template begin and end what is learned between two tokens: a space belongs to the word after it"
SpanSource = Literal["auto", "generation_tags", "prefix_difference"]
LossScope = Literal["all_assistant", "last_span", "after_last_user"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizeChat(StageOp):
    """See `Pipeline.tokenize_chat`."""

    name: ClassVar[str] = "tokenize_chat"

    tokenizer: Tokenizer
    field: str = "messages"
    chat_template: str | None = None
    apply_chat_template: bool = True
    span_source: SpanSource = "auto"
    loss_scope: LossScope | None = None
    chat_template_kwargs: Mapping[str, object] | None = None
    tools_field: str | None = "tools"
    max_length: Positive | None = None
    mask_field_out: str = "loss_mask"
    missing_field: MissingField = "error"
    preserve_upstream_payload: bool = False
    on_error: OnError | None = None
    parallelism: Positive | None = free()

    def describe(self) -> Json:
        own = super().describe() | self.tokenizer.describe()
        template = self._template
        own["chat_template"] = template and hashlib.sha256(template.encode()).hexdigest()
        return own

    @property
    def _template(self) -> str | None:
        """What was given, by its name among the tokenizer's own or as a whole; else the tokenizer's."""
        given = self.chat_template
        return dict(self.tokenizer.chat_templates).get(given, given) if given else self.tokenizer.chat_template

    def check(self) -> None:
        super().check()
        if self.max_length is not None and self.max_length < 2:
            raise ConfigError(f"max_length={self.max_length}", remedy="use at least 2")
        if self.apply_chat_template:
            if self._template is None:
                names = [name for name, _ in self.tokenizer.chat_templates]
                if names:
                    raise ConfigError(
                        f"tokenizer {self.tokenizer.id!r} has several chat templates and none is called 'default'",
                        remedy=f"choose one: chat_template= {' or '.join(map(repr, names))}",
                    )
                raise ConfigError(
                    f"tokenizer {self.tokenizer.id!r} has no chat template and none was given",
                    remedy="give chat_template=, or apply_chat_template=False to join the contents as they are",
                )
            renderer = self._renderer
            assert renderer is not None
            renderer.check_clock()
            if self.span_source == "generation_tags" and not renderer.has_tags:
                raise ConfigError(
                    "span_source='generation_tags', but the template has no {% generation %}",
                    follows="no token would be supervised and every document dropped",
                    remedy="mark the assistant's words in the template, or use span_source='prefix_difference'",
                )

    def stage(self) -> Stage:
        return self._run

    @functools.cached_property
    def _renderer(self) -> Renderer | None:
        """Made where it is used: a compiled template cannot travel to another process."""
        if not self.apply_chat_template:
            return None
        from zephon.ops.template import Renderer  # Jinja is loaded by those who use it

        assert self._template is not None
        return Renderer(self._template, self.tokenizer, dict(self.chat_template_kwargs or {}))

    def __getstate__(self) -> Json:
        return {name: value for name, value in self.__dict__.items() if name != "_renderer"}

    def _run(self, columns: Columns) -> Columns:
        renderer = self._renderer
        chats, present = column_of(columns, self.field)
        if present is not None:
            if self.missing_field == "error":
                raise missing(columns, int(np.flatnonzero(~present)[0]), self.field)
            keep = np.flatnonzero(present)
            columns, chats = columns.keep(keep, "tokenize_chat: no field"), [chats[i] for i in keep.tolist()]
        tools = column_of(columns, self.tools_field)[0] if self.tools_field else [None] * len(chats)
        documents = [self._cut(columns, i, chats[i], tools[i], renderer) for i in range(len(chats))]
        if not self.tokenizer.splits_anywhere:
            documents = [_joined(parts) for parts in documents]
        try:
            ids, mask = self._encode(documents)
        except Crossing as error:
            raise bad_document(columns, error.document, str(error), _AT_A_BORDER) from error
        except Unencodable as error:
            raise bad_document(columns, self._unencodable(documents), f"field {self.field!r}: {error}", REMEDY) from error
        if self.max_length is not None:
            ids, mask = _cut_to(ids, self.max_length), _cut_to(mask, self.max_length)
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(mask.values, dtype=np.int64)])
        learned = np.flatnonzero(ends[mask.offsets[1:]] > ends[mask.offsets[:-1]])
        fields: dict[str, Column] = {"input_ids": ids, self.mask_field_out: mask}
        kept = columns.fields if self.preserve_upstream_payload else {}
        records = columns.records if self.preserve_upstream_payload else None
        return with_fields(columns, records, {**kept, **fields}).keep(learned, "tokenize_chat: no supervised token")

    def _cut(self, columns: Columns, i: int, chat: Any, tools: Any, renderer: Renderer | None) -> list[ChatPart]:
        """One document as parts, text or special tokens, each supervised or not."""
        if not isinstance(chat, (list, tuple)) or not all(isinstance(message, dict) and "role" in message for message in chat):
            what = f"field {self.field!r} holds {str(chat)[:60]!r}, not a list of messages with a role"
            raise bad_document(columns, i, what, REMEDY)
        try:
            if renderer is None:
                parts = [ChatPart(text_of(m.get("content")), None, m["role"] == "assistant") for m in chat]
            elif self.span_source == "prefix_difference" or (self.span_source == "auto" and not renderer.has_tags):
                parts = renderer.by_difference(chat, tools)
            else:
                parts = renderer.by_tags(chat, tools)
            return self._scoped(parts, chat)
        except Unrenderable as error:
            raise bad_document(columns, i, f"the chat template cannot take these messages: {error}", REMEDY) from error

    def _unencodable(self, documents: list[list[ChatPart]]) -> int:
        """The first document with a part that has no ids."""
        for number, parts in enumerate(documents):
            try:
                self._encode([parts])
            except Unencodable:
                return number
        raise AssertionError

    def _scoped(self, parts: list[ChatPart], chat: Any) -> list[ChatPart]:
        scope = self.loss_scope or "all_assistant"
        if scope == "all_assistant":
            return parts
        spans = _spans(parts)
        wanted = spans[-1:]
        if scope == "after_last_user":
            roles = [message["role"] for message in chat]
            last = max((i for i, role in enumerate(roles) if role == "user"), default=-1)
            answers = roles.count("assistant")
            if len(spans) != answers:
                raise Unrenderable(f"{answers} assistant messages became {len(spans)} spans: unknown which is which")
            wanted = spans[len(spans) - roles[last + 1 :].count("assistant") :]
        keep = {i for span in wanted for i in span}
        return [part if i in keep else part._replace(learned=False) for i, part in enumerate(parts)]

    def _encode(self, documents: list[list[ChatPart]]) -> tuple[Ragged, Ragged]:
        """All parts of a chunk in one call, then put together by document."""
        parts = [part for document in documents for part in document]
        if self.tokenizer.splits_anywhere:
            encoded = self.tokenizer.encode([part.text for part in parts if part.token is None])
        else:
            encoded = ids_inside(self.tokenizer, documents)
        lengths = np.ones(len(parts), np.int64)
        is_text = np.array([part.token is None for part in parts], bool)
        lengths[is_text] = encoded.lengths()
        learned = np.repeat(np.array([part.learned for part in parts], np.uint8), lengths)
        values = np.empty(int(lengths.sum()), np.uint32)
        from_text = np.repeat(is_text, lengths)
        values[from_text] = encoded.values
        values[~from_text] = [part.token for part in parts if part.token is not None]
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        counts = np.cumsum([0, *(len(document) for document in documents)])
        return Ragged(values, ends[counts]), Ragged(learned, ends[counts])


def _joined(parts: list[ChatPart]) -> list[ChatPart]:
    """The same with texts joined that need no border between them."""
    joined: list[ChatPart] = []
    for part in parts:
        if joined and part.token is None and joined[-1].token is None and part.learned == joined[-1].learned:
            joined[-1] = joined[-1]._replace(text=joined[-1].text + part.text)
        else:
            joined.append(part)
    return joined


def _spans(parts: list[ChatPart]) -> list[list[int]]:
    """Indexes of parts by span; a span's parts carry its number."""
    spans: dict[int, list[int]] = {}
    for i, part in enumerate(parts):
        if part.learned:
            spans.setdefault(part.span, []).append(i)
    return list(spans.values())


def _cut_to(rows: Ragged, most: int) -> Ragged:
    lengths = np.minimum(rows.lengths(), most)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    source = np.repeat(rows.offsets[:-1] - offsets[:-1], lengths) + np.arange(offsets[-1])
    return Ragged(rows.values[source], offsets)
