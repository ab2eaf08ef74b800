"""Memory traffic and the ways of the last-level cache, as far as the kernel tells of them.

Traffic is what the memory controllers count themselves (`memory_controllers`), or else what each last-level cache reads
and writes beyond itself. Intel RDT and AMD QoS count that, and let the cache be shared out by ways (CAT); both are had
through the file system resctrl, where that is mounted: Documentation/filesystems/resctrl.rst.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hebe.machine.meters.memory_controllers import MemoryControllers

RESCTRL = Path("/sys/fs/resctrl")


@dataclass(frozen=True, slots=True)
class BandwidthReading:
    """Mean memory traffic of the machine, or None and why; `reason` is empty where there is a figure."""

    bytes_per_s: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Bytes by counter at a moment, of one source; or why there are none."""

    at_s: float
    counts: Mapping[str, float]
    source: str = ""
    unreadable: str = ""


class BandwidthMeter:
    """Memory traffic between two readings: each `read` counts from the one before, the first from its making.

    Read and written by all cores of the machine, in whichever control group of resctrl they run.
    """

    def __init__(
        self,
        root: Path = RESCTRL,
        clock: Callable[[], float] = time.monotonic,
        controllers: MemoryControllers | None = None,
    ) -> None:
        self._root, self._clock = root, clock
        self._controllers = MemoryControllers() if controllers is None else controllers
        self._last = self._snapshot()

    @property
    def source(self) -> str:
        """What counted it when it was read last; empty if nothing did."""
        return self._last.source

    @property
    def unreadable(self) -> str:
        """Why there was no figure when it was read last; empty where there was."""
        return self._last.unreadable

    def read(self) -> BandwidthReading:
        """Traffic since the last reading, None where it cannot be told."""
        before, self._last = self._last, self._snapshot()
        now = self._last
        if now.unreadable:
            return BandwidthReading(None, now.unreadable)
        if before.unreadable:
            return BandwidthReading(None, f"the reading before failed: {before.unreadable}")
        if before.source != now.source:
            return BandwidthReading(None, f"what was {before.source} before is now {now.source}")
        if now.at_s <= before.at_s:
            return BandwidthReading(None, "no time has passed since the last reading")
        # A group that was made meanwhile began at what it told first; one that has gone takes its last bytes along.
        moved = sum(max(count - before.counts.get(place, count), 0) for place, count in now.counts.items())
        return BandwidthReading(moved / (now.at_s - before.at_s))

    def _snapshot(self) -> _Snapshot:
        controllers = self._controllers.counts()
        if controllers is not None:
            return _Snapshot(self._clock(), controllers, "the memory controllers' counters")
        caches = self._of_caches()
        if isinstance(caches, str):
            return _Snapshot(self._clock(), {}, unreadable=f"{self._controllers.unreadable}; {caches}")
        return _Snapshot(self._clock(), caches, "the last-level caches' counters (resctrl)")

    def _of_caches(self) -> dict[str, float] | str:
        """Bytes by counter of resctrl, or why there are none."""
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
        counts: dict[str, float] = {}
        for path in files:
            try:
                text = path.read_text().strip()
            except OSError as fault:
                if not path.parent.exists():
                    continue  # the group has gone since
                return f"{path}: {fault.strerror or type(fault).__name__}"
            if not text.isdecimal():
                return f"{path} tells {text[:40]!r}: the counter is not to be had now"
            counts[str(path)] = float(text)
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
