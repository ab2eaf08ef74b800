"""Level 2 as it is opened: connected or made, filled as far as may be, and given to whoever looks after it.

where it is       level 3 below it   filled                        looked after by
this process      or none            at once                       nobody
Redis             none: it alone     by the generation's maker,    `RedisGenerations`
                  has the rows       updates of the log too
Redis             read only          at once                       `RedisWatch`
Redis             with updates       when level 3 has them all     `RedisWatch`
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from hebe.embeddings.config.hierarchy_config import HierarchyConfig, UpdateType, VolatileConfig, VolatileType
from hebe.embeddings.hash_map.hash_map_store import HashMapStore
from hebe.embeddings.memory.model_rows import ModelRows
from hebe.embeddings.redis.generations import RedisGenerations, StillMine
from hebe.embeddings.redis.identity import RedisIdentity
from hebe.embeddings.redis.layout import LayoutRule
from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.redis.watch import RedisWatch
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import StoreError
from hebe.embeddings.tiers.tier_client import GuardOptions, TierGuard
from hebe.embeddings.tiers.volatile_filling import fill_volatile, lacking_tables
from hebe.embeddings.tiers.volatile_tier import VolatileTier
from hebe.embeddings.updates.replay import forget_group, replay, shared_group

log = logging.getLogger("hebe.tiers")


@dataclass(frozen=True, slots=True)
class Level2:
    """The tier, and what looks after its Redis, if it is one; that is not started yet.

    `lacking`: how many rows it is to be given of which tables, once level 3 has all updates.
    """

    tier: VolatileTier
    keeper: RedisGenerations | RedisWatch | None = None
    lacking: tuple[tuple[str, int], ...] = ()


def open_level_2(
    rows: ModelRows,
    config: HierarchyConfig,
    persistent: RocksDbStore | None,
    opened: contextlib.ExitStack,
    go_on: Callable[[], None] = lambda: None,
) -> Level2 | None:
    """Level 2 over `persistent`, or over nothing; None if none is configured. What is to be closed goes to `opened`.
    `go_on` is called now and then while a Redis is filled that alone has the rows, and raises to end it.

    Raises `StoreError` when it cannot be opened, or nothing else has its rows and it cannot be filled.
    """
    tier = _open_tier(rows, config.volatile_db, alone=persistent is None)
    if tier is None:
        return None
    opened.callback(tier.close)
    store = tier.store
    if isinstance(store, RedisStore) and persistent is None:
        generations = _generations(tier, store, rows, config)
        opened.callback(generations.close)
        generations.join(go_on)
        return Level2(tier, generations)
    updates_come = config.update_source.type is not UpdateType.NULL
    watch = _watched(store, rows.content if updates_come else None) if isinstance(store, RedisStore) else None
    if watch is not None and updates_come:
        return Level2(tier, watch, tuple(lacking_tables(store, rows.tables, config.volatile_db)))
    fill_volatile(store, rows, persistent, config.volatile_db)
    if isinstance(store, HashMapStore):
        if persistent is not None:
            store.evict_where_memory_ends()
        else:
            store.refuse_where_memory_ends()
    return Level2(tier, watch)


def _open_tier(rows: ModelRows, config: VolatileConfig, *, alone: bool) -> VolatileTier | None:
    """`alone`: nothing below it has the rows."""
    if config.type is VolatileType.DISABLED:
        return None
    dims, namespace = rows.dims, rows.content
    if config.type is VolatileType.HASH_MAP:
        return VolatileTier.of_process(HashMapStore(dims, config.options(), memory_bound_bytes=config.memory_bytes))
    store = RedisStore(
        dims,
        config.address,
        config.options(),
        namespace=namespace,
        access=config.redis_access(),
        max_batch_size=config.max_batch_size,
        rule=LayoutRule.REQUIRED if alone else LayoutRule.CLAIMED,
    )
    guard = GuardOptions(config.timeout_ms / 1e3, config.num_node_connections)
    return VolatileTier.guarded(store.beside(namespace, store.rule), TierGuard("volatile_db", store, dims, guard))


def _generations(tier: VolatileTier, store: RedisStore, rows: ModelRows, config: HierarchyConfig) -> RedisGenerations:
    """Of rows that only a Redis has: filled by one of the servers that share it, with the updates that the log has."""
    updates = config.update_source

    def fill(into: RedisStore, name: str, step: StillMine) -> None:
        fill_volatile(into, rows, None, config.volatile_db, step)
        group = shared_group(updates, rows.content, name)
        replay(rows.model, rows.dims, updates, group, into, rows.as_of_s, step)

    def forget(name: str) -> None:
        forget_group(updates, shared_group(updates, rows.content, name))

    assert tier.guard is not None
    asked_by_queries = tier.guard.store
    assert isinstance(asked_by_queries, RedisStore)
    return RedisGenerations(store, asked_by_queries, rows.content, fill, forget)


def _watched(store: RedisStore, content: str | None) -> RedisWatch:
    """One whose rows are not older than they were, if it can be asked now; `content`: where updates come."""
    watch = RedisWatch(store, None if content is None else RedisIdentity(store, content))
    try:
        watch.look()
    except StoreError as fault:
        log.warning("level 2 cannot be looked after yet: %s", fault)
    return watch
