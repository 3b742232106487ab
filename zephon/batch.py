"""SampleBatch: one microbatch of a rank, as the training loop receives it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

import numpy as np
import numpy.typing as npt

from zephon.cursor import RankState
from zephon.spec.fields import named_options
from zephon.types import (
    IGNORE_INDEX,
    TOKEN_FIELDS,
    Address,
    Array,
    Column,
    DocumentSpan,
    DropSummary,
    IntArray,
    Origins,
    Ragged,
)

if TYPE_CHECKING:
    import torch

PositionMode = Literal["preserve", "sequence"]
_POSITION_MODES = get_args(PositionMode)
Tensors = dict[str, Any]
"""Torch tensors by name, arrays where torch is absent; counts are int, columns of text are lists."""


class TrainingOptions(TypedDict, total=False):
    """The options of `SampleBatch.to_training`, for code that hands them on."""

    tokens_field: str
    return_labels: bool
    dtype: npt.DTypeLike | torch.dtype
    extra_fields: Sequence[str]
    ignore_index: int
    rename_fields: Mapping[str, str] | None
    flatten: bool
    exclude_fields: Sequence[str]
    return_num_valid_tokens: bool
    return_loss_mask: bool
    return_cu_seqlens: bool
    return_padding_mask: bool
    eos_mask_loss: bool
    eos_token_id: int | None
    document_mask_loss: bool
    position_mode: PositionMode


@dataclasses.dataclass(eq=False)  # not frozen: made thousands of times a second, and a frozen one takes four times as long
class SampleBatch:
    """Rows of one lane.

    Args:
        fields: columns by name, arrays [rows, max_length] for packed sequences, else lists of rows.
        starts: for packed rows, where segments begin in each row; None for documents.
        used: int64[rows], tokens of each row before its padding.
        step: the optimizer step, from 0.
        microbatch: (index, count) among this rank's microbatches of the step.
        real_rows: rows after these have zero weight and no slot.
        slots: int64[real_rows], each row's place in the global batch.
        tokens: tokens by dataset name, in the order of the datasets.
        state: the loader's state after this batch.
        dropped: documents dropped since this rank's previous batch, by reason, with the first addresses.
        emit_positions: whether `payload` has positions.
        decode: token ids to text, as the pipeline's tokenizer does it; None where the pipeline has none.
        origins: the documents that rows are made of, in numbers.
        address: (number of a dataset, of a shard, row) to the address of a document; None in a batch made by hand.
    """

    fields: Mapping[str, Column]
    starts: Ragged | None
    used: IntArray
    step: int
    microbatch: tuple[int, int]
    real_rows: int
    slots: IntArray
    tokens: Mapping[str, int]
    state: RankState
    emit_positions: bool = True
    dropped: tuple[DropSummary, ...] = ()
    decode: Callable[[Sequence[int]], str] | None = None
    origins: Origins | None = None
    address: Callable[[int, int, int], Address] | None = None

    def __len__(self) -> int:
        return len(self.used)

    def __repr__(self) -> str:
        index, count = self.microbatch
        ids = self.fields.get("input_ids")
        length = f" of {ids.shape[1]:,} tokens" if isinstance(ids, np.ndarray) and ids.ndim == 2 else ""
        where = f"step {self.step}, microbatch {index + 1} of {count}"
        return f"SampleBatch({where}: {self.real_rows} rows{length}, fields {', '.join(self.fields)})"

    def text(self) -> list[str]:
        """The text of each real row, special tokens by their spelling, without padding: for looking at what is trained.

        Raises:
            ValueError: no token ids, or no tokenizer in the pipeline.
        """
        ids = self.fields.get("input_ids")
        if self.decode is None or ids is None:
            raise ValueError("text() needs a pipeline that tokenizes; decode stored ids with load_tokenizer(...).decode(ids)")
        return [self.decode(ids[row][: int(self.used[row])].tolist()) for row in range(self.real_rows)]

    def documents(self) -> list[list[DocumentSpan]]:
        """The documents that each real row is made of, in order: their addresses, and which tokens of the row are theirs.

        What does not fit into a row goes on in another one, where ``offset`` says how much of the document came before. A row
        that is a document by itself has one span. What `map_batch` does to rows is not seen here.

        Raises:
            ValueError: a batch that no pipeline has delivered, or whose rows `map_batch` has made more.
        """
        if self.origins is None or self.address is None:
            raise ValueError("documents() needs a batch as a pipeline delivers it; this one was made by hand")
        return self.origins.spans(self.used[: self.real_rows].tolist(), self.address)

    @functools.cached_property
    def payload(self) -> dict[str, Any]:
        """All columns, with ``positions`` int32[rows, length] that restart at 0 for each document."""
        payload: dict[str, Any] = dict(self.fields)
        if self.starts is not None and self.emit_positions:
            payload["positions"] = self.positions()
        return payload

    def rows(self) -> list[dict[str, Any]]:
        """The real rows, each as one dict of its fields."""
        return [{name: column[i] for name, column in self.payload.items()} for i in range(self.real_rows)]

    def positions(self) -> Array:
        """int32[rows, length]: each token's place in its document; padding counts from 0 as well."""
        if self.starts is None:
            raise ValueError("documents that are not packed have no positions; use pack_flat before batch")
        ids = self.fields["input_ids"]
        assert isinstance(ids, np.ndarray)
        begins = np.zeros(ids.shape, np.int32)
        row = np.repeat(np.arange(len(self)), self.starts.lengths())
        begins[row, self.starts.values] = self.starts.values
        padded = np.flatnonzero(self.used < ids.shape[1])
        begins[padded, self.used[padded]] = self.used[padded]
        np.maximum.accumulate(begins, axis=1, out=begins)
        return np.arange(ids.shape[1], dtype=np.int32) - begins

    def datasets(self) -> Array:
        """int32[rows, length]: each token's dataset, as a place in ``tokens``; padding has that of the token before it.

        Raises:
            ValueError: the rows are not packed.
        """
        if self.starts is None or self.origins is None:
            raise ValueError("only packed rows know the dataset of each token; use pack_flat before batch")
        ids = self.fields["input_ids"]
        assert isinstance(ids, np.ndarray)
        row = np.repeat(np.arange(len(self)), self.starts.lengths())
        begins = row * ids.shape[1] + self.starts.values
        lengths = np.diff(np.append(begins, ids.size))
        datasets: Array = np.repeat(self.origins.owners[:, 0].astype(np.int32), lengths).reshape(ids.shape)
        return datasets

    @named_options
    def to_training(
        self,
        *,
        tokens_field: str = "auto",
        return_labels: bool = False,
        dtype: npt.DTypeLike | torch.dtype = "auto",
        extra_fields: Sequence[str] = (),
        ignore_index: int = -100,
        rename_fields: Mapping[str, str] | None = None,
        flatten: bool = False,
        exclude_fields: Sequence[str] = (),
        return_num_valid_tokens: bool = False,
        return_loss_mask: bool = False,
        return_cu_seqlens: bool = False,
        return_padding_mask: bool = False,
        eos_mask_loss: bool = False,
        eos_token_id: int | None = None,
        document_mask_loss: bool = False,
        position_mode: PositionMode = "preserve",
    ) -> Tensors:
        """The tensors of one microbatch; arrays where torch is absent.

        With B rows of T tokens: ``input_ids`` [B, T] int64, or with labels [B, T - 1], being all tokens but the last, and
        ``labels`` [B, T - 1], all but the first (rows of T = 2,049 tokens, which ``pack_flat(context_length=2048)`` makes,
        give 2,048 of each), with ``ignore_index`` where nothing is to be learned: padding (by position,
        never by id), zero-weight rows, a stored ``loss_mask`` of 0, with ``eos_mask_loss`` wherever the input is EOS, and with
        ``document_mask_loss`` wherever the label is the first token of another document than the input's.
        Stored ``labels``, one in the place of each token as Hugging Face has them, are taken instead of the tokens, and -100 in
        them is ``ignore_index``. ``positions`` [B, T or T - 1] restart at 0 for each document, or run through each row with
        ``position_mode="sequence"``.

        Args:
            tokens_field: name of the tokens, or "auto" for the first of input_ids, tokens, token_ids, ids.
            return_labels: adds ``labels`` and takes the last token from the inputs.
            dtype: NumPy or torch dtype of the tokens; "auto" is int64.
            extra_fields: further columns to hand over under their own names.
            ignore_index: the label where nothing is to be learned.
            rename_fields: old name to new name, applied last.
            flatten: [1, B * T] instead of [B, T], for kernels that take one long row with ``cu_seqlens``.
            exclude_fields: names to take out again.
            return_num_valid_tokens: adds ``num_valid_tokens`` (int), labels that count.
            return_loss_mask: adds ``loss_mask`` float32, 1 where the label counts, or the weight that a stored one has there.
            return_cu_seqlens: adds ``cu_seqlens`` int32 and ``max_seqlen`` (int), segments of the flattened inputs.
            return_padding_mask: adds ``padding_mask`` bool, True on padding.
            eos_mask_loss, eos_token_id: no label counts where the input is this token.
            document_mask_loss: no label counts across the end of a document in a packed row. For models whose attention
                sees one document only: the next one's first token cannot be foreseen from this one.
            position_mode: see above.

        Raises:
            ValueError: something that needs labels without ``return_labels``; a stored ``loss_mask`` with weights other than 0
                and 1 without ``return_loss_mask``, since they would count as 1; missing or misaligned fields; renames that
                collide; positions that do not start at 0.
        """
        needs_labels = {
            "return_loss_mask": return_loss_mask,
            "return_num_valid_tokens": return_num_valid_tokens,
            "eos_mask_loss": eos_mask_loss,
            "document_mask_loss": document_mask_loss,
        }
        _check_options(needs_labels, return_labels, eos_token_id, position_mode)
        tokens = _tokens(self, tokens_field)
        length = tokens.shape[1] - 1 if return_labels else tokens.shape[1]
        inputs = tokens[:, :length]
        out: Tensors = {"input_ids": inputs}
        if return_labels:
            weights = _aligned(self, "loss_mask", tokens)
            if weights is not None and not return_loss_mask and ((weights != 0) & (weights != 1)).any():
                raise ValueError(
                    "the stored loss_mask holds weights other than 0 and 1; ask for return_loss_mask=True and weigh the "
                    "loss by it"
                )
            stored = _aligned(self, "labels", tokens)
            counts = _label_mask(self, weights, length)
            if stored is not None:
                counts &= stored[:, 1:] != IGNORE_INDEX
            if eos_mask_loss:
                counts &= inputs != eos_token_id
            if document_mask_loss:
                counts &= ~_begins(self, tokens.shape)[:, 1:]
            labels = (tokens if stored is None else stored)[:, 1:]
            out["labels"] = np.where(counts, labels.astype(np.int64), ignore_index)
            if return_loss_mask:
                out["loss_mask"] = counts.astype(np.float32)
                if weights is not None:
                    out["loss_mask"] *= weights[:, 1:]
            if return_num_valid_tokens:
                out["num_valid_tokens"] = int(counts.sum())
        positions = _positions(self, length, position_mode)
        if positions is not None:
            out["positions"] = positions
        if return_cu_seqlens:
            out["cu_seqlens"], out["max_seqlen"] = _cu_seqlens(inputs.shape, positions)
        if return_padding_mask:
            out["padding_mask"] = (np.arange(length) >= self.used[:, None]) | ~_real(self)
        for extra in extra_fields:
            out[extra] = _extra(self, extra, length, tokens.shape[1])
        for excluded in exclude_fields:
            out.pop(excluded, None)
        if flatten:
            out = _flattened(out, inputs.shape)
        return _renamed(_tensors(out, dtype), rename_fields or {})


