"""Cursors: a lane's whole state in a handful of integers, and the dict that a rank saves.

    lane cursor   position        the first chunk after the last sentinel: replay starts here
                  tail_chunks     how many chunks before it hold the carried tail
                  tail_tokens     how many tokens that tail has (the last ones before the sentinel)
                  delivered       sequences given out since the sentinel: replay drops as many
                  tokens          tokens delivered so far, by dataset
                  and where in use: tails by group, documents in quarantine, skip instructions

No token, no buffer and no history: what the accumulators held is made again by replaying from the sentinel.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from zephon.errors import StateError

VERSION = 1


class Skip(NamedTuple):
    """An instruction to leave documents out of all chunks that a lane reads from some point on.

    Args:
        position, after: the point: when the block of chunks that begins at ``position`` has made ``after`` sequences.
        documents: (dataset, shard, row) of each.
    """

    position: int
    after: int
    documents: tuple[tuple[int, int, int], ...]


class Bad(NamedTuple):
    """A document in quarantine: position of its chunk in the lane, piece of that chunk, row."""

    position: int
    piece: int
    row: int


class Cursor(NamedTuple):
    """Where a lane is.

    Beside the five numbers of the module's text, and only where they are in use:

    Args:
        tails: (chunks, tokens) of each group's tail, where packing keeps groups apart; ``tail_chunks`` is then the
            largest and ``tail_tokens`` the sum.
        quarantined: documents put into quarantine so far.
        bad: those of them that a replay from here meets again.
        jumps: (step, n): before this step, n steps of data are passed over.
        skips: documents to leave out.
    """

    position: int = 0
    tail_chunks: int = 0
    tail_tokens: int = 0
    delivered: int = 0
    tokens: tuple[int, ...] = ()
    tails: tuple[tuple[int, int], ...] = ()
    quarantined: int = 0
    bad: tuple[Bad, ...] = ()
    jumps: tuple[tuple[int, int], ...] = ()
    skips: tuple[Skip, ...] = ()

    def encode(self) -> bytes:
        """Variable-length integers: 7 bits a byte, least significant first. What is not in use takes no place."""
        numbers = [self.position, self.tail_chunks, self.tail_tokens, self.delivered, len(self.tokens), *self.tokens]
        begin = self.position - self.tail_chunks
        sections = (
            [n for tail in self.tails for n in tail],
            [self.quarantined, *(n for b in self.bad for n in (b.position - begin, b.piece, b.row))]
            if self.quarantined
            else [],
            [n for jump in self.jumps for n in jump],
            [n for skip in self.skips for n in _skip_numbers(skip)],
        )
        for tag, section in enumerate(sections, 1):
            if section:
                numbers += [tag, len(section), *section]
        return b"".join(_varint(number) for number in numbers)

    @staticmethod
    def decode(data: bytes, *, lane: int | str = "?") -> Cursor:
        """Raises StateError for bytes that are not a cursor."""
        try:
            return _cursor(_numbers(bytes(data)))
        except (IndexError, ValueError) as error:
            raise StateError(
                f"the cursor of lane {lane} is damaged: {bytes(data).hex() or 'empty'}",
                follows="the lane would start somewhere else than it stopped",
                remedy="restore from the previous checkpoint",
            ) from error


def _numbers(data: bytes) -> list[int]:
    numbers, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(value)
            value = shift = 0
    if shift:
        raise ValueError("the last number is cut off")
    return numbers


def _cursor(numbers: list[int]) -> Cursor:
    base, count = numbers[:4], numbers[4]
    at = 5 + count
    tokens, sections = tuple(numbers[5:at]), dict[int, list[int]]()
    if len(tokens) != count:
        raise ValueError("token counts are cut off")
    while at < len(numbers):
        tag, length = numbers[at], numbers[at + 1]
        sections[tag] = numbers[at + 2 : at + 2 + length]
        if len(sections[tag]) != length or tag > 4:
            raise ValueError("a section is cut off or unknown")
        at += 2 + length
    begin = base[0] - base[1]
    held = sections.get(2, [0])
    skips, rest = [], sections.get(4, [])
    while rest:
        position, after, n = rest[:3]
        documents = tuple(zip(*[iter(rest[3 : 3 + 3 * n])] * 3, strict=True))
        skips.append(Skip(position, after, documents))
        rest = rest[3 + 3 * n :]
    return Cursor(
        base[0],
        base[1],
        base[2],
        base[3],
        tokens,
        tails=_pairs(sections.get(1, [])),
        quarantined=held[0],
        bad=tuple(Bad(begin + p, piece, row) for p, piece, row in zip(*[iter(held[1:])] * 3, strict=True)),
        jumps=_pairs(sections.get(3, [])),
        skips=tuple(skips),
    )


def _pairs(numbers: list[int]) -> tuple[tuple[int, int], ...]:
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _skip_numbers(skip: Skip) -> list[int]:
    return [skip.position, skip.after, len(skip.documents), *(n for document in skip.documents for n in document)]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class RankState(NamedTuple):
    """A rank's state after one batch: cheap to carry along, encoded only when somebody asks.

    Args:
        step: the optimizer step that comes next, or is under way when ``microbatch`` is not 0.
        microbatch: microbatches of that step delivered so far.
        lanes: the cursor of each lane of this rank.
    """

    step: int
    microbatch: int
    lanes: Mapping[int, Cursor]


def fingerprint_of(stream: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical form of all that defines a stream."""
    return hashlib.sha256(canonical(stream).encode()).hexdigest()


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested plain values by dotted name."""
    if isinstance(value, Mapping) and value:
        flat = {}
        for key in value:
            flat.update(flatten(value[key], f"{prefix}.{key}" if prefix else str(key)))
        return flat
    return {prefix: value}


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(dotted name, value then, value now) of all that differs; a missing value is None."""
    old, new = flatten(then), flatten(now)
    return [(name, old.get(name), new.get(name)) for name in sorted({*old, *new}) if old.get(name) != new.get(name)]


