"""Level 2 as it is opened: connected or made, filled as far as may be, and given to whoever looks after it.

where it is       level 3 below it   filled                        looked after by
this process      or none            at once                       nobody
Redis             none: it alone     by the generation's maker,    `RedisGenerations`
                  has the rows       updates of the log too
Redis             read only          at once                       `RedisWatch`
Redis             with updates       when level 3 has them all     `RedisWatch`

Level 2 is filled with the first rows of each table of which it has none: at once where nobody else writes there; where
others do, once level 3 has all updates, and while queries go on.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hebe.embeddings.config.hierarchy_config import HierarchyConfig, UpdateType, VolatileConfig, VolatileType
from hebe.embeddings.hash_map.hash_map_store import HashMapStore
from hebe.embeddings.memory.model_rows import ModelRows, keyed_chunks
from hebe.embeddings.redis.generations import RedisGenerations, StillMine
from hebe.embeddings.redis.identity import RedisIdentity
from hebe.embeddings.redis.layout import LayoutRule
from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.redis.watch import RedisWatch
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import KeyArray, RowArray, StoreError, TableFault, VolatileStore
from hebe.embeddings.tiers.lookup import TieredLookup
from hebe.embeddings.tiers.tier_client import GuardOptions, TierGuard
from hebe.embeddings.tiers.volatile_tier import VolatileTier
from hebe.embeddings.updates.replay import forget_group, replay, shared_group
from hebe.spec import EmbeddingTableSpec

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


_ROWS = 16384
_ROWS_BESIDE_QUERIES = 2048
_MOST_NAMED = 10


def lacking_tables(
    store: VolatileStore,
    tables: Sequence[EmbeddingTableSpec],
    config: VolatileConfig,
    tolerated: type[StoreError] | tuple[()] = StoreError,
) -> Iterator[tuple[str, int]]:
    """Tables with how many rows of each are to be put into a store that has none of it: where it has some, others fill
    it, or have. Raises what the store does, but for the `tolerated`, which are logged: one of the tier once, for it
    and all tables that follow.
    """
    for number, table in enumerate(tables):
        wanted = min(math.ceil(config.initial_cache_rate * table.rows), config.num_partitions * config.overflow_margin)
        try:
            if wanted and not store.size(table.name):
                yield table.name, wanted
        except tolerated as fault:
            if _is_of_tier(store, fault):
                _log_unfilled([each.name for each in tables[number:]], fault)
                return
            _log_unfilled([table.name], fault)


def fill_volatile(
    store: VolatileStore,
    rows_of_model: ModelRows,
    persistent: RocksDbStore | None,
    config: VolatileConfig,
    step: Callable[[], None] = lambda: None,
) -> None:
    """Put the first rows of each table in that nobody else writes to. `step` is called after some of them.

    Where level 3 has the rows, a store that does not take them is no matter; rows that cannot be read always are:
    raises `StoreError`.
    """
    tolerated = StoreError if persistent is not None else ()
    specs = {table.name: table for table in rows_of_model.tables}
    names = list(specs)
    for name, wanted in lacking_tables(store, rows_of_model.tables, config, tolerated):
        for keys, rows in _first_rows(specs[name], rows_of_model, persistent, wanted):
            try:
                store.insert(name, keys, rows)
                step()
            except tolerated as fault:
                if _is_of_tier(store, fault):
                    _log_unfilled(names[names.index(name) :], fault)
                    return
                _log_unfilled([name], fault)
                break


def fill_in_steps(lookup: TieredLookup, lacking: Sequence[tuple[str, int]]) -> Iterator[bool]:
    """Put the first rows of each of the `lacking_tables` in out of level 3, some with each step."""
    for table, left in lacking:
        assert lookup.persistent is not None
        for keys in lookup.persistent.store.dump_keys(table, _ROWS_BESIDE_QUERIES):
            try:
                lookup.fill_level_2(table, keys[:left])
            except StoreError as fault:
                _log_unfilled([table], fault)
                break
            left -= len(keys)
            yield True
            if left <= 0:
                break


def _first_rows(
    table: EmbeddingTableSpec, rows_of_model: ModelRows, persistent: RocksDbStore | None, wanted: int
) -> Iterator[tuple[KeyArray, RowArray]]:
    """The first rows of a table: level 3's, which has had updates, or else the source's."""
    if persistent is None:
        if table.name not in rows_of_model.sources:
            raise StoreError(f"table {table.name} is missing")
        yield from keyed_chunks(table, rows_of_model.sources[table.name], min(wanted, table.rows))
        return
    left = wanted
    for keys in persistent.dump_keys(table.name, _ROWS):
        keys = keys[:left]
        if not keys.size:
            return
        rows, found = np.empty((len(keys), table.dim), np.float32), np.zeros(len(keys), np.bool_)
        persistent.query(table.name, keys, rows, found)
        yield keys[found], rows[found]
        left -= len(keys)


def _is_of_tier(store: VolatileStore, fault: StoreError) -> bool:
    """Whether other tables would meet the same fault, as of a Redis that is stalled or refuses the password."""
    return isinstance(store, RedisStore) and not isinstance(fault, TableFault)


def _log_unfilled(tables: Sequence[str], fault: StoreError) -> None:
    more = f" and {len(tables) - _MOST_NAMED} more" if len(tables) > _MOST_NAMED else ""
    names = f"table{'s' if len(tables) > 1 else ''} {', '.join(tables[:_MOST_NAMED])}{more}"
    log.warning("level 2 is not filled with %s: %s", names, fault)
