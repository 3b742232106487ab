"""Each dataset's part of the tokens next to its target, over the newest steps; a drift is told of once."""

from __future__ import annotations

import functools
from collections import Counter, deque
from collections.abc import Mapping

from zephon.run.calibration import read_calibration
from zephon.run.directory import RunDir
from zephon.spec.experiment import RunSpec
from zephon.types import Counts, Sampled
from zephon.work.curriculum import batch_tokens_of, phases_of
from zephon.work.fair import BATCHES, fair_tokens, share_error
from zephon.work.phases import stretches

DRIFT = 0.03  # of its target: a share that is further off, and by more than chance explains, is told of


class RealizedShares:
    """What the newest `BATCHES` steps of this process held.

    Args:
        run: whose calibration says how far chance may go.
        spec: whose mixture or phases are the targets.
    """

    def __init__(self, run: RunDir, spec: RunSpec) -> None:
        self._run, self._lanes, self._batch_tokens = run, spec.lanes.count, batch_tokens_of(spec)
        self._repeats = spec.data.exhausted == "repeat"
        self._stretches = list(stretches(phases_of(spec), self._batch_tokens))
        self._stretch = 0
        self._steps: deque[tuple[Mapping[str, int], Mapping[str, float]]] = deque()
        self._tokens: Counter[str] = Counter()
        self._wanted: Counter[str] = Counter()
        self._told: set[str] = set()

    def add(self, step: int, tokens: Mapping[str, int]) -> None:
        """A step, counted from 0, with its tokens by dataset."""
        begin = step * self._batch_tokens
        if begin < self._stretches[self._stretch].begin:
            self._stretch = 0  # a roll-back
        while self._stretch + 1 < len(self._stretches) and self._stretches[self._stretch + 1].begin <= begin:
            self._stretch += 1
        wanted = {name: float(share) for name, share in self._stretches[self._stretch].shares.items()}
        self._steps.append((tokens, wanted))
        self._tokens.update(tokens)
        for name, share in wanted.items():
            self._wanted[name] += share  # type: ignore[assignment]
        if len(self._steps) > BATCHES:
            old_tokens, old_wanted = self._steps.popleft()
            self._tokens.subtract(old_tokens)
            for name, share in old_wanted.items():
                self._wanted[name] -= share  # type: ignore[assignment]

    @property
    def realized(self) -> dict[str, float]:
        """Each dataset's part of the tokens of these steps."""
        whole = self._tokens.total()
        return {name: count / whole for name, count in sorted(self._tokens.items()) if count} if whole else {}

    @property
    def targets(self) -> dict[str, float]:
        """Each dataset's share as the mixture or the phases want it, in the mean over these steps."""
        return {name: share / len(self._steps) for name, share in sorted(self._wanted.items()) if share > 1e-9}

    def drift(self) -> str:
        """One sentence, once for each dataset, where a share is off by more than `DRIFT` and chance; else nothing."""
        if len(self._steps) < BATCHES or not self._repeats:
            return ""
        realized = self.realized
        for name, target in self.targets.items():
            off = realized.get(name, 0.0) / target - 1
            if abs(off) > DRIFT and name not in self._told and abs(off) > DRIFT + 4 * self._chance(name, target):
                self._told.add(name)
                return (
                    f"dataset {name!r} was {realized.get(name, 0.0):.2%} of the tokens of the last {BATCHES:,} steps, and its "
                    f"target is {target:.2%}: a byte of its text makes other numbers of tokens here than in the sample that "
                    "was measured before the first step. The mixture of phases to come can set it right (data.phases)"
                )
        return ""

    @functools.cached_property
    def _measured(self) -> Counts:
        return read_calibration(self._run) or {}

    def _chance(self, name: str, target: float) -> float:
        sampled = self._measured.get(name, Sampled(0, 0))
        document = sampled.tokens / sampled.documents if sampled.documents else 0.0
        chunk = max(fair_tokens(target, self._lanes, self._batch_tokens), 2 * document)
        return share_error(target, self._lanes, self._batch_tokens, chunk, sampled)