def refuse_other_stream(then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises StateError naming every field that differs, with both values."""
    found = differences(then, json.loads(canonical(now)))
    if not found:
        return
    listed = "; ".join(f"{name}: saved {old!r}, now {new!r}" for name, old, new in found[:6])
    more = f"; and {len(found) - 6} more" if len(found) > 6 else ""
    raise StateError(
        f"this state belongs to another stream: {listed}{more}",
        follows="the data after it would not be that of the run it was saved in",
        remedy="build the pipeline as it was, or begin a new run",
    )


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One state out of those of all ranks of a run.

    Raises:
        StateError: no state, ranks at different steps (a torn checkpoint), or of different streams.
    """
    gathered: Sequence[Mapping[str, Any]] = list(states)
    if not gathered:
        raise StateError("no state was given", follows="the run would start from zero", remedy="give the states of all ranks")
    first = gathered[0]
    for state in gathered[1:]:
        refuse_other_stream(json.loads(first["stream"]), json.loads(state["stream"]))
        if state["step"] != first["step"]:
            raise StateError(
                f"the states are of steps {sorted({s['step'] for s in gathered})}: a torn checkpoint",
                follows="lanes would be at different steps, and sequences lost or repeated",
                remedy="use a checkpoint in which all ranks saved the same step",
            )
    if any(state["microbatch"] for state in gathered) and len(gathered) > 1:
        raise StateError(
            f"the states were taken in the middle of step {first['step']}",
            follows="only a run of the same size could go on from there, rank by rank",
            remedy="save between steps, or restore each rank from its own state at the same size",
        )
    lanes: dict[int, bytes] = {}
    for state in gathered:
        for lane, cursor in state["lanes"].items():
            if lanes.setdefault(int(lane), cursor) != cursor:
                raise StateError(
                    f"lane {lane} is in two states with different cursors",
                    follows="it is unknown which is right",
                    remedy="use states of one checkpoint only",
                )
    return {**first, "lanes": lanes}


def same_instructions(lanes: Mapping[int, bytes]) -> None:
    """Raises StateError when lanes were given different skip instructions: a rank was left out."""
    given: dict[Any, int] = {}
    for lane, data in sorted(lanes.items()):
        cursor = Cursor.decode(data, lane=lane)
        given.setdefault((cursor.jumps, tuple(skip.documents for skip in cursor.skips)), lane)
    if len(given) > 1:
        one, other = list(given.values())[:2]
        raise StateError(
            f"lanes {one} and {other} were given different skip instructions",
            follows="lanes would be at different places of the run from then on",
            remedy="restore an earlier checkpoint and call skip() with the same arguments on every rank",
        )


def with_skip(state: RankState, steps: range | tuple[int, int] | None, documents: Sequence[tuple[int, int, int]]) -> RankState:
    """A state with an instruction to pass over steps, or to leave documents out, from here on.

    Args:
        steps: first and end of the steps whose data is passed over, as the run would number them without this instruction.
        documents: (dataset, shard, row) of each.

    Raises:
        StateError: steps that have begun already, or an empty range.
    """
    jump: tuple[tuple[int, int], ...] = ()
    if steps is not None:
        first, end = (steps.start, steps.stop) if isinstance(steps, range) else steps
        begun = state.step + (state.microbatch > 0)
        if first < begun or end <= first:
            raise StateError(
                f"skip(steps={first} to {end}) in a run that is at step {begun}",
                follows="an instruction can only change what has not been delivered",
                remedy=f"use steps from {begun} on, or restore an earlier checkpoint first",
            )
        jump = ((first, end - first),)
    lanes = {}
    for lane, cursor in state.lanes.items():
        skips = cursor.skips
        if documents:
            skips = (*skips, Skip(cursor.position, cursor.delivered, tuple(sorted(documents))))
        lanes[lane] = cursor._replace(skips=skips, jumps=tuple(sorted(cursor.jumps + jump)))
    return RankState(state.step, state.microbatch, lanes)
