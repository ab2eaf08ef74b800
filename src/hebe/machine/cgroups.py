"""What the control groups of this process leave it of the machine: cores' time and memory (cgroup v2 and v1).

Containers are given their share by these. A group is bounded by all groups above it, so the least of them counts.
Table memory asks it, and above this room those that tell what the server has.
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

_MEMORY_FILES = (
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
)
"""Of version 2, then 1: the limit, what is used of it, and in `memory.stat` the page cache, with all groups below."""


@dataclass(frozen=True, slots=True)
class ControlGroupLimits:
    """Infinite where there is no limit. `cores` counts time, as in two and a half cores' worth of it."""

    cores: float = math.inf
    memory_bytes: float = math.inf


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Of one group, of which `used_bytes` are in use, and `cache_bytes` of these hold files and can be given back."""

    limit_bytes: int
    used_bytes: int
    cache_bytes: int

    @property
    def available_bytes(self) -> int:
        """What may still be taken; negative where the limit was lowered below what is in use."""
        return self.limit_bytes - self.used_bytes + self.cache_bytes


def control_group_limits(proc: Path = PROC, mounted: Path = MOUNTED) -> ControlGroupLimits:
    """The limits of this process. What cannot be read limits nothing."""
    cores = math.inf
    for place in _groups(proc, mounted):
        quota = _words(place / "cpu.max")
        if not quota:
            quota = _words(place / "cpu.cfs_quota_us") + _words(place / "cpu.cfs_period_us")
        if len(quota) == 2 and quota[0].isdecimal() and quota[1].isdecimal() and int(quota[1]):  # "max" or -1: none
            cores = min(cores, int(quota[0]) / int(quota[1]))
    memory_bytes = min((limit.limit_bytes for limit in memory_limits(proc, mounted)), default=math.inf)
    return ControlGroupLimits(cores, memory_bytes)


def memory_limits(proc: Path = PROC, mounted: Path = MOUNTED) -> Iterator[MemoryLimit]:
    """Of each group that this process is in that has one. What cannot be read of its use is none."""
    for place in _groups(proc, mounted):
        for limit_file, used_file, cached in _MEMORY_FILES:
            limit_bytes = _whole(_words(place / limit_file))
            if limit_bytes is None or limit_bytes >= _UNLIMITED_BYTES:
                continue
            told = _words(place / "memory.stat")
            counts = dict(zip(told[::2], told[1::2], strict=False))
            cache_bytes = sum(_whole([counts.get(name, "")]) or 0 for name in cached)
            yield MemoryLimit(limit_bytes, _whole(_words(place / used_file)) or 0, cache_bytes)


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


def _whole(words: list[str]) -> int | None:
    """The number that the first word is; None for "max", and for what makes no sense."""
    return int(words[0]) if words and words[0].isdecimal() else None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
