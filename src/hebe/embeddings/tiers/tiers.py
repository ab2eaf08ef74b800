"""The tiers of one model, opened as configured: cache, volatile store, persistent store, and what keeps them in step.

level 1  a cache in this process                                    `host_cache`
level 2  none, a hash map in this process, Redis, Redis Cluster     `hash_map_store`, `redis.store`
level 3  none, RocksDB; in a process of its own where updates come   `rocksdb.store`, `rocksdb.process`
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hebe.embeddings.cache.cache_keys import CacheKeysFile, read_keys
from hebe.embeddings.cache.host_cache import HostCache
from hebe.embeddings.clients.tier_client import TierClient, TierClientOptions, TierState
from hebe.embeddings.config.hierarchy_config import CacheConfig, HierarchyConfig, PersistentType, UpdateType
from hebe.embeddings.hash_map.hash_map_store import HashMapStore
from hebe.embeddings.memory.model_rows import ModelRows
from hebe.embeddings.memory.table_memory import Progress
from hebe.embeddings.options import RocksDbOptions
from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.rocksdb.directory import CACHE_KEYS
from hebe.embeddings.rocksdb.process import StoreProcess
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import EmbeddingStore, StoreError
from hebe.embeddings.tiers.background import BackgroundWork, FaultLog
from hebe.embeddings.tiers.batch_lookup import LookupCounts
from hebe.embeddings.tiers.cache_growth import CacheGrowth
from hebe.embeddings.tiers.lookup import TieredLookup
from hebe.embeddings.tiers.memory import cache_tables
from hebe.embeddings.tiers.open_volatile import Level2, Level2Filling, open_level_2
from hebe.embeddings.tiers.redis_keeper import RedisKeeper
from hebe.embeddings.tiers.refresh import CacheRefresh, RefreshReport
from hebe.embeddings.tiers.warm_up import key_files, warm_up
from hebe.embeddings.updates.contract import TopicPartition


@dataclass(frozen=True, slots=True)
class TierSize:
    """Rows of all tables in a tier below level 1; `memory_bytes` where it is in this process's memory."""

    rows: int
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class TiersState:
    """The tiers as operators see them. `levels` are those behind a client; rows and bytes are level 1's. `sizes`: of
    those below it that this process knows the sizes of.

    Of level 1 `cache_evictions` rows gave way to others, and `cache_unheld` were written that its row format could not
    hold other than by rounding; `hash_map_evictions` gave way in a level 2 in this process.
    """

    levels: tuple[TierState, ...]
    sizes: Mapping[str, TierSize]
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
    lost_log: str | None = None
    """What is lost of online updates, as the log is another one than rows have updates of; None where nothing is."""

    @property
    def degraded(self) -> tuple[TierState, ...]:
        """The tiers that are being left alone."""
        return tuple(level for level in self.levels if not level.available)


