"""A controller in the training loop: it decides between two steps, and what it has decided is recorded before it takes effect.

    step 100   losses of all steps before -> decision -> decisions.json -> the loader goes on with one more phase to come
    step 150   about here the new mixture begins, on all ranks at the same chunk

A decision that is recorded is never made again: a run that was killed, resumed or rescaled follows it, from whichever step it
goes on. Rank 0 decides, from losses that are sums over all ranks; with the canonical reduction they are the same at every size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zephon.errors import ConfigError, ZephonError
from zephon.run.decisions import Decision, read_decisions, write_decisions
from zephon.run.directory import RunDir
from zephon.run.metrics import series
from zephon.spec.experiment import RunSpec
from zephon.train.distributed import Membership
from zephon.work.controllers import LearningSpeed, Measured, MixtureController, OnlineMixing

Begins = Callable[[int], tuple[int, int]]
"""From how many steps to wait to (steps that it really takes, token of the plan) of a mixture that begins then."""


@dataclass(kw_only=True)
class Steering:
    """The decisions of a run, and who makes them.

    Args:
        spec, run: the experiment and its directory.
        decisions: those made so far; the loader is built with them.
        controller: None where the run follows those of another one.
        history: what the steps so far have measured; rank 0 knows also those before this process.
        fence: raises where a newer generation has taken the run over.
    """

    spec: RunSpec
    run: RunDir
    decisions: list[Decision]
    controller: MixtureController | None
    fence: Callable[[], None] = lambda: None
    history: dict[int, Measured] = field(default_factory=dict)

    def note(self, step: int, loss: Mapping[str, float], tokens: Mapping[str, int]) -> None:
        """What a step has measured."""
        if self.controller is not None:
            self.history[step] = Measured(step, loss, tokens)

    def due(self, step: int) -> bool:
        """Whether a decision is to be made now that so many steps are done."""
        if self.controller is None or step in (0, self.spec.trainer.steps) or step % self.spec.data.controller.every:
            return False
        return all(decision.step != step for decision in self.decisions)

    def decide(self, step: int, membership: Membership, begins: Begins) -> Decision:
        """Makes a decision and records it; the same on every rank.

        Raises:
            ZephonError: what rank 0 could not do, on every rank.
        """
        decision: Decision | ZephonError | None = None
        if membership.first:
            try:
                decision = self._decide(step, begins)
            except ZephonError as error:
                decision = error
            except OSError as error:
                decision = _unwritable(self.run, step, error)
        decision = membership.broadcast(decision)
        if isinstance(decision, ZephonError):
            raise decision
        assert decision is not None
        self.decisions.append(decision)
        return decision

    def _decide(self, step: int, begins: Begins) -> Decision:
        assert self.controller is not None
        history = [self.history[number] for number in sorted(self.history) if number < step]
        wait, token = begins(self.spec.data.controller.delay)
        decision = Decision(step=step, effective=step + wait, token=token, weights=self.controller.decide(history))
        self.fence()
        write_decisions(self.run, [*self.decisions, decision])
        return decision


def steering_of(spec: RunSpec, run: RunDir, membership: Membership, fence: Callable[[], None]) -> Steering | None:
    """The run's decisions, read by rank 0 and taken over from another run where the spec says so; None where none are made.

    Raises:
        ConfigError: the other run has made no decision, or mixes other datasets.
    """
    if spec.data.controller.rule == "none" and spec.data.decisions is None:
        return None
    decisions: tuple[Decision, ...] | ZephonError | None = None
    if membership.first:
        try:
            decisions = read_decisions(run)
            if decisions is None and spec.data.decisions is not None:
                decisions = _taken_over(spec, run)
                write_decisions(run, decisions)
        except ZephonError as error:
            decisions = error
    decisions = membership.broadcast(decisions)
    if isinstance(decisions, ZephonError):
        raise decisions
    controller = None if spec.data.decisions is not None else controller_of(spec)
    before = {entry["step"]: _measured(entry) for entry in series(run)} if membership.first and controller else {}
    return Steering(spec=spec, run=run, decisions=list(decisions or ()), controller=controller, fence=fence, history=before)


def controller_of(spec: RunSpec) -> MixtureController:
    """What ``data.controller`` names."""
    rule, names = spec.data.controller, sorted(spec.data.datasets)
    if rule.rule == "odm":
        return OnlineMixing(names=names, every=rule.every, least=rule.least_share)
    whole = math.fsum(spec.data.datasets[name].weight for name in names)
    prior = {name: spec.data.datasets[name].weight / whole for name in names}
    return LearningSpeed(names=names, prior=prior, least=rule.least_share)


def _taken_over(spec: RunSpec, run: RunDir) -> tuple[Decision, ...]:
    named = str(spec.data.decisions)
    other = RunDir(named if "/" in named else f"{run.url.rstrip('/').rpartition('/')[0]}/{named}")
    decisions = read_decisions(other)
    if decisions is None:
        raise ConfigError(
            f"data.decisions={named}: {other.url} has no decisions",
            follows="the mixture would stay as it is at the start",
            remedy="name a run that was trained with data.controller.rule, or its directory",
        )
    for decision in decisions:
        if set(decision.weights) != set(spec.data.datasets):
            raise ConfigError(
                f"data.decisions={named}: it mixes {sorted(decision.weights)}, and this run {sorted(spec.data.datasets)}",
                follows="a dataset would have no share, or a share no dataset",
                remedy="give this run the same datasets under the same names",
            )
    return decisions


def _measured(entry: Mapping[str, Any]) -> Measured:
    """A line of metrics.jsonl; a loss that is not finite is spelled as text there."""
    loss = {name: float(value) for name, value in entry.get("dataset_loss", {}).items()}
    return Measured(int(entry["step"]), loss, entry.get("dataset_tokens", {}))


def _unwritable(run: RunDir, step: int, error: OSError) -> ZephonError:
    return ZephonError(
        f"the decision after step {step} could not be written to {run.url}: {error}",
        follows="a resumed run could not follow it",
        remedy="make room or restore access to the run directory, then resume",
    )
