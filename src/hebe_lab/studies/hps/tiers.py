"""HPS, Fig. 10: throughput by which tiers hold how much: cache, hash map or Redis, RocksDB.

One model behind each combination, all of them open side by side and run in turns, batch by batch with the same keys, so
that what disturbs the machine disturbs them alike. A threshold of 1: every key is answered with its row, whatever that
takes. The cost of a combination is that of its lookups; end to end, the DenseNet's comes on top, the same for all.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib.ticker import NullLocator
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
from hebe.embeddings.options import UNLIMITED, OverflowPolicy
from hebe.machine.memory import available_bytes
from hebe.models.architectures.build import build_dense_net
from hebe.query import Batch, KeyArray, Query, SubQuery
from hebe.report.document import Cell, Heading, Picture, Table
from hebe.report.figures import Figure, ratio_of_medians
from hebe.report.plots.style import SERIES, drawing, plain_ticks, to_svg
from hebe.report.tables import format_number
from hebe.runtime.executors.dense_graph import GraphMode, prepare
from hebe.runtime.executors.executor import ModelExecutor
from hebe_lab import local_redis
from hebe_lab.local_redis import local_redis as running_redis
from hebe_lab.studies.hps.setting import (
    HASH_MAP,
    PAPER_ROWS,
    PAPER_TABLES,
    POWER_LAW,
    REDIS,
    REDIS_NODES,
    REDIS_PARTITIONS,
    ROW_BYTES,
    DataSet,
    Values,
    scratch_directory,
)
from hebe_lab.studies.hps.warmup import LONGEST_WAIT_MS, open_tiers
from hebe_lab.study import StudyOptions, StudyResult

DESCRIPTION = "HPS, Fig. 10: throughput by which tiers hold how much: cache, hash map or Redis, RocksDB."

PAPER_MORE_REDIS = 1.24


@dataclass(frozen=True, slots=True)
class Combination:
    """Shares of each table's rows: level 1's, and level 2's where there is one; `disk`: level 3 has all of them.

    Without a cache all rows lie in table memory, and nothing is looked up in tiers.
    """

    cache: float | None
    level_2: str | None = None
    level_2_share: float = 1.0
    disk: bool = False

    @property
    def label(self) -> str:
        """As tables and the picture have it."""
        if self.cache is None:
            return "table memory"
        parts = [f"cache {self.cache:.0%}"]
        if self.level_2 is not None:
            parts.append(f"{self.level_2} {self.level_2_share:.0%}")
        return " + ".join([*parts, *(["RocksDB"] if self.disk else [])])


TABLE_MEMORY = Combination(None)
WHOLE_CACHE = Combination(1.0, HASH_MAP)
MUCH_CACHE = Combination(0.2, REDIS, 0.40, disk=True)
MUCH_REDIS = Combination(0.1, REDIS, 0.45, disk=True)
LITTLE, LITTLE_MORE = (Combination(0.05, REDIS, share, disk=True) for share in (0.40, 0.45))
NO_REDIS = Combination(0.1, disk=True)
COMBINATIONS = (
    TABLE_MEMORY,
    WHOLE_CACHE,
    Combination(0.5, HASH_MAP),
    Combination(0.1, HASH_MAP),
    MUCH_CACHE,
    MUCH_REDIS,
    LITTLE,
    LITTLE_MORE,
    NO_REDIS,
)


@dataclass(frozen=True, slots=True)
class Effort:
    """Tables, most rows of each; items looked up before anything counts; batch sizes, rounds of each."""

    tables: int
    rows: int
    warm_items: int
    batches: tuple[int, ...]
    rounds: int


EFFORTS = (
    Effort(8, 10_000, 8_192, (32, 256), 5),
    Effort(PAPER_TABLES, 50_000, 65_536, (32, 256, 2048), 7),
    Effort(PAPER_TABLES, PAPER_ROWS, 524_288, (32, 256, 1024, 4096, 16_384), 7),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One combination: seconds a batch of each size took to be looked up and in all, a sample each round; and of the
    distinct keys of a batch the shares that level 1, 2 and 3 had."""

    sparse_s: Mapping[int, Values]
    whole_s: Mapping[int, Values]
    had: tuple[float, float, float]

    def lookups_per_s(self, batch: int) -> float:
        """Items looked up a second."""
        return batch / float(np.median(self.sparse_s[batch]))

    def items_per_s(self, batch: int) -> float:
        """Items scored a second, the DenseNet included."""
        return batch / float(np.median(self.whole_s[batch]))


