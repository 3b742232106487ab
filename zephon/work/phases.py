"""Phases: a curriculum as a list of mixtures, each until a step or a token of the run. Pure arithmetic.

    phases       web 9 : code 1        | linear to web 1 : code 1 | web 1 : code 1 : math 2
    until        2,000 steps           | 3,000 steps              | the run's end
    stretches    |         0           | 1 | 2 | ...          | 32|          33

A linear or cosine change is a phase of `PARTS` stretches, each with the mixture of its middle. A boundary is a whole number of
chunks: where the tokens before it, as calibration knows them, are read. So it lies at the same chunk at every size, and off the
step that was named by as much as tokens per byte are off their average.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Literal, NamedTuple, get_args

from zephon.errors import ConfigError, nearest
from zephon.types import Json
from zephon.work.mixture import MixtureSpec

Change = Literal["at_once", "linear", "cosine"]
PARTS = 32  # mixtures of a linear or cosine change
_GRID = 1 << 16  # a cosine is rounded to this, so that no machine's last bit decides a mixture
_UNTIL = re.compile(r"(\d[\d_,]*|\d+(?:\.\d+)?[eE]\+?\d+)\s*(steps?|tokens?)")


class Until(NamedTuple):
    """Where a phase ends, counted from the start of the run: a number of ``steps`` or of ``tokens``."""

    number: int
    unit: Literal["steps", "tokens"]

    def __str__(self) -> str:
        return f"{self.number:,} {self.unit}"

    def tokens(self, batch_tokens: int | None) -> int:
        """In tokens of the stream.

        Args:
            batch_tokens: of one global batch.

        Raises:
            ConfigError: steps of a stream whose batches have no fixed number of tokens.
        """
        if self.unit == "tokens":
            return self.number
        if batch_tokens is None:
            raise ConfigError(
                f"a phase until {self} needs rows of one length",
                follows="without packing a step has no fixed number of tokens, and nobody could say where the phase ends",
                remedy="use pack_flat, or say how many tokens",
            )
        return self.number * batch_tokens


def until_of(text: str) -> Until:
    """Reads "2000 steps", "5e9 tokens" or "5_000_000 tokens".

    Raises:
        ConfigError: anything else, or a number below 1.
    """
    match = _UNTIL.fullmatch(text.strip())
    number = Fraction(re.sub("[_,]", "", match[1])) if match else Fraction(0)
    if match is None or number.denominator != 1 or number < 1:
        raise ConfigError(
            f"until={text!r} is not a number of steps or tokens",
            follows="nobody could say where the phase ends",
            remedy='write "2000 steps" or "5e9 tokens", counted from the start of the run',
        )
    return Until(int(number), "steps" if match[2].startswith("step") else "tokens")


@dataclasses.dataclass(frozen=True)
class Phase:
    """A stretch of the run with one mixture, or with a change from the mixture before to this one.

    Args:
        mixture: relative weights in tokens of the datasets that are read in it; the others rest.
        until: where it ends, counted from the start of the run: "2000 steps" or "5e9 tokens". The last phase goes on until the
            run ends; it may leave this out.
        change: "at_once", or "linear" or "cosine" from the mixture of the phase before, over this phase.

    Raises:
        ConfigError: a text that is neither steps nor tokens, a change without an end, or an unknown change.
    """

    mixture: MixtureSpec | Mapping[str, float]
    until: str | None = None
    change: Change = "at_once"

    def __post_init__(self) -> None:
        if not isinstance(self.mixture, MixtureSpec):
            object.__setattr__(self, "mixture", MixtureSpec(self.mixture))
        if self.change not in get_args(Change):
            raise ConfigError(
                f"change={self.change!r} is not a change of mixture", remedy=nearest(str(self.change), get_args(Change))
            )
        if self.change != "at_once" and self.until is None:
            raise ConfigError(
                f"a {self.change} change of the mixture has no end",
                follows="nobody could say how fast the mixture changes",
                remedy='give until="3000 steps", or "5e9 tokens"',
            )
        _ = self.end  # refuses another text

    @property
    def end(self) -> Until | None:
        """``until`` as a number."""
        return None if self.until is None else until_of(self.until)

    @property
    def weights(self) -> dict[str, float]:
        assert isinstance(self.mixture, MixtureSpec)
        return self.mixture.weights

    def describe(self) -> Json:
        """As plain values, for the stream's description; `phase_of` reads them."""
        weights = {name: str(Fraction(weight)) for name, weight in self.weights.items()}
        return {"mixture": weights, "until": None if self.end is None else [*self.end], "change": self.change}

    def __str__(self) -> str:
        shares = ", ".join(f"{name} {float(share):.1%}" for name, share in exact_shares(self).items())
        how = "" if self.change == "at_once" else f"{self.change} to "
        return f"{how}{shares}" + (f" until {self.end}" if self.end else "")


