"""Composed pipelines over small in-memory data: what the laws and the golden digests are applied to.

The data is made by arithmetic alone, so that it is the same for every Python version.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tests.laws import Recipe
from zephon import (
    Dataset,
    InMemoryShard,
    Phase,
    PhasedMixtureWorkSource,
    Pipeline,
    StaticMixtureWorkSource,
    TokenEstimation,
    WorkSource,
)

Build = Callable[[Pipeline], Pipeline]
LANES, GLOBAL_BATCH = 8, 16

CHAT = (
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def text_of(i: int, length: int) -> str:
    return "".join(chr(97 + (i * 7 + j * j) % 26) for j in range(length))


def document(i: int, length: int) -> dict[str, Any]:
    text = text_of(i, length)
    turns = [{"role": "assistant" if t % 2 else "user", "content": text_of(i + t, 1 + (i + t) % 9)} for t in range(1 + i % 4)]
    return {
        "text": text,
        "raw": text.replace("a", "\r\n").encode(),
        "id": i,
        "tokens": [ord(c) for c in text],
        "weights": [j % 3 for j in range(length)],
        "messages": turns,
        "meta": {"body": text},
    }


@functools.cache
def datasets() -> tuple[Dataset, ...]:
    made = []
    for number, (name, count, most) in enumerate((("a", 70, 40), ("b", 45, 90), ("c", 12, 15))):
        rows = [document(number * 1000 + i, (i * 37 + number) % most) for i in range(count)]
        made.append(Dataset.from_dict(name, {"s0": InMemoryShard(rows[: count // 3]), "s1": InMemoryShard(rows[count // 3 :])}))
    return tuple(made)


def source() -> StaticMixtureWorkSource:
    return StaticMixtureWorkSource(
        datasets(),
        {"a": 5, "b": 4, "c": 1},
        seed=11,
        shuffle_within_shard=True,
        exhausted_policy="repeat",
        chunk_bytes=2000,
        token_estimation=TokenEstimation(primer=0.2),
    )


def text(pipeline: Pipeline, **options: Any) -> Pipeline:
    return pipeline.tokenize(tokenizer_id="bytes", field="text", special_tokens="bos_eos", **options)


def chat(pipeline: Pipeline, **options: Any) -> Pipeline:
    return pipeline.tokenize_chat(tokenizer_id="bytes", chat_template=CHAT, **options)


def odd_only(doc: dict[str, Any]) -> dict[str, Any] | None:
    return {**doc, "text": doc["text"] + "!"} if doc["id"] % 2 else None


def fails_at_sevens(doc: dict[str, Any]) -> dict[str, Any]:
    if doc["id"] % 7 == 0:
        raise ValueError(f"document {doc['id']} cannot be used")
    return doc


def mark_rows(row: dict[str, Any]) -> dict[str, Any] | None:
    return {**row, "double": row["input_ids"] * 2} if row["input_ids"][0] % 5 else None


def nothing() -> list[Any]:
    return []


def pairs(state: list[Any], records: list[Any]) -> tuple[list[Any], list[Any]]:
    """Gives documents out two by two, the second first."""
    waiting = state + records
    ready = len(waiting) // 2 * 2
    out = [waiting[i ^ 1] for i in range(ready)]
    return waiting[ready:], out


def keep_all(state: list[Any]) -> list[Any]:
    return state


def length_of(payload: dict[str, Any]) -> int:
    return len(payload["text"]) + 1


PIPELINES: dict[str, Build] = {
    "wrap": lambda p: text(p).pack_flat(24, algorithm="wrap"),
    "wrap, streaming shuffle": lambda p: text(p).pack_flat(24, algorithm="wrap").shuffle(6, seed=1),
    "wrap, block shuffle": lambda p: text(p).pack_flat(24, algorithm="wrap").shuffle(5, seed=1, algorithm="block"),
    "wrap, warm-up shuffle": lambda p: text(p).pack_flat(24, algorithm="wrap").shuffle(8, seed=1, algorithm="block_warmup"),
    "wrap by dataset": lambda p: text(p).pack_flat(24, algorithm="wrap", homogeneity="full"),
    "wrap by group, shuffle": lambda p: (
        text(p).pack_flat(24, algorithm="wrap", homogeneity="group", groups={"x": ["a", "c"], "y": ["b"]}).shuffle(4)
    ),
    "first_fit": lambda p: text(p, max_length=24, truncation=True).pack_flat(24, algorithm="first_fit"),
    "first_fit, few bins, limits": lambda p: text(p).pack_flat(
        32, algorithm="first_fit", num_bins=3, max_sequences_per_bin=2, min_sequence_length=5, drop_oversized=True
    ),
    "best_fit by dataset, shuffle": lambda p: text(p).pack_flat(40, algorithm="best_fit", homogeneity="full").shuffle(4),
    "best_fit_wrap": lambda p: text(p).pack_flat(24, algorithm="best_fit_wrap", num_bins=4),
    "best_fit_wrap, limits": lambda p: text(p).pack_flat(24, algorithm="best_fit_wrap", num_bins=3, max_sequences_per_bin=2),
    "documents shuffled, then wrap": lambda p: text(p).shuffle(7, seed=2).pack_flat(24, algorithm="wrap"),
    "shuffled, tokenized in the lane, wrap by dataset": lambda p: text(p.shuffle(7)).pack_flat(
        24, algorithm="wrap", homogeneity="full"
    ),
    "mixture ensured, then wrap and shuffle": lambda p: (
        text(p).ensure_mixture(max_buffer_size=9).pack_flat(24, algorithm="wrap").shuffle(4)
    ),
    "rows with mixture ensured": lambda p: text(p).pack_flat(24, algorithm="wrap", homogeneity="full").ensure_mixture(),
    "mixture ensured by leaving out": lambda p: (
        text(p).ensure_mixture(max_buffer_size=None, weight_by="samples").pack_flat(24, algorithm="wrap")
    ),
    "filtered": lambda p: text(p.map_transform(odd_only)).pack_flat(24, algorithm="wrap").shuffle(4),
    "bytes decoded and split": lambda p: (
        p.decode_text(["raw"], lowercase=True)
        .tokenize(tokenizer_id="bytes", field="raw", special_tokens="bos_eos", split_long_samples=True, max_length=10)
        .pack_flat(20, algorithm="best_fit")
    ),
    "chat by tags, wrap": lambda p: chat(p).pack_flat(24, algorithm="wrap"),
    "chat by difference, best_fit": lambda p: (
        chat(p, span_source="prefix_difference", loss_scope="last_span").pack_flat(64, algorithm="best_fit").shuffle(4)
    ),
    "stored tokens with weights": lambda p: p.pack_flat(24, algorithm="wrap"),
    "pairs, then wrap": lambda p: text(p.stateful_transform("pairs", init_state=nothing, push=pairs, flush=keep_all)).pack_flat(
        24, algorithm="wrap"
    ),
    "rows in pairs": lambda p: (
        text(p).pack_flat(24, algorithm="wrap").stateful_transform("pairs", init_state=nothing, push=pairs, flush=keep_all)
    ),
    "sequences by length of text": lambda p: p.pack_sequences(60, length_fn=length_of).shuffle(3),
    "sequences of tokens, split": lambda p: text(p).pack_sequences(30, algorithm="best_fit_wrap", num_bins=4),
    "documents": lambda p: p.shuffle(9, seed=4),
    "padded documents": lambda p: text(p, padding=True, truncation=True, max_length=16).shuffle(9),
    "rows mapped": lambda p: text(p).pack_flat(24, algorithm="wrap").shuffle(4).map_transform(mark_rows),
    "quarantine": lambda p: (
        text(p.map_transform(fails_at_sevens, on_error="quarantine")).pack_flat(24, algorithm="wrap").shuffle(4)
    ),
    "prefetched": lambda p: text(p.prefetch(3)).pack_flat(24, algorithm="wrap"),
}


def phased_source() -> PhasedMixtureWorkSource:
    """The same datasets in three phases: c joins with a change, b leaves."""
    phases = [
        Phase({"a": 5, "b": 4}, until="1500 tokens"),
        Phase({"a": 2, "b": 2, "c": 1}, until="4000 tokens", change="linear"),
        Phase({"a": 1, "c": 2}),
    ]
    return PhasedMixtureWorkSource(datasets(), phases, seed=11, chunk_bytes=300, token_estimation=TokenEstimation(primer=0.053))


def recipe(build: Build, of: Callable[[], WorkSource] = source) -> Recipe:
    """8 lanes, a global batch of 16, a flush every 3 chunks."""

    def make(dp_degree: int = 1, dp_group_id: int = 0, microbatch_size: int = 2, **options: Any) -> Pipeline:
        fixed: dict[str, Any] = {
            "canonical_replicas": LANES,
            "global_batch_size": GLOBAL_BATCH,
            "flush_every_k_chunks": 3,
            "runner": "inline",
            "prefetch_batches": 0,
            "quarantine_budget": 1000,
        }
        pipeline = Pipeline(of()).options(**{**fixed, "dp_degree": dp_degree, "dp_group_id": dp_group_id, **options})
        return build(pipeline).batch(microbatch_size)

    return make
