"""A worker that a signal ended which nobody here has sent: in most cases the kernel, for memory.

The kernel says so in one place that a process without rights can read: the counter ``oom_kill`` of its control group. The
most memory that the worker held is what its parent learns when it ends.
"""

from __future__ import annotations

import signal
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


class OutOfMemory:
    """Counts the kernel's kills for memory in this process's control group, from now on."""

    def __init__(self, group: Path | None = None) -> None:
        self._files = _event_files(_own_group() if group is None else group)
        self._before = self._count()

    def explain(self, number: int, *, peak: int, said: str) -> str:
        """What is known of a worker that signal ``number`` ended.

        Args:
            peak: the most memory that it held, in bytes.
            said: the last line of its log.
        """
        name = signal.Signals(number).name if number in set(signal.Signals) else ""
        parts = [f"killed by signal {number}{f' ({name})' if name else ''}, not by us"]
        if peak:
            parts.append(f"peak memory {peak / (1 << 30):.2f} GiB")
        if kills := self._count() - self._before:
            parts.append(f"out of memory: the kernel killed {kills} process{'es' if kills > 1 else ''} of this control group")
        elif number == signal.SIGKILL:
            counted = "none in this control group" if self._files else "its count cannot be read here"
            parts.append(f"by the kernel for memory or by hand (kills for memory: {counted})")
        return "; ".join(parts) + (f"; its log ends: {said}" if said else "")

    def _count(self) -> int:
        counts = []
        for path in self._files:
            try:
                lines = path.read_text(encoding="utf-8").split("\n")
            except OSError:
                continue
            counts += [int(line.split()[1]) for line in lines if line.startswith("oom_kill ")]
        return max(counts, default=0)


def _own_group() -> Path:
    """The directory of this process's control group (version 2; of version 1 that of its memory)."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return _CGROUPS
    groups = {kinds: path for _, kinds, path in (line.split(":", 2) for line in lines)}
    if (path := groups.get("memory")) is not None:
        return _CGROUPS / "memory" / path.lstrip("/")
    return _CGROUPS / groups.get("", "").lstrip("/")


def _event_files(group: Path) -> list[Path]:
    """Where the group counts its processes that were killed for memory, whichever limit was reached."""
    return [path for name in ("memory.events", "memory.oom_control") if (path := group / name).is_file()]
