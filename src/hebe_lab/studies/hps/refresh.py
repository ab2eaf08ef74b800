"""HPS, Table 3: how long it takes to bring a cache up to date, by its capacity.

Dump of all keys and update of all rows as the paper has them, and what it leaves out: the whole refresh, which looks
the rows up in the tier below, and what queries feel of it. Bandwidth is bytes of rows over seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.progress import Progress

from hebe.latency import percentile_of
from hebe.report.document import Cell, Heading, Picture, Table
from hebe.report.figures import Figure, median_and_spread, ratio_of_medians
from hebe_lab.studies.hps.hps_pictures import lines
from hebe_lab.studies.hps.setting import (
    DIM,
    HASH_MAP,
    PAPER_BATCH,
    ROCKSDB,
    ROW_BYTES,
    Values,
    needing_torch,
    scratch_directory,
)
from hebe_lab.study import StudyError, StudyOptions, StudyResult

if TYPE_CHECKING:
    from hebe_lab.studies.hps.hps_refresh_runs import Meanwhile, Refreshes

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
    with needing_torch("hps-refresh"):
        from hebe_lab.studies.hps.hps_refresh_runs import fits, measure_meanwhile, measure_refreshes
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
