"""A stream that goes on with other phases to come: what was read must be the same, and cursors follow the datasets' names.

    saved    datasets a b      phases  a 9 : b 1 until 2,000 steps | a : b
    now      datasets a b c    phases  a 9 : b 1 until 2,000 steps | a : b until 5,000 steps | c 1 : a 1

Up to the first token at which the curricula differ, both plans have the same chunks: closed forms of the same mixtures over the
same datasets. No lane may have read beyond that, nor be in a flush interval that goes beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from zephon.cursor import Cursor, SavedState, SkipRule, refuse_other_stream
from zephon.errors import StateError
from zephon.ops.pack import Pack
from zephon.pipeline.definition import Definition
from zephon.types import Json
from zephon.work import Phase
from zephon.work.phased import PhasedMixtureWorkSource
from zephon.work.phases import first_difference, phase_of


def continued(definition: Definition, stream: Json, lanes: Mapping[int, Cursor], step: int) -> Mapping[int, Cursor]:
    """The cursors of a saved state for a definition whose curriculum is perhaps another one from here on.

    Args:
        definition: calibrated as the saved stream was.
        stream: what the state says of its stream.
        lanes: the saved cursors, of all lanes or of some.
        step: the saved step.

    Raises:
        StateError: another stream, or another past.
    """
    now = definition.describe()
    if not isinstance(definition.source, PhasedMixtureWorkSource) or stream == now:
        refuse_other_stream(stream, now)
        return lanes
    then = _phases_of(stream["source"])
    if then is None:
        refuse_other_stream(stream, now)
        return lanes
    _refuse_other_past(stream, now, then)
    token = first_difference(then, definition.source.phases, definition.batch_tokens)
    if token is not None:
        _refuse_begun(definition, token, lanes, step)
    return {lane: _renumbered(cursor, stream["source"]["order"], definition) for lane, cursor in lanes.items()}


def change_after(definition: Definition, state: SavedState | None, steps: int) -> tuple[int, int]:
    """When another mixture can begin: at least so many steps after a state, behind all that its lanes may have read, and after
    the last phase that was decided on.

    Args:
        definition: calibrated, with phases.
        state: of all lanes; None for the start of the run.
        steps: to wait at least.

    Returns:
        (steps to wait, the token of the stream at which it begins), both as planned.
    """
    source, lanes, batch_tokens = definition.source, definition.world.lanes, definition.batch_tokens
    assert isinstance(source, PhasedMixtureWorkSource)
    assert batch_tokens is not None
    cursors = {} if state is None else {n: Cursor.decode(data, lane=n) for n, data in state["lanes"].items()}
    interval = definition.program().flush_every
    plan, counts = definition.plan, definition.counts

    def token(chunk: int) -> Fraction:
        return source.token_of(chunk, lanes, counts, batch_tokens)

    places = [plan.reach(n, cursor.position) for n, cursor in cursors.items()] or [0]
    here = token(sum(places) // len(places))
    reached = token(max((plan.reach(n, cursor.position + interval) for n, cursor in cursors.items()), default=0))
    planned = [phase.end.tokens(batch_tokens) for phase in source.phases if phase.end is not None]
    wanted = here + steps * batch_tokens
    begins = max([wanted, reached, Fraction(max(planned, default=0) + batch_tokens)])
    return math.ceil((begins - here) / batch_tokens), math.ceil(begins)


def _phases_of(source: Json) -> list[Phase] | None:
    """The phases of a stream's source; None where it has neither phases nor a mixture that could be their first."""
    if "phases" in source:
        return [phase_of(phase) for phase in source["phases"]]
    if source.get("exhausted") is None or source.get("stop_after_passes") is not None:
        return None
    if source["mixture"] is not None:
        return [Phase({name: float(Fraction(weight)) for name, weight in source["mixture"].items()})]
    return [Phase({source["order"][0]: 1.0})] if len(source["order"]) == 1 else None


def _refuse_other_past(stream: Json, now: Json, then: list[Phase]) -> None:
    """Compares all but the curriculum, and the datasets that both have."""
    both = [name for name in stream["source"]["order"] if name in now["source"]["order"]]

    def without_curriculum(described: Json) -> Json:
        source = {key: value for key, value in described["source"].items() if key not in ("phases", "mixture", "order")}
        source["datasets"] = {name: described["source"]["datasets"][name] for name in both}
        rates, lengths = (
            {n: value for n, value in described[key].items() if n in both} for key in ("tokens_per_byte", "chunk_bytes")
        )
        return {**described, "source": source, "tokens_per_byte": rates, "chunk_bytes": lengths}

    measured = {name for name in both if name in stream["tokens_per_byte"]}
    compared = without_curriculum(now)
    compared["tokens_per_byte"] = {name: counts for name, counts in compared["tokens_per_byte"].items() if name in measured}
    refuse_other_stream(without_curriculum(stream), compared)


def _refuse_begun(definition: Definition, token: Fraction, lanes: Mapping[int, Cursor], step: int) -> None:
    """Raises StateError where a lane has read a chunk that would be another one, or is in an interval that has one."""
    source, count = definition.source, definition.world.lanes
    assert isinstance(source, PhasedMixtureWorkSource)
    chunks = source.chunks_before(token, count, definition.counts, definition.batch_tokens)
    plan = source.plan(count, definition.counts, definition.batch_tokens)
    interval = definition.program().flush_every
    reached = {lane: cursor.position + (interval if cursor.delivered else 0) for lane, cursor in lanes.items()}
    lane = max(reached, key=lambda number: (reached[number] - plan.position_before(number, chunks), -number))
    same = plan.position_before(lane, chunks)
    if reached[lane] <= same:
        return
    first = f"step {int(token // definition.batch_tokens):,}" if definition.batch_tokens else f"token {int(token):,}"
    raise StateError(
        f"the phases differ from {first} on, and this run is at step {step:,}: lane {lane} is in the flush interval of chunks "
        f"{lanes[lane].position:,} to {reached[lane]:,}, and chunk {same:,} would be another one",
        follows="steps that were trained would have had other data",
        remedy="let the change begin later, or begin a new run from this one's checkpoint with fork=NEW_NAME",
    )


def _renumbered(cursor: Cursor, order: list[str], definition: Definition) -> Cursor:
    """The cursor for the datasets' present numbers."""
    names = definition.names
    if order == names:
        return cursor
    old = {name: number for number, name in enumerate(order)}

    def moved(values: tuple[Any, ...], zero: Any) -> tuple[Any, ...]:
        return tuple(values[old[name]] if name in old else zero for name in names)

    rules = tuple(
        SkipRule(
            rule.position,
            rule.after,
            tuple(sorted((names.index(order[d]), s, r) for d, s, r in rule.documents if order[d] in names)),
        )
        for rule in cursor.skip_rules
    )
    by_group = cursor.carried_by_group
    if any(isinstance(op, Pack) and op.carries and op.homogeneity == "full" for op in definition.ops):
        own = by_group or ((cursor.carried_chunks, cursor.carried_tokens),)
        by_group = moved(own, (0, 0)) if len(names) > 1 else ()
    tokens = moved(cursor.tokens, 0) if cursor.tokens else ()
    return cursor._replace(tokens=tokens, carried_by_group=by_group, skip_rules=rules)
