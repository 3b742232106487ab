"""The curriculum of an experiment: its phases in order, and what of it may still change in a run that has begun.

    run at step 1,200      phases  warm until 1,000 steps | main until 5,000 steps | ...
    now                            warm until 1,000 steps | main until 4,000 steps | anneal

The past is what was trained: a change is accepted where the first step that would differ has not begun.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from zephon.errors import ConfigError
from zephon.run.decisions import Decision
from zephon.spec.experiment import PhaseSpec, RunSpec
from zephon.work.phases import Phase, check_phases, first_difference

_PHASES, _DATASETS = "data.phases", "data.datasets"
_NOT_SET = object()  # None is a value


def batch_tokens_of(spec: RunSpec) -> int:
    """Tokens of one global batch: rows have one more than there are inputs."""
    return spec.global_batch_size * (spec.pipeline.context_length + 1)


def is_decided(spec: RunSpec) -> bool:
    """Whether the mixture follows decisions that are made, or were made by another run."""
    return spec.data.controller.rule != "none" or spec.data.decisions is not None


def phases_of(spec: RunSpec, decisions: Sequence[Decision] = ()) -> tuple[Phase, ...]:
    """The experiment's phases in order; one phase with the datasets' weights where it names none.

    Args:
        decisions: those that the run follows, in order: each begins a phase.

    Raises:
        ConfigError: phases that do not fit each other or the datasets, or a weight that no phase would use.
    """
    weights = {name: dataset.weight for name, dataset in spec.data.datasets.items()}
    if is_decided(spec):
        _check_decided(spec)
        mixtures = [weights, *(decision.weights for decision in decisions)]
        ends = [*(f"{decision.token} tokens" for decision in decisions), None]
        return tuple(Phase(mixture, end) for mixture, end in zip(mixtures, ends, strict=True))
    if spec.data.phases is None:
        return (Phase(weights),)
    phases = _in_order(spec.data.phases, weights, batch_tokens_of(spec))
    check_phases(phases, list(weights))
    if all(phase.mixture is not None for phase in spec.data.phases.values()):
        name = next((name for name, weight in weights.items() if weight != 1), None)
        if name is not None:
            raise ConfigError(
                f"data.datasets.{name}.weight={weights[name]:g}, and every phase has a mixture of its own",
                follows="the weight would have no effect",
                remedy="leave the weight out, or the mixture of the phase in which the datasets' weights are to count",
            )
    return phases


def _check_decided(spec: RunSpec) -> None:
    """Raises ConfigError: two rules for the mixture, or one that nobody would carry out."""
    data = spec.data
    rules = {
        "data.phases": data.phases is not None,
        f"data.controller.rule={data.controller.rule}": data.controller.rule != "none",
        f"data.decisions={data.decisions}": data.decisions is not None,
    }
    given = [rule for rule, is_given in rules.items() if is_given]
    if len(given) > 1:
        raise ConfigError(
            f"{given[0]} together with {given[1]}",
            follows="two rules would each decide on the mixture",
            remedy="keep one of them",
        )
    if spec.torchtitan.module:
        raise ConfigError(
            f"{given[0]} with trainer=torchtitan",
            follows="the mixture would stay as it is at the start: TorchTitan's trainer does not measure the datasets' losses",
            remedy="use data.phases, or the built-in trainer",
        )
    if len(data.datasets) < 2:
        raise ConfigError(f"{given[0]} with one dataset", follows="there is nothing to mix", remedy="leave it out")


def _in_order(specs: Mapping[str, PhaseSpec], weights: Mapping[str, float], batch_tokens: int) -> tuple[Phase, ...]:
    """By where they end; one without an end is the last."""
    phases = {}
    for name, spec in specs.items():
        try:
            mixture = {of: weight for of, weight in weights.items() if weight > 0} if spec.mixture is None else spec.mixture
            phases[name] = Phase(mixture, spec.until, spec.change)
        except ConfigError as error:
            raise ConfigError(f"data.phases.{name}: {error.what}", follows=error.follows, remedy=error.remedy) from error
    ends = {name: None if phase.end is None else phase.end.tokens(batch_tokens) for name, phase in phases.items()}
    same = [(name, other) for name in ends for other in ends if name < other and ends[name] == ends[other]]
    if same:
        name, other = same[0]
        where = "have no end" if ends[name] is None else f"both end at {phases[name].end}"
        raise ConfigError(
            f"data.phases.{name} and data.phases.{other} {where}",
            follows="nobody could say which of them comes first",
            remedy="give each an until= of its own; only the last phase may have none",
        )
    order = sorted(phases, key=lambda name: (ends[name] is None, ends[name] or 0))
    return tuple(phases[name] for name in order)


class CurriculumChange(NamedTuple):
    """How the curriculum of a run differs from the one that is asked for.

    Args:
        fields: the pinned fields that differ and belong to it.
        step: the first step that would differ; None where none would.
    """

    fields: tuple[str, ...]
    step: int | None

    def is_future(self, steps: int) -> bool:
        """Whether a run with so many steps done may take it over."""
        return self.step is None or self.step >= steps


def curriculum_change(then: Mapping[str, Any], spec: RunSpec) -> CurriculumChange:
    """What of the curriculum differs.

    Args:
        then: the run's pinned fields, as its contract or a checkpoint has them.
        spec: what is asked for; its ``data.phases`` fit its datasets.
    """
    now = spec.fields_of("pinned")
    fields = tuple(
        sorted(
            name for name in {*then, *now} if _belongs(name, then, now) and then.get(name, _NOT_SET) != now.get(name, _NOT_SET)
        )
    )
    if not fields:
        return CurriculumChange((), None)
    batch_tokens = batch_tokens_of(spec)
    token = first_difference(_phases_from(then, batch_tokens), phases_of(spec), batch_tokens)
    return CurriculumChange(fields, None if token is None else int(token // batch_tokens))


def _belongs(name: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a field is one of a phase, a dataset's weight, or any of a dataset that only one side has."""
    if name == _PHASES or name.startswith(f"{_PHASES}."):
        return True
    if not name.startswith(f"{_DATASETS}."):
        return False
    dataset, _, field = name.rpartition(".")
    return field == "weight" or f"{dataset}.path" not in then or f"{dataset}.path" not in now


def _phases_from(fields: Mapping[str, Any], batch_tokens: int) -> tuple[Phase, ...]:
    def of(prefix: str) -> dict[str, dict[str, Any]]:
        entries: dict[str, dict[str, Any]] = {}
        for name, value in fields.items():
            if name.startswith(f"{prefix}."):
                key, _, field = name.removeprefix(f"{prefix}.").rpartition(".")
                entries.setdefault(key, {})[field] = value
        return entries

    weights = {name: held["weight"] for name, held in of(_DATASETS).items()}
    phases = {name: PhaseSpec.from_dict(held) for name, held in of(_PHASES).items()}
    return _in_order(phases, weights, batch_tokens) if phases else (Phase(weights),)
