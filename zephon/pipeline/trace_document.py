"""In which steps of a run a document was seen, and about when it will be: the plan, inverted, reads nothing in between.

    address -> place in the dataset -> its chunk in each pass -> lane and position -> flush interval -> steps

The intervals that were trained are replayed in the one lane that had them, so that the steps are exact.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from zephon.cursor import Cursor, RankState
from zephon.errors import ConfigError
from zephon.io import Dataset
from zephon.pipeline.trace import entries_of, pipeline_of
from zephon.run.directory import RunDir
from zephon.run.lane_cursors import KEY, cursors_before
from zephon.run.ledger import Entry
from zephon.run.specs import newest_spec
from zephon.spec.experiment import RunSpec
from zephon.work.segments import SegmentedPlan

AHEAD = 8  # passes that are foretold, at most


@dataclasses.dataclass(frozen=True, kw_only=True)
class Visit:
    """One pass over a document.

    Args:
        epoch: the pass over its dataset, from 0.
        lane, position: the chunk that has it.
        steps: those whose batches hold tokens of it; empty where it was dropped.
        about: the step in which it will come, where that is not trained yet.
    """

    epoch: int
    lane: int
    position: int
    steps: tuple[int, ...] = ()
    about: int | None = None


def trace_document(run: str, address: tuple[str, str, int]) -> tuple[Visit, ...]:
    """The passes over a document that a run has made, with their steps, and those that it will make by its last step.

    Args:
        run: the run's directory, a path or any fsspec URL.
        address: dataset, shard and row, as `SampleBatch.documents` names them.

    Raises:
        ConfigError: no run, no such document, or files that are not those of the run.
    """
    rundir = RunDir(run)
    spec, entries = newest_spec(rundir), entries_of(rundir)
    definition = pipeline_of(rundir, spec).definition
    dataset, shard, row = definition.locate(address)
    of = definition.source.datasets[dataset]
    place = int(of.starts[shard]) + place_of(of, shard, row)
    plan, interval = definition.plan, definition.program().flush_every
    assert isinstance(plan, SegmentedPlan)
    done = max((entry.step for entry in entries), default=-1) + 1
    reached = _reached(plan, entries, done, spec)
    last = reached * spec.trainer.steps // done if done else None
    visits: list[Visit] = []
    ahead = 0
    for epoch in itertools.count():
        g = plan.place(dataset, plan.orders[dataset].visit(place, epoch))
        if g is None or ahead == AHEAD:
            return tuple(visits)
        lane, position = plan.lane_of(g)
        seen = _seen(rundir, spec, entries, lane, position, interval, address) if done else None
        if seen is None and last is not None and g > last:
            return tuple(visits)
        if seen is None:
            ahead += 1
            about = g * done // max(1, reached) if done else None
            visits.append(Visit(epoch=epoch, lane=lane, position=position, about=about))
        else:
            visits.append(Visit(epoch=epoch, lane=lane, position=position, steps=seen))
    raise AssertionError("unreachable")


def place_of(dataset: Dataset, shard: int, row: int) -> int:
    """Where a document begins in its shard, in the format's units.

    Raises:
        ConfigError: the shard has no document of that name.
    """
    of, size = dataset.shard(shard), int(dataset.sizes[shard])

    def has(start: int, stop: int) -> bool:
        return row in dataset.format.read(of, start, stop).rows

    if row < size and has(row, row + 1):  # where rows are named by their place
        return row
    first, end = 0, size
    if not has(first, end):
        raise ConfigError(
            f"{dataset.address(shard, row)} does not exist",
            follows="no step holds it",
            remedy="name a document as batch.documents() and `zephon trace RUN --step N` do",
        )
    while end - first > 1:
        middle = (first + end) // 2
        first, end = (first, middle) if has(first, middle) else (middle, end)
    return first


def _reached(plan: SegmentedPlan, entries: Sequence[Entry], done: int, spec: RunSpec) -> int:
    """About how many global chunks have been read by the last step that was trained."""
    lanes = spec.lanes.count
    cursors = cursors_before(entries, done, lanes, spec.global_batch_size // lanes) or {}
    places = [plan.reach(lane, cursor.position) for lane, cursor in cursors.items()]
    return sum(places) // len(places) if places else 0


def _seen(
    rundir: RunDir,
    spec: RunSpec,
    entries: Sequence[Entry],
    lane: int,
    position: int,
    interval: int,
    address: tuple[str, str, int],
) -> tuple[int, ...] | None:
    """The steps that hold tokens of a document in the chunk at a position of a lane; None where it is not read yet."""
    known = _intervals(entries, lane)
    number = bisect.bisect_right([at for at, _ in known], position) - 1
    if number < 0 or position >= known[-1][0] + interval:
        return None
    done = max(entry.step for entry in entries) + 1
    first = known[number][1]
    # Packing may carry its last tokens over the sentinel, into a row of the next interval, which that one's shuffle moves.
    end = min(done, known[number + 2][1] + 1) if number + 2 < len(known) else done
    lanes, per_lane = spec.lanes.count, spec.global_batch_size // spec.lanes.count
    cursors = cursors_before(entries, first, lanes, per_lane)
    assert cursors is not None
    traced = pipeline_of(rundir, spec, lane, lanes)
    traced.follow(RankState(first, 0, {lane: cursors[lane]}))
    steps: set[int] = set()
    try:
        for step, batches in zip(range(first, end), traced.steps(), strict=False):
            spans = itertools.chain.from_iterable(rows for batch in batches for rows in batch.documents())
            if any(tuple(span.address) == tuple(address) for span in spans):
                steps.add(step)
    finally:
        traced.close()
    if not steps and number + 2 >= len(known):
        return None  # it may wait in a buffer
    return tuple(sorted(steps))


def _intervals(entries: Sequence[Entry], lane: int) -> list[tuple[int, int]]:
    """(position at which a flush interval of a lane begins, the first step that may hold rows of it), ascending."""
    firsts: dict[int, int] = {0: 0}
    for entry in entries:
        data = entry.rest.get(KEY, {}).get(str(lane))
        if data is not None:
            position = Cursor.decode(bytes.fromhex(data), lane=lane).position
            firsts[position] = min(firsts.get(position, entry.step), entry.step)
    return sorted(firsts.items())


def lines(visits: Sequence[Visit]) -> Iterator[str]:
    """Each pass as a sentence."""
    for visit in visits:
        where = f"pass {visit.epoch}: lane {visit.lane}, chunk {visit.position:,}"
        if visit.steps:
            yield f"{where}: step {', '.join(f'{step:,}' for step in visit.steps)}"
        elif visit.about is not None:
            yield f"{where}: to come, about step {visit.about:,}"
        else:
            yield f"{where}: in no step: the document was dropped, or no step was trained yet"
