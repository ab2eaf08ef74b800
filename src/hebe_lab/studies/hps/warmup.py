"""HPS, Fig. 7: hit rate and latency of a cold cache over iterations, for three hit-rate thresholds and two sizes.

Batches of 1,024 items one after another, each looked up in a cache over a hash map that holds all rows (the paper's
Table 1), and over RocksDB alone, where a miss costs what the thresholds are there to avoid. The hit rate counts the
distinct keys of a batch, as Algorithm 1 does. The latency is that of the lookup, where the paper's is of the inference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.progress import Progress

from hebe.embeddings.config.hierarchy_config import (
    CacheConfig,
    HierarchyConfig,
    PersistentConfig,
    PersistentType,
    VolatileConfig,
    VolatileType,
)
from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.latency import percentile_of
from hebe.machine.memory import available_bytes
from hebe.models.architectures.ranking_model import initial_rows
from hebe.report.document import Cell, Heading, Picture, Table
from hebe.report.figures import Figure, median_and_spread, ratio_of_medians
from hebe.workload.key_skew import ZipfKeys
from hebe_lab.studies.hps.setting import (
    HASH_MAP,
    PAPER_BATCH,
    PAPER_ROWS,
    PAPER_TABLES,
    POWER_LAW,
    ROCKSDB,
    ROW_BYTES,
    DataSet,
    Values,
    lines,
    running_median,
    scratch_directory,
)
from hebe_lab.study import StudyOptions, StudyResult

DESCRIPTION = "HPS, Fig. 7: hit rate and latency while a cache warms up, by hit-rate threshold and cache size."

THRESHOLDS = (0.0, 0.5, 1.0)
SMALL, LARGE = 0.01, 0.05
AMPLIFIED = ZipfKeys(2.0)
"""For the paper's "highly amplified locality", which it does not describe further."""

PAPER_HIT_RATES = {SMALL: 0.70, LARGE: 0.76}
PAPER_SMALL_OVER_LARGE = 1.05
PAPER_AMPLIFIED_OVER_LARGE = 0.77
"""Latency "already 23% lower" as its hit rate surpasses 90%."""

_STEADY_SHARE = 1 / 3
_CLOSE = 0.01
_EXACT_RANKS = 100_000


@dataclass(frozen=True, slots=True)
class Effort:
    """Tables, most rows of each, iterations, and how often each case is run."""

    tables: int
    rows: int
    iterations: int
    rounds: int


EFFORTS = (Effort(4, 50_000, 120, 1), Effort(8, 250_000, 400, 3), Effort(PAPER_TABLES, PAPER_ROWS, 1000, 3))


@dataclass(frozen=True, slots=True)
class Case:
    """One curve: what lies below the cache, the cache's share of the rows, the threshold, how keys are drawn."""

    below: str
    cache: float
    threshold: float
    skew: ZipfKeys = POWER_LAW

    @property
    def name(self) -> str:
        """As figures have it."""
        if self.skew != POWER_LAW:
            return "amplified"
        return f"cache_{100 * self.cache:.0f}_percent.threshold_{self.threshold:g}".replace("0.5", "half")


def run(options: StudyOptions, progress: Progress) -> StudyResult:
    """Run every case from an empty cache on."""
    effort = options.pick(*EFFORTS)
    data = DataSet(effort.tables, rows_that_fit(effort.tables, effort.rows))
    cases = [Case(HASH_MAP, cache, threshold) for cache in (LARGE, SMALL) for threshold in THRESHOLDS]
    cases += [Case(HASH_MAP, LARGE, 1.0, AMPLIFIED)] + [Case(ROCKSDB, LARGE, threshold) for threshold in THRESHOLDS]
    drawn = {skew: _draw(data, effort.iterations, skew, progress) for skew in (POWER_LAW, AMPLIFIED)}
    task = progress.add_task("iterations of all cases", total=effort.rounds * len(cases) * effort.iterations)
    runs: dict[Case, list[Trace]] = {case: [] for case in cases}
    with scratch_directory() as directory:
        for _ in range(effort.rounds):
            for case in cases:
                config = tiers_config(case.below, case.cache, case.threshold, directory / "store", filled=False)
                runs[case].append(run_warm_up(data, config, drawn[case.skew], lambda: progress.advance(task)))
    traces = {case: median_trace(of_case) for case, of_case in runs.items()}
    return told(data, traces)


