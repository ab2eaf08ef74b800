"""What the control groups of this process leave it of the machine: cores' time and memory (cgroup v2 and v1).

Containers are given their share by these. A group is bounded by all groups above it, so the least of them counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
MOUNTED = Path("/sys/fs/cgroup")

_UNLIMITED_BYTES = 1 << 60
"""What version 1 calls no limit is the largest number of whole pages; nothing that large is a machine's."""


@dataclass(frozen=True, slots=True)
class ControlGroupLimits:
    """Infinite where there is no limit. `cores` counts time, as in two and a half cores' worth of it."""

    cores: float = math.inf
    memory_bytes: float = math.inf


def control_group_limits(proc: Path = PROC, mounted: Path = MOUNTED) -> ControlGroupLimits:
    """The limits of this process. What cannot be read limits nothing."""
    cores, memory_bytes = math.inf, math.inf
    for place in _groups(proc, mounted):
        quota = _words(place / "cpu.max")
        if not quota:
            quota = _words(place / "cpu.cfs_quota_us") + _words(place / "cpu.cfs_period_us")
        if len(quota) == 2 and quota[0].isdecimal() and quota[1].isdecimal() and int(quota[1]):  # "max" or -1: none
            cores = min(cores, int(quota[0]) / int(quota[1]))
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _words(place / name)
            if limit and limit[0].isdecimal() and int(limit[0]) < _UNLIMITED_BYTES:
                memory_bytes = min(memory_bytes, int(limit[0]))
    return ControlGroupLimits(cores, memory_bytes)


def _groups(proc: Path, mounted: Path) -> Iterator[Path]:
    """Directories of the groups that this process is in, and of all above them."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        lines = []
    # Within a container the mount begins at its own group, and the path may be told from the host's root.
    roots = {mounted: [""]}
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        names = [controllers] if controllers else [".", "unified"]
        for name in names:
            roots.setdefault(mounted / name, [""]).append(path.strip("/"))
    for root, paths in roots.items():
        seen = set()
        for path in paths:
            if ".." in path.split("/"):  # a group outside of what is mounted here
                continue
            for place in (root / path, *(root / path).parents):
                if place.is_relative_to(root) and place not in seen:
                    seen.add(place)
                    yield place


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
