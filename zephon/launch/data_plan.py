"""What a run would read, before it reads: datasets, tokens, shares, passes, chunks, phases, from listing and calibration."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from zephon.ops.tokenizers import load_tokenizer
from zephon.pipeline.definition import Definition
from zephon.pipeline.experiment import pipeline
from zephon.pipeline.mixing import held_to, mixing_of, mixing_text
from zephon.pipeline.validate import packing_drops
from zephon.run.calibration import read_calibration
from zephon.run.directory import RunDir
from zephon.spec.experiment import RunSpec
from zephon.work.curriculum import batch_tokens_of, phases_of
from zephon.work.phases import Phase, Stretch, stretches
from zephon.work.tokens import TokenEstimation, tokens_per_byte

MANY_PASSES = 4
"""Over so many passes repeated text is worth nearly as much as new text, and little after that: Muennighoff et al., "Scaling
Data-Constrained Language Models", 2023."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetPlan:
    """What a run would read of one dataset.

    Args:
        size: in the format's units, bytes of text for most.
        tokens: about as many it holds.
        error: standard error of tokens, as a part of them; 0 where they were not measured.
        share: of the run's tokens.
        within: how far its share of a thousand global batches may be off, as a part of it; 0 where nothing was measured.
        passes: by the end of the run.
        chunks, chunks_a_lane: of one pass.
    """

    name: str
    size: int
    tokens: int
    error: float
    share: float
    within: float
    passes: float
    chunks: int
    chunks_a_lane: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhasePlan:
    """One phase: the steps at which it begins and ends (none: with the run), and the share of each dataset at its end."""

    begin: int
    end: int | None
    change: str
    shares: Mapping[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataPlan:
    """What a run would read; ``mixing`` says how well it is shuffled; ``warnings`` are whole sentences."""

    steps: int
    datasets: tuple[DatasetPlan, ...]
    phases: tuple[PhasePlan, ...]
    mixing: str
    warnings: tuple[str, ...]


def data_plan(spec: RunSpec, rundir: RunDir) -> DataPlan:
    """Lists the data, and measures a sample of it where the run has not been measured.

    Raises:
        ZephonError: data or tokenizer that cannot be used.
    """
    tokenizer = load_tokenizer(spec.tokenizer.id, backend=spec.tokenizer.backend)
    built = pipeline(spec, tokenizer, dp_rank=0, dp_size=1)
    counts = built.calibrate(read_calibration(rundir) or {})
    definition, batch_tokens = built.definition, batch_tokens_of(spec)
    lasting = Fraction(spec.trainer.steps * batch_tokens)
    phases = phases_of(spec)
    parts = list(stretches(phases, batch_tokens))
    read = _tokens_read(parts, lasting)
    planned = []
    for index, dataset in enumerate(definition.source.datasets):
        rate = tokens_per_byte(dataset.name, counts, _estimation(spec))
        chunks = -(-dataset.size // definition.chunk_lengths[index])
        planned.append(
            DatasetPlan(
                name=dataset.name,
                size=dataset.size,
                tokens=int(dataset.size * rate),
                error=counts[dataset.name].error / 1e6 if dataset.name in counts else 0.0,
                share=float(read.get(dataset.name, Fraction(0)) / lasting),
                within=3 * held_to(definition, index),
                passes=float(read.get(dataset.name, Fraction(0)) / (dataset.size * rate)),
                chunks=chunks,
                chunks_a_lane=chunks / spec.lanes.count,
            )
        )
    shown = _phase_plans(phases, parts, batch_tokens) if spec.data.phases is not None else ()
    mixing = mixing_of(definition)
    warnings = (*_warnings(spec, planned, shown, definition, parts), *mixing.warnings)
    return DataPlan(
        steps=spec.trainer.steps, datasets=tuple(planned), phases=shown, mixing=mixing_text(mixing), warnings=warnings
    )


def shares_at(spec: RunSpec, columns: int) -> list[Mapping[str, float]]:
    """The share of each dataset in the middle of each of so many equal parts of the run."""
    tokens = spec.trainer.steps * batch_tokens_of(spec)
    parts = list(stretches(phases_of(spec), batch_tokens_of(spec)))
    middles = [Fraction(tokens * (2 * column + 1), 2 * columns) for column in range(columns)]
    return [
        {name: float(share) for name, share in next(p for p in reversed(parts) if p.begin <= middle).shares.items()}
        for middle in middles
    ]


def _estimation(spec: RunSpec) -> TokenEstimation:
    return TokenEstimation(primer=spec.data.tokens_per_byte) if spec.data.tokens_per_byte else TokenEstimation()


def _tokens_read(parts: Sequence[Stretch], lasting: Fraction) -> dict[str, Fraction]:
    """Tokens of each dataset until so many of all have been read."""
    read: dict[str, Fraction] = {}
    for part in parts:
        end = lasting if part.end is None else min(part.end, lasting)
        for name, share in part.shares.items() if end > part.begin else ():
            read[name] = read.get(name, Fraction(0)) + share * (end - part.begin)
    return read


def _phase_plans(phases: Sequence[Phase], parts: Sequence[Stretch], batch_tokens: int) -> tuple[PhasePlan, ...]:
    plans = []
    for number, of_phase in itertools.groupby(parts, key=lambda part: part.phase):
        own = list(of_phase)
        end = own[-1].end
        shares = {name: float(share) for name, share in own[-1].shares.items()}
        begin, last = int(own[0].begin // batch_tokens), None if end is None else int(end // batch_tokens)
        plans.append(PhasePlan(begin=begin, end=last, change=phases[number].change, shares=shares))
    return tuple(plans)


def _warnings(
    spec: RunSpec,
    datasets: Sequence[DatasetPlan],
    phases: Sequence[PhasePlan],
    definition: Definition,
    parts: Sequence[Stretch],
) -> Iterator[str]:
    lanes, steps = spec.lanes.count, spec.trainer.steps
    for dataset in datasets:
        name = f"dataset {dataset.name!r}"
        if dataset.chunks < lanes:
            yield f"{name} has {dataset.chunks} chunks for {lanes} lanes: in each pass some lanes see nothing of it"
        if spec.data.exhausted == "repeat" and dataset.passes > MANY_PASSES:
            yield (
                f"{name} would be read {dataset.passes:.1f} times by step {steps:,}: after {MANY_PASSES} passes repeated text "
                "teaches little; give it a smaller weight, or fewer steps"
            )
        if spec.data.exhausted == "stop" and dataset.passes > 1:
            yield f"{name} is used up before step {steps:,}, and data.exhausted=stop ends the run there"
    if spec.data.exhausted == "redistribute" and all(dataset.passes >= 1 for dataset in datasets if dataset.share):
        yield f"all data is used up before step {steps:,}"
    if dropped := packing_drops(definition):
        yield dropped
    interval = _interval_steps(definition, parts, batch_tokens_of(spec))
    for number, phase in enumerate(phases):
        if phase.begin >= steps:
            yield f"phase {number} begins at step {phase.begin:,}, and the run ends at step {steps:,}"
        elif interval > 1 and phase.end is not None and phase.end - phase.begin < interval:
            yield (
                f"phase {number} lasts {phase.end - phase.begin:,} steps, and a flush interval {interval:,}: the shuffle mixes "
                "it with its neighbours; lower pipeline.shuffle_buffer or pipeline.flush_every_k_chunks"
            )


def _interval_steps(definition: Definition, parts: Sequence[Stretch], batch_tokens: int) -> int:
    """About how many steps one flush interval of all lanes lasts at the start of the run; 0 where nothing is reordered."""
    if not definition.flush_every:
        return 0
    source, counts = definition.source, definition.counts
    sizes = zip(source.datasets, definition.chunk_lengths, strict=True)
    tokens = {of.name: length * tokens_per_byte(of.name, counts, TokenEstimation()) for of, length in sizes}
    chunks = sum(share / tokens[name] for name, share in parts[0].shares.items())
    return int(definition.program().flush_every * definition.world.lanes / chunks // batch_tokens)
