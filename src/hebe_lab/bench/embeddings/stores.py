"""Level 2 in this process against Redis, RocksDB and a Python dict: random insertions, then uniform lookups.

Each store in turn takes all rows in the same random order, in batches, and then answers batches of uniform keys, from
one thread. Redis is a server of its own, started and ended here, on a Unix socket; RocksDB's files lie in a temporary
directory. Every answer is checked, outside of the time that counts; of two threads at once the last one of a round.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.progress import Progress

from hebe.embeddings.hash_map.hash_map_store import HashMapStore
from hebe.embeddings.options import VolatileOptions, default_partitions
from hebe.embeddings.redis.connection import RedisAccess
from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import EmbeddingStore, FoundMask, KeyArray, RowArray
from hebe.kernels.hash_tables.hash_map import kernels
from hebe.machine.memory import available_bytes
from hebe.report.figures import Figure, median_and_spread, ratio_of_medians
from hebe_lab.local_redis import local_redis, redis_is_installed

DIM = 128
BATCH = 4096
MOST_BYTES = 6 << 30
"""No store may take more, nor are two filled at once."""

_TABLE = "t"
_BYTES_OVER_RAW = 2.0  # what is reserved for a store: Redis takes about 1.4 times the rows
_SHARES = 20
_ROUNDS = 5
"""Of two threads at once."""
_PATTERNS = 1 << 12
_REDIS_TIMEOUT_S = 60.0
_QUIET_SHARE, _QUIET_STEP_S, _QUIET_WITHIN_S = 0.1, 0.25, 60.0
"""Nothing goes on in the background any more where it takes so little of a core for so long."""

_HOW = {"redis": "on a Unix socket, its server on another core", "rocksdb": "its files in the page cache"}
_HOW_INSERTED = {"redis": "", "rocksdb": "; it looks each key up first, since it counts its rows"}
_PAPER = {"redis": 1.5, "rocksdb": 4.7}

Samples = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Effort:
    """How much is measured: rows of the table, and batches looked up."""

    rows: int
    lookups: int


_QUICK = _Effort(rows=400_000, lookups=100)
_FULL = _Effort(rows=5_000_000, lookups=300)


@dataclass(frozen=True, slots=True)
class _Measured:
    """Seconds an inserted row, one sample for each twentieth of the rows; seconds a key, one for each batch."""

    insert_s: Samples
    lookup_s: Samples


def stores_figures(quick: bool, progress: Progress) -> list[Figure]:
    """`hash_map.*`. Without a `redis-server` on the machine, those against Redis are left out.

    A table that does not fit is halved until it does, and the notes say so.
    """
    effort = _QUICK if quick else _FULL
    data = _Data(_rows_that_fit(effort.rows))
    _touch_memory(int(1.3 * 4 * DIM * data.rows))
    with tempfile.TemporaryDirectory(prefix="hebe-") as name:
        ours, bytes_over_raw, two_threads = _hash_map(data, effort, progress)
        dict_s = _dict(data, effort, progress)
        with contextlib.closing(RocksDbStore(Path(name) / "rocksdb", {_TABLE: DIM})) as rocksdb:
            theirs = {"rocksdb": _measure(rocksdb, data, effort, progress, "RocksDB")}
        if redis_is_installed():
            with local_redis() as address:
                access = RedisAccess(timeout_s=_REDIS_TIMEOUT_S)
                options = VolatileOptions(default_partitions())
                redis = RedisStore({_TABLE: DIM}, address, options, namespace="bench", access=access)
                with contextlib.closing(redis):
                    theirs["redis"] = _measure(redis, data, effort, progress, "Redis")
    size = f"{data.rows:,} rows of {DIM} floats, batches of {BATCH}"
    if data.rows < effort.rows:
        size += f" ({effort.rows:,} rows do not fit)"
    figures = [
        figure
        for name in sorted(theirs)
        for figure in (
            _ratio(f"hash_map.over_{name}", theirs[name].lookup_s, ours.lookup_s, ">= 15", f"{size}; {_HOW[name]}"),
            _ratio(
                f"hash_map.insert_over_{name}",
                theirs[name].insert_s,
                ours.insert_s,
                ">= 5",
                size + _HOW_INSERTED[name],
                _PAPER[name],
            ),
        )
    ]
    weighed = "the most in the second half of the fill, by the store's count and by the process' size, growth included"
    return [
        *figures,
        _ratio("hash_map.over_dict", dict_s, ours.lookup_s, ">= 4", f"{size}; dict and np.take"),
        Figure("hash_map.bytes_over_raw", bytes_over_raw, "ratio", target="<= 1.35", note=f"{size}; {weighed}"),
        _rate("hash_map.lookup_rate", 1 / ours.lookup_s, f"{size}; one thread"),
        _rate("hash_map.lookup_rate.2_threads", two_threads, f"{size}; of both together, by the wall clock"),
        _rate("hash_map.insert_rate", 1 / ours.insert_s, f"{size}; one thread"),
    ]


class _Data:
    """Keys 0 to `rows`, in random order to be inserted; the row of a key is a pattern that tells it."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        chance = np.random.default_rng(5)
        self.order = chance.permutation(rows)
        self._patterns = chance.standard_normal((_PATTERNS, DIM), np.float32)

    def of(self, keys: KeyArray) -> RowArray:
        """The rows of `keys`."""
        rows = self._patterns[keys % _PATTERNS]
        rows[:, 0] = keys
        return rows

    def batches(self, count: int, seed: int = 6) -> Iterator[KeyArray]:
        """`count` batches of uniform keys."""
        chance = np.random.default_rng(seed)
        for _ in range(count):
            yield chance.integers(0, self.rows, BATCH)

    def check(self, keys: KeyArray, rows: RowArray, found: FoundMask, what: str) -> None:
        """Raises RuntimeError unless all were found and are right."""
        if not found.all() or not np.array_equal(rows, self.of(keys)):
            raise RuntimeError(f"{what} gave wrong rows")