def told(data: DataSet, traces: Mapping[Case, Trace]) -> StudyResult:
    """What the curves come to. The first seven are over the hash map, as the paper's are; the others over RocksDB."""
    cases = list(traces)
    plain, below_disk = cases[:7], cases[7:]
    figures = _figures(traces, plain, below_disk)
    return StudyResult(
        figures=figures,
        content=[
            f"{data}; batches of {PAPER_BATCH:,} items, keys from a power law with alpha {POWER_LAW.alpha:g}, one "
            "query at a time, every cache empty at first. The paper: the Criteo terabyte logs (90 GB) and a synthetic "
            f"data set of 650 GB ({PAPER_TABLES} tables, about {PAPER_ROWS:,} rows each) behind one A100 with the "
            "cache in its memory, and the latency of the whole inference; here it is that of the lookup, and the cache "
            "lies in the same memory as the hash map below it.",
            Heading("Fig. 7a, 7b: three thresholds, the hash map below"),
            *_pictures({_threshold(case): traces[case] for case in plain[:3]}, "hash map below, cache 5%"),
            Heading("The same with RocksDB below"),
            *_pictures({_threshold(case): traces[case] for case in below_disk}, "RocksDB below, cache 5%"),
            Heading("Fig. 7c: cache sizes and locality, threshold 1"),
            *_pictures(
                {_size(case): traces[case] for case in plain if case.threshold == 1.0}, "hash map below, threshold 1"
            ),
            Table(
                "From cold to warm",
                ["below", "cache", "threshold", "alpha", "iterations to warm", "hit rate", "the paper",
                 "first ms", "first ten ms", "warm ms", "warm p99 ms", "keys defaulted", "insertions dropped"],
                [_row(case, traces[case]) for case in cases],
                "Warm: the last third. Iterations to warm: until the hit rate is within a point of the warm one. First "
                "ten: their median. Keys defaulted: when warm, of all keys. Insertions dropped: pieces of work that "
                "came while too many waited already. The paper's curves for single thresholds (7a, 7b) stand in its "
                "figure only.",
            ),
            Table(
                "Hit rate by size of the tables",
                ["rows of a table", "cache 1%", "cache 5%"],
                [
                    [f"{rows:,}", *(f"{popular_hit_rate(rows, share, PAPER_BATCH):.1%}" for share in (SMALL, LARGE))]
                    for rows in (data.rows, PAPER_ROWS)
                ],
                "Computed: the share of a batch's distinct keys that a cache of the most popular rows would hold. An "
                "LRU stays below it.",
            ),
            _explanation(traces, plain, below_disk),
        ],
        lead=[
            "hps.warmup.hit_rate.cache_1_percent.threshold_1",
            "hps.warmup.hit_rate.cache_5_percent.threshold_1",
            "hps.warmup.latency.small_over_large_cache",
            "hps.warmup.latency.rocksdb.threshold_0_over_1",
        ],
    )  # fmt: skip


def popular_hit_rate(rows: int, share: float, batch: int, alpha: float = POWER_LAW.alpha) -> float:
    """Of the distinct keys of `batch` draws from a power law over `rows`, the share among its `share` most popular."""
    held = max(1, int(share * rows))
    exact = min(rows, _EXACT_RANKS)
    # Ranks from 1 on; beyond the exact ones, thousands of neighbours count as alike.
    edges = np.unique(
        np.concatenate([np.arange(1, exact + 1), np.geomspace(exact, rows + 1, 20_001), [held + 1, rows + 1]])
        .round()
        .astype(np.int64)
    )
    count = np.diff(edges)
    weight = (edges[:-1] + (count - 1) / 2) ** -alpha
    asked = count * -np.expm1(batch * np.log1p(-weight / (weight * count).sum()))
    return float(asked[edges[:-1] <= held].sum() / asked.sum())


def steady(values: Values) -> Values:
    """The last third."""
    return values[-max(1, round(_STEADY_SHARE * len(values))) :]


def iterations_to_warm(hit_rate: Values) -> int:
    """From when on the hit rate, smoothed, is within a point of the warm one."""
    close = running_median(hit_rate) >= float(np.median(steady(hit_rate))) - _CLOSE
    return int(np.argmax(close)) + 1


def _draw(data: DataSet, iterations: int, skew: ZipfKeys, progress: Progress) -> list[npt.NDArray[np.int64]]:
    rng = np.random.default_rng(1)
    described = f"keys of a power law with alpha {skew.alpha:g}"
    return [data.draw(PAPER_BATCH, rng, skew) for _ in progress.track(range(iterations), description=described)]


def _threshold(case: Case) -> str:
    return f"threshold {case.threshold:g}"


def _size(case: Case) -> str:
    return f"cache {case.cache:.0%}{'' if case.skew == POWER_LAW else f', alpha {case.skew.alpha:g}'}"


