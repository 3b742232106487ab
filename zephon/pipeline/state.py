"""What a rank saves and how it goes on from that: pure functions of a definition and a state.

saved(definition, state)          RankState -> plain dict: version, fingerprint, stream, step, microbatch, lanes
restored(definition, state)       plain dict -> (definition with the run's own measurement, RankState)
flat(state), nested(state)        between that dict and one with a key for each lane
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NotRequired, TypedDict, cast

from zephon.cursor import (
    LANE_KEY,
    VERSION,
    Cursor,
    RankState,
    SavedState,
    merge_states,
    refuse_different_skips,
)
from zephon.errors import StateError
from zephon.pipeline.continued import continued
from zephon.pipeline.definition import Definition

_STEP_BYTES = 8


class CheckedState(TypedDict):
    """A `SavedState` with the keys and types that it must have.

    Args:
        version: of this layout.
        fingerprint: of the stream.
        stream: all that defines the stream, as canonical JSON; a refusal names what differs.
        step, microbatch: see `zephon.cursor.RankState`.
        lanes: the encoded cursor of each lane of this rank.
        dp: data-parallel size and rank, where the state was taken in the middle of a step.
    """

    version: int
    fingerprint: str
    stream: str
    step: int
    microbatch: int
    lanes: Mapping[int, bytes]
    dp: NotRequired[list[int]]


def initial(definition: Definition) -> RankState:
    """The state before the first step."""
    return RankState(0, 0, {lane: Cursor() for lane in definition.own_lanes})


def saved(definition: Definition, state: RankState) -> CheckedState:
    """A rank's state as plain values."""
    plain: CheckedState = {
        "version": VERSION,
        "fingerprint": definition.fingerprint,
        "stream": definition.stream,
        "step": state.step,
        "microbatch": state.microbatch,
        "lanes": {lane: cursor.encode() for lane, cursor in sorted(state.lanes.items())},
    }
    if state.microbatch:
        plain["dp"] = _place(definition)
    return plain


def restored(definition: Definition, state: SavedState) -> tuple[Definition, RankState]:
    """The definition and this rank's state to go on with.

    The run's own measurement of tokens per byte travels with its state: it is part of the order, and not taken again.

    Raises:
        StateError: of another layout or stream, from the middle of a step at another size, or without a lane of this rank.
    """
    plain = _checked(state)
    stream = json.loads(plain["stream"])
    if definition.source.estimation is not None:
        definition = definition.calibrated({**(definition.measured or {}), **stream.get("tokens_per_byte", {})})
    lanes = {int(lane): cursor for lane, cursor in plain["lanes"].items()}
    decoded = {lane: Cursor.decode(cursor, lane=lane) for lane, cursor in lanes.items()}
    cursors = continued(definition, stream, decoded, int(plain["step"]))
    microbatch = int(plain.get("microbatch", 0))
    if microbatch and list(plain.get("dp", [])) != _place(definition):
        raise StateError(
            f"this state was taken in the middle of step {plain['step']} by data-parallel rank and size {plain.get('dp')}",
            follows="another rank or size would repeat or lose a part of the step",
            remedy="save between steps, or restore at the same size",
        )
    refuse_different_skips(lanes)
    missing = [lane for lane in definition.own_lanes if lane not in lanes]
    if missing:
        raise StateError(
            f"the state has no cursor for lane {', '.join(map(str, missing))}; it has {sorted(lanes)}",
            follows="these lanes would start from zero, silently",
            remedy="restore from the states of all ranks: restore([state_of_rank_0, state_of_rank_1, ...])",
        )
    return definition, RankState(int(plain["step"]), microbatch, {lane: cursors[lane] for lane in definition.own_lanes})


def reassigned(
    definition: Definition, dp_degree: int, dp_group_id: int, own: CheckedState, others: Iterable[SavedState]
) -> tuple[Definition, RankState]:
    """The same as saving and restoring as another rank of another size, between two steps."""
    if own["microbatch"]:
        raise StateError(
            f"reassign in the middle of step {own['step']}, after microbatch {own['microbatch']}",
            follows="a part of the step would be lost or trained twice",
            remedy="finish the step on all ranks first",
        )
    changes: dict[str, object] = {"dp_degree": dp_degree, "dp_group_id": dp_group_id}
    if definition.options.canonical_replicas is None:  # lanes stay as many as they were when the run began
        changes["canonical_replicas"] = definition.world.lanes
    merged = merge_states([own, *(state for state in others if state != own)])
    return restored(definition.with_options(changes), merged)


def flat(state: CheckedState) -> dict[str, object]:
    """One key for each lane, for torch.distributed.checkpoint to shard.

    It puts together what ranks saved one by one and keeps one ``step`` of all, so that each lane's value says its own.
    """
    rest: dict[str, object] = {key: value for key, value in state.items() if key != "lanes"}
    step = state["step"].to_bytes(_STEP_BYTES, "little")
    return {**rest, **{f"{LANE_KEY}{lane}": step + cursor for lane, cursor in state["lanes"].items()}}


def nested(state: SavedState) -> dict[str, object]:
    """Back again. Raises StateError where lanes are of different steps, or a value is no lane's."""
    values = {int(key.removeprefix(LANE_KEY)): value for key, value in state.items() if key.startswith(LANE_KEY)}
    lanes: dict[int, bytes] = {}
    for lane, value in values.items():
        if not isinstance(value, bytes) or len(value) <= _STEP_BYTES:
            raise StateError(
                f"the value of lane {lane} is damaged: {value!r}",
                follows="the lane would start somewhere else than it stopped",
                remedy="restore from the previous checkpoint",
            )
        step, lanes[lane] = int.from_bytes(value[:_STEP_BYTES], "little"), value[_STEP_BYTES:]
        if step != state.get("step", step):
            raise StateError(
                f"lane {lane} was saved at step {step}, the state is of step {state['step']}: a torn checkpoint",
                follows="lanes would be at different steps, and sequences lost or repeated",
                remedy="use a checkpoint in which all ranks saved the same step",
            )
    return {**{key: value for key, value in state.items() if not key.startswith(LANE_KEY)}, "lanes": lanes}


def _place(definition: Definition) -> list[int]:
    return [definition.division.dp_degree, definition.division.dp_group_id]


def _checked(state: SavedState) -> CheckedState:
    missing = [key for key in ("version", "stream", "step", "lanes") if key not in state]
    if missing or state["version"] != VERSION:
        is_flat = "lanes" not in state and any(str(key).startswith(LANE_KEY) for key in state)
        raise StateError(
            f"not a state of version {VERSION}: " + (f"{missing} missing" if missing else f"version {state['version']}"),
            follows="its numbers would be misread",
            remedy="it is of state_dict: give it to load_state_dict"
            if is_flat
            else "restore it with the version of zephon that saved it",
        )
    return cast(CheckedState, state)
