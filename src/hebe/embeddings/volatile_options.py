"""How a volatile store is parted and pruned; names and defaults are those of HPS' `volatile_db` block."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum

UNLIMITED = 2**64 - 1


class OverflowPolicy(StrEnum):
    """Which rows leave a partition that is above its overflow margin."""

    EVICT_RANDOM = "evict_random"
    EVICT_LEAST_USED = "evict_least_used"
    """By number of accesses."""
    EVICT_OLDEST = "evict_oldest"
    """By time of last access."""


SHARED_PARTITIONS = 16
"""Of a Redis: the servers that share it have to agree, and may have unlike numbers of cores."""


def default_partitions() -> int:
    """Of a hash map: as many as cores, at most 16."""
    return min(16, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class VolatileOptions:
    """`overflow_margin` is the most rows of a partition; pruning leaves `overflow_resolution_target` of it, a share.

    Raises ValueError naming a field that is out of range.
    """

    num_partitions: int
    overflow_margin: int = UNLIMITED
    overflow_policy: OverflowPolicy = OverflowPolicy.EVICT_RANDOM
    overflow_resolution_target: float = 0.8

    def __post_init__(self) -> None:
        if not 1 <= self.num_partitions <= 65536:
            raise ValueError(f"num_partitions is {self.num_partitions}: must lie in [1, 65536]")
        if self.overflow_margin < 1:
            raise ValueError(f"overflow_margin is {self.overflow_margin}: must be at least 1")
        if not 0 < self.overflow_resolution_target <= 1:
            raise ValueError(
                f"overflow_resolution_target is {self.overflow_resolution_target}: must be above 0 and at most 1"
            )
