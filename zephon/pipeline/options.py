"""Every option of a pipeline, typed, checked once. A new one also goes into the list in tests/test_house.py, with a reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from zephon.errors import ConfigError
from zephon.io.cache import CacheOptions
from zephon.spec.fields import (
    LanesAllow,
    NotNegative,
    OnError,
    Positive,
    RunnerName,
    check,
    check_names,
    check_value,
    rule_of,
)

AutoValidation = Literal["strict", "warn", "off"]
MappingStrategy = Literal["contiguous"]
LastStep = Literal["auto", "same", "own"]
IoOptions = Mapping[str, Mapping[str, bool | int | str | None]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """See `Pipeline.options`."""

    runner: RunnerName = "threads"
    max_workers: NotNegative | None = None
    deterministic: bool = True
    isolated: bool = False
    prefetch_batches: NotNegative = 8
    prefetch_bytes: Positive = 256 << 20
    flush_every_k_chunks: NotNegative | None = None
    io_options: IoOptions = dataclasses.field(default_factory=dict)
    dp_degree: Positive | None = None
    dp_group_id: NotNegative | None = None
    world_size: Positive | None = None
    global_rank: NotNegative | None = None
    canonical_replicas: Positive | None = None
    global_batch_size: Positive | None = None
    lanes_allow: LanesAllow = "whole"
    mapping_strategy: MappingStrategy = "contiguous"
    run_id: str | None = None
    auto_validation: AutoValidation = "off"
    on_error: OnError | Mapping[str, OnError] = "raise"
    quarantine_budget: NotNegative = 100
    last_step: LastStep = "auto"

    def __post_init__(self) -> None:
        check(self, "options")
        CacheOptions.of(self.io_options)
        for choice in self.on_error.values() if isinstance(self.on_error, Mapping) else [self.on_error]:
            check_value("on_error", choice, rule_of(OnError), "options")
        if not self.deterministic:
            raise ConfigError(
                "deterministic=False",
                follows="the global batch would depend on timing",
                remedy="leave it out: the order costs nothing",
            )
        if self.dp_degree is not None:
            check_rank(self.dp_degree, self.dp_group_id or 0)

    def updated(self, changes: Mapping[str, Any]) -> Options:
        """With some options changed. Raises ConfigError for an unknown name."""
        check_names(changes, [field.name for field in dataclasses.fields(self)], "options")
        return dataclasses.replace(self, **changes)


def check_rank(dp_degree: int, dp_group_id: int) -> None:
    """Raises ConfigError for a rank that is not one of ``dp_degree``."""
    if dp_group_id >= dp_degree:
        raise ConfigError(
            f"dp_group_id={dp_group_id} with dp_degree={dp_degree}",
            follows="this rank would own no slot",
            remedy=f"use 0 to {dp_degree - 1}",
        )
