"""Every option of a pipeline, typed, checked once. A new one must edit the list in tests/test_house.py and defend itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from zephon.errors import ConfigError, nearest
from zephon.io.cache import CacheOptions

RUNNERS = ("threads", "process", "inline")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """See `Pipeline.options`."""

    runner: str = "threads"
    max_workers: int | None = None
    deterministic: bool = True
    isolated: bool = False
    prefetch_batches: int = 8
    prefetch_bytes: int = 256 << 20
    flush_every_k_chunks: int | None = None
    io_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    dp_degree: int = 1
    dp_group_id: int = 0
    world_size: int = 1
    global_rank: int = 0
    canonical_replicas: int | None = None
    global_batch_size: int | None = None
    lanes_allow: str = "whole"
    mapping_strategy: str = "contiguous"
    run_id: str | None = None
    auto_validation: str = "off"
    on_error: str | Mapping[str, str] = "raise"
    quarantine_budget: int = 100

    def __post_init__(self) -> None:
        _choose("runner", self.runner, RUNNERS)
        _choose("lanes_allow", self.lanes_allow, ("whole", "shared", "uneven"))
        _choose("mapping_strategy", self.mapping_strategy, ("contiguous",))
        _choose("auto_validation", self.auto_validation, ("strict", "warn", "off"))
        CacheOptions.of(self.io_options)
        for choice in [self.on_error] if isinstance(self.on_error, str) else self.on_error.values():
            _choose("on_error", choice, ("raise", "quarantine"))
        for name, least in (
            ("quarantine_budget", 0),
            ("dp_degree", 1),
            ("dp_group_id", 0),
            ("prefetch_batches", 0),
            ("prefetch_bytes", 1),
            ("world_size", 1),
        ):
            _at_least(name, getattr(self, name), least)
        for name, least in (
            ("max_workers", 0),
            ("flush_every_k_chunks", 0),
            ("canonical_replicas", 1),
            ("global_batch_size", 1),
        ):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), least)
        if not self.deterministic:
            raise ConfigError(
                "deterministic=False",
                follows="the global batch would depend on timing",
                remedy="leave it out: the order costs nothing",
            )
        if self.dp_group_id >= self.dp_degree:
            raise ConfigError(
                f"dp_group_id={self.dp_group_id} with dp_degree={self.dp_degree}",
                follows="this rank would own no slot",
                remedy=f"use 0 to {self.dp_degree - 1}",
            )

    def updated(self, changes: Mapping[str, Any]) -> Options:
        """With some options changed. Raises ConfigError for an unknown name."""
        known = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                raise ConfigError(
                    f"option {name!r} is not known", follows="it would have no effect", remedy=nearest(name, known)
                )
        return dataclasses.replace(self, **changes)


def _choose(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(
            f"{name}={value!r} is not one of {', '.join(choices)}",
            follows="nothing could run",
            remedy=nearest(str(value), choices),
        )


def _at_least(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name}={value!r}", follows="nothing could run", remedy=f"give a whole number of at least {least}")
