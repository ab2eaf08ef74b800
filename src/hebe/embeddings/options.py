"""How tables behind tiers are looked up and stored; names and defaults are those of HPS where it has them.

`LookupOptions`    how a lookup goes about rows that level 1 lacks, and how level 1 is refreshed (`RefreshOptions`)
`VolatileOptions`  how a volatile store is parted and pruned: the `volatile_db` block of HPS
`RocksDbOptions`   how a persistent store is read and written: its `persistent_db` block
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np


@dataclass(frozen=True, slots=True)
class RefreshOptions:
    """HPS' names. All of the cache is refreshed once, `refresh_delay` seconds after the load (0: it is not), and
    whether it is or not, there is an iteration every `refresh_interval` seconds (0: only when asked), which covers
    `cache_refresh_percentage_per_iteration` of the cache, a share (0: all of it). `batch_rows`: how many rows are
    looked up at once.

    Raises ValueError naming a field that is out of range.
    """

    refresh_interval: float = 0.0
    refresh_delay: float = 0.0
    cache_refresh_percentage_per_iteration: float = 0.0
    batch_rows: int = 4096

    def __post_init__(self) -> None:
        for name in ("refresh_interval", "refresh_delay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}: must be 0 or more seconds")
        if not 0 <= self.cache_refresh_percentage_per_iteration <= 1:
            raise ValueError(
                f"cache_refresh_percentage_per_iteration is {self.cache_refresh_percentage_per_iteration}: "
                "must lie in [0, 1]"
            )
        if self.batch_rows < 1:
            raise ValueError(f"batch_rows is {self.batch_rows}: must be at least 1")


_MOST = float(np.finfo(np.float32).max)
"""Beyond it a row's number is infinite."""


@dataclass(frozen=True, slots=True)
class LookupOptions:
    """`hit_rate_threshold`: below it a lookup waits for missing rows; 1 always waits, 0 never does.
    `default_values`: what the default vector of a table is filled with, 0 unless named. `cache_missed_embeddings`:
    rows that level 2 lacked and level 3 had are put into level 2.

    Raises ValueError naming a field that is out of range.
    """

    hit_rate_threshold: float = 1.0
    default_values: Mapping[str, float] = field(default_factory=dict)
    cache_missed_embeddings: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.hit_rate_threshold <= 1:
            raise ValueError(f"hit_rate_threshold is {self.hit_rate_threshold}: must lie in [0, 1]")
        for table, value in self.default_values.items():
            if not abs(value) <= _MOST:  # nor nan
                raise ValueError(f"default value of table {table} is {value}: must be finite as float32")


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


@dataclass(frozen=True, slots=True)
class RocksDbOptions:
    """`num_threads` share the keys of a large query. `max_batch_size` is the most keys of one read or inserted batch.
    `block_cache_bytes` is RocksDB's own cache; at 0 the system's page cache alone keeps what was read, which is faster.

    Raises ValueError naming a field that is out of range.
    """

    num_threads: int = 2
    max_batch_size: int = 65536
    block_cache_bytes: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.num_threads <= 256:
            raise ValueError(f"num_threads is {self.num_threads}: must lie in [1, 256]")
        if not 1 <= self.max_batch_size <= 1 << 24:
            raise ValueError(f"max_batch_size is {self.max_batch_size}: must lie in [1, {1 << 24}]")
        if self.block_cache_bytes < 0:
            raise ValueError(f"block_cache_bytes is {self.block_cache_bytes}: must be at least 0")


DEFAULT_OPTIONS = RocksDbOptions()
