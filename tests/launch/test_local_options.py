"""The options of scheduler=local: the launcher lets through exactly those that the scheduler has."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from zephon.errors import ConfigError
from zephon.launch.backends.local.backend import options_of
from zephon.launch.backends.local.scheduler import LocalOpts
from zephon.launch.config.compose import compose
from zephon.spec.experiment import RunSpec

OWN = "lease"  # the launcher fills it in
JOB = {"cpu": 2, "gpu": 0, "memory_mb": 64, "image": "x"}  # of every scheduler


def spec_with(options: dict[str, Any]) -> RunSpec:
    spec = compose(["conf=exp1"]).spec
    return dataclasses.replace(spec, scheduler=dataclasses.replace(spec.scheduler, options=options))


def test_every_option_of_the_scheduler_is_let_through() -> None:
    accepted = {name for name, _ in LocalOpts.as_runopts()} - {OWN}
    options = dict.fromkeys(sorted(accepted), "none")
    assert options
    assert options_of(spec_with({**options, **JOB})) == options


@pytest.mark.parametrize(("option", "remedy"), [(OWN, "known: "), ("gpuss", "did you mean 'gpus'")])
def test_any_other_option_is_refused(option: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=f"scheduler.options.{option} is not an option of scheduler=local") as caught:
        options_of(spec_with({option: "x"}))
    assert remedy in caught.value.remedy