def _check_options(needs_labels: Mapping[str, bool], return_labels: bool, eos_token_id: int | None, position_mode: str) -> None:
    """Raises ValueError for options that contradict each other."""
    for name, wanted in needs_labels.items():
        if wanted and not return_labels:
            raise ValueError(f"{name}=True needs return_labels=True: without labels there is nothing to count or mask")
    if needs_labels["eos_mask_loss"] and eos_token_id is None:
        raise ValueError("eos_mask_loss=True needs eos_token_id=")
    if position_mode not in _POSITION_MODES:
        raise ValueError(f"position_mode={position_mode!r}; use 'preserve' or 'sequence'")


def _tokens(batch: SampleBatch, field: str) -> Array:
    """[B, T]."""
    names = TOKEN_FIELDS if field == "auto" else (field,)
    name = next((name for name in names if name in batch.fields), None)
    if name is None:
        raise ValueError(f"the batch has no tokens under {' or '.join(names)}; it has {sorted(batch.fields)}")
    column = batch.fields[name]
    if not isinstance(column, np.ndarray) or column.ndim != 2:
        raise ValueError(f"{name!r} holds rows of different lengths; pack or pad them before batch")
    return column


def _real(batch: SampleBatch) -> Array:
    """[B, 1]: whether a row has weight."""
    real: Array = np.arange(len(batch))[:, None] < batch.real_rows
    return real


