"""How a lookup goes about rows that level 1 lacks; names and defaults are those of HPS where it has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

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
