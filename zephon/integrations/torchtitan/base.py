"""TorchTitan's base class of loaders where it is installed, else a stand-in with the same shape.

The module of the base class has changed between versions: it is looked for in each known one, whatever the version number.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

_MODULES = ("torchtitan.components.dataloader", "torchtitan.components.data.loader")


class StandIn:
    """What `BaseDataLoader` gives: a Config that builds its owner."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config:
        """Plain fields."""

        owner: ClassVar[Any] = None

        def build(self, **numbers: Any) -> Any:
            """The loader of this Config, for the numbers that the trainer knows."""
            return self.owner(config=dataclasses.replace(self), **numbers)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "Config" in cls.__dict__:
            cls.Config.owner = cls


def _base() -> Any:
    for name in _MODULES:
        try:
            return importlib.import_module(name).BaseDataLoader
        except (ImportError, AttributeError):
            continue
    return StandIn


def hidden(kind: Any) -> Any:
    """A field's type that the command line does not offer, where tyro reads it."""
    try:
        tyro = importlib.import_module("tyro")
    except ImportError:
        return kind
    return Annotated[kind, tyro.conf.Suppress]


if TYPE_CHECKING:
    BaseDataLoader = StandIn
else:
    BaseDataLoader = _base()
