"""The memory that tiers take in this process, known before they are opened; and the tiers that a bound of it means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hebe.embeddings.cache.cache_table import CacheTable, by_bytes, by_fraction, planned_bytes
from hebe.embeddings.config.hierarchy_config import (
    CacheConfig,
    HierarchyConfig,
    PersistentConfig,
    PersistentType,
    UpdateType,
    VolatileType,
)
from hebe.embeddings.hash_map.hash_map_store import planned_bytes as planned_map_bytes
from hebe.embeddings.tiers.background import MOST_HELD_BYTES
from hebe.kernels.lookup.deduplicate import slots_of
from hebe.kernels.lookup.row_format import RowFormat
from hebe.spec import EmbeddingTableSpec


def cache_tables(tables: Sequence[EmbeddingTableSpec], config: CacheConfig) -> dict[str, CacheTable]:
    """Level 1's table for each of `tables`. Raises `StoreError` for a cache that cannot be so small."""
    shapes = {table.name: (table.rows, table.dim) for table in tables}
    if config.cache_bytes is not None:
        return by_bytes(shapes, config.cache_bytes, config.row_format, config.slabs_per_slabset)
    return by_fraction(shapes, config.cache_fraction, config.row_format, config.slabs_per_slabset)


def planned_tier_bytes(model: str, tables: Sequence[EmbeddingTableSpec], config: HierarchyConfig) -> int:
    """The memory that `Tiers.open` takes for rows in this process: the cache's, and what the hash map grows to.

    Where updates may add rows, the cache grows (`CacheGrowth`): to `cache_bytes`, which count from the start; without
    such a bound by half of what is available then, which does not count. Raises `StoreError` for a cache that cannot be
    so small.
    """
    own = config.cache_of(model)
    total = planned_bytes(cache_tables(tables, own))
    if own.cache_bytes is not None and config.update_source.type is not UpdateType.NULL:
        total = max(total, own.cache_bytes)
    volatile = config.volatile_db
    if volatile.type is VolatileType.HASH_MAP:
        most = volatile.num_partitions * volatile.overflow_margin
        how = volatile.num_partitions, volatile.overflow_policy
        grown = sum(planned_map_bytes(min(table.rows, most), table.dim, *how) for table in tables)
        total += grown if volatile.memory_bytes is None else min(grown, volatile.memory_bytes)
    return total


def planned_lookup_bytes(
    model: str, tables: Sequence[EmbeddingTableSpec], lookups: Mapping[str, int], items: int, config: HierarchyConfig
) -> int:
    """What a thread keeps for lookups of so many items in tiers, each with so many `lookups` of a table: its distinct
    keys and their rows, those that a tier hands over twice. For uniform keys; of skewed ones fewer are distinct.

    Raises `StoreError` for a cache that cannot be so small.
    """
    cached = cache_tables(tables, config.cache_of(model))
    hands_over = config.volatile_db.type is not VolatileType.HASH_MAP  # which fills in rows where they are wanted
    total = 8.0 * slots_of(items * max(lookups[table.name] for table in tables))
    for table in tables:
        distinct = _distinct_keys(table, items * lookups[table.name])
        missing = max(0.0, 1 - cached[table.name].rows / table.rows) if hands_over else 0.0
        total += distinct * (8 + 4 * table.dim * (1 + missing))
    return math.ceil(total)


def planned_background_bytes(
    model: str, tables: Sequence[EmbeddingTableSpec], lookups: Mapping[str, int], items: int, config: HierarchyConfig
) -> int:
    """What work in the background holds at most that lookups, as those of `planned_lookup_bytes`, leave to it: keys on
    the way to level 1, and rows of level 3 on the way to level 2 too.
    """
    own, volatile = config.cache_of(model), config.volatile_db
    persistent = config.persistent_db.type is not PersistentType.DISABLED
    fills = persistent and volatile.type is not VolatileType.DISABLED and volatile.cache_missed_embeddings
    piece = math.ceil(
        sum(
            _distinct_keys(table, items * lookups[table.name]) * (8 + (4 * table.dim + 1 if fills else 0))
            for table in tables
        )
    )
    return min(max(MOST_HELD_BYTES, piece), (own.insertion_queue + own.thread_pool_size) * piece)


def _distinct_keys(table: EmbeddingTableSpec, keys: int) -> float:
    """Of so many uniform ones."""
    return table.rows * (1 - (1 - 1 / table.rows) ** keys)


def bounded_config(
    config: HierarchyConfig, cache_bytes: int, row_format: RowFormat, persistent_dir: Path
) -> HierarchyConfig:
    """`config` with level 1 of so many bytes over level 3: what a bound of the table memory means."""

    def bounded(cache: CacheConfig) -> CacheConfig:
        return replace(cache, cache_bytes=cache_bytes, row_format=row_format)

    return replace(
        config,
        cache=bounded(config.cache),
        models={model: bounded(own) for model, own in config.models.items()},
        persistent_db=PersistentConfig(PersistentType.ROCKS_DB, str(persistent_dir)),
    )