def _pictures(traces: Mapping[str, Trace], setting: str) -> list[Picture]:
    hit_rates = {name: (_iterations(trace), running_median(100 * trace.hit_rate)) for name, trace in traces.items()}
    latencies = {name: (_iterations(trace), running_median(trace.latency_ms)) for name, trace in traces.items()}
    return [
        Picture(lines(hit_rates, "iteration", "hit rate (%)", f"Hit rate: {setting}")),
        Picture(
            lines(latencies, "iteration", "lookup (ms)", f"Latency: {setting}"),
            "Medians of all runs, and of nine neighbours.",
        ),
    ]


def _iterations(trace: Trace) -> Values:
    return np.arange(1, len(trace.hit_rate) + 1, dtype=np.float64)


def _row(case: Case, trace: Trace) -> list[Cell]:
    paper = None
    if case.threshold == 1.0:
        paper = "100%" if case.skew != POWER_LAW else f"{PAPER_HIT_RATES[case.cache]:.0%}"
    warm_ms = steady(trace.latency_ms)
    return [
        case.below, f"{case.cache:.0%}", f"{case.threshold:g}", f"{case.skew.alpha:g}",
        iterations_to_warm(trace.hit_rate), f"{np.median(steady(trace.hit_rate)):.1%}", paper,
        f"{trace.latency_ms[0]:.2f}", f"{np.median(trace.latency_ms[:10]):.2f}", f"{np.median(warm_ms):.2f}",
        f"{percentile_of(warm_ms, 99):.2f}", f"{np.mean(steady(trace.defaulted)):.2%}",
        f"{trace.insertions_dropped:,}",
    ]  # fmt: skip


def _figures(traces: Mapping[Case, Trace], plain: Sequence[Case], below_disk: Sequence[Case]) -> list[Figure]:
    figures = []
    for case in plain:
        value, low, high = median_and_spread(steady(traces[case].hit_rate))
        paper: float | None = None
        if case.threshold == 1.0:
            paper = PAPER_HIT_RATES[case.cache] if case.skew == POWER_LAW else 1.0
        figures.append(
            Figure(
                f"hps.warmup.hit_rate.{case.name}", value, "share of distinct keys", low, high,
                len(steady(traces[case].hit_rate)), paper=paper, note="of the last third of the iterations",
            )
        )  # fmt: skip
    small, large, amplified = (next(c for c in plain if _is(c, *which)) for which in (
        (SMALL, POWER_LAW), (LARGE, POWER_LAW), (LARGE, AMPLIFIED)))  # fmt: skip
    compared: dict[str, tuple[Case, Case, float | str, str]] = {
        "small_over_large_cache": (small, large, PAPER_SMALL_OVER_LARGE, "mean of the whole inference"),
        "amplified_over_plain": (amplified, large, PAPER_AMPLIFIED_OVER_LARGE, "as its hit rate passes 90%"),
        "hash_map.threshold_0_over_1": (plain[0], plain[2], "lower", "Fig. 7a, 7b"),
        "rocksdb.threshold_0_over_1": (below_disk[0], below_disk[2], "lower", "Fig. 7a, 7b"),
        "rocksdb.threshold_half_over_1": (below_disk[1], below_disk[2], "lower", "Fig. 7a, 7b"),
    }
    for name, (above, below, paper_ratio, what) in compared.items():
        samples = steady(traces[above].latency_ms), steady(traces[below].latency_ms)
        value, low, high = ratio_of_medians(*samples)
        figures.append(
            Figure(
                f"hps.warmup.latency.{name}", value, "ratio", low, high, len(samples[0]), paper=paper_ratio,
                note=f"of warm lookups; the paper: {what}",
            )
        )  # fmt: skip
    return figures


def _is(case: Case, cache: float, skew: ZipfKeys) -> bool:
    return case.threshold == 1.0 and case.cache == cache and case.skew == skew


def _explanation(traces: Mapping[Case, Trace], plain: Sequence[Case], below_disk: Sequence[Case]) -> str:
    def warm_ms(case: Case) -> str:
        return f"{np.median(steady(traces[case].latency_ms)):.2f}"

    on_disk = [warm_ms(case) for case in below_disk]
    in_memory = [warm_ms(case) for case in plain[:3]]
    gain = "gains less" if float(in_memory[0]) < 0.9 * float(in_memory[2]) else "gains nothing"
    return (
        "A threshold of 0 never waits: in the paper its latency settles at once, that of 1 stays above it, and 0.5 "
        "goes from one to the other as the hit rate passes it. Here that shows over RocksDB, whose warm lookups take "
        f"{on_disk[0]} ms with threshold 0, {on_disk[1]} with 0.5, {on_disk[2]} with 1: what is not waited for gets "
        f"the default vector. Over the hash map ({', '.join(in_memory)} ms) a miss costs one more copy in the same "
        "memory and no transfer over PCIe, and what is put off to the background is done by the same few cores "
        f"meanwhile, so that putting off {gain}. The hit rate depends on how large tables are, not only on "
        "the cache's share: the larger, the more of the popular rows the share holds (second table). The paper's rates "
        "are lower than its power law explains in this way; how its keys are spread over its tables it does not say."
    )