def _label_mask(batch: SampleBatch, weights: Array | None, length: int) -> Array:
    """[B, length]: whether the label at a place counts."""
    counts: Array = (np.arange(1, length + 1) < batch.used[:, None]) & _real(batch)
    return counts if weights is None else counts & (weights[:, 1:] != 0)


def _aligned(batch: SampleBatch, name: str, tokens: Array) -> Array | None:
    """[B, T]: what is stored beside the tokens under this name."""
    if name not in batch.fields:
        return None
    column = np.asarray(batch.fields[name])
    if column.shape != tokens.shape:
        raise ValueError(f"{name} has shape {column.shape}, the tokens {tokens.shape}")
    return column


def _begins(batch: SampleBatch, shape: tuple[int, ...]) -> Array:
    """[B, T]: whether a document, or the rest of one, begins at a place."""
    begins = np.zeros(shape, np.bool_)
    if batch.starts is not None:
        begins[np.repeat(np.arange(len(batch)), batch.starts.lengths()), batch.starts.values] = True
    elif "positions" in batch.fields:  # rows that were packed before they were stored
        positions = np.asarray(batch.fields["positions"])
        if positions.shape != shape:
            raise ValueError(f"positions have shape {positions.shape}, the tokens {shape}")
        begins = positions == 0
    return begins


