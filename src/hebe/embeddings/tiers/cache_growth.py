"""Lets level 1 grow with its tables: `cache_fraction` is a share of the rows that there are, and updates add rows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from hebe.embeddings.cache.cache_table import planned_bytes
from hebe.embeddings.cache.host_cache import HostCache
from hebe.embeddings.config.hierarchy_config import CacheConfig
from hebe.embeddings.periodic import Periodic
from hebe.embeddings.store import StoreError, StoreUnavailable
from hebe.embeddings.tiers.background import FaultLog
from hebe.embeddings.tiers.lookup import TieredLookup
from hebe.embeddings.tiers.memory import cache_tables
from hebe.machine.memory import available_bytes
from hebe.spec import EmbeddingTableSpec

log = logging.getLogger("hebe.tiers")

_PERIOD_S = 60.0
_WELL_BEYOND = 1.25
"""The cache is copied into a larger one once a table of it should be so many times as large."""


class CacheGrowth:
    """Resizes `cache`, level 1 of `lookup`, when the lowest tier has far more rows of `tables` than it was made for.

    `cache_bytes` of `config` stays its bound. Without one the new cache takes at most half of the memory that is
    available then, as the old one is in memory until it is filled. Why it could not grow is logged.
    """

    def __init__(
        self, tables: Sequence[EmbeddingTableSpec], config: CacheConfig, lookup: TieredLookup, cache: HostCache
    ) -> None:
        self._tables, self._config, self._lookup, self._cache = tuple(tables), config, lookup, cache
        self._on_fault = FaultLog("level 1 cannot grow with its tables")
        self._periodic = Periodic("cache-growth", _PERIOD_S, self.look, "level 1 cannot grow with its tables")

    def look(self) -> None:
        """Resize the cache if it is due."""
        try:
            self._grow()
        except StoreUnavailable:
            pass  # a tier that is away is reported elsewhere
        except StoreError as error:
            if not self._periodic.closing.is_set():
                self._on_fault(error)

    def start(self) -> None:
        """Look every minute from now on, on a thread with priority and cores of the one that calls."""
        self._periodic.start()

    def close(self) -> None:
        """End the thread; a resize in flight is cancelled."""
        self._periodic.close()

    def _grow(self) -> None:
        now = self._cache.tables
        wanted = cache_tables([replace(table, rows=self._rows(table)) for table in self._tables], self._config)
        if all(table.capacity <= _WELL_BEYOND * now[name].capacity for name, table in wanted.items()):
            return
        needed, available = planned_bytes(wanted), available_bytes()
        if available is not None and needed > available // 2:
            raise StoreError(
                f"{needed:,} bytes for its rows are more than half of the {available:,} available: free some, or set "
                "cache_bytes, a smaller cache_fraction or a narrower row format"
            )
        before = self._cache.memory_bytes
        self._cache.resize(wanted, self._periodic.closing)
        log.info("level 1 has grown with its tables from %s to %s bytes", f"{before:,}", f"{needed:,}")

    def _rows(self, table: EmbeddingTableSpec) -> int:
        """Of a table: those of the model's file, or of the lowest tier if it has more."""
        lookup = self._lookup
        lowest = lookup.persistent or lookup.volatile
        return table.rows if lowest is None else max(table.rows, lowest.store.size(table.name))
