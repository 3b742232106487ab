"""The ops on single documents: stages, which run on workers, a chunk at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self

from zephon.errors import ConfigError
from zephon.ops.chat import LossScope, SpanSource, TokenizeChat
from zephon.ops.tokenize import MissingField, Tokenize
from zephon.ops.tokenizers import Tokenizer, load_tokenizer
from zephon.ops.transform import DecodeErrors, DecodeText, MapTransform
from zephon.pipeline.chain import Chain
from zephon.spec.fields import OnError, SpecialTokens, named_options
from zephon.types import Payload


class DocumentOps(Chain):
    """One method for each stage."""

    @named_options
    def decode_text(
        self,
        fields: str | Sequence[str] = ("text",),
        encoding: str = "utf-8",
        errors: DecodeErrors = "strict",
        normalize_newlines: bool = True,
        lowercase: bool = False,
        parallelism: int | None = None,
        *,
        on_error: OnError | None = None,
    ) -> Self:
        """Bytes to str, in place.

        Args:
            fields: names, dotted for nested ones.
            encoding, errors: as of `bytes.decode`.
            normalize_newlines: CR LF and CR become LF.
            lowercase: all text in lower case.
            parallelism: workers for all stages; the largest of the stages counts, and ``max_workers`` above it.
            on_error: instead of what `options` says for the dataset.
        """
        names = (fields,) if isinstance(fields, str) else tuple(fields)
        return self._add(
            DecodeText(
                fields=names,
                encoding=encoding,
                errors=errors,
                normalize_newlines=normalize_newlines,
                lowercase=lowercase,
                parallelism=parallelism,
                on_error=on_error,
            )
        )

    @named_options
    def map_transform(
        self,
        fn: Callable[[Payload], Payload | None],
        *,
        drop_none: bool = True,
        parallelism: int | None = None,
        on_error: OnError | None = None,
        version: str | None = None,
    ) -> Self:
        """A document's dict to a new dict, or None to drop it; before `batch` only.

        Before packing and shuffling it runs on workers, after them in the lane's own thread. After `pack_flat` the dict is
        a packed row (``input_ids``, ``positions`` and what was packed beside them) and must keep its length.

        Args:
            fn: stateless; for the same document it must return the same result.
            drop_none: whether None drops the document (counted), or is an error.
            parallelism, on_error: as of `decode_text`.
            version: stands for the function's source text in the fingerprint, where that says too little.
        """
        op = MapTransform(fn=fn, drop_none=drop_none, parallelism=parallelism, on_error=on_error, version=version)
        return self._add(op)

    @named_options
    def tokenize(
        self,
        tokenizer: Tokenizer | None = None,
        tokenizer_id: str | None = None,
        *,
        field: str,
        missing_field: MissingField = "error",
        max_length: int | None = None,
        padding: bool = False,
        truncation: bool = False,
        split_long_samples: bool = False,
        add_attention_mask: bool = True,
        special_tokens: SpecialTokens = "eos",
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        preserve_upstream_payload: bool = False,
        parallelism: int | None = None,
        on_error: OnError | None = None,
    ) -> Self:
        """Text to ``input_ids``.

        Args:
            tokenizer: a loaded tokenizer, or
            tokenizer_id: "gpt2", "bytes" or the path of a tokenizer.json.
            field: the document's field, dotted for nested ones.
            missing_field: "error", or "skip" to drop such documents (counted).
            max_length, truncation, split_long_samples: cut long documents, or split them; the two exclude each other.
            padding: to ``max_length``, for batches of documents that are not packed.
            add_attention_mask: ``attention_mask`` uint8 beside padded documents.
            special_tokens: what is put around each document: "eos" (one after it, as an experiment does), "bos_eos" (GPT-2
                has one id for both, so that two of it come between documents), "bos", "none", "tokenizer_default".
            bos_token_id, eos_token_id: instead of the tokenizer's own.
            preserve_upstream_payload: keep the documents' other fields.
            parallelism, on_error: as of `decode_text`.
        """
        return self._add(
            Tokenize(
                tokenizer=_tokenizer("tokenize", tokenizer, tokenizer_id),
                field=field,
                missing_field=missing_field,
                max_length=max_length,
                padding=padding,
                truncation=truncation,
                split_long_samples=split_long_samples,
                add_attention_mask=add_attention_mask,
                special_tokens=special_tokens,
                bos_token_id=bos_token_id,
                eos_token_id=eos_token_id,
                preserve_upstream_payload=preserve_upstream_payload,
                parallelism=parallelism,
                on_error=on_error,
            )
        )

    @named_options
    def tokenize_chat(
        self,
        tokenizer: Tokenizer | None = None,
        tokenizer_id: str | None = None,
        *,
        field: str = "messages",
        chat_template: str | None = None,
        apply_chat_template: bool = True,
        span_source: SpanSource = "auto",
        loss_scope: LossScope | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        tools_field: str | None = "tools",
        max_length: int | None = None,
        mask_field_out: str = "loss_mask",
        missing_field: MissingField = "error",
        preserve_upstream_payload: bool = False,
        parallelism: int | None = None,
        on_error: OnError | None = None,
    ) -> Self:
        """A list of messages to ``input_ids`` and an aligned, unshifted ``loss_mask`` (uint8, 1 where the model learns).

        Documents without any supervised token are dropped and counted. See `zephon.ops.chat` for how texts are cut.

        Args:
            tokenizer, tokenizer_id: as of `tokenize`.
            field: the messages, each with ``role`` and ``content``.
            chat_template: a Jinja template, or the name of one of the tokenizer's own; None takes its default.
            apply_chat_template: False concatenates the contents as they are; of a list of parts, those that are text.
            span_source: "generation_tags" (``{% generation %}`` in the template), "prefix_difference" (what each assistant
                message adds to the text before it), or "auto" for the tags where the template has any.
            loss_scope: None is "all_assistant".
            chat_template_kwargs: further variables of the template.
            tools_field: the document's tool definitions, where there are any.
            max_length: longer documents are cut.
            mask_field_out: name of the mask.
            missing_field, preserve_upstream_payload: as of `tokenize`.
            parallelism, on_error: as of `decode_text`.
        """
        return self._add(
            TokenizeChat(
                tokenizer=_tokenizer("tokenize_chat", tokenizer, tokenizer_id),
                field=field,
                chat_template=chat_template,
                apply_chat_template=apply_chat_template,
                span_source=span_source,
                loss_scope=loss_scope,
                chat_template_kwargs=chat_template_kwargs,
                tools_field=tools_field,
                max_length=max_length,
                mask_field_out=mask_field_out,
                missing_field=missing_field,
                preserve_upstream_payload=preserve_upstream_payload,
                parallelism=parallelism,
                on_error=on_error,
            )
        )


def _tokenizer(op: str, tokenizer: Tokenizer | None, tokenizer_id: str | None) -> Tokenizer:
    if tokenizer is not None and tokenizer_id is None:
        return tokenizer
    if tokenizer_id is not None and tokenizer is None:
        return load_tokenizer(tokenizer_id)
    raise ConfigError(f"{op} needs either tokenizer or tokenizer_id", remedy="give exactly one")
