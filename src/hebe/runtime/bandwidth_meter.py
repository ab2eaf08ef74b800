"""Memory traffic and the ways of the last-level cache, as far as the kernel tells of them: resctrl.

Intel RDT and AMD QoS count what each cache reads and writes beyond itself, and let the cache be shared out by ways
(CAT). Both are had through the file system resctrl, where that is mounted: Documentation/filesystems/resctrl.rst.
The memory controllers' own counters (perf's uncore_imc) are not read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

RESCTRL = Path("/sys/fs/resctrl")


@dataclass(frozen=True, slots=True)
class BandwidthReading:
    """Mean memory traffic of the machine, or None and why; `reason` is empty where there is a figure."""

    bytes_per_s: float | None
    reason: str = ""


class BandwidthMeter:
    """Memory traffic between two readings: each `read` counts from the one before, the first from its making.

    Read and written by all cores of the machine, in whichever control group of resctrl they run.
    """

    def __init__(self, root: Path = RESCTRL, clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._clock = root, clock
        self._last = self._snapshot()

    def read(self) -> BandwidthReading:
        """Traffic since the last reading, None where it cannot be told."""
        before, self._last = self._last, self._snapshot()
        counts, seconds = self._last[0], self._last[1] - before[1]
        if isinstance(counts, str):
            return BandwidthReading(None, counts)
        if isinstance(before[0], str):
            return BandwidthReading(None, f"the reading before failed: {before[0]}")
        if seconds <= 0:
            return BandwidthReading(None, "no time has passed since the last reading")
        # A group that was made meanwhile began at what it told first; one that has gone takes its last bytes along.
        moved = sum(max(count - before[0].get(place, count), 0) for place, count in counts.items())
        return BandwidthReading(moved / seconds)

    def _snapshot(self) -> tuple[dict[Path, int] | str, float]:
        return self._counts(), self._clock()

    def _counts(self) -> dict[Path, int] | str:
        """Bytes by counter, or why there are none."""
        if not (self._root / "info").is_dir():
            return _not_mounted(self._root)
        # Each control group counts its own tasks, and those of its monitoring groups.
        files = sorted(
            [
                *self._root.glob("mon_data/mon_L3_*/mbm_total_bytes"),
                *self._root.glob("*/mon_data/mon_L3_*/mbm_total_bytes"),
            ]
        )
        if not files:
            return f"{self._root} counts no memory traffic (mbm_total_bytes): this processor or its kernel cannot"
        counts = {}
        for path in files:
            try:
                text = path.read_text().strip()
            except OSError as fault:
                if not path.parent.exists():
                    continue  # the group has gone since
                return f"{path}: {fault.strerror or type(fault).__name__}"
            if not text.isdecimal():
                return f"{path} tells {text[:40]!r}: the counter is not to be had now"
            counts[path] = int(text)
        return counts


@dataclass(frozen=True, slots=True)
class CacheWays:
    """Ways of the last-level cache that CAT shares out: all, and the fewest that may be given; or 0 and why."""

    count: int
    fewest: int = 0
    reason: str = ""


def cache_ways(root: Path = RESCTRL) -> CacheWays:
    """Whether the last-level cache can be shared out, and in how many ways."""
    if not (root / "info").is_dir():
        return CacheWays(0, reason=_not_mounted(root))
    place = root / "info" / "L3"
    try:
        count = int((place / "cbm_mask").read_text(), 16).bit_count()
        fewest = int((place / "min_cbm_bits").read_text())
    except FileNotFoundError:
        return CacheWays(0, reason=f"{root} has no control of the last-level cache (CAT): this processor lacks it")
    except (OSError, ValueError) as fault:
        return CacheWays(0, reason=f"{place}: {fault}")
    if not 1 <= fewest <= count:
        return CacheWays(0, reason=f"{place} tells {count} ways of which at least {fewest} must be given")
    return CacheWays(count, fewest)


def _not_mounted(root: Path) -> str:
    if not root.is_dir():
        return f"{root} does not exist: this processor, virtual machine or kernel has no resctrl"
    return f"resctrl is not mounted: mount -t resctrl resctrl {root}"