def run(options: StudyOptions, progress: Progress) -> StudyResult:
    """Open all combinations, and run them in turns."""
    effort = options.pick(*EFFORTS)
    chosen = [each for each in COMBINATIONS if each.level_2 != REDIS or local_redis.redis_is_installed()]
    data = DataSet(effort.tables, rows_that_fit(effort, chosen))
    return told(data, effort, measure_combinations(data, effort, chosen, progress))


def told(data: DataSet, effort: Effort, measured: Mapping[Combination, Measured]) -> StudyResult:
    """What the combinations come to."""
    largest = effort.batches[-1]
    figures = _figures(measured, effort)
    no_redis = "" if MUCH_CACHE in measured else f" Redis is left out: {local_redis.NOT_INSTALLED}."
    return StudyResult(
        figures=figures,
        content=[
            f"{data}; keys from a power law with alpha {POWER_LAW.alpha:g}, one query at a time. Redis is a cluster "
            f"of {REDIS_NODES} nodes with {REDIS_PARTITIONS} partitions, as the paper's, on this machine; a partition "
            "that grows above its share is pruned of its oldest rows, and at first holds the first ones of each table. "
            "The paper: the Criteo logs (90 GB) and a synthetic data set (650 GB) behind one A100, whose memory has "
            f"the cache and which runs the DenseNet; its throughputs stand in its plot only.{no_redis}",
            Heading("Lookups"),
            Picture(
                _plot({each.label: [of.lookups_per_s(batch) for batch in effort.batches]
                       for each, of in measured.items()}, effort.batches, "Items looked up a second"),
                "Medians of the rounds.",
            ),
            _table("Items looked up a second", measured, effort, Measured.lookups_per_s,
                   "Levels: the share of the distinct keys of all batches that each had, once warm.", shares=True),
            Heading("End to end"),
            Picture(
                _plot({each.label: [of.items_per_s(batch) for batch in effort.batches]
                       for each, of in measured.items()}, effort.batches, "Items scored a second"),
                "Medians of the rounds, the DenseNet on this machine's cores included.",
            ),
            _table("Items scored a second", measured, effort, Measured.items_per_s,
                   "The DenseNet has 2.4 million weights, the paper's at most 10 MB of them.", shares=False),
            Table(
                "What the paper says",
                ["", "lookups", "end to end", "the paper"],
                _claims(measured, effort),
                f"Ratios of throughputs at batches of {largest:,}, medians.",
            ),
            _explanation(measured, effort),
        ],
        lead=[figure.name for figure in figures if figure.name in ("hps.fig10.more_redis.lookups",
              "hps.fig10.less_cache_more_redis.lookups", "hps.fig10.whole_cache.end_to_end")],
    )  # fmt: skip


Rate = Callable[[Measured, int], float]


def _table(
    title: str, measured: Mapping[Combination, Measured], effort: Effort, rate: Rate, note: str, *, shares: bool
) -> Table:
    columns = ["tiers", *(f"batch {batch:,}" for batch in effort.batches)]
    rows: list[list[Cell]] = [
        [each.label, *(f"{rate(of, batch):,.0f}" for batch in effort.batches)] for each, of in measured.items()
    ]
    if shares:
        columns += ["level 1 had", "level 2", "level 3"]
        for row, of in zip(rows, measured.values(), strict=True):
            row += [f"{share:.1%}" for share in of.had]
    return Table(title, columns, rows, note)


def _gain(
    measured: Mapping[Combination, Measured], above: Combination, below: Combination, batch: int, *, whole: bool
) -> tuple[float, float, float]:
    """Throughput of `above` over that of `below`: the other way round in seconds."""
    taken = [(of.whole_s if whole else of.sparse_s)[batch] for of in (measured[below], measured[above])]
    return ratio_of_medians(*taken)


