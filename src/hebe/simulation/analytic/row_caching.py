"""Which share of a model's lookups a cache serves: an LRU one (a processor's last-level cache), or one that holds
the hottest rows (Hercules' Hot-SparseNet on an accelerator).

Rows of a table fall into popularity groups (`workload.reuse_profile`); without a profile all rows are alike.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from hebe.simulation.analytic.model_work import ModelWork
from hebe.workload.reuse_profile import ReuseProfile

Floats = npt.NDArray[np.float64]


class RowPopularity:
    """How often each group of a model's rows is looked up.

    Shares are answered per gather, float64 `[gathers]`, in the order of `work.gathers`; gathers of one table share it.
    """

    def __init__(self, work: ModelWork, reuse: ReuseProfile | None) -> None:
        lookups: dict[str, int] = {}
        for gather in work.gathers:
            lookups[gather.table] = lookups.get(gather.table, 0) + gather.lookups
        self._tables = list(lookups)
        self._of_gather = np.array([self._tables.index(gather.table) for gather in work.gathers])
        shapes = {gather.table: (gather.rows, gather.row_bytes, gather.line_bytes_per_row) for gather in work.gathers}
        row_shares = np.array(reuse.row_shares if reuse else (1.0,))
        lookup_shares = np.array(reuse.lookup_shares if reuse else (1.0,))
        rows = np.array([shapes[table][0] for table in self._tables], dtype=np.float64)
        self._rows = rows[:, None] * row_shares
        self._row_bytes = np.array([shapes[table][1] for table in self._tables], dtype=np.float64)[:, None]
        self._line_bytes = np.array([shapes[table][2] for table in self._tables])[:, None]
        self._lookup_shares = lookup_shares
        counts = np.array([lookups[table] for table in self._tables], dtype=np.float64)[:, None]
        self._rate = counts * lookup_shares / self._rows

    def lru_shares(self, capacity_bytes: float) -> Floats:
        """Hits of an LRU cache of `capacity_bytes` that holds whole cache lines (Che's approximation).

        A row stays for a characteristic time T after each lookup, so it is there with probability 1 - exp(-rate T);
        T is such that the rows expected to be there fill the cache.
        """
        whole = float((self._rows * self._line_bytes).sum())
        if capacity_bytes <= 0:
            return np.zeros(len(self._of_gather))
        if capacity_bytes >= whole:
            return np.ones(len(self._of_gather))

        def excess(log_time: float) -> float:
            there = -np.expm1(-self._rate * math.exp(log_time))
            return float((self._rows * self._line_bytes * there).sum()) - capacity_bytes

        # From a time in which hardly one row comes in to one after which every row has.
        low, high = -math.log(float(self._rate.max())) - 40.0, -math.log(float(self._rate.min())) + 5.0
        if excess(low) >= 0 or excess(high) <= 0:  # smaller than a row, or all but whole
            time = math.exp(low if excess(low) >= 0 else high)
        else:
            time = math.exp(brentq(excess, low, high))
        return self._per_gather(-np.expm1(-self._rate * time))

    def hottest_shares(self, capacity_bytes: float) -> Floats:
        """Hits of a store of `capacity_bytes` filled with the rows that are looked up most per byte."""
        order = np.argsort(-(self._rate / self._row_bytes), axis=None, kind="stable")
        sizes = (self._rows * self._row_bytes).ravel()[order]
        before = np.concatenate(([0.0], np.cumsum(sizes)[:-1]))
        kept = np.empty(sizes.size)
        kept[order] = np.clip((capacity_bytes - before) / sizes, 0.0, 1.0)
        return self._per_gather(kept.reshape(self._rate.shape))

    def _per_gather(self, kept: Floats) -> Floats:
        return np.asarray((kept * self._lookup_shares).sum(axis=1)[self._of_gather])
