"""docs/config.md has every field of an experiment, with the default, the values and the kind that the spec declares."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

from zephon.launch.config.schema import is_spec, without_none
from zephon.spec.base import Spec
from zephon.spec.experiment import DatasetSpec, EvalDatasetSpec, PhaseSpec, RunSpec, StageSpec
from zephon.spec.fields import rules_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "config.md"
BELOW = {
    "data.datasets.NAME": DatasetSpec,
    "data.phases.NAME": PhaseSpec,
    "trainer.eval_data.NAME": EvalDatasetSpec,
    "stages.own.NAME": StageSpec,
}


def fields() -> Iterator[tuple[str, str, str, str]]:
    """(field, default, values, kind) of every leaf, in the order of the spec."""
    yield from _of(RunSpec, "")
    for prefix, spec in BELOW.items():
        yield from _of(spec, f"{prefix}.")


def _of(spec: type[Spec], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    import typing

    hints, rules = typing.get_type_hints(spec), rules_of(spec)
    for field in dataclasses.fields(spec):  # type: ignore[arg-type]
        kind = without_none(hints[field.name])
        if is_spec(kind):
            yield from _of(kind, f"{prefix}{field.name}.")
            continue
        rule = rules.get(field.name)
        values = " ".join(f"`{choice}`" for choice in rule.choices) if rule is not None else ""
        yield f"`{prefix}{field.name}`", _default(field), values, field.metadata["kind"]


def _default(field: dataclasses.Field[object]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return f"`{field.default_factory()}`"
    if field.default is dataclasses.MISSING:
        return "must be given"
    if isinstance(field.default, tuple):
        return f"`{list(field.default)}`"
    return f"`{field.default}`"


def test_every_field_is_on_the_page_as_the_spec_declares_it() -> None:
    rows = [
        tuple(cell.strip() for cell in line.strip("|").split(" | "))
        for line in PAGE.read_text("utf-8").splitlines()
        if line.startswith("| `")
    ]
    assert [row[:4] for row in rows] == list(fields())
    assert [row[0] for row in rows if not re.search(r"\w", row[4])] == []
