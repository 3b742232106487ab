"""What a pipeline will do, as text: what comes from where, what bounds memory, what a division costs."""

from __future__ import annotations

from zephon.ops.op import Op
from zephon.ops.pack import PackFlat
from zephon.ops.shuffle import Shuffle
from zephon.pipeline.definition import Chain


def explain(chain: Chain) -> str:
    """The plan, the division, the execution graph and the limits of this rank."""
    lines = [*_plan_lines(chain), "", *_division_lines(chain), "", *_graph_lines(chain), "", *_limit_lines(chain)]
    return "\n".join([*lines, "", f"fingerprint {chain.fingerprint}"])


def _plan_lines(chain: Chain) -> list[str]:
    source = chain._source
    measured, described = chain.calibrate(), source.describe()
    chunk_bytes = getattr(source, "chunk_bytes", None)
    weights = chain._weights()
    lines = ["plan"]
    for index, dataset in enumerate(source.datasets):
        line = f"  {dataset.name}: {dataset.format.name}, {len(dataset.shards)} shards, {dataset.size:,} bytes"
        if chunk_bytes:
            line += f", {-(-dataset.size // chunk_bytes):,} chunks"
        if weights is not None:
            line += f", {float(weights[index] / sum(weights)):.1%} of the tokens"
        if dataset.name in measured and measured[dataset.name][1]:
            tokens, size = measured[dataset.name]
            line += f" ({tokens / size:.3f} tokens a byte)"
        lines.append(line)
    order = {key: described[key] for key in sorted(described) if key not in ("datasets", "order", "mixture", "phases")}
    lines.append("  " + ", ".join(f"{key}={value}" for key, value in order.items() if value is not None))
    return lines


def _division_lines(chain: Chain) -> list[str]:
    world, rank = chain.world, chain._options.dp_group_id
    size = chain._need_batching().microbatch_size
    mine = world.microbatches(rank, size)
    real = sum(micro.last - micro.first for micro in mine)
    lines = [
        "division",
        f"  {world.lanes} lanes, {world.global_batch_size} sequences a step, {world.per_lane} a lane",
        f"  rank {rank} of {world.dp_degree}: lanes {', '.join(str(share.lane) for share in world.shares(rank))}; "
        f"{real} sequences in {len(mine)} microbatches of at most {size}",
    ]
    owned = sum(len(world.shares(r)) for r in range(world.dp_degree))
    if world.kind == "whole":
        lines.append("  whole lanes: nothing is computed twice")
    else:
        lines.append(f"  {world.kind}: lanes are read {owned / world.lanes:.2f} times in all, by several ranks each")
    if world.kind == "uneven":
        forwards = len(mine) * world.dp_degree
        needed = sum(-(-(s.last - s.first) // size) for r in range(world.dp_degree) for s in world.shares(r))
        lines.append(f"  uneven: {forwards} forwards where {needed} hold sequences ({forwards / needed - 1:.0%} more)")
    allowed = world.allowed()
    shown = ", ".join(map(str, allowed[:24])) + (", ..." if len(allowed) > 24 else "")
    lines.append(f"  possible sizes with lanes_allow={world.allow!r}: {shown}")
    return lines


def _graph_lines(chain: Chain) -> list[str]:
    stages, accumulators = chain._split()
    options = chain._options
    workers = "the caller's thread" if options.runner == "inline" else f"{options.runner}, {options.max_workers or 'default'}"
    lines = ["graph", f"  on workers ({workers}), a chunk at a time:", "    read"]
    lines += [f"    {_op_line(op)}" for op in stages]
    lines.append("  in each lane's own thread, in order:")
    lines += [f"    {_op_line(op)}" for op in accumulators]
    batching = chain._need_batching()
    lines.append(f"    batch microbatch_size={batching.microbatch_size} drop_last={batching.drop_last}")
    lines += [f"    map_batch {identity['function']}" for _, identity in chain._batch_maps]
    every = chain.flush_every
    carries = any(op.carries for op in accumulators)
    tail = "; wrap carries its tail across by address" if carries else ""
    lines.append(f"  a flush sentinel every {every} chunks{tail}" if every else f"  no flush sentinel: no op reorders{tail}")
    return lines


def _op_line(op: Op) -> str:
    described = op.describe()
    shown = []
    for key, value in described.items():
        if key == "op" or value is None:
            continue
        if isinstance(value, dict) and "function" in value:
            mark = value.get("version") or value.get("source", "")[:12]
            value = f"{value['function']}@{mark}"
        elif isinstance(value, str) and len(value) == 64:
            value = value[:12]
        shown.append(f"{key}={value}")
    return " ".join([described["op"], *shown])


def _limit_lines(chain: Chain) -> list[str]:
    options = chain._options
    lanes = len(chain.world.shares(options.dp_group_id))
    chunk = getattr(chain._source, "chunk_bytes", 1 << 18)
    interval = chain.flush_every
    length = next((op.max_length for op in chain._ops if isinstance(op, PackFlat)), None)
    buffers = [
        f"    shuffle: {op.buffer_size} elements"
        + (_shuffle_reach(chain, op.buffer_size, interval * chunk, length) if length else "")
        for op in chain._ops
        if isinstance(op, Shuffle)
    ]
    return [
        "limits of this rank",
        f"  chunks under way or ready: {options.prefetch_bytes:,} bytes (prefetch_bytes) over {lanes} lanes",
        f"  batches made ahead: {options.prefetch_batches}",
        "  held by accumulators, at most what comes in between two sentinels"
        + (f": {interval} chunks, about {interval * chunk:,} bytes of text a lane" if interval else ""),
        *buffers,
        f"  documents in quarantine: {options.quarantine_budget} a lane, then the run ends",
    ]


def _shuffle_reach(chain: Chain, size: int, text: int, length: int) -> str:
    """Bytes that a buffer of packed rows takes, and whether it can fill at all between two sentinels."""
    measured = chain.calibrate().values()
    tokens, read = sum(pair[0] for pair in measured), sum(pair[1] for pair in measured)
    rows = int(text * (tokens / read if tokens and read else 0.5) / length)  # more than half a token a byte is rare
    line = f", {4 * length * min(size, rows):,} bytes a lane"
    if rows < size:
        line += f"; between two sentinels come at most about {rows} rows, so that it mixes those and never fills"
    return line
