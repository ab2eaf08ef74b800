"""What became of the keys that were looked up, for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LookupCounts:
    """What lookups came to since the model was loaded, in distinct keys of a batch; warm-ups are left out."""

    cache_hits: int = 0
    cache_misses: int = 0
    volatile_hits: int = 0
    persistent_hits: int = 0
    stale: int = 0
    defaulted: int = 0
    unknown: int = 0

    def add(self, more: LookupCounts) -> None:
        """Those of one more batch."""
        self.cache_hits += more.cache_hits
        self.cache_misses += more.cache_misses
        self.volatile_hits += more.volatile_hits
        self.persistent_hits += more.persistent_hits
        self.stale += more.stale
        self.defaulted += more.defaulted
        self.unknown += more.unknown
