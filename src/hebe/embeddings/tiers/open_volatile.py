"""Level 2 as it is opened: connected or made, filled as far as may be, and given to whoever looks after it.

where it is       level 3 below it   filled                        looked after by
this process      or none            at once                       nobody
Redis             none: it alone     by one server, updates of     `RedisKeeper`
                  has the rows       the log too
Redis             without updates    at once                       `RedisKeeper`
Redis             with updates       while queries go on           `RedisKeeper`

Over level 3 it is filled with the first rows of each table of which it has none.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hebe.embeddings.clients.tier_client import TierClient, TierClientOptions
from hebe.embeddings.config.hierarchy_config import HierarchyConfig, VolatileConfig, VolatileType
from hebe.embeddings.hash_map.hash_map_store import HashMapStore
from hebe.embeddings.memory.model_rows import ModelRows, keyed_chunks
from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import KeyArray, RowArray, StoreError
from hebe.embeddings.tiers.lookup import TieredLookup
from hebe.embeddings.tiers.redis_keeper import RedisKeeper
from hebe.embeddings.tiers.volatile_tier import VolatileTier
from hebe.spec import EmbeddingTableSpec

log = logging.getLogger("hebe.tiers")

_ROWS = 16384
_ROWS_DURING_QUERIES = 2048
_TRY_AGAIN_S = 0.2
"""Where level 3 lacked updates that Redis has."""
_MAX_NAMED = 10


@dataclass(frozen=True, slots=True)
class Level2:
    """The tier, and what looks after its Redis, if it is one; that is not started yet."""

    tier: VolatileTier
    keeper: RedisKeeper | None = None


def open_level_2(
    rows: ModelRows,
    config: HierarchyConfig,
    persistent: RocksDbStore | None,
    place: Path | None,
    opened: contextlib.ExitStack,
    go_on: Callable[[], None] = lambda: None,
) -> Level2 | None:
    """Level 2 over `persistent`, which lies in `place`, or over nothing; None if none is configured. What is to be
    closed goes to `opened`. `go_on` is called now and then while a Redis is filled that alone has the rows, and raises
    to end it.

    Raises `StoreError` when it cannot be opened, or nothing else has its rows and it cannot be filled.
    """
    volatile, dims = config.volatile_db, rows.dims
    if volatile.type is VolatileType.DISABLED:
        return None
    if volatile.type is VolatileType.HASH_MAP:
        store = HashMapStore(dims, volatile.options(), memory_bound_bytes=volatile.memory_bytes)
        tier = VolatileTier(store)
        opened.callback(tier.close)
        _fill_hash_map(store, rows, persistent, volatile)
        return Level2(tier)
    queried = RedisStore(
        dims,
        volatile.address,
        volatile.options(),
        namespace=rows.content,
        access=volatile.redis_access(),
        max_batch_size=volatile.max_batch_size,
        alone=persistent is None,
    )
    options = TierClientOptions(volatile.timeout_ms / 1e3, volatile.num_node_connections)
    redis = queried.sibling()
    client = TierClient("volatile_db", queried, dims, options)
    queried.on_damage = client.note_damage
    tier = VolatileTier(redis, client)
    opened.callback(tier.close)
    keeper = RedisKeeper(redis, queried, rows, config, place if persistent is not None else None)
    opened.callback(keeper.close)
    if persistent is None:
        keeper.join(go_on)
    else:
        try:
            keeper.look()
        except StoreError as error:
            log.warning("level 2 cannot be looked after yet: %s", error)
    return Level2(tier, keeper)


def _fill_hash_map(
    store: HashMapStore, rows_of_model: ModelRows, persistent: RocksDbStore | None, config: VolatileConfig
) -> None:
    """Put the first rows of each table in. Where level 3 has the rows, a store that does not take them does no harm;
    rows that cannot be read always do: raises `StoreError`.
    """
    for spec in rows_of_model.tables:
        wanted = _wanted_rows(spec, config)
        for keys, rows in _first_rows(spec, rows_of_model, persistent, wanted):
            try:
                store.insert(spec.name, keys, rows)
            except StoreError as error:
                if persistent is None:
                    raise
                _log_unfilled([spec.name], error)
                break
    if persistent is not None:
        store.evict_where_memory_ends()
    else:
        store.refuse_where_memory_ends()


class Level2Filling:
    """Puts the first rows of each table that the `keeper` of a Redis has begun into it, out of the level 3 of
    `lookup`.
    """

    def __init__(
        self, lookup: TieredLookup, keeper: RedisKeeper, tables: Sequence[EmbeddingTableSpec], config: VolatileConfig
    ) -> None:
        self._lookup, self._keeper = lookup, keeper
        self._wanted = {spec.name: _wanted_rows(spec, config) for spec in tables}
        self._steps: Iterator[bool] = iter(())

    def run(self, go_on: Callable[[], bool]) -> None:
        """Fill while `go_on` says so. Queries have half of the time; with the next call it goes on where it was."""
        if self._keeper.unfilled:
            tables, self._keeper.unfilled = self._keeper.unfilled, []
            self._steps = self._fill(tables)
        while go_on():
            began_s = time.monotonic()
            filled = next(self._steps, None)
            if filled is None:
                return
            time.sleep(time.monotonic() - began_s if filled else _TRY_AGAIN_S)

    def _fill(self, tables: Sequence[str]) -> Iterator[bool]:
        """Some rows with each step; False where level 3 is behind."""
        assert self._lookup.persistent is not None
        for number, table in enumerate(tables):
            left = self._wanted[table]
            try:
                for keys in self._lookup.persistent.store.dump_keys(table, _ROWS_DURING_QUERIES) if left else ():
                    while self._lookup.fill_level_2(table, keys[:left]):
                        yield False
                    left -= len(keys)
                    yield True
                    if left <= 0:
                        break
            except StoreError as error:
                _log_unfilled(tables[number:], error)
                return


def _wanted_rows(table: EmbeddingTableSpec, config: VolatileConfig) -> int:
    return min(math.ceil(config.initial_cache_rate * table.rows), config.num_partitions * config.overflow_margin)


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


def _log_unfilled(tables: Sequence[str], error: StoreError) -> None:
    more = f" and {len(tables) - _MAX_NAMED} more" if len(tables) > _MAX_NAMED else ""
    names = f"table{'s' if len(tables) > 1 else ''} {', '.join(tables[:_MAX_NAMED])}{more}"
    log.warning("level 2 is not filled with %s: %s", names, error)
