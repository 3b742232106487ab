"""Draws docs/loader_order.svg from a pipeline that runs: every chunk, sentinel, sequence and cursor in it is real.

python -m examples.order_picture > docs/loader_order.svg
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource, TokenEstimation
from zephon.cursor import Cursor
from zephon.types import Sampled

LANES, BATCH, FLUSH, CHUNKS, SAVED_AFTER = 2, 4, 3, 9, 2
SIZES = {"web": 9, "code": 4}
COLOURS = {"web": "#1b6ca8", "code": "#c4521b"}
WIDTH, LEFT, BOX = 900, 150, 70
TOPS = {"datasets": 40, "plan": 120, "lanes": 220, "ranks": 510}


def pipeline() -> Pipeline:
    """Two datasets in chunks of two documents, 64 tokens a chunk, rows of 40: three chunks make 4 rows and 32 tokens."""
    rows = {name: InMemoryShard([{"text": f"{name[0]}{i:02}" + "." * 29} for i in range(2 * n)]) for name, n in SIZES.items()}
    source = StaticMixtureWorkSource(
        [Dataset.from_dict(name, {"s": shard}) for name, shard in rows.items()],
        {"web": 2, "code": 1},
        seed=4,
        shuffle_within_shard=False,
        exhausted_policy="repeat",
        chunk_bytes=64,
        token_estimation=TokenEstimation(primer=1.0),
    )
    built = Pipeline(source).options(canonical_replicas=LANES, global_batch_size=BATCH, flush_every_k_chunks=FLUSH)
    built.options(runner="inline", prefetch_batches=0).tokenize(tokenizer_id="bytes", field="text", special_tokens="none")
    return built.pack_flat(40, algorithm="wrap").shuffle(3, seed=1).batch(1)


def visits(source: StaticMixtureWorkSource) -> list[list[tuple[str, int]]]:
    """(dataset, chunk) by lane and position."""
    plan, names = source.plan(LANES, dict.fromkeys(SIZES, Sampled(1, 1))), list(SIZES)
    orders = []
    for lane in range(LANES):
        chunks = [plan.chunk(lane, position) for position in range(CHUNKS)]
        orders.append([(names[chunk.dataset], chunk.index) for chunk in chunks if chunk is not None])
    return orders


def cursors(built: Pipeline) -> Iterator[tuple[int, int, Cursor]]:
    """(step, lane, that lane's cursor) after each sequence of the first steps."""
    for batch in built:
        lane = int(batch.slots[0]) // (BATCH // LANES)
        cursor = batch.state.lanes[lane]
        if cursor.position >= CHUNKS:
            return
        yield batch.step, lane, cursor


def box(x: float, y: float, text: str, colour: str, *, width: float = BOX - 8, height: float = 26) -> str:
    return (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" rx="3" fill="{colour}" fill-opacity="0.18" '
        f'stroke="{colour}"/>' + label(x + width / 2, y + height / 2 + 4, text, anchor="middle")
    )


def label(x: float, y: float, text: str, *, anchor: str = "start", colour: str = "#222222", size: int = 13) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{colour}" font-size="{size}">{text}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str, *, dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" stroke="{colour}" stroke-width="2"{dashed}/>'


def datasets() -> Iterator[str]:
    x, y = float(LEFT), TOPS["datasets"]
    yield label(12, y + 17, "datasets in chunks")
    for name, count in SIZES.items():
        for i in range(count):
            yield box(x, y, f"{name[0]}{i}", COLOURS[name], width=44)
            x += 50
        x += 30


def order(lanes: list[list[tuple[str, int]]]) -> Iterator[str]:
    y = TOPS["plan"]
    yield label(12, y + 17, "the plan's order,")
    yield label(12, y + 34, "assigned to lanes")
    for position in range(CHUNKS):
        x = LEFT + position * 80
        for lane in range(LANES):
            name, index = lanes[lane][position]
            yield box(x + 36 * lane, y, f"{name[0]}{index}", COLOURS[name], width=33)
            yield label(x + 36 * lane + 16, y + 42, f"to {lane}", anchor="middle", size=11, colour="#666666")


def lane_rows(lanes: list[list[tuple[str, int]]], taken: list[tuple[int, int, Cursor]]) -> Iterator[str]:
    for lane, chunks in enumerate(lanes):
        y = TOPS["lanes"] + lane * 140
        yield label(12, y + 17, f"lane {lane}: chunks")
        yield label(12, y + 62, "its sequences,")
        yield label(12, y + 79, "by step")
        for position, (name, index) in enumerate(chunks):
            yield box(LEFT + position * BOX, y, f"{name[0]}{index}", COLOURS[name])
        for position in range(FLUSH, CHUNKS + 1, FLUSH):
            x = LEFT + position * BOX - 4
            yield line(x, y - 8, x, y + 84, "#b01030", dash="5 4")
        for step, owner, cursor in taken:
            if owner == lane:
                x = LEFT + cursor.position * BOX + (cursor.delivered - 1) * 42
                yield box(x, y + 46, f"s{step}", "#555555", width=36)
        cursor = [cursor for step, owner, cursor in taken if owner == lane and step == SAVED_AFTER][-1]
        x = LEFT + cursor.position * BOX + cursor.delivered * 42 - 3
        caption = f"saved after step {SAVED_AFTER}: position {cursor.position}, delivered {cursor.delivered}"
        if cursor.carried_tokens:
            caption += f", {cursor.carried_tokens} tokens carried over from the last {_chunks(cursor.carried_chunks)} before it"
        yield f'<path d="M {x:.0f} {y + 76} l -7 12 l 14 0 z" fill="#2a8c4a"/>'
        yield label(LEFT, y + 106, f"{caption}: {len(cursor.encode())} bytes", colour="#2a8c4a")


def _chunks(count: int) -> str:
    return "chunk" if count == 1 else f"{count} chunks"


def ranks() -> Iterator[str]:
    y, q = TOPS["ranks"], BATCH // LANES
    yield label(12, y + 17, "global batch of a step")
    for slot in range(BATCH):
        x = LEFT + 30 + slot * 160
        yield box(x, y, f"slot {slot} (lane {slot // q})", "#555555", width=152)
    for row, size in enumerate((1, 2, 4)):
        width, top = 160 * BATCH / size, y + 40 + 28 * row
        yield label(12, top + 15, f"on {size} rank{'s' * (size > 1)}{' (shared)' * (size > LANES)}")
        for rank in range(size):
            yield box(LEFT + 30 + rank * width, top, f"rank {rank}", "#7a3fa0", width=width - 8, height=22)


def picture() -> str:
    """The SVG's text."""
    built = pipeline()
    taken = list(cursors(built))
    source = built.definition.source
    assert isinstance(source, StaticMixtureWorkSource)
    lanes = visits(source)
    built.close()
    height = TOPS["ranks"] + 140
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif">',
        "<title>Order, lanes, flushes and cursors of a small pipeline</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        *datasets(),
        *order(lanes),
        *lane_rows(lanes, taken),
        label(LEFT, TOPS["lanes"] - 20, f"a red line is a sentinel, every {FLUSH} chunks: buffers are empty after it", size=12),
        *ranks(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(picture())
