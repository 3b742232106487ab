"""Declared fields: what an annotation says is what is checked, for experiments, options and ops alike."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import pytest

from zephon.errors import ConfigError
from zephon.spec.fields import AtLeast, NotNegative, Positive, check, named_options, rules_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Oven:
    mode: Literal["bake", "grill"] = "bake"
    minutes: Positive = 30
    trays: NotNegative | None = None
    share: Annotated[float, AtLeast(0.5)] = 1.0
    fan: bool = False
    label: str | None = None
    fn: Callable[[Any], object] | None = None
    mixture: Mapping[str, float] | float = 1.0

    def __post_init__(self) -> None:
        check(self, "oven")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"mode": "bakes"}, "oven(mode='bakes') is not one of 'bake', 'grill'\n  fix: did you mean 'bake'?"),
        ({"mode": None}, "oven(mode=None) is not one of"),
        ({"mode": ["bake"]}, "oven(mode=['bake']) is not one of"),
        ({"minutes": 0}, "oven(minutes=0) is below 1\n  fix: give at least 1"),
        ({"minutes": "5"}, "oven(minutes='5') is not a whole number"),
        ({"minutes": 5.0}, "oven(minutes=5.0) is not a whole number"),
        ({"minutes": True}, "oven(minutes=True) is not a whole number"),
        ({"minutes": None}, "oven(minutes=None) is not a whole number"),
        ({"trays": -1}, "oven(trays=-1) is below 0"),
        ({"share": 0.4}, "oven(share=0.4) is below 0.5"),
        ({"share": "all"}, "oven(share='all') is not a number"),
        ({"fan": 1}, "oven(fan=1) is not True or False"),
        ({"label": 3}, "oven(label=3) is not text"),
    ],
)
def test_a_value_that_its_annotation_excludes_is_named_with_its_owner(value: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Oven(**value)
    assert says in str(caught.value)


def test_what_the_annotation_allows_passes_and_other_annotations_are_not_looked_at() -> None:
    Oven(mode="grill", minutes=1, trays=None, share=1, label="x", fn=len, mixture={"a": 1})
    assert rules_of(Oven)["fn"].plain is None


class Kitchen:
    @named_options
    def cook(self, dish: str, *, minutes: int = 5) -> str:
        """Cooks."""
        return f"{dish} {minutes}"


def test_an_unknown_keyword_names_the_nearest_and_the_signature_stays_visible() -> None:
    assert Kitchen().cook("soup", minutes=7) == Kitchen().cook(dish="soup", minutes=7) == "soup 7"
    with pytest.raises(ConfigError, match="cook has no option 'minuts'\n  fix: did you mean 'minutes'") as caught:
        Kitchen().cook("soup", minuts=7)  # type: ignore[call-arg]
    assert caught.value.remedy == "did you mean 'minutes'?"
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'dish'"):
        Kitchen().cook()  # type: ignore[call-arg]
    assert str(inspect.signature(Kitchen.cook)) == "(self, dish: 'str', *, minutes: 'int' = 5) -> 'str'"
    assert Kitchen.cook.__doc__ == "Cooks."
