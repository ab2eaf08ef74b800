"""HPS, Table 2: how fast the volatile and persistent stores take rows in, and how that falls as they grow.

Each store is filled from empty with rows of 128 numbers under keys in random order, in batches as large as the paper's,
and each batch is timed. A rate at 2 GB is that of the batches which brought the store there from the capacity before.
The stores are those of levels 2 and 3 that serve, with what they do for serving: locks, checksums, a log of what was
written.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from matplotlib.ticker import NullLocator
from rich.progress import Progress

from hebe.embeddings.hash_map.hash_map_store import HashMapStore
from hebe.embeddings.options import VolatileOptions
from hebe.embeddings.redis.connection import RedisAccess
from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import EmbeddingStore, KeyArray, RowArray
from hebe.machine.memory import available_bytes
from hebe.report.document import Cell, Picture, Table
from hebe.report.figures import Figure, median_and_spread, ratio_of_medians
from hebe.report.plots.style import SERIES, drawing, plain_ticks, to_svg
from hebe.report.tables import format_number
from hebe.workload.key_skew import spread_ranks
from hebe_lab import local_redis
from hebe_lab.local_redis import local_redis as running_redis
from hebe_lab.local_redis import redis_is_installed
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
from hebe_lab.study import StudyError, StudyOptions, StudyResult

DESCRIPTION = "HPS, Table 2: random insertion into hash map, Redis and RocksDB, by how much they hold."

STORES = (HASH_MAP, REDIS, ROCKSDB)
PAPER_MB_S: Mapping[str, Mapping[float, float]] = {
    HASH_MAP: {10.0: 245.3, 25.0: 236.0, 50.0: 237.4, 75.0: 222.0, 100.0: 203.9},
    REDIS: {10.0: 162.0, 25.0: 138.9, 50.0: 132.3, 75.0: 120.9, 100.0: 111.2},
    ROCKSDB: {10.0: 52.1, 25.0: 45.3, 50.0: 40.2, 75.0: 38.3, 100.0: 37.4},
}
PAPER_CAPACITIES_GB = tuple(PAPER_MB_S[HASH_MAP])
PAPER_BATCH_BYTES = 128_000_000


@dataclass(frozen=True, slots=True)
class Effort:
    """Capacities to fill stores to, in GB, ascending; bytes of a batch."""

    capacities_gb: tuple[float, ...]
    batch_bytes: int


EFFORTS = (
    Effort((0.1, 0.2, 0.4), 16_000_000),
    Effort((0.5, 1.0, 2.0), PAPER_BATCH_BYTES),
    Effort((1.0, 2.5, 5.0, *PAPER_CAPACITIES_GB), PAPER_BATCH_BYTES),
)


@dataclass(frozen=True, slots=True)
class Filled:
    """One store that was filled: by how many threads, and MB/s of each batch on the way to each capacity (GB)."""

    store: str
    threads: int
    rates: Mapping[float, Values]

    @property
    def label(self) -> str:
        """As tables and the picture have it."""
        if self.store != HASH_MAP:
            return self.store
        return f"{self.store}, {threads_text(self.threads)}"


def threads_text(count: int) -> str:
    """How many threads, in words."""
    return "1 thread" if count == 1 else f"{count} threads"


def run(options: StudyOptions, progress: Progress) -> StudyResult:
    """Fill the stores."""
    effort = options.pick(*EFFORTS)
    filled = fill_all(effort.capacities_gb, effort.batch_bytes, len(os.sched_getaffinity(0)), progress)
    return told(effort, filled)


def told(effort: Effort, filled: Sequence[Filled]) -> StudyResult:
    """What the fills come to. Raises `StudyError` where not even the smallest capacity fitted anywhere."""
    if not filled:
        raise StudyError(f"{effort.capacities_gb[0]:g} GB of rows fit neither into memory nor on the disk")
    filled = sorted(filled, key=lambda each: (STORES.index(each.store), each.threads))
    best = {each.store: each for each in filled}  # of the hash map's fills, the one by the most threads
    gains = {store: _over(best[HASH_MAP], best[store]) for store in STORES[1:] if {HASH_MAP, store} <= set(best)}
    return StudyResult(
        figures=_figures(best, gains),
        content=[
            f"Rows of {DIM} floats under int64 keys, batches of {effort.batch_bytes / 1e6:g} MB in random order; a MB "
            "is a million bytes of keys and rows. The paper: batches of 128 MB into a store that holds 10 to 100 GB, "
            "on servers with 128 cores and 2 TB of memory; its hash map is filled by 32 threads, its Redis has three "
            "nodes, its RocksDB an SSD. Here: one machine, whose cores a store shares with who fills it, a Redis "
            f"Cluster of three nodes among them. {_left_out(effort, filled)}",
            Picture(_plot(filled), "Points: medians of the batches on the way to a capacity. Dashes: the paper."),
            Table(
                "Random insertion (MB/s)",
                ["held (GB)", *(column for each in _columns(filled) for column in each)],
                [_row(gb, filled) for gb in sorted({*PAPER_CAPACITIES_GB, *(gb for f in filled for gb in f.rates)})],
                "Medians of the batches that brought a store there.",
            ),
            Table(
                "Hash map over the other stores",
                ["over", "ours", "at (GB)", "the paper, 10 GB", "the paper, 100 GB"],
                [
                    [store, f"{gain.value:.1f}", gain.gb, f"{_paper_gain(store, 10):.1f}",
                     f"{_paper_gain(store, 100):.1f}"]
                    for store, gain in gains.items()
                ],
                "The hash map with as many threads as there are cores, each store's own rate at the same capacity.",
            ),
            Table(
                "How much is left of the first rate",
                ["store", "ours", "from, to (GB)", "the paper, from 10 to 100 GB"],
                [_kept_row(each) for each in filled if len(each.rates) > 1],
            ),
            _explanation(filled, gains),
        ],
        lead=[f"hps.table2.hash_map_over_{store.lower()}" for store in gains],
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Gain:
    """The hash map's rate over another store's, where both held `gb`."""

    gb: float
    value: float
    low: float
    high: float
    batches: int


def _over(hash_map: Filled, other: Filled) -> _Gain:
    gb = max(set(hash_map.rates) & set(other.rates))
    return _Gain(gb, *ratio_of_medians(hash_map.rates[gb], other.rates[gb]), len(other.rates[gb]))


def _paper_gain(store: str, gb: float) -> float:
    return PAPER_MB_S[HASH_MAP][gb] / PAPER_MB_S[store][gb]


def _figures(best: Mapping[str, Filled], gains: Mapping[str, _Gain]) -> list[Figure]:
    figures = []
    for store, gain in gains.items():
        figures.append(
            Figure(
                f"hps.table2.hash_map_over_{store.lower()}", gain.value, "ratio", gain.low, gain.high, gain.batches,
                paper=round(_paper_gain(store, 10), 2), note=f"both hold {gain.gb:g} GB; the paper: 10 GB",
            )
        )  # fmt: skip
    for store, each in best.items():
        gb = max(each.rates)
        known = gb if gb in PAPER_MB_S[store] else PAPER_CAPACITIES_GB[0]
        value, low, high = median_and_spread(each.rates[gb])
        figures.append(
            Figure(
                f"hps.table2.{store.lower().replace(' ', '_')}", value, "MB/s", low, high, len(each.rates[gb]),
                paper=PAPER_MB_S[store][known],
                note=f"holds {gb:g} GB, from {threads_text(each.threads)}; the paper: {known:g} GB",
            )
        )  # fmt: skip
    return figures


def _columns(filled: Sequence[Filled]) -> list[list[str]]:
    """For each store the paper's column and ours."""
    return [
        [f"{store}: the paper", *(f"ours{each.label.removeprefix(store)}" for each in filled if each.store == store)]
        for store in STORES
    ]


