"""Cursors: a lane's whole state in a handful of integers, and the dict that a rank saves.

    lane cursor   position         the first chunk after the last sentinel: replay starts here
                  carried_chunks   how many chunks before it the carry-over came from
                  carried_tokens   how many tokens were carried over (the last ones before the sentinel)
                  delivered        sequences delivered since the sentinel: replay drops as many
                  tokens           tokens delivered so far, by dataset
                  and where in use: the carry-over by group, documents in quarantine, skipped steps, skip rules

A cursor holds no token, no buffer and no history: replay from the sentinel rebuilds what the accumulators held.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from zephon.errors import StateError
from zephon.types import Json

VERSION = 1
LANE_KEY = "lane."
"""Where each lane has a key of its own, as in flat states and checkpoints: this and the lane's number."""

SavedState = Mapping[str, Any]
"""What `Pipeline.checkpoint` gives: plain values, of which nothing is known until they have been checked."""


class SkipRule(NamedTuple):
    """A rule that drops documents from all chunks that a lane reads from some point on.

    Args:
        position, after: the point: when the block of chunks that begins at ``position`` has made ``after`` sequences.
        documents: (dataset, shard, row) of each.
    """

    position: int
    after: int
    documents: tuple[tuple[int, int, int], ...]


class QuarantinedId(NamedTuple):
    """A document in quarantine: position of its chunk in the lane, range of that chunk, row."""

    position: int
    range: int
    row: int


class Cursor(NamedTuple):
    """Where a lane is.

    The module's text explains the first five. The others are empty where they are not in use:

    Args:
        carried_by_group: (chunks, tokens) carried over by each group, where packing keeps groups apart; ``carried_chunks``
            is then the largest and ``carried_tokens`` the sum.
        quarantined: documents put into quarantine so far.
        quarantined_ids: those of them that a replay from here meets again.
        skipped_steps: (step, n): before this step, n steps of data are skipped.
        skip_rules: documents to drop.
    """

    position: int = 0
    carried_chunks: int = 0
    carried_tokens: int = 0
    delivered: int = 0
    tokens: tuple[int, ...] = ()
    carried_by_group: tuple[tuple[int, int], ...] = ()
    quarantined: int = 0
    quarantined_ids: tuple[QuarantinedId, ...] = ()
    skipped_steps: tuple[tuple[int, int], ...] = ()
    skip_rules: tuple[SkipRule, ...] = ()

    def encode(self) -> bytes:
        """Variable-length integers: 7 bits a byte, least significant first. What is not in use takes no byte."""
        numbers = [self.position, self.carried_chunks, self.carried_tokens, self.delivered, len(self.tokens), *self.tokens]
        begin = self.position - self.carried_chunks
        sections = (
            [n for carried in self.carried_by_group for n in carried],
            [self.quarantined, *(n for q in self.quarantined_ids for n in (q.position - begin, q.range, q.row))]
            if self.quarantined
            else [],
            [n for skipped in self.skipped_steps for n in skipped],
            [n for rule in self.skip_rules for n in _rule_numbers(rule)],
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


def unchanging_part(data: bytes) -> bytes:
    """An encoded cursor without ``delivered`` and ``tokens``: what stays as it is while a lane delivers one flush interval."""
    numbers = _numbers(data)
    return b"".join(_varint(number) for number in (*numbers[:3], *numbers[5 + numbers[4] :]))


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
    position, carried_chunks, carried_tokens, delivered, count = numbers[:5]
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
    begin = position - carried_chunks
    quarantined, *ids = sections.get(2, [0])
    return Cursor(
        position,
        carried_chunks,
        carried_tokens,
        delivered,
        tokens,
        carried_by_group=_pairs(sections.get(1, [])),
        quarantined=quarantined,
        quarantined_ids=tuple(QuarantinedId(begin + back, number, row) for back, number, row in _triples(ids)),
        skipped_steps=_pairs(sections.get(3, [])),
        skip_rules=_rules(sections.get(4, [])),
    )


def _rules(numbers: list[int]) -> tuple[SkipRule, ...]:
    rules = []
    while numbers:
        position, after, count = numbers[:3]
        end = 3 + 3 * count
        rules.append(SkipRule(position, after, tuple(_triples(numbers[3:end]))))
        numbers = numbers[end:]
    return tuple(rules)


def _pairs(numbers: list[int]) -> tuple[tuple[int, int], ...]:
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _triples(numbers: list[int]) -> list[tuple[int, int, int]]:
    return list(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True))


