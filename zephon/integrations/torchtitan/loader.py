"""The loader as TorchTitan's ``(input_dict, labels)`` iterator, with state a lane."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from zephon.batch import SampleBatch
from zephon.errors import ConfigError, ZephonError
from zephon.integrations.torchtitan.base import BaseDataLoader, hidden
from zephon.integrations.torchtitan.checks import check_division
from zephon.integrations.torchtitan.recipe import Wanted, load_recipe
from zephon.ops.tokenizers import Tokenizer, load_tokenizer
from zephon.pipeline.pipeline import Pipeline
from zephon.run.ledger import sequence_digest
from zephon.types import Counts, Json

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100  # TorchTitan's label where nothing is to be learned
TitanBatch = tuple[dict[str, "Tensor"], "Tensor"]


class Delivered(NamedTuple):
    """What this rank's last whole step was made of.

    Args:
        step: from 0.
        digests: SHA-256 of each of its sequences, by slot of the global batch.
        tokens: by dataset, this rank's.
    """

    step: int
    digests: Mapping[int, bytes]
    tokens: Mapping[str, int]


class ZephonDataLoader(BaseDataLoader):
    """Yields ``({"input": int64[B, T], "positions": int64[B, T]}, labels int64[B, T])`` for one data-parallel rank.

    B is TorchTitan's local batch size and T its sequence length. ``positions`` restart at 0 for each document; ``labels`` are
    -100 on padding, where the data says so, and where the next token begins another document. A rank's rows of a step are
    joined in slot order and cut into forwards, so that any local batch size that divides them gives the same global batch.

    Args:
        config: the recipe.
        dp_world_size, dp_rank: of the data-parallel mesh; tensor, pipeline and context peers pass the same rank.
        tokenizer: TorchTitan's, of which ``tokenizer_path`` is read; None takes the recipe's.
        seq_len, local_batch_size: T and B.
        num_tokens_per_batch, max_context_length: B * T and T, where TorchTitan counts in tokens; tensors are then [B * T].

    Raises:
        ConfigError: at construction, when the numbers cannot give the same global batch at every degree.
    """

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """What TorchTitan does not know already; ``global_batch_size`` is filled in by `ZephonTrainer`."""

        recipe: str = ""
        """The path of an experiment file, or package.module:function that returns a Pipeline."""

        lanes: int | None = None
        """Logical streams, which every number of replicas has to divide. None takes the recipe's."""

        infinite: bool = True
        """Whether the data goes on for ever. A finite stream ends at the same step on every rank."""

        held_out: bool = False
        """Of an experiment, its trainer.eval_data and not its training data."""

        fork: bool = False
        """The data begins anew on purpose, with weights from a checkpoint."""

        labels_cross_documents: bool = False
        """Whether the last token of a document learns the first one of the next."""

        global_batch_size: hidden(int) = 0  # type: ignore[valid-type]

        def check(self, *, replicas: int, local_batch_size: int) -> None:
            """As far as numbers go, before there is a loader. Raises ConfigError for those that do not fit together."""
            check_division(
                global_batch_size=self.global_batch_size,
                lanes=replicas if self.lanes is None else self.lanes,
                replicas=replicas,
                local_batch_size=local_batch_size,
            )

    LABEL: ClassVar[int] = IGNORED

    def __init__(
        self,
        config: Any,
        *,
        dp_world_size: int,
        dp_rank: int,
        tokenizer: object = None,
        seq_len: int = 0,
        local_batch_size: int = 0,
        num_tokens_per_batch: int = 0,
        max_context_length: int = 0,
        **_: object,
    ) -> None:
        self._flat = bool(num_tokens_per_batch)
        seq_len = seq_len or max_context_length
        self._rows = local_batch_size or num_tokens_per_batch // seq_len
        _refuse_data_of_torchtitan(config)
        wanted = Wanted(
            tokenizer=_tokenizer(tokenizer),
            seq_len=seq_len,
            infinite=config.infinite,
            global_batch_size=config.global_batch_size,
            lanes=config.lanes,
            dp_world_size=dp_world_size,
            dp_rank=dp_rank,
        )
        config.check(replicas=dp_world_size, local_batch_size=self._rows)
        self._pipeline = load_recipe(config.recipe, wanted, held_out=config.held_out)
        self.lanes = self._pipeline.world.lanes
        self._own_rows = wanted.global_batch_size // dp_world_size
        self._mask_documents = not config.labels_cross_documents
        self._before: Json | None = None  # the state before a step that has not been handed over whole
        self.delivered: Delivered | None = None
        counts = None
        if self._pipeline.definition.source.estimation is not None:
            counts = _measured_once(self)
            self._pipeline.calibrate(counts)
        if config.held_out:
            whole = load_recipe(config.recipe, wanted._replace(dp_world_size=1, dp_rank=0), held_out=True)
            if counts is not None:
                whole.calibrate(counts)
            self._check_predicted(whole, config.recipe)

    def _check_predicted(self, whole: Pipeline, recipe: str) -> None:
        """Every rank looks for itself, as far as the first label. Raises ConfigError: no lane has one."""
        try:
            for microbatches in whole.steps():
                for batch in microbatches:
                    tensors = batch.to_training(return_labels=True, document_mask_loss=self._mask_documents)
                    if bool((tensors["labels"] != self.LABEL).any()):
                        return
        finally:
            whole.close()
        raise ConfigError(
            f"the held-out text of recipe {recipe!r} has no token to predict",
            follows="the validation's loss would be divided by zero",
            remedy="give held-out text with documents of two tokens or more, or leave --validator.enable out",
        )

    def measure(self) -> Counts:
        """Tokens and bytes of each dataset's sample, which a mixture in tokens needs."""
        return self._pipeline.calibrate()

    def __iter__(self) -> Iterator[TitanBatch]:
        """Forwards from the current state on. A step that was not handed over whole begins again."""
        if self._before is not None:
            self._pipeline.load_state_dict(self._before)
            self._before = None
        self._before = self._pipeline.state_dict()
        for microbatches in self._pipeline.steps():
            inputs, positions, labels, delivered = self._step(microbatches)
            for first in range(0, len(labels), self._rows):
                cut = slice(first, first + self._rows)
                if cut.stop >= len(labels):
                    self._before, self.delivered = self._pipeline.state_dict(), delivered
                yield self._shaped(inputs[cut], positions[cut], labels[cut])
        self._before = None

    def _step(self, microbatches: Iterator[SampleBatch]) -> tuple[Tensor, Tensor, Tensor, Delivered]:
        """A step's rows of this rank in slot order; those that the data's end left empty have no label."""
        import torch

        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        digests: dict[int, bytes] = {}
        tokens: dict[str, int] = {}
        step = 0
        for batch in microbatches:
            step, real = batch.step, batch.real_rows
            tensors = batch.to_training(return_labels=True, document_mask_loss=self._mask_documents)
            positions = tensors.get("positions")
            if positions is None:
                positions = torch.arange(tensors["labels"].shape[1]).expand_as(tensors["labels"])
            parts.append((tensors["input_ids"][:real], positions[:real].long(), tensors["labels"][:real]))
            for slot, row in zip(batch.slots.tolist(), np.asarray(batch.fields["input_ids"]), strict=False):
                digests[slot] = sequence_digest(row)
            for name, count in batch.tokens.items():
                tokens[name] = tokens.get(name, 0) + count
        inputs, places, labels = (torch.cat(part) for part in zip(*parts, strict=True))
        if empty := self._own_rows - len(labels):
            shape = (empty, labels.shape[1])
            inputs = torch.cat((inputs, inputs.new_zeros(shape)))
            places = torch.cat((places, torch.arange(shape[1]).expand(shape)))
            labels = torch.cat((labels, labels.new_full(shape, self.LABEL)))
        return inputs, places, labels, Delivered(step, digests, tokens)

    def _shaped(self, inputs: Tensor, positions: Tensor, labels: Tensor) -> TitanBatch:
        if self._flat:
            return {"input": inputs.flatten(), "positions": positions.flatten()}, labels.flatten()
        return {"input": inputs, "positions": positions}, labels

    def state_dict(self) -> Json:
        """One key a lane. Inside a step it is the state before that step. A fresh loader answers without reading anything."""
        return self._pipeline.state_dict() if self._before is None else self._before

    def load_state_dict(self, state: Json) -> None:
        """Goes on from a state of any degree; an empty one changes nothing.

        Raises:
            StateError: of another stream, which is named, or torn, or without a lane that this rank owns.
        """
        if state:
            self._before = None
            self._pipeline.load_state_dict(state)

    def close(self) -> None:
        """Ends the threads of the running iterator, if there is one."""
        self._pipeline.close()