def _row(gb: float, filled: Sequence[Filled]) -> list[Cell]:
    cells: list[Cell] = [gb]
    for store in STORES:
        cells.append(PAPER_MB_S[store].get(gb))
        cells += [
            f"{np.median(each.rates[gb]):,.0f}" if gb in each.rates else None for each in filled if each.store == store
        ]
    return cells


def _kept(each: Filled) -> tuple[float, float, float]:
    """The last rate over the first, and the capacities."""
    first, last = min(each.rates), max(each.rates)
    return float(np.median(each.rates[last]) / np.median(each.rates[first])), first, last


def _kept_row(each: Filled) -> list[Cell]:
    kept, first, last = _kept(each)
    theirs = PAPER_MB_S[each.store]
    return [each.label, f"{kept:.2f}", f"{first:g}, {last:g}", f"{theirs[100.0] / theirs[10.0]:.2f}"]


def _left_out(effort: Effort, filled: Sequence[Filled]) -> str:
    """What was not measured, and why."""
    largest = {each.store: max(each.rates) for each in filled}
    words = []
    if REDIS not in largest:
        words.append(f"Redis is left out: {local_redis.NOT_INSTALLED}, or it has no memory for it.")
    for store, gb in largest.items():
        if gb < max(effort.capacities_gb):
            words.append(f"More than {gb:g} GB of {store} do not fit here.")
    return " ".join(words)


