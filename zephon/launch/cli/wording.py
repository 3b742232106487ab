"""Stages, resizes and durations in words; `status` and `list` need these and no display."""

from __future__ import annotations

from collections.abc import Mapping

from zephon.run.state import Resized


def stages_text(stages: Mapping[str, str]) -> str:
    """``doctor done, calibrate skipped, train running, evaluate waiting``."""
    return ", ".join(f"{name} {state}" for name, state in stages.items())


def stage_lines(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """A line for each stage whose state has changed since the last poll."""
    reasons = {"skipped": "skipped, its inputs are unchanged"}
    changed = {name: state for name, state in now.items() if state not in ("waiting", before.get(name))}
    return [f"stage {name}: {reasons.get(state, state)}" for name, state in changed.items()]


def resize_text(resize: Resized) -> str:
    """A resize in one line: sizes, stall and its parts, steps lost."""
    return resize.sentence


def clock(seconds: float | None) -> str:
    """Seconds as ``0:42``, ``3:05`` or ``2:10:00``: for a line that is written again and again."""
    whole = round(seconds or 0.0)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def duration(seconds: float | None) -> str:
    """Seconds as ``42 s``, ``3 min 05 s`` or ``2 h 10 min``."""
    if seconds is None:
        return "–"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def shares_text(realized: Mapping[str, float], targets: Mapping[str, float]) -> str:
    """Each dataset's part of the tokens of the newest steps, beside its target."""
    names = [*targets, *(name for name in realized if name not in targets)]
    return ", ".join(f"{name} {realized.get(name, 0.0):.2%} (target {targets.get(name, 0.0):.2%})" for name in names)