def _measured_once(loader: ZephonDataLoader) -> Counts:
    """Measured by the first rank of the process group, where there is one, and the same on all."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return loader.measure()
    outcome: list[Counts | ZephonError | None] = [None]
    if dist.get_rank() == 0:
        try:
            outcome[0] = dict(loader.measure())
        except ZephonError as error:
            outcome[0] = error
    dist.broadcast_object_list(outcome, src=0)
    if isinstance(outcome[0], ZephonError):
        raise outcome[0]
    assert outcome[0] is not None
    return outcome[0]


def _refuse_data_of_torchtitan(config: object) -> None:
    for name in ("dataset", "dataset_path"):
        if value := getattr(config, name, None):
            raise ConfigError(
                f"--dataloader.{name} {value!r} has no effect with this loader",
                follows="the run would train on something else than its command says",
                remedy="leave it out: --dataloader.recipe names the data",
            )


def _tokenizer(theirs: object) -> Tokenizer | None:
    """The one that TorchTitan loaded from its ``hf_assets_path``."""
    path = getattr(theirs, "tokenizer_path", None)
    if theirs is None:
        return None
    if path is None or not (Path(path) / "tokenizer.json").is_file():
        raise ConfigError(
            f"--hf_assets_path {path!r} holds no tokenizer.json",
            follows="documents could not be tokenized with the model's own tokenizer",
            remedy="download the model's assets, tokenizer.json among them",
        )
    return load_tokenizer(str(path))
