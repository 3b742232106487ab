"""How good the weights of a finished run are, on documents that no run has seen: the same numbers wherever it was trained.

    bits per byte   of the next token, over all held-out bytes
    top-1           the share of tokens that the model would have written itself
    cloze           four continuations of eight tokens, of which one is the document's own: the likeliest is chosen;
                    accuracy centred by the guess, (accuracy - 1/4) / (3/4), as DCLM's CORE centres it

Everything runs in this process, in one order, so that two evaluations of one model differ by rounding alone.
"""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from experiments.arms import Corpus
from zephon.ops.tokenizers import load_tokenizer
from zephon.run.checkpoints import complete_steps
from zephon.run.directory import RunDir
from zephon.run.specs import newest_spec
from zephon.train import checkpoint
from zephon.train.distributed import ProcessInfo, join
from zephon.train.model import Decoder, assign
from zephon.types import IGNORE_INDEX

PROMPT, CONTINUATION, CHOICES, ITEMS = 24, 8, 4, 400


@dataclasses.dataclass(frozen=True)
class Quality:
    """Args:
    bits: per byte, of each held-out dataset.
    top_1, cloze: over all held-out documents.
    documents: (bits, bytes) of each document over the bytes of its dataset, for intervals of ``mean_bits``.
    """

    bits: dict[str, float]
    top_1: float
    cloze: float
    documents: list[tuple[float, float]]

    @property
    def mean_bits(self) -> float:
        """Every dataset counts the same."""
        return sum(self.bits.values()) / len(self.bits)


def weights(run: RunDir) -> dict[str, Tensor]:
    """The newest checkpoint's parameters, whole."""
    reader = checkpoint.reader(run, complete_steps(run)[-1])
    saved = reader.read_metadata().state_dict_metadata
    names = [name for name in saved if name.startswith("model.")]
    tensors = {name: torch.empty(entry.size) for name in names if isinstance(entry := saved[name], TensorStorageMetadata)}
    membership = join(ProcessInfo(), device=torch.device("cpu"))
    try:
        dcp.load(tensors, storage_reader=reader, process_group=membership.saving)
    finally:
        membership.leave()
    return {name.removeprefix("model."): tensor for name, tensor in tensors.items()}


class Judge:
    """The held-out text, tokenized once."""

    def __init__(self, text: Corpus, length: int) -> None:
        self._tokenizer, self._length = load_tokenizer(text.tokenizer), length
        self._documents: list[tuple[str, list[int], int]] = []
        for file in sorted(text.held_out.glob("*.jsonl")):
            texts = [json.loads(line)["text"] for line in file.read_text().splitlines()]
            ids = self._tokenizer.encode(texts)
            for number, text_ in enumerate(texts):
                own = ids.values[ids.offsets[number] : ids.offsets[number + 1]]
                self._documents.append((file.stem, own.tolist(), len(text_.encode())))
        self._items = self._cloze_items()

    def model(self, run: RunDir) -> Decoder:
        found = weights(run)
        decoder = Decoder(newest_spec(run).model, len(found["embed.weight"]))
        for name, parameter in decoder.named_parameters():
            assign(parameter, found[name])
        return decoder.eval()

    @torch.no_grad()
    def __call__(self, run: RunDir, *, rows: int = 32) -> Quality:
        """Args: rows: in a forward; another number gives another rounding and nothing else."""
        torch.set_num_threads(1)
        decoder = self.model(run)
        by_document = [[0.0, 0] for _ in self._documents]
        right = total = 0
        pieces = [
            (index, ids[first : first + self._length + 1])
            for index, (_, ids, _) in enumerate(self._documents)
            for first in range(0, len(ids) - 1, self._length)
        ]
        for first in range(0, len(pieces), rows):
            part = pieces[first : first + rows]
            inputs, labels = self._padded([ids for _, ids in part])
            logits = decoder(inputs)
            costs = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=IGNORE_INDEX)
            for (index, _), cost in zip(part, costs.view(labels.shape).sum(1).tolist(), strict=True):
                by_document[index][0] += cost / math.log(2)
            right += int((logits.argmax(-1) == labels).sum())
            total += int((labels != IGNORE_INDEX).sum())
        documents = [(bits, size) for (bits, _), (_, _, size) in zip(by_document, self._documents, strict=True)]
        names = sorted({name for name, _, _ in self._documents})
        bits = {}
        for name in names:
            own = [d for d, (of, _, _) in zip(documents, self._documents, strict=True) if of == name]
            bits[name] = math.fsum(b for b, _ in own) / sum(size for _, size in own)
        of = [name for name, _, _ in self._documents]
        bytes_of = {name: sum(size for own, (_, size) in zip(of, documents, strict=True) if own == name) for name in names}
        shares = [(b / bytes_of[name], size / bytes_of[name]) for name, (b, size) in zip(of, documents, strict=True)]
        return Quality(bits, right / total, self._cloze(decoder), shares)

    def _padded(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        inputs = torch.zeros((len(rows), self._length), dtype=torch.int64)
        labels = torch.full_like(inputs, IGNORE_INDEX)
        for number, ids in enumerate(rows):
            inputs[number, : len(ids) - 1] = torch.tensor(ids[:-1])
            labels[number, : len(ids) - 1] = torch.tensor(ids[1:])
        return inputs, labels

    def _cloze_items(self) -> list[tuple[list[int], list[list[int]]]]:
        """(prompt, continuations): the first one is the document's own, the others stand in other documents."""
        random, whole = np.random.default_rng(0), PROMPT + CONTINUATION
        usable = [ids for _, ids, _ in self._documents if len(ids) > whole]
        items = []
        for _ in range(ITEMS):
            own, *others = random.choice(len(usable), CHOICES, replace=False)
            start = int(random.integers(len(usable[own]) - whole))
            piece, wrong = usable[own][start : start + whole], []
            for other in others:
                begin = int(random.integers(len(usable[other]) - CONTINUATION))
                wrong.append(usable[other][begin : begin + CONTINUATION])
            items.append((piece[:PROMPT], [piece[PROMPT:], *wrong]))
        return items

    def _cloze(self, decoder: Decoder) -> float:
        right = 0
        for first in range(0, len(self._items), 32):
            part = self._items[first : first + 32]
            ids = torch.tensor([prompt + choice for prompt, choices in part for choice in choices])
            log = decoder(ids[:, :-1]).log_softmax(-1)[:, PROMPT - 1 :]
            likely = log.gather(-1, ids[:, PROMPT:, None]).sum((1, 2)).view(len(part), CHOICES)
            right += int((likely.argmax(1) == 0).sum())
        return (right / len(self._items) - 1 / CHOICES) / (1 - 1 / CHOICES)