def _rule_numbers(rule: SkipRule) -> list[int]:
    return [rule.position, rule.after, len(rule.documents), *(n for document in rule.documents for n in document)]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class RankState(NamedTuple):
    """A rank's state after one batch: cheap to carry along, encoded only when it is saved.

    Args:
        step: the optimizer step that comes next, or is under way when ``microbatch`` is not 0.
        microbatch: microbatches of that step delivered so far.
        lanes: the cursor of each lane of this rank.
    """

    step: int
    microbatch: int
    lanes: Mapping[int, Cursor]


def fingerprint_of(stream: Mapping[str, object]) -> str:
    """SHA-256 of the canonical form of all that defines a stream."""
    return hashlib.sha256(canonical(stream).encode()).hexdigest()


def canonical(value: object) -> str:
    """The one JSON text of a value: keys sorted, no space."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def flatten(value: object, prefix: str = "") -> dict[str, object]:
    """Nested plain values by dotted name."""
    if isinstance(value, Mapping) and value:
        flat: dict[str, object] = {}
        for key in value:
            flat.update(flatten(value[key], f"{prefix}.{key}" if prefix else str(key)))
        return flat
    return {prefix: value}


def differences(then: Mapping[str, object], now: Mapping[str, object]) -> list[tuple[str, object, object]]:
    """(dotted name, value then, value now) of all that differs; a missing value is None."""
    old, new = flatten(then), flatten(now)
    return [(name, old.get(name), new.get(name)) for name in sorted({*old, *new}) if old.get(name) != new.get(name)]


def refuse_other_stream(then: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Raises StateError naming every field that differs, with both values."""
    different = differences(then, json.loads(canonical(now)))
    if not different:
        return
    listed = "; ".join(f"{name}: saved {old!r}, now {new!r}" for name, old, new in different[:6])
    more = f"; and {len(different) - 6} more" if len(different) > 6 else ""
    raise StateError(
        f"this state belongs to another stream: {listed}{more}",
        follows="the data after it would not be that of the run it was saved in",
        remedy="build the pipeline as it was, or begin a new run",
    )


def merge_states(states: Iterable[SavedState]) -> Json:
    """One state out of those of all ranks of a run.

    Raises:
        StateError: no state, ranks at different steps (a torn checkpoint), or of different streams.
    """
    gathered = list(states)
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
                    follows="nobody could tell which of them is right",
                    remedy="use states of one checkpoint only",
                )
    return {**first, "lanes": lanes}


def refuse_different_skips(lanes: Mapping[int, bytes]) -> None:
    """Raises StateError when lanes have different skipped steps or skip rules: `skip` was not called on every rank."""
    lane_of: dict[object, int] = {}
    for lane, data in sorted(lanes.items()):
        cursor = Cursor.decode(data, lane=lane)
        lane_of.setdefault((cursor.skipped_steps, tuple(rule.documents for rule in cursor.skip_rules)), lane)
    if len(lane_of) > 1:
        lane, other = list(lane_of.values())[:2]
        raise StateError(
            f"lanes {lane} and {other} have different skip rules",
            follows="lanes would be at different steps of the run from then on",
            remedy="restore an earlier checkpoint and call skip() with the same arguments on every rank",
        )


def with_skip(state: RankState, steps: range | tuple[int, int] | None, documents: Sequence[tuple[int, int, int]]) -> RankState:
    """A state whose lanes skip steps, or drop documents, from here on.

    Args:
        steps: first and end of the steps whose data is skipped, as the run would number them without this call.
        documents: (dataset, shard, row) of each.

    Raises:
        StateError: steps that have begun already, or an empty range.
    """
    skipped: tuple[tuple[int, int], ...] = ()
    if steps is not None:
        first, end = (steps.start, steps.stop) if isinstance(steps, range) else steps
        begun = state.step + (state.microbatch > 0)
        if first < begun or end <= first:
            raise StateError(
                f"skip(steps={first} to {end}) in a run that is at step {begun}",
                follows="a skip can only change what has not been delivered",
                remedy=f"use steps from {begun} on, or restore an earlier checkpoint first",
            )
        skipped = ((first, end - first),)
    lanes = {}
    for lane, cursor in state.lanes.items():
        rules = cursor.skip_rules
        if documents:
            rules = (*rules, SkipRule(cursor.position, cursor.delivered, tuple(sorted(documents))))
        lanes[lane] = cursor._replace(skip_rules=rules, skipped_steps=tuple(sorted(cursor.skipped_steps + skipped)))
    return RankState(state.step, state.microbatch, lanes)
