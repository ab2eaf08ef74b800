"""The tiers of one model, opened as configured: cache, volatile store, persistent store, and what keeps them in step.

level 1  a cache in this process                                    `host_cache`
level 2  none, a hash map in this process, Redis, Redis Cluster     `hash_map_store`, `redis_store`
level 3  none, RocksDB; in a process of its own where updates come   `rocksdb_store`, `store_process`
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hebe.embeddings.background import BackgroundWork
from hebe.embeddings.batch_lookup import RowState
from hebe.embeddings.cache_keys import CacheKeysFile, read_keys
from hebe.embeddings.cache_table import CacheTable, by_bytes, by_fraction, planned_bytes
from hebe.embeddings.hash_map_store import HashMapStore
from hebe.embeddings.hash_map_table import planned_bytes as planned_map_bytes
from hebe.embeddings.hierarchy_config import (
    CacheConfig,
    HierarchyConfig,
    PersistentConfig,
    PersistentType,
    UpdateConfig,
    UpdateType,
    VolatileConfig,
    VolatileType,
)
from hebe.embeddings.host_cache import HostCache
from hebe.embeddings.keyed_rows import KeyedSource, first_keys, keyed_chunks
from hebe.embeddings.lookup_counts import LookupCounts
from hebe.embeddings.redis_generations import RedisGenerations, StillMine
from hebe.embeddings.redis_layout import LayoutRule
from hebe.embeddings.redis_store import RedisStore
from hebe.embeddings.redis_watch import RedisWatch
from hebe.embeddings.refresh import CacheRefresh, RefreshReport
from hebe.embeddings.rocksdb_options import RocksDbOptions
from hebe.embeddings.rocksdb_store import RocksDbStore
from hebe.embeddings.store import EmbeddingStore, KeyArray, RowArray, StoreError, VolatileStore
from hebe.embeddings.store_directory import CACHE_KEYS
from hebe.embeddings.store_process import StoreProcess
from hebe.embeddings.table_memory import Progress
from hebe.embeddings.tier_guard import GuardOptions, TierGuard, TierState
from hebe.embeddings.tiered_lookup import TieredLookup
from hebe.embeddings.update_replay import forget_group, replay, written_offsets
from hebe.embeddings.updates.contract import TopicPartition
from hebe.embeddings.volatile_tier import VolatileTier
from hebe.kernels.row_format import RowFormat
from hebe.spec import NAME_PATTERN, EmbeddingTableSpec

log = logging.getLogger("hebe.tiers")

_WARM_UP_ROWS = 16384
_FILLED_ROWS = 2048
"""At once while queries go on."""
_WARM_UP_STEPS = 64
"""So finely are the keys of a table that level 1 begins with told apart by how hot they are, at least."""
_IDENTITY_DIGITS = 12
"""So much of a content's identity is in names that servers share."""


@dataclass(frozen=True, slots=True)
class TiersState:
    """The tiers as operators see them. `levels` are the guarded ones; rows and bytes are level 1's.

    Of level 1 `cache_evictions` rows gave way to others, and `cache_unheld` were written that its row format could not
    hold other than by rounding; `hash_map_evictions` gave way in a level 2 in this process.
    """

    levels: tuple[TierState, ...]
    cached_rows: int
    cache_capacity_rows: int
    cache_bytes: int
    cache_evictions: int
    cache_unheld: int
    hash_map_evictions: int
    counts: LookupCounts
    insertions_waiting: int
    insertions_dropped: int
    refreshes: int
    last_refresh: RefreshReport | None

    @property
    def degraded(self) -> tuple[TierState, ...]:
        """The tiers that are being left alone."""
        return tuple(level for level in self.levels if not level.available)