def _rows_that_fit(rows: int) -> int:
    least = min(
        MOST_BYTES, 0.9 * (available_bytes() or MOST_BYTES), 0.9 * shutil.disk_usage(tempfile.gettempdir()).free
    )
    while rows * DIM * 4 * _BYTES_OVER_RAW > least and rows > 2 * BATCH:
        rows //= 2
    return rows


def _hash_map(data: _Data, effort: _Effort, progress: Progress) -> tuple[_Measured, float, Samples]:
    """Times, the most bytes over raw rows, and lookups a second of two threads together."""
    kernels()  # the compiler's own memory is not the store's
    before = _resident_bytes()
    ratios = []

    def weigh(rows: int) -> None:
        if rows > data.rows // 2:
            ratios.append(max(store.peak_memory_bytes, _resident_bytes() - before) / (4 * DIM * rows))

    with contextlib.closing(HashMapStore({_TABLE: DIM}, VolatileOptions(default_partitions()))) as store:
        measured = _measure(store, data, effort, progress, "hash map", weigh)
        return measured, max(ratios), _two_threads(store, data, effort)


def _measure(
    store: EmbeddingStore,
    data: _Data,
    effort: _Effort,
    progress: Progress,
    what: str,
    filled: Callable[[int], None] = lambda _: None,
) -> _Measured:
    """Fill `store`, then look keys up; `filled` is told the rows so far after every twentieth."""
    task = progress.add_task(what, total=data.rows)
    insert_s = []
    for share in np.array_split(data.order, _SHARES):
        taken_s = 0.0
        for first in range(0, share.size, BATCH):
            keys = share[first : first + BATCH]
            rows = data.of(keys)
            began_s = time.perf_counter()
            store.insert(_TABLE, keys, rows)
            taken_s += time.perf_counter() - began_s
            progress.advance(task, keys.size)
        insert_s.append(taken_s / share.size)
        filled(sum(len(part) for part in np.array_split(data.order, _SHARES)[: len(insert_s)]))
    _wait_until_quiet()
    return _Measured(np.array(insert_s), _lookups(store, data, effort.lookups, what))


