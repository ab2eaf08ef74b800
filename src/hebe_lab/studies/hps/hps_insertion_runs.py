"""Fills the stores of levels 2 and 3, batch by batch, and takes the time of each batch. For `insertion`."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from rich.progress import Progress

from hebe.embeddings.hash_map.hash_map_store import HashMapStore
from hebe.embeddings.options import VolatileOptions
from hebe.embeddings.redis.connection import RedisAccess
from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import EmbeddingStore, KeyArray, RowArray
from hebe.machine.memory import available_bytes
from hebe.workload.key_skew import spread_ranks
from hebe_lab.local_redis import local_redis, redis_is_installed
from hebe_lab.studies.hps.insertion import Filled, threads_text
from hebe_lab.studies.hps.setting import (
    DIM,
    HASH_MAP,
    REDIS,
    REDIS_NODES,
    REDIS_PARTITIONS,
    ROCKSDB,
    ROW_BYTES,
    Values,
    scratch_directory,
)

PAIR_BYTES = 8 + ROW_BYTES
"""A key and its row, which is what a rate counts."""

_TABLE = "t"
_HASH_MAP_PARTITIONS = 16
_REDIS_TIMEOUT_S = 60.0
_PATTERNS = 1 << 12
_CHECKED = 4096
_TAKEN = {HASH_MAP: 1.35, REDIS: 2.0, ROCKSDB: 2.0}
"""Memory, or disk, that is set aside for each byte of rows: Redis takes 1.4 of them, RocksDB two while it compacts."""
_SHARE_OF_FREE = 0.9


def fitting(store: str, capacities_gb: Sequence[float]) -> tuple[float, ...]:
    """Those capacities for which this machine has memory, or disk, enough."""
    free = shutil.disk_usage(tempfile.gettempdir()).free if store == ROCKSDB else available_bytes() or 0
    return tuple(gb for gb in capacities_gb if gb * 1e9 * _TAKEN[store] <= _SHARE_OF_FREE * free)


def fill_all(capacities_gb: Sequence[float], batch_bytes: int, threads: int, progress: Progress) -> list[Filled]:
    """Fill each store from empty, through each of the (ascending) capacities that fit, in batches of `batch_bytes`.

    Redis comes first, so that memory which the machine has to be given is given then; it is left out where there is
    none. The hash map is filled by one thread and by `threads`. Raises RuntimeError when a store lacks what was put in.
    """
    done = []
    if redis_is_installed() and (sizes := fitting(REDIS, capacities_gb)):
        with local_redis(REDIS_NODES) as address:
            options, access = VolatileOptions(REDIS_PARTITIONS), RedisAccess(timeout_s=_REDIS_TIMEOUT_S)
            redis = RedisStore({_TABLE: DIM}, address, options, namespace="study", access=access)
            done.append(_fill(redis, REDIS, 1, sizes, batch_bytes, progress))
    if sizes := fitting(HASH_MAP, capacities_gb):
        for count in sorted({1, threads}):
            hash_map = HashMapStore({_TABLE: DIM}, VolatileOptions(_HASH_MAP_PARTITIONS))
            done.append(_fill(hash_map, HASH_MAP, count, sizes, batch_bytes, progress))
    if sizes := fitting(ROCKSDB, capacities_gb):
        with scratch_directory() as directory:
            rocksdb = RocksDbStore(directory / "rows", {_TABLE: DIM})
            done.append(_fill(rocksdb, ROCKSDB, 1, sizes, batch_bytes, progress))
    return done


def _fill(
    store: EmbeddingStore, name: str, threads: int, capacities_gb: Sequence[float], batch_bytes: int, progress: Progress
) -> Filled:
    """Fill and close `store`."""
    rows = [round(gb * 1e9) // PAIR_BYTES for gb in capacities_gb]
    data = _Data(rows[-1])
    task = progress.add_task(f"{name}, {threads_text(threads)}", total=rows[-1])
    rates: dict[float, Values] = {}
    with contextlib.closing(store), ThreadPoolExecutor(threads) as pool:
        first = 0
        for gb, stop in zip(capacities_gb, rows, strict=True):
            samples = []
            for keys, values in data.batches(first, stop, batch_bytes // PAIR_BYTES):
                step = -(-len(keys) // threads)
                parts = [slice(start, start + step) for start in range(0, len(keys), step)]
                began_s = time.perf_counter()
                list(pool.map(lambda part: store.insert(_TABLE, keys[part], values[part]), parts))  # noqa: B023
                samples.append(keys.size * PAIR_BYTES / 1e6 / (time.perf_counter() - began_s))
                progress.advance(task, keys.size)
            rates[gb], first = np.array(samples), stop
        data.check(store, name)
    return Filled(name, threads, rates)


class _Data:
    """Keys 0 to `rows` in random order; the row of a key is a pattern that tells it."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._patterns = np.random.default_rng(3).standard_normal((_PATTERNS, DIM), np.float32)

    def batches(self, first: int, stop: int, size: int) -> Iterator[tuple[KeyArray, RowArray]]:
        """Keys and rows of places `[first, stop)` of the random order."""
        for start in range(first, stop, size):
            keys = spread_ranks(np.arange(start, min(start + size, stop), dtype=np.int64), self.rows, seed=1)
            yield keys, self._of(keys)

    def check(self, store: EmbeddingStore, name: str) -> None:
        """Raises RuntimeError unless `store` has all rows, and the right ones as far as some of them tell."""
        keys = np.random.default_rng(4).integers(0, self.rows, _CHECKED)
        rows, found = np.zeros((_CHECKED, DIM), np.float32), np.zeros(_CHECKED, np.bool_)
        store.query(_TABLE, keys, rows, found)
        if store.size(_TABLE) != self.rows or not found.all() or not np.array_equal(rows, self._of(keys)):
            raise RuntimeError(f"{name} has not the rows that were put in")

    def _of(self, keys: KeyArray) -> RowArray:
        rows = self._patterns[keys % _PATTERNS]
        rows[:, 0] = keys
        return rows