LONGEST_WAIT_MS = 600_000.0
"""A study waits for a slow disk: a miss is counted only where the threshold says so."""

_MEMORY_SHARE = 0.6
_HIERARCHY_BYTES_A_ROW = 1.6 * ROW_BYTES
"""Hash map (1.35 times the raw rows at most) and cache."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A batch each: hits of the cache over distinct keys asked for, milliseconds, keys that got a default vector.

    `insertions_dropped`: pieces of work in the background that were given up, since too many waited.
    """

    hit_rate: Values
    latency_ms: Values
    defaulted: Values
    insertions_dropped: int


def median_trace(runs: Sequence[Trace]) -> Trace:
    """The median of each batch over runs of one case, which a busy moment of the machine does not reach."""
    return Trace(
        np.median([run.hit_rate for run in runs], axis=0),
        np.median([run.latency_ms for run in runs], axis=0),
        np.median([run.defaulted for run in runs], axis=0),
        max(run.insertions_dropped for run in runs),
    )


def rows_that_fit(tables: int, most: int) -> int:
    """Rows of each of so many tables that a hash map and a cache may have of the free memory, `most` at most."""
    free_bytes = _MEMORY_SHARE * (available_bytes() or 0)
    return max(1, min(most, int(free_bytes / (tables * _HIERARCHY_BYTES_A_ROW))))


def tiers_config(
    below: str, cache_fraction: float, hit_rate_threshold: float, directory: Path, *, filled: bool
) -> HierarchyConfig:
    """A cache over a hash map that holds all rows (HPS Table 1), or over a RocksDB in `directory` alone.

    `filled`: with the first rows, before it is used.
    """
    cache = CacheConfig(cache_fraction=cache_fraction, hit_rate_threshold=hit_rate_threshold, init_ec=filled)
    if below == HASH_MAP:
        return HierarchyConfig(cache, VolatileConfig(VolatileType.HASH_MAP))
    persistent = PersistentConfig(PersistentType.ROCKS_DB, str(directory), timeout_ms=LONGEST_WAIT_MS)
    return HierarchyConfig(cache, persistent_db=persistent)


def open_tiers(data: DataSet, config: HierarchyConfig | None, version: int = 1) -> EmbeddingHierarchy:
    """`data` behind tiers, or in table memory, ready for queries; what is persistent is written once and used again.

    Rows of each `version` have names of their own in Redis.
    """
    spec = data.spec
    path = None if config is None else config.persistent_db.path
    hierarchy = EmbeddingHierarchy.open(
        spec,
        {table.name: initial_rows(spec, table.name, seed=1) for table in spec.tables},
        config=config,
        persistent_dir=Path(path) if path else None,
        identity=str(data),
        version=version,
    )
    hierarchy.warm_up()
    return hierarchy


def run_warm_up(
    data: DataSet,
    config: HierarchyConfig,
    batches: Sequence[npt.NDArray[np.int64]],
    advance: Callable[[], None],
) -> Trace:
    """Look `batches` up one after another, from an empty cache on; `advance` is called after each."""
    hierarchy = open_tiers(data, config)
    try:
        assert hierarchy.tiers is not None
        items = max(len(keys) for keys in batches)
        scratch, out = hierarchy.new_scratch(items), np.ones((items, hierarchy.spec.sparse_width), np.float32)
        scratch.fetched = np.ones(out.size, np.float32)  # else the first batches pay for memory, not for misses
        hit_rate, latency_ms, defaulted = (np.empty(len(batches)) for _ in range(3))
        before = hierarchy.tiers.state.counts
        for number, keys in enumerate(batches):
            started_s = time.perf_counter()
            report = hierarchy.lookup(keys, out, scratch)
            latency_ms[number] = 1e3 * (time.perf_counter() - started_s)
            after = hierarchy.tiers.state.counts
            hits, misses = after.cache_hits - before.cache_hits, after.cache_misses - before.cache_misses
            hit_rate[number] = hits / (hits + misses)
            defaulted[number] = report.keys.defaulted / report.keys.total
            before = after
            advance()
        return Trace(hit_rate, latency_ms, defaulted, hierarchy.tiers.state.insertions_dropped)
    finally:
        hierarchy.close()