def _wait_until_quiet() -> None:
    give_up_s = time.monotonic() + _QUIET_WITHIN_S
    while time.monotonic() < give_up_s:
        before_s = time.process_time()
        time.sleep(_QUIET_STEP_S)
        if time.process_time() - before_s < _QUIET_SHARE * _QUIET_STEP_S:
            return


def _lookups(store: EmbeddingStore, data: _Data, count: int, what: str) -> Samples:
    rows, found = np.zeros((BATCH, DIM), np.float32), np.zeros(BATCH, np.bool_)
    samples = []
    for keys in data.batches(count):
        began_s = time.perf_counter()
        store.query(_TABLE, keys, rows, found)
        samples.append((time.perf_counter() - began_s) / BATCH)
        data.check(keys, rows, found, what)
    return np.array(samples)


def _two_threads(store: EmbeddingStore, data: _Data, effort: _Effort) -> Samples:
    """Keys a second of two threads together, of each round: from when both begin until the later one has ended."""
    batches = [list(data.batches(effort.lookups, seed)) for seed in (7, 8)]
    rows = [np.zeros((BATCH, DIM), np.float32) for _ in batches]
    found = [np.zeros(BATCH, np.bool_) for _ in batches]
    begin = threading.Barrier(2)

    def look_up(number: int) -> tuple[float, float]:
        begin.wait()
        began_s = time.perf_counter()
        for keys in batches[number]:
            store.query(_TABLE, keys, rows[number], found[number])
        return began_s, time.perf_counter()

    rates = []
    with ThreadPoolExecutor(2) as threads:
        for _ in range(_ROUNDS):
            began_s, ended_s = zip(*threads.map(look_up, range(2)), strict=True)
            rates.append(2 * effort.lookups * BATCH / (max(ended_s) - min(began_s)))
            for each, keys in enumerate(batches):
                data.check(keys[-1], rows[each], found[each], "hash map")
    return np.array(rates)


def _dict(data: _Data, effort: _Effort, progress: Progress) -> Samples:
    """Seconds a key of the plainest map of rows in Python."""
    task = progress.add_task("dict", total=data.rows)
    places: dict[int, int] = {}
    stored = np.empty((data.rows, DIM), np.float32)
    for first in range(0, data.rows, BATCH):
        keys = data.order[first : first + BATCH]
        stored[first : first + keys.size] = data.of(keys)
        places.update(zip(keys.tolist(), range(first, first + keys.size), strict=True))
        progress.advance(task, keys.size)
    rows, found = np.zeros((BATCH, DIM), np.float32), np.ones(BATCH, np.bool_)
    samples = []
    for keys in data.batches(effort.lookups):
        began_s = time.perf_counter()
        where = np.fromiter(map(places.__getitem__, keys.tolist()), np.int64, BATCH)
        np.take(stored, where, axis=0, out=rows, mode="clip")  # "raise" would copy once more
        samples.append((time.perf_counter() - began_s) / BATCH)
        data.check(keys, rows, found, "dict")
    return np.array(samples)


def _touch_memory(size_bytes: int) -> None:
    """Use so much memory once: the host of a virtual machine hands it out slowly the first time, whoever asks.

    On huge pages, as the hash map does: those are taken from other places than small ones, and cost five times as much
    the first time.
    """
    with mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        with contextlib.suppress(OSError, AttributeError):  # a system without them
            memory.madvise(mmap.MADV_HUGEPAGE)
        for first in range(0, size_bytes, mmap.PAGESIZE):
            memory[first] = 1


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _ratio(name: str, theirs: Samples, ours: Samples, target: str, note: str, paper: float | None = None) -> Figure:
    value, low, high = ratio_of_medians(theirs, ours)
    return Figure(name, value, "ratio", low, high, len(ours), target, paper, note)


def _rate(name: str, samples: Samples, note: str) -> Figure:
    value, low, high = median_and_spread(samples)
    return Figure(name, value, "keys/s", low, high, len(samples), note=note)
