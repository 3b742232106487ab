"""Random inputs for property tests, all in one place."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from zephon import Dataset, InMemoryShard

# Lengths that meet the edges of small rows: empty, one, just around a row, several rows.
document_lengths = st.lists(st.one_of(st.integers(0, 12), st.integers(30, 70)), min_size=1, max_size=40)


@st.composite
def datasets(draw: st.DrawFn, name: str = "d") -> Dataset:
    """An in-memory dataset of text documents, at least one of them not empty, over one to three shards."""
    lengths = [*draw(document_lengths), draw(st.integers(5, 40))]
    shards = draw(st.integers(1, 3))
    rows: list[list[dict[str, Any]]] = [[] for _ in range(shards)]
    for i, length in enumerate(lengths):
        text = "".join(chr(97 + (i * 7 + j) % 26) for j in range(length))
        rows[i % shards].append({"text": text, "id": i})
    return Dataset.from_dict(name, {f"s{i}": InMemoryShard(shard) for i, shard in enumerate(rows)})


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, int]:
    """Sizes of a small stream: lanes, sequences per lane, row length, chunk size, flush interval, shuffle buffer."""
    return {
        "lanes": draw(st.sampled_from([1, 2, 4])),
        "per_lane": draw(st.integers(1, 3)),
        "max_length": draw(st.integers(2, 24)),
        "chunk_bytes": draw(st.sampled_from([3, 17, 64, 300])),
        "flush": draw(st.integers(1, 4)),
        "buffer": draw(st.integers(1, 12)),
    }


def fails_sometimes(doc: dict[str, Any]) -> dict[str, Any]:
    if doc["id"] % 5 == 3:
        raise ValueError("this one fails")
    return doc


def drops_some(doc: dict[str, Any]) -> dict[str, Any] | None:
    return doc if doc["id"] % 3 else None


@st.composite
def chains(draw: st.DrawFn) -> list[tuple[str, dict[str, Any]]]:
    """Op names with options, in an order that a pipeline accepts, for documents with ``text`` and ``id``."""
    ops: list[tuple[str, dict[str, Any]]] = []
    if draw(st.booleans()):
        ops.append(("map_transform", {"fn": draw(st.sampled_from([fails_sometimes, drops_some])), "on_error": "quarantine"}))
    reorder = st.sampled_from(
        [
            ("shuffle", {"buffer_size": draw(st.integers(1, 9)), "seed": draw(st.integers(0, 3))}),
            (
                "shuffle",
                {"buffer_size": draw(st.integers(1, 9)), "algorithm": draw(st.sampled_from(["block", "block_warmup"]))},
            ),
            ("ensure_mixture", {"max_buffer_size": draw(st.sampled_from([1, 4, 50, None]))}),
        ]
    )
    ops += draw(st.lists(reorder, max_size=1))
    cut = draw(st.sampled_from([{}, {"truncation": True, "max_length": 9}, {"split_long_samples": True, "max_length": 7}]))
    ops.append(("tokenize", {"special_tokens": draw(st.sampled_from(["bos_eos", "bos", "eos"])), **cut}))
    ops += draw(st.lists(reorder, max_size=1))
    algorithm = draw(st.sampled_from(["wrap", "first_fit", "best_fit", "best_fit_wrap"]))
    packing: dict[str, Any] = {"max_length": draw(st.integers(9, 24)), "algorithm": algorithm}
    packing["homogeneity"] = draw(st.sampled_from(["none", "full"]))
    packing["min_sequence_length"] = draw(st.integers(1, 3))
    if algorithm != "wrap":
        packing["num_bins"] = draw(st.integers(1, 6))
        packing["max_sequences_per_bin"] = draw(st.sampled_from([None, 1, 3]))
    ops.append(("pack_flat", packing))
    ops += draw(st.lists(reorder, max_size=2))
    return ops


ways = st.fixed_dictionaries(
    {
        "max_workers": st.integers(0, 3),
        "prefetch_batches": st.integers(0, 4),
        "microbatch_size": st.integers(1, 4),
    }
)
"""Performance settings: none of them may change the data."""