def _positions(batch: SampleBatch, length: int, mode: PositionMode) -> Array | None:
    if mode == "sequence":
        return np.broadcast_to(np.arange(length, dtype=np.int32), (len(batch), length)).copy()
    positions = batch.payload.get("positions")
    if positions is None:
        return None
    if len(positions) and positions[:, 0].any():
        raise ValueError("positions must start at 0 in every row")
    shown: Array = positions[:, :length]
    return shown


def _cu_seqlens(shape: tuple[int, ...], positions: Array | None) -> tuple[Array, int]:
    if positions is None:
        raise ValueError("return_cu_seqlens=True needs rows with positions; pack them with emit_positions=True")
    begins = np.flatnonzero(positions.reshape(-1) == 0)
    cu = np.append(begins, shape[0] * shape[1]).astype(np.int32)
    return cu, int(np.diff(cu).max(initial=0))


def _extra(batch: SampleBatch, name: str, length: int, full: int) -> Column:
    if name not in batch.payload:
        raise ValueError(f"the batch has no field {name!r}; it has {sorted(batch.payload)}")
    value: Column = batch.payload[name]
    if isinstance(value, np.ndarray) and value.ndim >= 2 and value.shape[1] == full:
        return value[:, :length]
    return value


def _flattened(out: Tensors, shape: tuple[int, ...]) -> Tensors:
    """What has one value a token, as one long row; everything else as it is."""
    aligned = {name: value for name, value in out.items() if isinstance(value, np.ndarray) and value.shape[:2] == shape}
    return {**out, **{name: value.reshape(1, -1, *value.shape[2:]) for name, value in aligned.items()}}


def _renamed(out: Tensors, renames: Mapping[str, str]) -> Tensors:
    for old, new in renames.items():
        if old not in out:
            raise ValueError(f"rename_fields names {old!r}, which is not there; there are {sorted(out)}")
        if new in out and new not in renames:
            raise ValueError(f"renaming {old!r} to {new!r} would hide the field of that name")
    if len(set(renames.values())) < len(renames):
        raise ValueError(f"rename_fields gives one name twice: {sorted(renames.values())}")
    return {renames.get(name, name): value for name, value in out.items()}


def _tensors(out: Tensors, dtype: npt.DTypeLike | torch.dtype) -> Tensors:
    """NumPy to torch where torch is; token ids become int64 or what was asked for."""
    try:
        import torch
    except ImportError:
        wanted = np.int64 if dtype == "auto" else dtype
        return {k: v.astype(wanted) if k in ("input_ids", "labels") else v for k, v in out.items()}
    if not (isinstance(dtype, torch.dtype) or dtype == "auto"):
        dtype = torch.from_numpy(np.empty(0, np.dtype(dtype))).dtype
    tensors: Tensors = {}
    for name, value in out.items():
        if not isinstance(value, np.ndarray):
            tensors[name] = value
        elif value.dtype.kind not in "iufb":
            tensors[name] = value.tolist()  # text and other objects stay as they are
        elif name in ("input_ids", "labels"):
            tensor = torch.from_numpy(value.astype(np.int64))
            tensors[name] = tensor.to(dtype) if isinstance(dtype, torch.dtype) else tensor  # a needless `to` costs time
        else:
            tensors[name] = torch.from_numpy(np.ascontiguousarray(value))
    return tensors
