"""What a pipeline will do, as text: what comes from where, what runs, what bounds memory, what a division costs.

Settings that were given and change nothing here are listed at the end, each with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator

from zephon.engine.runners.make import default_workers
from zephon.io.cache import CacheOptions, cached
from zephon.ops.op import Op
from zephon.ops.shuffle import Shuffle
from zephon.pipeline.definition import Definition
from zephon.pipeline.mixing import held_to, mixing_of, mixing_text
from zephon.pipeline.options import Options
from zephon.pipeline.validate import packing_drops

DEFAULTS = Options()


def explain(definition: Definition) -> str:
    """The plan, the division, the execution graph and the limits of this rank."""
    parts = [_plan(definition), _division(definition), _graph(definition), _limits(definition)]
    unused = [f"  {setting}: {why}" for setting, why in without_effect(definition)]
    if unused:
        parts.append(["given, but without effect", *unused])
    parts.append([f"fingerprint {definition.fingerprint}"])
    return "\n\n".join("\n".join(lines) for lines in parts)


def _plan(definition: Definition) -> list[str]:
    source, weights = definition.source, definition.weights
    counts, described = definition.counts, source.describe()
    lines = ["plan"]
    for index, dataset in enumerate(source.datasets):
        line = f"  {dataset.name}: {dataset.format.name}, {len(dataset.shards)} shards, {dataset.size:,} bytes"
        chunk_bytes = definition.chunk_lengths[index]
        line += f", {-(-dataset.size // chunk_bytes):,} chunks"
        if chunk_bytes < definition.chunk_bytes:
            line += f" of {chunk_bytes:,} bytes, as lanes and mixture need them"
        if weights is not None:
            line += f", {float(weights[index] / sum(weights)):.1%} of the tokens"
        if dataset.name in counts and counts[dataset.name].size:
            tokens, size, error = counts[dataset.name][:3]
            line += f" ({tokens / size:.3f} tokens a byte, standard error {error / 1e4:.1f} %)"
            if weights is not None and definition.batch_tokens is not None:
                line += f", within {3 * held_to(definition, index):.2%} of that over 1,000 global batches"
        lines.append(line)
    order = {key: described[key] for key in sorted(described) if key not in ("datasets", "order", "mixture", "phases")}
    lines.append("  " + ", ".join(f"{key}={value}" for key, value in order.items() if value is not None))
    return lines


def _division(definition: Definition) -> list[str]:
    world, rank = definition.world, definition.division.dp_group_id
    size = definition.required_batching.microbatch_size
    microbatches = world.microbatches(rank, size)
    real = sum(microbatch.last - microbatch.first for microbatch in microbatches)
    lines = [
        "division",
        f"  {world.lanes} lanes, {world.global_batch_size} sequences a step, {world.per_lane} a lane",
        f"  rank {rank} of {world.dp_degree}: lanes {', '.join(map(str, definition.own_lanes))}; "
        f"{real} sequences in {len(microbatches)} microbatches of at most {size}",
    ]
    owned = sum(len(world.shares(r)) for r in range(world.dp_degree))
    if world.kind == "whole":
        lines.append("  whole lanes: nothing is computed twice")
    else:
        lines.append(f"  {world.kind}: lanes are read {owned / world.lanes:.2f} times in all, by several ranks each")
    if world.kind == "uneven":
        forwards = len(microbatches) * world.dp_degree
        needed = sum(-(-(s.last - s.first) // size) for r in range(world.dp_degree) for s in world.shares(r))
        lines.append(f"  uneven: {forwards} forwards where {needed} hold sequences ({forwards / needed - 1:.0%} more)")
    allowed = world.allowed()
    shown = ", ".join(map(str, allowed[:24])) + (", ..." if len(allowed) > 24 else "")
    lines.append(f"  possible sizes with lanes_allow={world.allow!r}: {shown}")
    return lines


def _graph(definition: Definition) -> list[str]:
    stages, accumulators = definition.graph
    batching = definition.required_batching
    lines = ["graph", f"  on workers ({_workers(definition)}), a chunk at a time:", "    read"]
    lines += [f"    {_op_line(op)}" for op in stages]
    lines.append("  in each lane's own thread, in order:")
    lines += [f"    {_op_line(op)}" for op in accumulators]
    lines.append(f"    batch microbatch_size={batching.microbatch_size} drop_last={batching.drop_last}")
    lines += [f"    map_batch {batch_map.identity['function']}" for batch_map in definition.batch_maps]
    carried = "; wrap carries its last tokens across by address" if any(op.carries for op in accumulators) else ""
    every = definition.chunks_an_interval
    lines.append(
        f"  a flush sentinel every {every} chunks{carried}" if every else f"  no flush sentinel: no op reorders{carried}"
    )
    if definition.options.isolated:
        lines.append("  all of this in one child process")
    if dropped := packing_drops(definition):
        lines.append(f"  {dropped}")
    return lines


def _inline(definition: Definition) -> bool:
    """Whether the thread that takes the batches does everything."""
    return definition.options.runner == "inline" or definition.workers == 0


def _workers(definition: Definition) -> str:
    """What the stages really run on."""
    if _inline(definition):
        return "none: the caller's thread"
    kind = {"threads": "threads", "process": "processes"}[definition.options.runner]
    if definition.workers is None:
        return f"{default_workers()} {kind}, by the cores of this machine"
    return f"{definition.workers} {kind}"


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


def _limits(definition: Definition) -> list[str]:
    options, interval = definition.options, definition.chunks_an_interval
    text = interval * definition.mean_chunk_bytes
    ahead = 0 if _inline(definition) else options.prefetch_batches
    lines = [
        "limits of this rank",
        f"  chunks under way or ready: {options.prefetch_bytes:,} bytes (prefetch_bytes) over {len(definition.own_lanes)} lanes"
        + (f", {definition.prefetch_chunks:,} chunks a lane (prefetch)" if definition.prefetch_chunks else ""),
        f"  batches made ahead: {ahead}",
        "  held by accumulators, at most what comes in between two sentinels"
        + (f": {interval} chunks, about {text:,} bytes of text a lane" if interval else ""),
    ]
    for op in definition.ops:
        if isinstance(op, Shuffle):
            reach = _shuffle_reach(definition, op.buffer_size, text, definition.packed_length)
            lines.append(f"    shuffle: {op.buffer_size} elements{reach}")
    if interval:
        lines.append(
            f"  a restart reads up to one interval again: about {text:,} bytes of text a lane, however long the run is"
        )
    mixing = mixing_of(definition)
    lines += [f"  mixing: {mixing_text(mixing)}", *(f"  {warning}" for warning in mixing.warnings)]
    return [*lines, f"  documents in quarantine: {options.quarantine_budget} a lane, then the run ends"]


def _shuffle_reach(definition: Definition, size: int, text: int, length: int | None) -> str:
    """Bytes that a buffer of packed rows takes, and whether it can fill at all between two sentinels."""
    if length is None:
        return ""
    measured = definition.counts.values()
    tokens, read = sum(pair[0] for pair in measured), sum(pair[1] for pair in measured)
    rows = int(text * (tokens / read if tokens and read else 0.5) / length)  # more than half a token a byte is rare
    line = f", {4 * length * min(size, rows):,} bytes a lane"
    if rows < size:
        line += f"; between two sentinels come at most about {rows} rows, so that it mixes those and never fills"
    return line


# ---- what was given and changes nothing


def without_effect(definition: Definition) -> Iterator[tuple[str, str]]:
    """(setting, why) of each setting that was given and has no effect on this pipeline."""
    yield from _unused_options(definition)
    yield from _unused_parallelism(definition)


def _unused_options(definition: Definition) -> Iterator[tuple[str, str]]:
    options = definition.options
    alone = definition.division.dp_degree == 1
    if options.last_step != DEFAULTS.last_step and (alone or definition.finite_bytes is None):
        why = "there are no other ranks" if alone else "the source never ends"
        yield f"options(last_step={options.last_step!r})", why
    if options.run_id is not None:
        yield f"options(run_id={options.run_id!r})", "a state is recognized by its fingerprint, not by a name"
    if options.flush_every_k_chunks and not definition.flush_every:
        yield f"options(flush_every_k_chunks={options.flush_every_k_chunks})", "no op reorders, so that no sentinel is needed"
    policy = definition.quarantine
    if options.quarantine_budget != DEFAULTS.quarantine_budget and not (any(policy.datasets) or any(policy.ops)):
        yield f"options(quarantine_budget={options.quarantine_budget})", "nothing is quarantined: on_error is 'raise'"
    cache = CacheOptions.of(options.io_options)
    if cache.enabled and all(cached(dataset, cache) is dataset for dataset in definition.source.datasets):
        yield "options(io_options=...)", "only far data is cached, and all of this is local or in memory"
    if _inline(definition):
        why = "there are no workers, and nothing is read ahead"
        if options.runner == "inline" and options.max_workers:
            yield f"options(max_workers={options.max_workers})", "runner='inline' has no workers"
        if options.prefetch_batches != DEFAULTS.prefetch_batches:
            yield f"options(prefetch_batches={options.prefetch_batches})", why
        if options.prefetch_bytes != DEFAULTS.prefetch_bytes:
            yield f"options(prefetch_bytes={options.prefetch_bytes})", why
        if definition.prefetch_chunks is not None:
            yield f"prefetch(buffer_size={definition.prefetch_chunks})", why


def _unused_parallelism(definition: Definition) -> Iterator[tuple[str, str]]:
    for op in definition.ops:
        number = getattr(op, "parallelism", None)
        if number is None or (op.name == "stateful_transform" and number == 1):
            continue
        setting = f"{op.name}(parallelism={number})"
        if not any(op is stage for stage in definition.graph.stages):
            yield setting, "it runs in each lane's own thread, which decides the order"
        elif _inline(definition):
            yield setting, "there are no workers"
        elif definition.options.max_workers is not None:
            yield setting, f"all stages share one pool, and max_workers={definition.options.max_workers} says how large it is"
        elif number != definition.workers:
            yield setting, f"all stages share one pool, and the largest parallelism counts: {definition.workers}"
    for batch_map in definition.batch_maps:
        if batch_map.parallelism is not None:
            yield f"map_batch(parallelism={batch_map.parallelism})", "batches are made one by one, in the order of delivery"