class Tiers:
    """Made by `open`. `lookup` answers, `refresh` brings level 1 up to date, `background` is what nobody waits for.

    `content` names the rows, as servers that share a Redis have to: rows of other files are others, also when they are
    of a version of the same number.
    """

    def __init__(
        self,
        lookup: TieredLookup,
        config: CacheConfig,
        cache: HostCache,
        directory: Path | None,
        content: str,
        keeper: RedisGenerations | RedisWatch | None = None,
        lacking: Sequence[tuple[str, int]] = (),
    ) -> None:
        """`lacking`: how many rows level 2 is to be given of which tables, once level 3 has all updates."""
        self.lookup = lookup
        self.content = content
        self._keeper = keeper
        self._filling = self._fill_level_2(lacking)
        self.written: Mapping[TopicPartition, int] | None = None
        """Of a Redis that alone has the rows: which updates it had before level 1 was filled (`written_offsets`)."""
        self.cache = cache
        self.background = lookup.background
        self.refresh = CacheRefresh(lookup, config.refresh_options(), _told("a refresh failed"))
        self._keys_file = CacheKeysFile(directory / CACHE_KEYS, cache, lookup.dims) if directory is not None else None

    @classmethod
    def open(
        cls,
        model: str,
        version: int,
        tables: Sequence[EmbeddingTableSpec],
        sources: Mapping[str, KeyedSource],
        config: HierarchyConfig,
        persistent_dir: Path | None,
        identity: str,
        progress: Progress | None = None,
        *,
        verify: bool = False,
        rows_as_of_s: float | None = None,
    ) -> Tiers:
        """Open the tiers of `model`, whose rows are `sources` under `identity` (`RocksDbStore.load`).

        Level 3 is in `persistent_dir`. Level 2 and then level 1 are filled from it, or else from `sources`, which have
        the updates sent before `rows_as_of_s` (Unix seconds); a table may lack one if level 3 has its rows. `verify`:
        read every row that level 3 has already. What works beside queries is for `start` to begin. Raises `StoreError`
        when a tier cannot be opened, or level 3 proves to be damaged; nothing stays open then.
        """
        dims = {table.name: table.dim for table in tables}
        own = config.cache_of(model)
        with contextlib.ExitStack() as opened:
            persistent: TierGuard | None = None
            store: RocksDbStore | None = None
            if config.persistent_db.type is PersistentType.ROCKS_DB:
                if persistent_dir is None:
                    raise StoreError(f"model {model}: a persistent store needs a directory")
                store = _load_persistent(persistent_dir, tables, sources, config, identity, progress, verify)
                guard = GuardOptions(config.persistent_db.timeout_ms / 1e3, config.persistent_db.num_threads)
                persistent = TierGuard("persistent_db", store, dims, guard)
                opened.callback(persistent.close)
            content = ".".join([model, str(version), *filter(None, [identity[:_IDENTITY_DIGITS]])])
            alone = persistent is None
            volatile = _open_volatile(content, dims, config.volatile_db, alone)
            keeper: RedisGenerations | RedisWatch | None = None
            lacking: list[tuple[str, int]] = []
            if volatile is not None:
                opened.callback(volatile.close)
                if alone and isinstance(volatile.store, RedisStore):

                    def fill(into: RedisStore, name: str, step: StillMine) -> None:
                        _fill_volatile(into, tables, sources, None, config.volatile_db, step)
                        group = shared_group(config.update_source, content, name)
                        replay(model, dims, config.update_source, group, into, rows_as_of_s, step)

                    def forget(name: str) -> None:
                        forget_group(config.update_source, shared_group(config.update_source, content, name))

                    keeper = RedisGenerations(volatile.store, _asked_by_queries(volatile), content, fill, forget)
                    opened.callback(keeper.close)
                    keeper.join()
                elif isinstance(volatile.store, RedisStore) and config.update_source.type is not UpdateType.NULL:
                    keeper = _watched(volatile.store)
                    lacking = list(_lacking(volatile.store, tables, config.volatile_db, StoreError))
                else:
                    if isinstance(volatile.store, RedisStore):
                        keeper = _watched(volatile.store)
                    _fill_volatile(volatile.store, tables, sources, store, config.volatile_db)
                    if isinstance(volatile.store, HashMapStore) and not alone:
                        volatile.store.evict_where_memory_ends()
            if alone and volatile is None:
                raise StoreError(
                    f"model {model}: neither volatile_db nor persistent_db is configured: nothing has rows"
                )
            cache = HostCache(_cache_tables(tables, own))
            opened.callback(cache.close)
            background = BackgroundWork(
                f"{model}-tiers", own.thread_pool_size, own.insertion_queue, _told("work in the background failed")
            )
            opened.callback(background.close)
            options = own.lookup_options(cache_missed_embeddings=config.volatile_db.cache_missed_embeddings)
            lookup = TieredLookup(dims, cache, volatile, persistent, options, background)
            if isinstance(keeper, RedisWatch) and config.update_source.type is not UpdateType.NULL:
                lookup.level_2_lag.watch()  # before level 1 is filled
                lookup.level_3_is_current = False
            directory = persistent_dir if persistent is not None else None
            known = read_keys(_key_files(directory, own)) if own.init_ec else {}
            tiers = cls(lookup, own, cache, directory, content, keeper, lacking)
            opened.callback(tiers.refresh.close)
            if tiers.generations is not None and config.update_source.type is not UpdateType.NULL:
                group = shared_group(config.update_source, content, tiers.generations.current)
                tiers.written = written_offsets(model, dims, config.update_source, group)
            if own.init_ec:
                tiers.warm_up(tables, sources, known)
            opened.pop_all()
        return tiers

    def start(self) -> None:
        """Start what works beside queries, once, after the load: its threads have priority and cores from the one that
        calls, and those that the load had used are let go of, as they would give way to all else. A level 3 that is
        written goes to a process of its own. Raises `StoreError`.
        """
        for guard in self._guards:
            guard.renew_threads()
        persistent = self.lookup.persistent
        if persistent is not None and isinstance(persistent.store, RocksDbStore) and not persistent.store.read_only:
            persistent.store = StoreProcess.take_over(persistent.store, persistent.options.threads)
        self.background.start()
        self.refresh.start()
        if isinstance(self._keeper, RedisWatch):
            self._keeper.cleared = self.refresh.ask
            self._keeper.taking = self.lookup.level_2_lag.taking
            with contextlib.suppress(StoreError):  # it is told by the looks that follow
                self._keeper.look()
        if self._keeper is not None:
            self._keeper.start()
        if self._keys_file is not None:
            self._keys_file.start()

    def fill_level_2(self, while_current: Callable[[], bool]) -> None:
        """Put rows into a level 2 that other servers write to as well, of a level 3 that has all updates and goes on to
        have them `while_current`. Queries have half of the time; with the next call it goes on where it was.
        """
        while while_current():
            began_s = time.monotonic()
            if next(self._filling, None) is None:
                return
            time.sleep(time.monotonic() - began_s)

    def _fill_level_2(self, lacking: Sequence[tuple[str, int]]) -> Iterator[bool]:
        """Put the first rows of each table in, some with each step."""
        for table, left in lacking:
            assert self.lookup.persistent is not None
            for keys in self.lookup.persistent.store.dump_keys(table, _FILLED_ROWS):
                try:
                    self.lookup.fill_level_2(table, keys[:left])
                except StoreError as fault:
                    log.warning("level 2 is not filled with table %s: %s", table, fault)
                    break
                left -= len(keys)
                yield True
                if left <= 0:
                    break

    @property
    def generations(self) -> RedisGenerations | None:
        """Of the rows in Redis, where nothing else has them."""
        return self._keeper if isinstance(self._keeper, RedisGenerations) else None

    @property
    def memory_bytes(self) -> int:
        """Of the cache, and of the volatile store where it is in this process."""
        return self.cache.memory_bytes + (self._hash_map.memory_bytes if self._hash_map is not None else 0)

    @property
    def _hash_map(self) -> HashMapStore | None:
        """Level 2, where it is in this process."""
        store = self.lookup.volatile.store if self.lookup.volatile is not None else None
        return store if isinstance(store, HashMapStore) else None

    @property
    def _guards(self) -> list[TierGuard]:
        guards = (self.lookup.volatile.guard if self.lookup.volatile is not None else None, self.lookup.persistent)
        return [guard for guard in guards if guard is not None]

    @property
    def state(self) -> TiersState:
        """How the tiers are now."""
        tables, hash_map = self.lookup.dims, self._hash_map
        held = [self.cache.counts(table) for table in tables]
        return TiersState(
            levels=tuple(guard.state for guard in self._guards),
            cached_rows=sum(counts.size for counts in held),
            cache_capacity_rows=sum(table.capacity for table in self.cache.tables.values()),
            cache_bytes=self.cache.memory_bytes,
            cache_evictions=sum(counts.evictions for counts in held),
            cache_unheld=sum(counts.unheld for counts in held),
            hash_map_evictions=0 if hash_map is None else sum(hash_map.evicted_rows(table) for table in tables),
            counts=replace(self.lookup.counts),
            insertions_waiting=self.background.waiting,
            insertions_dropped=self.background.dropped,
            refreshes=self.refresh.iterations,
            last_refresh=self.refresh.last,
        )

    def warm_up(
        self,
        tables: Sequence[EmbeddingTableSpec],
        sources: Mapping[str, KeyedSource],
        known: Mapping[str, KeyArray],
    ) -> None:
        """Fill level 1 with the `known` keys of a table, int64, hottest first, or else the first ones of its source.

        Raises `StoreError` when level 3 cannot read them: what its disk has damaged is told now, before it is served.
        """
        for table in tables:
            capacity = self.cache.tables[table.name].capacity
            keys = known.get(table.name)
            if keys is None:
                keys = self._first_keys(table, sources.get(table.name), capacity)
            coldest_first = keys[:capacity][::-1]  # where they do not fit, those give way that came first
            step = max(1, min(_WARM_UP_ROWS, -(-len(coldest_first) // _WARM_UP_STEPS)))
            for first in range(0, len(coldest_first), step):
                part = np.unique(coldest_first[first : first + step])
                self._let_age(table.name)
                seen = self.lookup.updates_seen(table.name)
                rows, states = self.lookup.fetch(table.name, part, math.inf, note=False)
                found = states == RowState.FOUND
                if (states == RowState.DEFAULTED).any() and self.lookup.persistent is not None:
                    # It failed, or took longer than a query would wait: it says itself which.
                    self.lookup.persistent.store.query(table.name, part, rows, found)
                self.lookup.put(table.name, part[found], rows[found], seen)

    def _let_age(self, table: str) -> None:
        """What level 1 holds of a table was used before what comes from now on: each query of it is a moment."""
        nothing = np.empty((0, self.lookup.dims[table]), np.float32)
        self.cache.query(table, np.empty(0, np.int64), nothing, np.empty(0, np.bool_))

    def _first_keys(self, table: EmbeddingTableSpec, source: KeyedSource | None, count: int) -> KeyArray:
        """At most `count` keys to begin with: the source's, or else level 3's."""
        if source is not None or self.lookup.persistent is None:
            return first_keys(table, source, count)
        held = np.empty(0, np.int64)
        for keys in self.lookup.persistent.store.dump_keys(table.name, _WARM_UP_ROWS):
            held = np.concatenate([held, keys])
            if held.size >= count:
                break
        return held[:count]

    def stores_of_this_process(self) -> dict[str, EmbeddingStore]:
        """Where this process alone writes: level 3, then level 2 where it is a hash map."""
        mine: dict[str, EmbeddingStore] = {}
        if self.lookup.persistent is not None:
            mine["persistent_db"] = self.lookup.persistent.store
        if self.lookup.volatile is not None and self.lookup.volatile.guard is None:
            mine["volatile_db"] = self.lookup.volatile.store
        return mine

    @property
    def can_answer(self) -> bool:
        """Whether a tier below level 1 can be asked: without any, every miss gets a default vector."""
        below = (self.lookup.volatile, self.lookup.persistent)
        return any(tier is not None and tier.available for tier in below)

    def close(self) -> None:
        """Note which keys level 1 holds, then give memory, files and connections back."""
        if self._keeper is not None:
            self._keeper.close()
        self.refresh.close()
        self.background.close()
        if self._keys_file is not None:
            self._keys_file.close()
        self.lookup.close()


def planned_tier_bytes(model: str, tables: Sequence[EmbeddingTableSpec], config: HierarchyConfig) -> int:
    """The memory that `Tiers.open` takes for rows in this process: the cache's, and what the hash map grows to.

    Raises `StoreError` for a cache that cannot be so small.
    """
    total = planned_bytes(_cache_tables(tables, config.cache_of(model)))
    volatile = config.volatile_db
    if volatile.type is VolatileType.HASH_MAP:
        most = volatile.num_partitions * volatile.overflow_margin
        grown = sum(planned_map_bytes(min(table.rows, most), table.dim, volatile.num_partitions) for table in tables)
        total += grown if volatile.memory_bytes is None else min(grown, volatile.memory_bytes)
    return total


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


def _cache_tables(tables: Sequence[EmbeddingTableSpec], config: CacheConfig) -> dict[str, CacheTable]:
    shapes = {table.name: (table.rows, table.dim) for table in tables}
    if config.cache_bytes is not None:
        return by_bytes(shapes, config.cache_bytes, config.row_format, config.slabs_per_slabset)
    return by_fraction(shapes, config.cache_fraction, config.row_format, config.slabs_per_slabset)


def _load_persistent(
    path: Path,
    tables: Sequence[EmbeddingTableSpec],
    sources: Mapping[str, KeyedSource],
    config: HierarchyConfig,
    identity: str,
    progress: Progress | None,
    verify: bool,
) -> RocksDbStore:
    """Writable if online updates come, which then have to be the only writer."""
    persistent = config.persistent_db
    read_only = persistent.read_only or config.update_source.type is UpdateType.NULL
    options = RocksDbOptions(num_threads=1, max_batch_size=persistent.max_batch_size)
    return RocksDbStore.load(
        path, tables, sources, identity, progress, read_only=read_only, verify=verify, options=options
    )


def shared_group(source: UpdateConfig, content: str, generation: str | None) -> str:
    """The group of the servers that together put updates into one Redis."""
    return group_name(source.group, content, *filter(None, [generation]))


def group_name(*parts: str) -> str:
    """A name made of these, or of a digest of them where that would be too long a name."""
    name = ".".join(parts)
    if NAME_PATTERN.match(name):
        return name
    return hashlib.blake2b(name.encode(), digest_size=20).hexdigest()


def _open_volatile(namespace: str, dims: Mapping[str, int], config: VolatileConfig, alone: bool) -> VolatileTier | None:
    """`alone`: nothing below it has the rows."""
    if config.type is VolatileType.DISABLED:
        return None
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


def _asked_by_queries(volatile: VolatileTier) -> RedisStore:
    assert volatile.guard is not None
    assert isinstance(volatile.guard.store, RedisStore)
    return volatile.guard.store


def _watched(store: RedisStore) -> RedisWatch:
    """One whose rows are not older than they were, if it can be asked now."""
    watch = RedisWatch(store)
    try:
        watch.look()
    except StoreError as fault:
        log.warning("level 2 cannot be looked after yet: %s", fault)
    return watch


def _lacking(
    store: VolatileStore,
    tables: Sequence[EmbeddingTableSpec],
    config: VolatileConfig,
    tolerated: type[StoreError] | tuple[()],
) -> Iterator[tuple[str, int]]:
    """Tables with how many rows of each are to be put into a store that has none of it: where it has some, others fill
    it, or have.
    """
    for table in tables:
        wanted = min(math.ceil(config.initial_cache_rate * table.rows), config.num_partitions * config.overflow_margin)
        try:
            if wanted and not store.size(table.name):
                yield table.name, wanted
        except tolerated as fault:
            log.warning("level 2 is not filled with table %s: %s", table.name, fault)


def _fill_volatile(
    store: VolatileStore,
    tables: Sequence[EmbeddingTableSpec],
    sources: Mapping[str, KeyedSource],
    persistent: RocksDbStore | None,
    config: VolatileConfig,
    step: Callable[[], None] = lambda: None,
) -> None:
    """Put the first rows of each table in that nobody else writes to. `step` is called after some of them.

    Where level 3 has the rows, a store that does not take them is no matter; rows that cannot be read always are.
    """
    tolerated = StoreError if persistent is not None else ()
    specs = {table.name: table for table in tables}
    for name, wanted in _lacking(store, tables, config, tolerated):
        for keys, rows in _rows_of(specs[name], sources, persistent, wanted):
            try:
                store.insert(name, keys, rows)
                step()
            except tolerated as fault:
                log.warning("level 2 is not filled with table %s: %s", name, fault)
                break


def _rows_of(
    table: EmbeddingTableSpec, sources: Mapping[str, KeyedSource], persistent: RocksDbStore | None, wanted: int
) -> Iterator[tuple[KeyArray, RowArray]]:
    """The first rows of a table: level 3's, which has had updates, or else the source's."""
    if persistent is None:
        if table.name not in sources:
            raise StoreError(f"table {table.name} is missing")
        yield from keyed_chunks(table, sources[table.name], min(wanted, table.rows))
        return
    left = wanted
    for keys in persistent.dump_keys(table.name, _WARM_UP_ROWS):
        keys = keys[:left]
        if not keys.size:
            return
        rows, found = np.empty((len(keys), table.dim), np.float32), np.zeros(len(keys), np.bool_)
        persistent.query(table.name, keys, rows, found)
        yield keys[found], rows[found]
        left -= len(keys)


def _key_files(directory: Path | None, config: CacheConfig) -> list[Path]:
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


def _told(what: str) -> Callable[[Exception], None]:
    """Logs faults of a thread, `what` first."""
    return lambda fault: log.warning("%s: %s", what, fault)