def phase_of(described: Json) -> Phase:
    """What `Phase.describe` wrote."""
    until = described["until"]
    weights = {name: float(Fraction(weight)) for name, weight in described["mixture"].items()}
    return Phase(weights, None if until is None else f"{until[0]} {until[1]}", described["change"])


def exact_shares(phase: Phase) -> dict[str, Fraction]:
    """The phase's mixture as shares of 1."""
    whole = sum(Fraction(weight) for weight in phase.weights.values())
    return {name: Fraction(weight) / whole for name, weight in phase.weights.items()}


class Stretch(NamedTuple):
    """A part of the run with one mixture.

    Args:
        phase: its number.
        begin, end: in tokens of the stream; no end for the last one.
        shares: of each dataset in it; they sum to 1.
    """

    phase: int
    begin: Fraction
    end: Fraction | None
    shares: Mapping[str, Fraction]


def stretches(phases: Sequence[Phase], batch_tokens: int | None) -> Iterator[Stretch]:
    """The phases as mixtures that do not change.

    Args:
        batch_tokens: of one global batch; needed where a phase ends at a step.

    Raises:
        ConfigError: a phase that ends before it begins.
    """
    begin, before = Fraction(0), exact_shares(phases[0])
    for number, phase in enumerate(phases):
        last, shares = number == len(phases) - 1, exact_shares(phase)
        end = None if phase.end is None else Fraction(phase.end.tokens(batch_tokens))
        if end is not None and end <= begin:
            raise ConfigError(
                f"phase {number} ends at {phase.end}, and the one before it at {phases[number - 1].end}",
                follows="it would have no length, and its mixture would never be read",
                remedy="count from the start of the run, and let each phase end after the one before it",
            )
        if phase.change != "at_once":
            assert end is not None
            for part in range(PARTS):
                mixed = _between(before, shares, _progress(phase.change, Fraction(2 * part + 1, 2 * PARTS)))
                length = end - begin
                yield Stretch(number, begin + length * part / PARTS, begin + length * (part + 1) / PARTS, mixed)
            if last:
                yield Stretch(number, end, None, shares)
        else:
            yield Stretch(number, begin, None if last else end, shares)
        if end is not None:
            begin, before = end, shares


def _progress(change: Change, time: Fraction) -> Fraction:
    """How far a change is at a ``time`` from 0 to 1."""
    if change == "linear":
        return time
    return Fraction(round(_GRID * (1 - math.cos(math.pi * float(time))) / 2), _GRID)


def _between(old: Mapping[str, Fraction], new: Mapping[str, Fraction], progress: Fraction) -> dict[str, Fraction]:
    names = dict.fromkeys([*old, *new])
    mixed = {name: old.get(name, Fraction(0)) * (1 - progress) + new.get(name, Fraction(0)) * progress for name in names}
    return {name: share for name, share in mixed.items() if share}


def first_difference(then: Sequence[Phase], now: Sequence[Phase], batch_tokens: int | None) -> Fraction | None:
    """The first token of the stream at which two curricula have another mixture; None where they are the same.

    Args:
        then, now: the phases of the run, and those that are asked for.
        batch_tokens: as of `stretches`.
    """
    old, new = list(stretches(then, batch_tokens)), list(stretches(now, batch_tokens))
    edges = sorted({stretch.begin for stretch in [*old, *new]})
    for edge in edges:
        if _at(old, edge) != _at(new, edge):
            return edge
    return None


def _at(parts: Sequence[Stretch], token: Fraction) -> Mapping[str, Fraction]:
    return next(part.shares for part in reversed(parts) if part.begin <= token)


def check_phases(phases: Sequence[Phase], names: Sequence[str]) -> None:
    """Refuses phases that do not fit each other or the datasets.

    Raises:
        ConfigError: no phase, an unknown dataset, a dataset in no phase, a change in the first phase, or one without an end.
    """
    if not phases:
        raise ConfigError("a curriculum without a phase", remedy="give at least one Phase, or use StaticMixtureWorkSource")
    for number, phase in enumerate(phases):
        for name in phase.weights:
            if name not in names:
                raise ConfigError(
                    f"phase {number} gives a weight to {name!r}, which is no dataset",
                    follows="a part of its tokens would come from nowhere",
                    remedy=nearest(name, names, kind="datasets"),
                )
        if phase.until is None and number < len(phases) - 1:
            raise ConfigError(
                f"phase {number} of {len(phases)} has no end",
                follows="the phases after it would never begin",
                remedy='give until="2000 steps", or "5e9 tokens", counted from the start of the run',
            )
    if phases[0].change != "at_once":
        raise ConfigError(
            f"the first phase is a {phases[0].change} change",
            follows="there is no mixture before it that could change",
            remedy="put a phase with the first mixture before it",
        )
    resting = [name for name in names if not any(name in phase.weights for phase in phases)]
    if resting:
        raise ConfigError(
            f"dataset {resting[0]!r} is in no phase",
            follows="it would never be read",
            remedy="give it a weight in a phase, or remove it from the datasets",
        )