def _explanation(filled: Sequence[Filled], gains: Mapping[str, _Gain]) -> str:
    words = ["Where ours differs."]
    if maps := [each for each in filled if each.store == HASH_MAP]:
        gb = min(max(each.rates) for each in maps)
        rates = " and ".join(
            f"{np.median(each.rates[gb]):,.0f} MB/s from {threads_text(each.threads)}" for each in maps
        )
        words.append(
            f"The hash map takes {rates}, where the paper's took {PAPER_MB_S[HASH_MAP][10.0]:g} from 32: compiled code "
            "copies rows into large pieces of memory, partition by partition, and allocates nothing for a single row. "
            "What bounds the paper's it does not say."
        )
    others = [
        f"{each.store} takes {np.median(each.rates[gb := max(each.rates)]):,.0f} MB/s at {gb:g} GB (the paper: "
        f"{PAPER_MB_S[each.store][10.0]:g} at 10 GB)"
        for each in filled
        if each.store in gains
    ]
    if others:
        words.append(
            f"{', '.join(others)}. A row for Redis is parsed and copied by the one thread of its node; three nodes and "
            "their client have this machine's cores together. RocksDB writes a row to its log, and again each time "
            "that it sorts, on the same cores; the store looks first whether a key is new, since it counts its rows."
        )
    words.append("The capacities here span less than the paper's, so that what is left of the first rate is no test.")
    return " ".join(words)


def _plot(filled: Sequence[Filled]) -> str:
    colours = dict(zip(STORES, SERIES, strict=False))
    with drawing(height=4.4) as (canvas, axes):
        for each in filled:
            medians = [float(np.median(rates)) for rates in each.rates.values()]
            hollow = each.store == HASH_MAP and each.threads == 1
            axes.plot(list(each.rates), medians, color=colours[each.store], marker="o", label=each.label,
                      markerfacecolor="none" if hollow else colours[each.store])  # fmt: skip
        for store, rates in PAPER_MB_S.items():
            axes.plot(list(rates), list(rates.values()), color=colours[store], linestyle="--", marker="s",
                      markersize=3.5, linewidth=1.4, label=f"{store}, the paper")  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        ticks = sorted({*PAPER_CAPACITIES_GB, *(gb for each in filled for gb in each.rates)} - {75.0})
        axes.set_xticks(ticks)
        axes.set_yticks([1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000])
        low, high = axes.dataLim.y0, axes.dataLim.y1
        axes.set_ylim(0.7 * low, 1.4 * high)
        plain_ticks(axes.xaxis, format_number)
        plain_ticks(axes.yaxis, format_number)
        axes.set_xlabel("held (GB)")
        axes.set_ylabel("insertion (MB/s)")
        axes.set_title("Random insertion, by how much the store holds")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_locator(NullLocator())
        canvas.legend(loc="outside lower center", ncols=3)
        return to_svg(canvas, "Random insertion into hash map, Redis and RocksDB by capacity, ours and the paper's")


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
        with running_redis(REDIS_NODES) as address:
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
