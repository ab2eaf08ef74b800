"""The level-1 cache on the host: against a gather that needs no hash, a plain copy, an exact LRU, and itself alone.

Keys are Zipf(1.2), in batches of 4096; rows are of 128 floats. What is compared takes turns in random order in one
process; where one thread is timed, by its own time on one core, each batch with keys drawn anew.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from rich.progress import Progress

from hebe.embeddings.cache.cache_table import CacheTable, planned_bytes
from hebe.embeddings.cache.host_cache import HostCache
from hebe.embeddings.memory.table_memory import HugeMapping
from hebe.embeddings.store import KeyArray, RowArray
from hebe.machine.memory import available_bytes
from hebe.report.figures import Figure, median_and_spread, ratio_of_medians
from hebe.workload.key_skew import ZipfKeys
from hebe_lab.bench.embeddings.sparse import one_core

DIM = 128
BATCH = 4096
SKEW = ZipfKeys(1.2)
THREADS = (1, 2, 4, 8, 16, 32, 64)

_ROOM = 1.25
"""Slots for each row: enough that nearly all rows of a table stay."""
_BLOCK_ROWS = 1 << 16
_SHARE = 0.05

Times = Mapping[str, npt.NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class _Effort:
    """How much is measured: repeats and batches in each; rows of the cache, of the table that a small cache serves;
    batches that this is warmed with and then asked; rounds of threads, and seconds of each."""

    runs: int
    batches: int
    rows: int
    lru_runs: int
    lru_rows: int
    lru_batches: int
    rounds: int
    round_s: float


_QUICK = _Effort(runs=31, batches=5, rows=200_000, lru_runs=2, lru_rows=200_000, lru_batches=40, rounds=3, round_s=0.15)
_FULL = _Effort(
    runs=101, batches=10, rows=2_000_000, lru_runs=5, lru_rows=1_000_000, lru_batches=150, rounds=9, round_s=0.4
)


def cache_figures(quick: bool, progress: Progress) -> list[Figure]:
    """`cache.*`. A cache that this machine cannot hold beside two copies of its rows is halved until it can."""
    effort = _QUICK if quick else _FULL
    rows = effort.rows
    while planned_bytes({"t": _table(rows)}) + 8 * DIM * rows > 0.9 * (available_bytes() or 0) and rows > _BLOCK_ROWS:
        rows //= 2
    filled = _FilledCache(rows, progress)
    try:
        with one_core():
            figures = [_over_index_select(filled, effort, progress), _refresh(filled, effort, progress)]
        figures.append(_concurrency(filled, effort, progress))
    finally:
        filled.close()
    return [*figures, _hit_rate_gap(effort, progress)]


def _table(rows: int) -> CacheTable:
    return CacheTable(DIM, int(_ROOM * rows))


class _FilledCache:
    """A cache of almost `rows` rows, and a dense table of the rows that it holds: that of `keys[i]` is `dense[i]`."""

    def __init__(self, rows: int, progress: Progress) -> None:
        self.cache = HostCache({"t": _table(rows)})
        block = np.random.default_rng(1).standard_normal((_BLOCK_ROWS, DIM), np.float32)
        every = np.random.default_rng(2).integers(-(2**63), 2**63 - 1, rows)
        for first in progress.track(range(0, rows, _BLOCK_ROWS), description="filling the cache"):
            keys = every[first : first + _BLOCK_ROWS]
            self.cache.insert("t", keys, block[: keys.size])
        self.keys: KeyArray = np.concatenate(list(self.cache.dump_keys("t", BATCH)))
        self._memory = [HugeMapping(4 * DIM * self.keys.size, "a dense table", "free some") for _ in range(2)]
        self.dense, self.spare = (part.bytes.view(np.float32).reshape(-1, DIM) for part in self._memory)
        found = np.zeros(self.keys.size, np.bool_)
        self.spare[:] = 0
        self.cache.query("t", self.keys, self.dense, found)
        if not found.all():
            raise RuntimeError("the cache lacks keys that it has dumped")
        self.size = f"{self.keys.size:,} rows of {DIM} floats: {4 * DIM * self.keys.size / 2**30:.3g} GiB"

    def draw(self, chance: np.random.Generator) -> npt.NDArray[np.int64]:
        """Places of a batch of keys, the popular ones anywhere."""
        return SKEW.draw(self.keys.size, BATCH, chance, spread_seed=3)

    def close(self) -> None:
        """Give all memory back."""
        self.cache.close()
        for part in self._memory:
            part.close()


def _over_index_select(filled: _FilledCache, effort: _Effort, progress: Progress) -> Figure:
    rows, found = np.empty((BATCH, DIM), np.float32), np.zeros(BATCH, np.bool_)
    selected, dense = torch.empty(BATCH, DIM), torch.from_numpy(filled.dense)

    def ours(places: npt.NDArray[np.int64], keys: KeyArray) -> RowArray:  # noqa: ARG001
        if filled.cache.query("t", keys, rows, found) != BATCH:
            raise RuntimeError("the cache lacks keys that it had")
        return rows

    def theirs(places: npt.NDArray[np.int64], keys: KeyArray) -> RowArray:  # noqa: ARG001
        torch.index_select(dense, 0, torch.from_numpy(places), out=selected)
        return selected.numpy()

    chance = np.random.default_rng(4)
    places = filled.draw(chance)
    if not np.array_equal(ours(places, filled.keys[places]), theirs(places, filled.keys[places])):
        raise RuntimeError("the cache and index_select disagree")
    competitors = {"cache": ours, "index_select": theirs}
    times: dict[str, list[float]] = {name: [] for name in competitors}
    for _ in progress.track(range(effort.runs), description="queries that hit, and index_select"):
        for name in chance.permutation(list(competitors)):
            batches = [(places, filled.keys[places]) for places in (filled.draw(chance) for _ in range(effort.batches))]
            started_s = time.thread_time()
            for places, keys in batches:
                competitors[name](places, keys)
            times[name].append((time.thread_time() - started_s) / effort.batches)
    note = f"{filled.size}; all keys hit; both on huge pages; cache {1e6 * np.median(times['cache']):.0f} µs a batch"
    return _ratio("cache.over_index_select", times["index_select"], times["cache"], ">= 0.8", note)


def _refresh(filled: _FilledCache, effort: _Effort, progress: Progress) -> Figure:
    """Dump all keys and update their rows, batch by batch, against copying the same rows."""
    chance = np.random.default_rng(5)

    def refresh() -> None:
        done = updated = 0
        for keys in filled.cache.dump_keys("t", BATCH):
            updated += filled.cache.update("t", keys, filled.dense[done : done + keys.size])
            done += keys.size
        if updated != filled.keys.size:
            raise RuntimeError("a refresh has not reached every row")

    def copy() -> None:
        for first in range(0, filled.keys.size, BATCH):
            filled.spare[first : first + BATCH] = filled.dense[first : first + BATCH]

    competitors: dict[str, Callable[[], None]] = {"refresh": refresh, "copy": copy}
    times: dict[str, list[float]] = {name: [] for name in competitors}
    for _ in progress.track(range(max(3, effort.runs // 10)), description="refresh, and a plain copy"):
        for name in chance.permutation(list(competitors)):
            started_s = time.thread_time()
            competitors[name]()
            times[name].append(time.thread_time() - started_s)
    rate = 4 * DIM * filled.keys.size / np.median(times["refresh"]) / 1e9
    note = f"{filled.size}; dump and update in batches of {BATCH}, {rate:.1f} GB/s of rows"
    return _ratio("cache.refresh_over_copy", times["copy"], times["refresh"], ">= 0.3", note)


def _concurrency(filled: _FilledCache, effort: _Effort, progress: Progress) -> Figure:
    """Batches a second with so many threads on one cache, each with buffers of its own."""
    chance = np.random.default_rng(6)
    batches = [filled.keys[filled.draw(chance)] for _ in range(256)]
    rates: dict[int, list[float]] = {threads: [] for threads in THREADS}
    for _ in progress.track(range(effort.rounds), description="threads on one cache"):
        for threads in chance.permutation(THREADS).tolist():
            rates[threads].append(_rate(filled.cache, batches, threads, effort.round_s))
    best = max(rates, key=lambda threads: float(np.median(rates[threads])))
    note = f"best with {best} threads, {np.median(rates[best]):,.0f} batches/s of {BATCH} keys; {filled.size}"
    return _ratio("cache.concurrency_64_over_peak", rates[64], rates[best], ">= 0.8", note)


def _rate(cache: HostCache, batches: list[KeyArray], threads: int, seconds: float) -> float:
    """Batches a second of `threads` threads, from when all have begun."""
    begin, stop = threading.Barrier(threads + 1), threading.Event()
    done = [0] * threads

    def ask(number: int) -> None:
        rows, found = np.zeros((BATCH, DIM), np.float32), np.zeros(BATCH, np.bool_)
        cache.query("t", batches[0], rows, found)  # touches the buffers' pages
        begin.wait()
        while not stop.is_set():
            cache.query("t", batches[(number * 37 + done[number]) % len(batches)], rows, found)
            done[number] += 1

    asking = [threading.Thread(target=ask, args=(number,)) for number in range(threads)]
    for thread in asking:
        thread.start()
    begin.wait()
    started_s = time.monotonic()
    stop.wait(seconds)
    total, elapsed_s = sum(done), time.monotonic() - started_s
    stop.set()
    for thread in asking:
        thread.join()
    return total / elapsed_s


def _hit_rate_gap(effort: _Effort, progress: Progress) -> Figure:
    """How much lower the hit rate of a small cache is than that of an exact LRU of its size, both asked alike."""
    table = CacheTable(1, int(_SHARE * effort.lru_rows))
    gaps, hit_rates = [], []
    task = progress.add_task("hit rate, and that of an exact LRU", total=effort.lru_runs * effort.lru_batches)
    for seed in range(effort.lru_runs):
        chance = np.random.default_rng(seed)
        cache, exact = HostCache({"t": table}), _ExactLru(table.capacity)
        rows, found = np.zeros((BATCH, 1), np.float32), np.zeros(BATCH, np.bool_)
        ours = theirs = asked = 0
        for step in range(effort.lru_batches):
            keys = SKEW.draw(effort.lru_rows, BATCH, chance, spread_seed=3)
            hits = cache.query("t", keys, rows, found)
            missing = np.unique(keys[~found])
            cache.replace("t", missing, rows[: missing.size])
            exact_hits = exact.ask(keys)
            if 2 * step >= effort.lru_batches:
                ours, theirs, asked = ours + hits, theirs + exact_hits, asked + BATCH
            progress.advance(task)
        cache.close()
        gaps.append((theirs - ours) / asked)
        hit_rates.append(ours / asked)
    value, low, high = median_and_spread(gaps)
    note = f"cache of {table.capacity:,} of {effort.lru_rows:,} rows; its hit rate {np.median(hit_rates):.4f}"
    return Figure("cache.hit_rate_gap", value, "share of keys", low, high, len(gaps), "<= 0.02", note=note)


class _ExactLru:
    """The `capacity` keys that were asked for last."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._keys: OrderedDict[int, None] = OrderedDict()

    def ask(self, keys: KeyArray) -> int:
        """How many of a batch are there; then all are, as far as there is room."""
        hits = sum(key in self._keys for key in keys.tolist())
        for key in keys.tolist():
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > self.capacity:
            self._keys.popitem(last=False)
        return hits


def _ratio(name: str, above: list[float], below: list[float], target: str, note: str) -> Figure:
    value, low, high = ratio_of_medians(above, below)
    return Figure(name, value, "ratio", low, high, runs=len(above), target=target, note=note)
