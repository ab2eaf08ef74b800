"""A lookup over tiers made of dicts, and what tests of it ask."""

from __future__ import annotations

import time

import numpy as np

from hebe.embeddings.clients.tier_client import TierClient, TierClientOptions
from hebe.embeddings.options import LookupOptions
from hebe.embeddings.tiers.background import BackgroundWork
from hebe.embeddings.tiers.batch_lookup import BatchLookup
from hebe.embeddings.tiers.lookup import TieredLookup
from hebe.embeddings.tiers.volatile_tier import VolatileTier

from .dict_store import DictCache, DictStore

DIMS = {"users": 3, "items": 1}
PATIENT = TierClientOptions(timeout_s=30.0)
HASTY = TierClientOptions(timeout_s=0.05)


class DictTiers:
    """A lookup over dicts; level 3 holds keys 0..99, row = key."""

    def __init__(
        self,
        options: LookupOptions | None = None,
        *,
        capacity: int = 50,
        volatile: bool = True,
        local: bool = False,
        persistent: bool = True,
        options_of_tiers: TierClientOptions = PATIENT,
        volatile_options: TierClientOptions | None = None,
    ) -> None:
        """`volatile_options`: of level 2, where it is to have others."""
        self.faults: list[Exception] = []
        self.cache = DictCache(DIMS, capacity)
        self.volatile, self.persistent = DictStore(DIMS), DictStore(DIMS)
        for table, dim in DIMS.items():
            self.persistent.insert(table, np.arange(100), np.repeat(np.arange(100.0), dim).reshape(100, dim))
        self.background = BackgroundWork("test", 1, 100, self.faults.append)
        client = None if local else TierClient("volatile", self.volatile, DIMS, volatile_options or options_of_tiers)
        self.lookup = TieredLookup(
            DIMS,
            self.cache,
            VolatileTier(self.volatile, client) if volatile else None,
            TierClient("persistent", self.persistent, DIMS, options_of_tiers) if persistent else None,
            options or LookupOptions(),
            self.background,
        )

    def ask(self, keys: list[int], table: str = "users", **bounds) -> tuple[list[float], list[int] | None]:
        """The first number of each row, and the states; checks that all numbers of a row are alike."""
        rows = np.full((len(keys), DIMS[table]), np.nan, np.float32)
        states = self.lookup.look_up(table, np.array(keys), rows, **bounds)
        assert (rows == rows[:, :1]).all()
        return rows[:, 0].tolist(), None if states is None else states.tolist()

    def close(self) -> None:
        self.background.close()
        self.lookup.close()


def batch_of(*parts: tuple[str, list[int]]) -> BatchLookup:
    """A lookup of these keys of these tables, into rows of NaN."""
    starts = np.cumsum([0, *(len(keys) for _, keys in parts)])
    bases = np.cumsum([0, *(len(keys) * DIMS[table] for table, keys in parts)])
    keys = np.array([key for _, keys in parts for key in keys], np.int64)
    return BatchLookup([table for table, _ in parts], keys, starts, np.full(bases[-1], np.nan, np.float32), bases)


def row_of(*values: float) -> np.ndarray:
    return np.repeat(np.array(values, np.float32), 3).reshape(-1, 3)


def wait_until(holds, patience_s: float = 20.0) -> None:
    give_up_s = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)