_COMPARED = (
    ("more_redis", "5% more of Redis behind a cache of 5%", LITTLE_MORE, LITTLE, PAPER_MORE_REDIS),
    ("less_cache_more_redis", "half the cache, 5% more of Redis", MUCH_REDIS, MUCH_CACHE, "better"),
    ("whole_cache", "the whole table cached, over a cache of 20%", WHOLE_CACHE, MUCH_CACHE, "better, comparable"),
)
"""Name, in words, above, below, the paper's: its Fig. 10b for the first, 10a for the others."""


def _claims(measured: Mapping[Combination, Measured], effort: Effort) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for _, words, above, below, paper in _COMPARED:
        if {above, below} <= set(measured):
            ratios = [_gain(measured, above, below, effort.batches[-1], whole=whole)[0] for whole in (False, True)]
            rows.append([f"{words}: {above.label} over {below.label}", *(f"{ratio:.2f}" for ratio in ratios),
                         f"{paper:.2f}" if isinstance(paper, float) else paper])  # fmt: skip
    first, last = effort.batches[0], effort.batches[-1]
    whole = measured[WHOLE_CACHE]
    rows.append([
        f"batches of {last:,} over batches of {first:,}: {WHOLE_CACHE.label}",
        f"{whole.lookups_per_s(last) / whole.lookups_per_s(first):.2f}",
        f"{whole.items_per_s(last) / whole.items_per_s(first):.2f}", "better",
    ])  # fmt: skip
    return rows


def _figures(measured: Mapping[Combination, Measured], effort: Effort) -> list[Figure]:
    figures = []
    batch = effort.batches[-1]
    for name, words, above, below, paper in _COMPARED:
        if not {above, below} <= set(measured):
            continue
        for kind, whole in (("lookups", False), ("end_to_end", True)):
            value, low, high = _gain(measured, above, below, batch, whole=whole)
            figures.append(
                Figure(f"hps.fig10.{name}.{kind}", value, "ratio", low, high, effort.rounds, paper=paper,
                       note=f"{words}: throughput of {above.label} over {below.label}, batches of {batch:,}")
            )  # fmt: skip
    for below in measured:
        if below != TABLE_MEMORY:
            value, low, high = _gain(measured, below, TABLE_MEMORY, batch, whole=False)
            name = below.label.replace(" + ", "_").replace(" ", "_").replace("%", "").lower()
            figures.append(
                Figure(f"hps.fig10.over_table_memory.{name}", value, "ratio", low, high, effort.rounds,
                       note=f"throughput of lookups over that of table memory, batches of {batch:,}; not in the paper")
            )  # fmt: skip
    return figures


def _explanation(measured: Mapping[Combination, Measured], effort: Effort) -> str:
    batch = effort.batches[-1]
    words = ["Where ours differs."]
    tiered = {each: of for each, of in measured.items() if each != TABLE_MEMORY}
    ordered = sorted(tiered, key=lambda each: tiered[each].lookups_per_s(batch))
    shares = [
        f"{np.median(tiered[each].sparse_s[batch]) / np.median(tiered[each].whole_s[batch]):.0%} with {each.label}"
        for each in (ordered[0], ordered[-1])
    ]
    words.append(
        f"Of the time of a batch of {batch:,} items the lookups take {shares[0]} and {shares[1]}; the rest is the "
        "DenseNet's, on these cores, where the paper's GPU makes it cheap. Ratios of lookups alone are to be compared."
    )
    if {LITTLE, LITTLE_MORE, MUCH_CACHE, MUCH_REDIS, NO_REDIS} <= set(measured):
        had = {each: of.had for each, of in measured.items()}
        words.append(
            "With 45% instead of 40% of the rows in Redis the share of keys that RocksDB has to give goes from "
            f"{had[LITTLE][2]:.1%} to {had[LITTLE_MORE][2]:.1%}; with half the cache Redis gives "
            f"{had[MUCH_REDIS][1]:.1%} of the keys instead of {had[MUCH_CACHE][1]:.1%}, and RocksDB "
            f"{had[MUCH_REDIS][2]:.1%} instead of {had[MUCH_CACHE][2]:.1%}. What that is worth is the price of a key "
            "in either. Here RocksDB's files lie in the page cache, and Redis, its three nodes and who asks them share "
            "the cores: behind a cache of 10% lookups from RocksDB alone reach "
            f"{measured[NO_REDIS].lookups_per_s(batch):,.0f} items a second, those with Redis before it "
            f"{measured[MUCH_REDIS].lookups_per_s(batch):,.0f}. The paper's RocksDB holds 90 and 650 GB on SSDs, and "
            "its Redis is spread over three servers, where the key from Redis may well be the cheaper one."
        )
    words.append(
        "A cache in front of a hash map gains nothing on a host, where both lie in the same memory: that combination "
        "is the paper's because its cache is a GPU's. Table memory, which needs no tiers, is what Hebe uses where "
        "tables fit."
    )
    return " ".join(words)


