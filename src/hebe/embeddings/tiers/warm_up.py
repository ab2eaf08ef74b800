"""The rows that level 1 begins with: those that it held when it was last closed, or that are known to be asked for, or
the first ones of each table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hebe.embeddings.cache.host_cache import HostCache
from hebe.embeddings.clients.tier_client import TierClient
from hebe.embeddings.config.hierarchy_config import CacheConfig
from hebe.embeddings.memory.model_rows import KeyedSource, ModelRows, first_keys
from hebe.embeddings.rocksdb.directory import CACHE_KEYS
from hebe.embeddings.store import KeyArray, StoreError
from hebe.embeddings.tiers.batch_lookup import RowState
from hebe.embeddings.tiers.lookup import TieredLookup
from hebe.spec import EmbeddingTableSpec

_ROWS = 16384
_STEPS = 64
"""So finely are the keys of a table told apart by how hot they are, at least."""


def key_files(directory: Path | None, config: CacheConfig) -> list[Path]:
    """Where keys to begin with may be: what this version's cache held, what another version's did, what is known.

    Raises `StoreError` where the file that is named is not there: level 1 would begin with other rows than was meant.
    """
    files = []
    if directory is not None:
        versions = sorted(int(other.name) for other in directory.parent.glob("[0-9]*") if other.name.isdecimal())
        files = [directory / CACHE_KEYS, *(directory.parent / str(version) / CACHE_KEYS for version in versions[::-1])]
    if config.warm_up_keys:
        files.append(Path(config.warm_up_keys))
        if not files[-1].is_file():
            raise StoreError(f"warm_up_keys {config.warm_up_keys}: there is no such file")
    return files


def warm_up(lookup: TieredLookup, cache: HostCache, rows: ModelRows, known: Mapping[str, KeyArray]) -> None:
    """Fill level 1, the `cache` of `lookup`, with the `known` keys of each table, int64, hottest first, or else the
    first ones of its source.

    Raises `StoreError` when level 3 cannot read them: what its disk has damaged is told now, before it is served.
    """
    for table in rows.tables:
        capacity = cache.tables[table.name].capacity
        keys = known.get(table.name)
        if keys is None:
            keys = _first_keys(table, rows.sources.get(table.name), lookup.persistent, capacity)
        coldest_first = keys[:capacity][::-1]  # where they do not fit, those give way that came first
        step = max(1, min(_ROWS, -(-len(coldest_first) // _STEPS)))
        for first in range(0, len(coldest_first), step):
            _let_age(cache, table)
            _put(lookup, table.name, np.unique(coldest_first[first : first + step]))


def _put(lookup: TieredLookup, table: str, keys: KeyArray) -> None:
    """Rows of the lower tiers into level 1, those that they have."""
    rows, states, positions = lookup.fetch(table, keys, math.inf, note=False)
    found = states == RowState.FOUND
    if (states == RowState.DEFAULTED).any() and lookup.persistent is not None:
        # It failed, or took longer than a query would wait: it says itself which.
        lookup.persistent.store.query(table, keys, rows, found)
    lookup.put(table, keys[found], rows[found], positions[found])


def _let_age(cache: HostCache, table: EmbeddingTableSpec) -> None:
    """What level 1 holds of a table was used before what comes from now on: each query of it is a moment."""
    cache.query(table.name, np.empty(0, np.int64), np.empty((0, table.dim), np.float32), np.empty(0, np.bool_))


def _first_keys(
    table: EmbeddingTableSpec, source: KeyedSource | None, persistent: TierClient | None, count: int
) -> KeyArray:
    """At most `count` keys to begin with: the source's, or else level 3's."""
    if source is not None or persistent is None:
        return first_keys(table, source, count)
    held = np.empty(0, np.int64)
    for keys in persistent.store.dump_keys(table.name, _ROWS):
        held = np.concatenate([held, keys])
        if held.size >= count:
            break
    return held[:count]
