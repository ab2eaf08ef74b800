"""HPS, Table 3: how long it takes to bring a cache up to date, by its capacity.

Dump of all keys and update of all rows as the paper has them, and what it leaves out: the whole refresh, which looks
the rows up in the tier below, and what queries feel of it. Bandwidth is bytes of rows over seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.progress import Progress

from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.embeddings.store import KeyArray, RowArray
from hebe.embeddings.tiers.tiers import Tiers
from hebe.latency import percentile_of
from hebe.machine.memory import available_bytes
from hebe.report.document import Cell, Heading, Picture, Table
from hebe.report.figures import Figure, median_and_spread, ratio_of_medians
from hebe_lab.studies.hps.setting import (
    DIM,
    HASH_MAP,
    PAPER_BATCH,
    ROCKSDB,
    ROW_BYTES,
    DataSet,
    Values,
    lines,
    scratch_directory,
)
from hebe_lab.studies.hps.warmup import open_tiers, tiers_config
from hebe_lab.study import StudyError, StudyOptions, StudyResult

DESCRIPTION = "HPS, Table 3: dump, update and refresh of a cache by capacity, and queries meanwhile."


@dataclass(frozen=True, slots=True)
class Published:
    """A line of Table 3."""

    update_ms: float
    dump_ms: float
    gb_per_s: float


PAPER = {
    1.0: Published(5.152, 0.064, 194.20),
    5.0: Published(25.177, 0.184, 198.62),
    10.0: Published(50.262, 0.335, 198.96),
    20.0: Published(100.530, 0.641, 198.95),
    40.0: Published(200.345, 1.19, 199.73),
}
A100_GB_PER_S = 2039.0
"""Peak memory bandwidth of an A100 with 80 GB (NVIDIA's data sheet), of which a copy reads one half and writes one."""
_PAPER_SHARE = round(2 * PAPER[40.0].gb_per_s / A100_GB_PER_S, 2)

_REPEATS_FROM_DISK = 3


@dataclass(frozen=True, slots=True)
class Effort:
    """Capacities in GB, and the one that is refreshed from RocksDB and under queries; repeats; seconds a turn."""

    capacities_gb: tuple[float, ...]
    queried_gb: float
    repeats: int
    turn_s: float
    turns: int


EFFORTS = (
    Effort((0.05, 0.1, 0.2), 0.1, 5, 0.5, 3),
    Effort((0.125, 0.25, 0.5, 1.0), 0.5, 9, 1.5, 5),
    Effort(tuple(PAPER), 1.0, 9, 4.0, 5),
)


def run(options: StudyOptions, progress: Progress) -> StudyResult:
    """Refresh every capacity that this machine can hold."""
    effort = options.pick(*EFFORTS)
    capacities = [capacity for capacity in effort.capacities_gb if fits(1e9 * capacity)]
    left_out = effort.capacities_gb[len(capacities) :]
    if not capacities:
        raise StudyError(f"a cache of {effort.capacities_gb[0]:g} GB over a hash map does not fit into the free memory")
    queried = min(effort.queried_gb, capacities[-1])
    task = progress.add_task("refreshes", total=effort.repeats * len(capacities) + _REPEATS_FROM_DISK)
    measured: dict[float, Refreshes] = {}
    with scratch_directory() as directory:

        def advance() -> None:
            progress.advance(task)

        for capacity in capacities:
            measured[capacity] = measure_refreshes(1e9 * capacity, HASH_MAP, directory, effort.repeats, advance)
        from_disk = measure_refreshes(1e9 * queried, ROCKSDB, directory, _REPEATS_FROM_DISK, advance)
        progress.add_task("queries meanwhile", total=None)
        meanwhile = measure_meanwhile(1e9 * queried, HASH_MAP, directory, effort.turn_s, effort.turns)
    return told(measured, queried, from_disk, meanwhile, left_out)


def told(
    measured: Mapping[float, Refreshes],
    queried_gb: float,
    from_disk: Refreshes,
    meanwhile: Meanwhile,
    left_out: Sequence[float] = (),
) -> StudyResult:
    """What the refreshes come to: those of each capacity, one from RocksDB, one under queries."""
    largest = max(measured)
    memory = "" if not left_out else (
        f" Capacities of {', '.join(f'{capacity:g}' for capacity in left_out)} GB do not fit into the memory here."
    )  # fmt: skip
    return StudyResult(
        figures=_figures(measured, from_disk, meanwhile),
        content=[
            f"Rows of {DIM} floats; the cache over a hash map that holds all rows, both in this machine's memory, one "
            "thread. The paper: the cache in an A100's memory, thousands of threads, 199 GB/s whatever the capacity. "
            "Times are medians." + memory,
            Heading("Table 3: dump and update"),
            Table(
                "Refresh of the cache by capacity",
                ["capacity, GB", "rows present", "update ms", "dump ms", "GB/s", "of a copy", "whole refresh ms",
                 "whole, GB/s"],
                [_row(f"{capacity:g}", found) for capacity, found in measured.items()]
                + [_row(f"{queried_gb:g}, RocksDB below", from_disk)],
                "GB/s: of rows updated. Of a copy: that over the bandwidth of copying as many bytes in the same "
                "process. Whole: dump, lookup in the tier below, update, as a server does it in batches of 4,096 rows.",
            ),
            Table(
                "The paper's Table 3",
                ["capacity, GB", "update ms", "dump ms", "GB/s"],
                [[f"{gb:g}", f"{line.update_ms:.3f}", f"{line.dump_ms:.3f}", f"{line.gb_per_s:.2f}"]
                 for gb, line in PAPER.items()],
                f"199 GB/s is {_PAPER_SHARE:.0%} of what an A100's memory moves at most ({A100_GB_PER_S:,.0f} GB/s), "
                "each row read once and written once.",
            ),
            Picture(_bandwidths(measured), "Medians."),
            Heading("Queries meanwhile"),
            Table(
                "Lookups while the cache is refreshed",
                ["", "lookups", "p50 ms", "p99 ms"],
                [["no refresh", *_latencies(meanwhile.alone_ms)],
                 ["refresh after refresh", *_latencies(meanwhile.refreshed_ms)]],
                f"Batches of {PAPER_BATCH:,} keys of one table, one after another; capacity {queried_gb:g} GB; "
                f"{meanwhile.refreshes} refreshes. The paper says that updates have a minor impact, without numbers.",
            ),
            _explanation(measured[largest], largest, from_disk),
        ],
        lead=["hps.refresh.over_copy", "hps.refresh.bandwidth_spread", "hps.refresh.dump_over_update",
              "hps.refresh.query_p99_over_alone"],
    )  # fmt: skip


def _median_gb_per_s(found: Refreshes, seconds: Values) -> float:
    return found.row_bytes / float(np.median(seconds)) / 1e9


def _row(label: str, found: Refreshes) -> list[Cell]:
    return [
        label, f"{found.rows:,}", f"{1e3 * np.median(found.update_s):.1f}", f"{1e3 * np.median(found.dump_s):.2f}",
        f"{_median_gb_per_s(found, found.update_s):.2f}",
        f"{np.median(found.copy_s) / np.median(found.update_s):.2f}",
        f"{1e3 * np.median(found.whole_s):.1f}", f"{_median_gb_per_s(found, found.whole_s):.2f}",
    ]  # fmt: skip


def _latencies(taken_ms: Values) -> list[Cell]:
    return [len(taken_ms), *(f"{percentile_of(taken_ms, at):.3f}" for at in (50, 99))]


def _bandwidths(measured: Mapping[float, Refreshes]) -> str:
    capacities = list(measured)
    series = {
        "copy": [_median_gb_per_s(found, found.copy_s) for found in measured.values()],
        "update": [_median_gb_per_s(found, found.update_s) for found in measured.values()],
        "whole refresh, hash map below": [_median_gb_per_s(found, found.whole_s) for found in measured.values()],
    }
    curves = {name: (capacities, values) for name, values in series.items()}
    return lines(curves, "capacity of the cache (GB)", "rows (GB/s)", "Bandwidth of a refresh", marked=True)


def _figures(measured: Mapping[float, Refreshes], from_disk: Refreshes, meanwhile: Meanwhile) -> list[Figure]:
    largest = measured[max(measured)]
    rates = {capacity: _median_gb_per_s(found, found.update_s) for capacity, found in measured.items()}
    bandwidths = [line.gb_per_s for line in PAPER.values()]
    last = PAPER[max(PAPER)]
    ratios: dict[str, tuple[Values, Values, float | str | None, str]] = {
        "over_copy": (
            largest.copy_s,
            largest.dump_s + largest.update_s,
            _PAPER_SHARE,
            "dump and update, largest capacity; the paper: our reckoning",
        ),
        "dump_over_update": (
            largest.dump_s,
            largest.update_s,
            round(last.dump_ms / last.update_ms, 4),
            "largest capacity",
        ),
        "whole_over_update": (largest.whole_s, largest.update_s, None, "largest capacity, hash map below"),
        "rocksdb_over_update": (from_disk.whole_s, from_disk.update_s, None, "whole refresh, RocksDB below"),
        "query_p50_over_alone": (meanwhile.refreshed_ms, meanwhile.alone_ms, "minor", "lookups during refreshes"),
    }
    figures = []
    for name, (above, below, paper, note) in ratios.items():
        value, low, high = ratio_of_medians(above, below)
        figures.append(
            Figure(
                f"hps.refresh.{name}", value, "ratio", low, high, len(above),
                target=">= 0.3" if name == "over_copy" else None, paper=paper, note=note,
            )
        )  # fmt: skip
    figures.append(
        Figure(
            "hps.refresh.bandwidth_spread", max(rates.values()) / min(rates.values()), "ratio", runs=len(rates),
            paper=round(max(bandwidths) / min(bandwidths), 3), note="of updates, highest over lowest capacity's",
        )
    )  # fmt: skip
    p99_alone, p99_refreshed = (percentile_of(ms, 99) for ms in (meanwhile.alone_ms, meanwhile.refreshed_ms))
    figures.append(
        Figure(
            "hps.refresh.query_p99_over_alone", p99_refreshed / p99_alone, "ratio", paper="minor",
            runs=len(meanwhile.refreshed_ms), note="lookups during refreshes",
        )
    )  # fmt: skip
    for capacity, found in measured.items():
        value, low, high = median_and_spread(found.row_bytes / found.update_s / 1e9)
        paper_rate = PAPER[capacity].gb_per_s if capacity in PAPER else None
        figures.append(
            Figure(
                f"hps.refresh.update.{capacity:g}_gb", value, "GB/s", low, high, len(found.update_s), paper=paper_rate
            )
        )
    return figures


def _explanation(found: Refreshes, capacity_gb: float, from_disk: Refreshes) -> str:
    dumped, updated = float(np.median(found.dump_s)), float(np.median(found.update_s))
    faster = PAPER[max(PAPER)].gb_per_s / _median_gb_per_s(found, found.update_s)
    return (
        f"At {capacity_gb:g} GB the dump takes {dumped / updated:.1%} as long as the update, in the paper 0.6% to "
        f"1.2%: a key has 8 bytes, a row {ROW_BYTES}. The paper's bandwidth is {faster:.0f} times ours, as an A100's "
        "memory is that much faster than what one core copies. What its table does not hold is the lookup of the rows "
        f"in the tier below: with it a refresh takes {np.median(found.whole_s) / updated:.1f} times as long as its "
        f"update from the hash map, and {np.median(from_disk.whole_s) / np.median(from_disk.update_s):.1f} times from "
        "RocksDB. Queries share memory, slabsets' locks and cores with it."
    )


BATCH_ROWS = 4096
"""As many rows as `RefreshOptions` takes at once."""

_TABLE = "table0"
_MEMORY_SHARE = 0.8
_TAKEN = 2.6
"""A hash map of all rows (1.35 times them at most), a cache for all of them, and what is copied to compare."""
_COPIED_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Refreshes:
    """One capacity: `rows` present in the cache, and seconds of each repeat.

    `dump_s` of dumping all keys, `update_s` of updating all rows from memory, `copy_s` of copying as many bytes,
    `whole_s` of the refresh as servers run it: dump, look up in the tier below, update.
    """

    rows: int
    dump_s: Values
    update_s: Values
    copy_s: Values
    whole_s: Values

    @property
    def row_bytes(self) -> int:
        """Of all rows."""
        return self.rows * ROW_BYTES


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """Milliseconds of lookups, without a refresh and while one follows the other; how many refreshes ended."""

    alone_ms: Values
    refreshed_ms: Values
    refreshes: int


def fits(capacity_bytes: float) -> bool:
    """Whether the free memory holds what a capacity takes."""
    return _TAKEN * capacity_bytes <= _MEMORY_SHARE * (available_bytes() or 0)


def measure_refreshes(
    capacity_bytes: float, below: str, directory: Path, repeats: int, advance: Callable[[], None]
) -> Refreshes:
    """A cache of `capacity_bytes` over a tier with all its rows; `advance` after each of `repeats`."""
    hierarchy = _open(capacity_bytes, below, directory)
    try:
        tiers = _tiers(hierarchy)
        copied = [np.ones((_COPIED_BYTES // ROW_BYTES, DIM), np.float32) for _ in range(2)]
        tiers.refresh.refresh()
        dump_s, update_s, copy_s, whole_s = (np.empty(repeats) for _ in range(4))
        rows = tiers.cache.size(_TABLE)
        for number in range(repeats):
            dump_s[number] = _dump(tiers)
            copy_s[number] = _copy(copied[0], copied[1], rows)
            report = tiers.refresh.refresh()
            if report.replaced != rows:
                raise RuntimeError(f"a refresh replaced {report.replaced} of {rows} rows")
            whole_s[number] = report.seconds
            update_s[number] = _update(tiers, copied[0], rows)
            advance()
        return Refreshes(rows, dump_s, update_s, copy_s, whole_s)
    finally:
        hierarchy.close()


def measure_meanwhile(capacity_bytes: float, below: str, directory: Path, seconds: float, rounds: int) -> Meanwhile:
    """Batches of `PAPER_BATCH` keys one after another, in turns of `seconds` without and with refreshes beside them."""
    hierarchy = _open(capacity_bytes, below, directory)
    try:
        rng = np.random.default_rng(2)
        rows = hierarchy.spec.tables[0].rows
        batches = [DataSet(1, rows).draw(PAPER_BATCH, rng) for _ in range(64)]
        alone_ms: list[float] = []
        refreshed_ms: list[float] = []
        refreshes = 0
        _ask(hierarchy, batches, 0.2)
        for _ in range(rounds):
            alone_ms += _ask(hierarchy, batches, seconds)
            stop = threading.Event()
            ended: list[int] = []
            thread = threading.Thread(target=_refresh_until, args=(_tiers(hierarchy), stop, ended))
            thread.start()
            try:
                refreshed_ms += _ask(hierarchy, batches, seconds)
            finally:
                stop.set()
                thread.join()
            refreshes += len(ended)
        return Meanwhile(np.array(alone_ms), np.array(refreshed_ms), refreshes)
    finally:
        hierarchy.close()


def _open(capacity_bytes: float, below: str, directory: Path) -> EmbeddingHierarchy:
    data = DataSet(1, max(1, int(capacity_bytes / ROW_BYTES)))
    return open_tiers(data, tiers_config(below, 1.0, 1.0, directory / f"{data.rows}", filled=True))


def _tiers(hierarchy: EmbeddingHierarchy) -> Tiers:
    assert hierarchy.tiers is not None
    return hierarchy.tiers


def _dump(tiers: Tiers) -> float:
    started_s = time.perf_counter()
    for _ in tiers.cache.dump_keys(_TABLE, BATCH_ROWS):
        pass
    return time.perf_counter() - started_s


def _update(tiers: Tiers, newer: RowArray, rows: int) -> float:
    spent_s, updated = 0.0, 0
    for keys in tiers.cache.dump_keys(_TABLE, BATCH_ROWS):
        first = updated % (len(newer) - BATCH_ROWS)
        started_s = time.perf_counter()
        updated += tiers.cache.update(_TABLE, keys, newer[first : first + keys.size])
        spent_s += time.perf_counter() - started_s
    if updated != rows:
        raise RuntimeError(f"an update reached {updated} of {rows} rows")
    return spent_s


def _copy(source: RowArray, target: RowArray, rows: int) -> float:
    spent_s, done = 0.0, 0
    while done < rows:
        first = done % (len(source) - BATCH_ROWS)
        count = min(BATCH_ROWS, rows - done)
        started_s = time.perf_counter()
        np.copyto(target[first : first + count], source[first : first + count])
        spent_s += time.perf_counter() - started_s
        done += count
    return spent_s


def _ask(hierarchy: EmbeddingHierarchy, batches: list[KeyArray], seconds: float) -> list[float]:
    scratch, out = hierarchy.new_scratch(PAPER_BATCH), np.ones((PAPER_BATCH, DIM), np.float32)
    taken_ms: list[float] = []
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        started_s = time.perf_counter()
        hierarchy.lookup(batches[len(taken_ms) % len(batches)], out, scratch)
        taken_ms.append(1e3 * (time.perf_counter() - started_s))
    return taken_ms


def _refresh_until(tiers: Tiers, stop: threading.Event, ended: list[int]) -> None:
    while not stop.is_set():
        ended.append(tiers.refresh.refresh().rows)