class Tiers:
    """Made by `open`. `lookup` answers, `refresh` brings level 1 up to date, `background` is what nobody waits for.

    `keeper` looks after the rows of level 2, where that is a Redis.
    """

    def __init__(
        self,
        lookup: TieredLookup,
        config: CacheConfig,
        cache: HostCache,
        directory: Path | None,
        level_2: Level2 | None,
    ) -> None:
        self.lookup = lookup
        self.keeper: RedisKeeper | None = None if level_2 is None else level_2.keeper
        self.written: dict[TopicPartition, int] = {}
        """Of a Redis that alone has the rows: up to where they had the updates before level 1 was filled."""
        self.cache = cache
        self.background = lookup.background
        self.refresh = CacheRefresh(lookup, config.refresh_options(), FaultLog("a refresh failed"))
        self.growth: CacheGrowth
        self._keys_file = CacheKeysFile(directory / CACHE_KEYS, cache, lookup.dims) if directory is not None else None

    @classmethod
    def open(
        cls,
        rows: ModelRows,
        config: HierarchyConfig,
        persistent_dir: Path | None,
        progress: Progress | None = None,
        *,
        verify: bool = False,
    ) -> Tiers:
        """Open the tiers of a model.

        Level 3 is in `persistent_dir`. Level 2 and then level 1 are filled from it, or else from the sources of `rows`.
        `verify`: read every row that level 3 has already. What works beside queries is for `start` to begin. Raises
        `StoreError` when a tier cannot be opened, or level 3 proves to be damaged; nothing stays open then.
        """
        model, dims, own = rows.model, rows.dims, config.cache_of(rows.model)
        with contextlib.ExitStack() as opened:
            persistent: TierClient | None = None
            store: RocksDbStore | None = None
            if config.persistent_db.type is PersistentType.ROCKS_DB:
                if persistent_dir is None:
                    raise StoreError(f"model {model}: a persistent store needs a directory")
                store = _load_persistent(persistent_dir, rows, config, progress, verify)
                asked = TierClientOptions(config.persistent_db.timeout_ms / 1e3, config.persistent_db.num_threads)
                persistent = TierClient("persistent_db", store, dims, asked)
                opened.callback(persistent.close)

            def go_on() -> None:
                if progress is not None:
                    progress(0, 4 * sum(table.rows * table.dim for table in rows.tables))

            level_2 = open_level_2(rows, config, store, persistent_dir, opened, go_on)
            if persistent is None and level_2 is None:
                raise StoreError(
                    f"model {model}: neither volatile_db nor persistent_db is configured: nothing has rows"
                )
            cache = HostCache(cache_tables(rows.tables, own))
            opened.callback(cache.close)
            background = BackgroundWork(
                f"{model}-tiers", own.thread_pool_size, own.insertion_queue, FaultLog("work in the background failed")
            )
            opened.callback(background.close)
            options = own.lookup_options(cache_missed_embeddings=config.volatile_db.cache_missed_embeddings)
            volatile = None if level_2 is None else level_2.tier
            lookup = TieredLookup(dims, cache, volatile, persistent, options, background)
            directory = persistent_dir if persistent is not None else None
            tiers = cls(lookup, own, cache, directory, level_2)
            opened.callback(tiers.refresh.close)
            tiers.growth = CacheGrowth(rows.tables, own, lookup, cache)
            tiers.growth.look()  # before it is filled: level 3 may have had many rows from updates
            tiers._open_redis(rows, config, store)  # before level 1 is filled
            if own.init_ec:
                warm_up(lookup, cache, rows, read_keys(key_files(directory, own)))
            opened.pop_all()
        return tiers

    def _open_redis(self, rows: ModelRows, config: HierarchyConfig, store: RocksDbStore | None) -> None:
        """Know what Redis has of the updates that this server's level 3 has, and fill it from there."""
        keeper, volatile = self.keeper, self.lookup.volatile
        if keeper is None or volatile is None:
            return
        if keeper.follows_log:
            with contextlib.suppress(StoreError):  # of a Redis that is away: nothing comes from there either
                self.written = keeper.positions()
        if store is None:
            return
        if keeper.follows_log:
            self._begin_positions(rows.model, store, keeper.identity)
        assert volatile.client is not None
        queried = volatile.client.store
        assert isinstance(queried, RedisStore)
        assert isinstance(volatile.store, RedisStore)
        queried.log_partitions = volatile.store.log_partitions = self.lookup.updates.count
        keeper.fill = Level2Filling(self.lookup, keeper, rows.tables, config.volatile_db).run
        if not keeper.follows_log:  # what level 3 has is what there is
            keeper.fill(lambda: True)

    def _begin_positions(self, model: str, store: RocksDbStore, identity: str | None) -> None:
        """Until updates are followed: which of them level 3 has. Redis may lack some."""
        for name, offset in store.positions().items():
            log, *place = name.rsplit("/", 3)
            if log == identity and len(place) == 3 and place[0] == model and place[1] in self.lookup.dims:
                self.lookup.updates.begin(place[1], int(place[2]), offset)
        for at in self.written:
            if at.partition >= self.lookup.updates.count(at.table):
                self.lookup.updates.begin(at.table, at.partition, -1)

    def start(self) -> None:
        """Start what works beside queries, once, after the load: its threads have priority and cores from the one that
        calls, and those that the load had used are let go of, as they would give way to all else. A level 3 that is
        written goes to a process of its own. Raises `StoreError`.
        """
        for client in self._clients:
            client.renew_threads()
        persistent = self.lookup.persistent
        if persistent is not None and isinstance(persistent.store, RocksDbStore) and not persistent.store.read_only:
            persistent.store = StoreProcess.take_over(persistent.store, persistent.options.threads)
        self.background.start()
        self.refresh.start()
        self.growth.start()
        if self.keeper is not None:
            self.keeper.start()
        if self._keys_file is not None:
            self._keys_file.start()

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
    def _clients(self) -> list[TierClient]:
        clients = (self.lookup.volatile.client if self.lookup.volatile is not None else None, self.lookup.persistent)
        return [client for client in clients if client is not None]

    @property
    def state(self) -> TiersState:
        """How the tiers are now."""
        tables, hash_map = self.lookup.dims, self._hash_map
        held = [self.cache.counts(table) for table in tables]
        return TiersState(
            levels=tuple(client.state for client in self._clients),
            sizes=self._sizes,
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
            lost_log=None if self.keeper is None else self.keeper.lost_log,
        )

    @property
    def _sizes(self) -> dict[str, TierSize]:
        """Without asking anybody: who tells how the tiers are has to do so whatever has become of them."""
        sizes, hash_map = {}, self._hash_map
        if hash_map is not None:
            rows = sum(hash_map.size(table) for table in self.lookup.dims)
            sizes["volatile_db"] = TierSize(rows, hash_map.memory_bytes)
        store = None if self.lookup.persistent is None else self.lookup.persistent.store
        if isinstance(store, RocksDbStore | StoreProcess):
            sizes["persistent_db"] = TierSize(store.known_rows)
        return sizes

    def stores_of_this_process(self) -> dict[str, EmbeddingStore]:
        """Where this process alone writes: level 3, then level 2 where it is a hash map."""
        mine: dict[str, EmbeddingStore] = {}
        if self.lookup.persistent is not None:
            mine["persistent_db"] = self.lookup.persistent.store
        if self.lookup.volatile is not None and self.lookup.volatile.client is None:
            mine["volatile_db"] = self.lookup.volatile.store
        return mine

    @property
    def can_answer(self) -> bool:
        """Whether a tier below level 1 can be asked: without any, every miss gets a default vector."""
        below = (self.lookup.volatile, self.lookup.persistent)
        return any(tier is not None and tier.available for tier in below)

    def close(self) -> None:
        """Note which keys level 1 holds, then give memory, files and connections back, whatever of it fails."""
        with contextlib.ExitStack() as closing:  # the last one first
            closing.callback(self.lookup.close)
            if self._keys_file is not None:
                closing.callback(self._keys_file.close)
            closing.callback(self.background.close)
            closing.callback(self.refresh.close)
            closing.callback(self.growth.close)
            if self.keeper is not None:
                closing.callback(self.keeper.close)


def _load_persistent(
    path: Path, rows: ModelRows, config: HierarchyConfig, progress: Progress | None, verify: bool
) -> RocksDbStore:
    """Writable if online updates come, which then have to be the only writer."""
    persistent = config.persistent_db
    read_only = persistent.read_only or config.update_source.type is UpdateType.NULL
    options = RocksDbOptions(num_threads=1, max_batch_size=persistent.max_batch_size)
    return RocksDbStore.load(
        path, rows.tables, rows.sources, rows.identity, progress, read_only=read_only, verify=verify, options=options
    )
