"""The rows that level 2 begins with: the first ones of each table of which it has none.

At once where nobody else writes there; where others do, once level 3 has all updates, and while queries go on.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hebe.embeddings.config.hierarchy_config import VolatileConfig
from hebe.embeddings.memory.keyed_rows import keyed_chunks
from hebe.embeddings.memory.model_rows import ModelRows
from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import KeyArray, RowArray, StoreError, TableFault, VolatileStore
from hebe.embeddings.tiers.lookup import TieredLookup
from hebe.spec import EmbeddingTableSpec

log = logging.getLogger("hebe.tiers")

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