def _plot(rates: Mapping[str, Sequence[float]], batches: Sequence[int], title: str) -> str:
    with drawing(width=8.0, height=5.2) as (canvas, axes):
        for number, (label, values) in enumerate(rates.items()):
            axes.plot(batches, values, color=SERIES[number % len(SERIES)], marker="os^"[number // len(SERIES)],
                      linestyle="-" if number < len(SERIES) else "--", linewidth=1.6, label=label)  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(batches)
        low, high = (function(value for values in rates.values() for value in values) for function in (min, max))
        steps = [step * 10.0**power for power in range(9) for step in (1, 2, 5)]
        axes.set_yticks([step for step in steps if 0.5 * low <= step <= 2 * high])
        axes.set_ylim(0.8 * low, 1.25 * high)
        plain_ticks(axes.xaxis, format_number)
        plain_ticks(axes.yaxis, format_number)
        axes.set_xlabel("batch size (items)")
        axes.set_ylabel("items/s")
        axes.set_title(title)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_locator(NullLocator())
        canvas.legend(loc="outside lower center", ncols=2)
        return to_svg(canvas, f"{title} by batch size: {', '.join(rates)}")


_MEMORY_SHARE = 0.6
_TAKEN = {HASH_MAP: 1.35, REDIS: 2.0}
_WARM_UP_BATCH = 1024
_TURN_ITEMS = 256
"""A turn has so many items at least: short batches are repeated."""


def rows_that_fit(effort: Effort, combinations: Sequence[Combination]) -> int:
    """Rows of each table with which all combinations fit into the free memory together, the effort's at most."""
    needed = sum(
        1.0 if each.cache is None else each.cache + _TAKEN.get(each.level_2 or "", 0.0) * each.level_2_share
        for each in combinations
    )
    buffers_bytes = 2 * len(combinations) * max(effort.batches) * effort.tables * ROW_BYTES
    free_bytes = _MEMORY_SHARE * (available_bytes() or 0) - buffers_bytes
    return max(1, min(effort.rows, int(free_bytes / (effort.tables * ROW_BYTES * needed))))


def measure_combinations(
    data: DataSet, effort: Effort, combinations: Sequence[Combination], progress: Progress
) -> dict[Combination, Measured]:
    """Warm each combination, then run batches of each size in turns, in an order drawn anew each round."""
    spec = data.spec
    dense = prepare(build_dense_net(spec, seed=1), spec, GraphMode.SCRIPTED)
    chance = np.random.default_rng(2)
    with contextlib.ExitStack() as opened:
        directory = opened.enter_context(scratch_directory())
        redis = opened.enter_context(running_redis(REDIS_NODES)) if _any_redis(combinations) else ""
        served = []
        for number, each in enumerate(progress.track(combinations, description="filling the tiers")):
            config = _config(each, data.rows, redis, directory)
            hierarchy = open_tiers(data, config, version=1 + number)
            opened.callback(hierarchy.close)
            executor = ModelExecutor(spec, hierarchy, dense, max(effort.batches))
            served.append(_Served(hierarchy, executor, {}, {}))
        for one in progress.track(served, description="warming the caches"):
            _warm_up(one.hierarchy, data, effort.warm_items)
        task = progress.add_task("batches in turns", total=len(effort.batches) * effort.rounds * len(served))
        before = [one.counts() for one in served]
        for batch in effort.batches:
            repeats = max(1, _TURN_ITEMS // batch)
            for _ in range(effort.rounds):
                queries = [data.query(batch, chance) for _ in range(repeats)]
                for place in chance.permutation(len(served)):
                    served[place].take_turn(batch, queries)
                    progress.advance(task)
        return {
            each: Measured(
                {size: np.array(taken) for size, taken in of.sparse_s.items()},
                {size: np.array(taken) for size, taken in of.whole_s.items()},
                _shares(of.counts() - counted),
            )
            for each, of, counted in zip(combinations, served, before, strict=True)
        }


@dataclass(slots=True)
class _Served:
    """One combination, open, and the seconds of its batches by size."""

    hierarchy: EmbeddingHierarchy
    executor: ModelExecutor
    sparse_s: dict[int, list[float]]
    whole_s: dict[int, list[float]]

    def take_turn(self, batch: int, queries: Sequence[Query]) -> None:
        """Run the queries. Their median counts: the first one finds the processor's caches full of others' rows."""
        sparse_s, whole_s = [], []
        for number, query in enumerate(queries):
            outcome = self.executor.run(Batch(number, (SubQuery(query, 0, batch),), batch))
            sparse_s.append(outcome.sparse_s)
            whole_s.append(outcome.service_s)
        self.sparse_s.setdefault(batch, []).append(float(np.median(sparse_s)))
        self.whole_s.setdefault(batch, []).append(float(np.median(whole_s)))
        if self.hierarchy.tiers is not None:
            self.hierarchy.tiers.background.drain()  # what it still does must not slow the next one down

    def counts(self) -> KeyArray:
        """Keys that level 1, 2 and 3 have had so far, and what level 1 was asked for."""
        if self.hierarchy.tiers is None:
            return np.zeros(4, np.int64)
        counts = self.hierarchy.tiers.state.counts
        asked = counts.cache_hits + counts.cache_misses
        return np.array([counts.cache_hits, counts.volatile_hits, counts.persistent_hits, asked])


def _shares(counts: KeyArray) -> tuple[float, float, float]:
    """Of the keys asked for; those of table memory count as level 1's."""
    if not counts[3]:
        return 1.0, 0.0, 0.0
    had = counts[:3] / counts[3]
    return float(had[0]), float(had[1]), float(had[2])


def _any_redis(combinations: Sequence[Combination]) -> bool:
    return any(each.level_2 == REDIS for each in combinations)


def _config(each: Combination, rows: int, redis: str, directory: Path) -> HierarchyConfig | None:
    if each.cache is None:
        return None
    cache = CacheConfig(cache_fraction=each.cache, hit_rate_threshold=1.0)
    volatile, persistent = VolatileConfig(), PersistentConfig()
    if each.level_2 is not None:
        kind = VolatileType.HASH_MAP if each.level_2 == HASH_MAP else VolatileType.REDIS_CLUSTER
        margin = UNLIMITED if each.level_2_share == 1 else math.ceil(each.level_2_share * rows / REDIS_PARTITIONS)
        volatile = VolatileConfig(
            kind,
            num_partitions=REDIS_PARTITIONS,
            overflow_margin=margin,
            overflow_policy=OverflowPolicy.EVICT_OLDEST,
            initial_cache_rate=each.level_2_share,
        )
        if kind is not VolatileType.HASH_MAP:
            volatile = replace(volatile, address=redis, timeout_ms=LONGEST_WAIT_MS)
    if each.disk:
        path = str(directory / "rows")
        persistent = PersistentConfig(PersistentType.ROCKS_DB, path, timeout_ms=LONGEST_WAIT_MS)
    return HierarchyConfig(cache, volatile, persistent)


def _warm_up(hierarchy: EmbeddingHierarchy, data: DataSet, items: int) -> None:
    """Look up keys of `items` items, the same for all combinations."""
    chance = np.random.default_rng(3)
    scratch = hierarchy.new_scratch(_WARM_UP_BATCH)
    out = np.empty((_WARM_UP_BATCH, hierarchy.spec.sparse_width), np.float32)
    for _ in range(0, items, _WARM_UP_BATCH):
        hierarchy.lookup(data.draw(_WARM_UP_BATCH, chance), out, scratch)
    if hierarchy.tiers is not None:
        hierarchy.tiers.background.drain()
