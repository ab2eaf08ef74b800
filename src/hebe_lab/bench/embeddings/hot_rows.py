"""Hot-SparseNet against what the reuse profile of its load predicts, and what parting the keys costs.

Models of the catalog, made smaller; keys drawn as the load generator draws them, rows as often as production tables'
are. A tenth of the rows is hot. What is predicted comes from the profile alone, as analytic servers use it; what is
measured are counts of real keys that were parted, looked up and added again, on one thread.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.progress import Progress

from hebe.embeddings.batches import hot_tables
from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.models.catalog import entry
from hebe.models.hot_rows import HotRows, choose_hot_rows, counted_frequencies
from hebe.report.figures import Figure, ratio_of_medians
from hebe.runtime.accelerator_memory import AcceleratorMemory
from hebe.runtime.executors.hot_sparse_net import HotSparseNet
from hebe.simulation.analytic.model_work import model_work
from hebe.simulation.analytic.row_caching import RowPopularity
from hebe.spec import ModelSpec
from hebe.workload.key_frequencies import key_frequencies
from hebe.workload.key_skew import ReuseKeys, spread_seed_of
from hebe_lab.bench.embeddings.sparse import one_core

MODELS = ("dlrm-rmc1", "dlrm-rmc2", "dlrm-rmc3", "mt-wnd", "din", "dien")
TIMED = "dlrm-rmc1"
HOT_SHARE = 0.1

_SKEW = ReuseKeys()
_ITEMS = 64
_BLOCK_ROWS = 1 << 14
_DRAWN_ITEMS = 1 << 12
"""At a time: keys of a table are drawn faster the more there are."""

Keys = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Effort:
    """How much is measured: bytes of a model's tables, the least keys of it that are counted, and timed runs."""

    table_bytes: int
    timed_bytes: int
    keys: int
    runs: int
    batches: int


_QUICK = _Effort(table_bytes=24 << 20, timed_bytes=96 << 20, keys=150_000, runs=15, batches=4)
_FULL = _Effort(table_bytes=192 << 20, timed_bytes=1 << 30, keys=1_000_000, runs=41, batches=10)


def figures(quick: bool, progress: Progress) -> list[Figure]:
    """Measure `hot_rows.*`. With `quick` on smaller tables and fewer keys."""
    effort = _QUICK if quick else _FULL
    with one_core():
        return [*_coverage(effort, progress), *_times(effort, progress)]


@dataclass(frozen=True, slots=True)
class _Coverage:
    """The share of a model's lookups that hot rows serve: by the profile, measured, and measured of rows that a trace
    of so many keys a row chose."""

    model: str
    predicted: float
    measured: float
    traced: float
    trace_keys_per_row: float


def _coverage(effort: _Effort, progress: Progress) -> list[Figure]:
    task = progress.add_task("coverage of hot rows", total=len(MODELS))
    found = []
    for name in MODELS:
        found.append(_coverage_of(_spec(name, effort.table_bytes), effort))
        progress.advance(task)
    worst = max(found, key=lambda each: abs(each.measured - each.predicted))
    least = min(found, key=lambda each: each.traced / each.measured)
    of_each = ", ".join(f"{each.model} {each.measured:.3f} of {each.predicted:.3f}" for each in found)
    size = f"{HOT_SHARE:.0%} of the rows, tables of {effort.table_bytes / 2**20:,.0f} MiB"
    return [
        Figure(
            "hot_rows.coverage_error",
            abs(worst.measured - worst.predicted),
            "ratio",
            runs=len(found),
            target="<= 0.02",
            note=f"the largest of all models; share of lookups measured and predicted, {size}: {of_each}",
        ),
        Figure(
            "hot_rows.trace_over_profile",
            least.traced / least.measured,
            "ratio",
            runs=len(found),
            note=f"coverage of rows chosen by a trace of keys over that by the profile, the least of all models: "
            f"{least.model}, {least.trace_keys_per_row:.2g} keys a row",
        ),
    ]


def _coverage_of(spec: ModelSpec, effort: _Effort) -> _Coverage:
    capacity_bytes = round(HOT_SHARE * spec.table_bytes)
    work = model_work(spec)
    shares = RowPopularity(work, _SKEW.profile).hottest_shares(capacity_bytes)
    predicted = float(np.average(shares, weights=[gather.lookups for gather in work.gathers]))
    seeds = np.random.SeedSequence(1).spawn(2)
    items = -(-effort.keys // spec.lookups_per_item)
    recorded = counted_frequencies(spec, _by_table(spec, _draw(spec, items, np.random.default_rng(seeds[0]))))
    by_profile = choose_hot_rows(spec, key_frequencies(spec, _SKEW), capacity_bytes)
    by_trace = choose_hot_rows(spec, recorded, capacity_bytes)
    rows = sum(table.rows for table in spec.tables)
    with _tables(spec) as hierarchy:
        measured, traced = (_measured_share(spec, hierarchy, hot, items, seeds[1]) for hot in (by_profile, by_trace))
    return _Coverage(spec.name, predicted, measured, traced, items * spec.lookups_per_item / rows)


def _measured_share(
    spec: ModelSpec, hierarchy: EmbeddingHierarchy, hot: HotRows, items: int, seed: np.random.SeedSequence
) -> float:
    """The share of the keys of `items` items that read a hot row, on the way to the same output as without."""
    rng = np.random.default_rng(seed)
    scratch = hierarchy.new_scratch(_ITEMS)
    whole, sums = np.empty((2, _ITEMS, spec.sparse_width), np.float32)
    cold_keys, hot_keys = np.empty((2, _ITEMS, spec.lookups_per_item), np.int64)
    with _placed(spec, hierarchy, hot) as net:
        for first in range(0, items, _DRAWN_ITEMS):
            drawn = _draw(spec, min(_DRAWN_ITEMS, items - first), rng)
            for start in range(0, len(drawn), _ITEMS):
                keys = drawn[start : start + _ITEMS]
                net.split(keys, hot_keys, cold_keys)
                hierarchy.lookup(cold_keys[: len(keys)], sums, scratch)
                net.add(hot_keys[: len(keys)], sums)
                hierarchy.lookup(keys, whole, scratch)
                if not np.allclose(sums[: len(keys)], whole[: len(keys)], rtol=1e-4, atol=1e-4):
                    raise RuntimeError(f"model {spec.name}: the lookup with hot rows differs from that without")
        return net.hits.share


def _times(effort: _Effort, progress: Progress) -> list[Figure]:
    """What a batch takes with its keys parted, in all and of the host, over the lookup of the whole tables."""
    spec = _spec(TIMED, effort.timed_bytes)
    hot = choose_hot_rows(spec, key_frequencies(spec, _SKEW), round(HOT_SHARE * spec.table_bytes))
    rng = np.random.default_rng(2)
    task = progress.add_task(f"time of hot rows, {spec.name}", total=effort.runs)
    taken: dict[str, list[float]] = {"whole": [], "split": [], "cold": [], "add": []}
    with _tables(spec) as hierarchy, _placed(spec, hierarchy, hot) as net:
        scratch = hierarchy.new_scratch(_ITEMS)
        sums = np.empty((_ITEMS, spec.sparse_width), np.float32)
        drawn = _draw(spec, (effort.batches * effort.runs + 1) * _ITEMS, rng)
        batches = np.split(drawn, effort.batches * effort.runs + 1)
        cold_keys, hot_keys = np.empty((2, effort.batches, _ITEMS, spec.lookups_per_item), np.int64)
        steps: dict[str, Callable[[int, Keys], object]] = {
            "whole": lambda _, keys: hierarchy.lookup(keys, sums, scratch),
            "split": lambda at, keys: net.split(keys, hot_keys[at], cold_keys[at]),
            "cold": lambda at, _: hierarchy.lookup(cold_keys[at], sums, scratch),
            "add": lambda at, _: net.add(hot_keys[at], sums),
        }
        for step in steps.values():
            step(0, batches[-1])
        for run in range(effort.runs):
            own = batches[run * effort.batches : (run + 1) * effort.batches]
            parts = ["split", "cold", "add"]
            for name in ["whole", *parts] if rng.random() < 0.5 else [*parts, "whole"]:
                started_s = time.thread_time()
                for at, keys in enumerate(own):
                    steps[name](at, keys)
                taken[name].append((time.thread_time() - started_s) / effort.batches)
            progress.advance(task)
    whole, split, cold, add = (np.array(taken[name]) for name in ("whole", "split", "cold", "add"))
    size = f"{spec.name}, tables of {spec.table_bytes / 2**20:,.0f} MiB, {_ITEMS} items, one core"
    medians = ", ".join(f"{name} {1e6 * np.median(times):,.0f} us" for name, times in taken.items())
    return [
        _ratio("hot_rows.time_over_whole", split + cold + add, whole, f"{size}: {medians}"),
        _ratio("hot_rows.host_time_over_whole", split + cold, whole, f"without what the accelerator adds; {size}"),
    ]


def _ratio(name: str, ours: npt.NDArray[np.float64], whole: npt.NDArray[np.float64], note: str) -> Figure:
    value, low, high = ratio_of_medians(ours, whole)
    return Figure(name, value, "ratio", low, high, runs=len(whole), note=note)


def _spec(name: str, table_bytes: int) -> ModelSpec:
    """Catalog model `name` with tables of about so many bytes."""
    return entry(name, "production", scale=min(1.0, table_bytes / entry(name, "production").table_bytes))


@contextlib.contextmanager
def _tables(spec: ModelSpec) -> Iterator[EmbeddingHierarchy]:
    """All tables of `spec` in table memory, of random numbers."""
    rng = np.random.default_rng(3)
    blocks = {dim: rng.standard_normal((_BLOCK_ROWS, dim), np.float32) for dim in {table.dim for table in spec.tables}}
    hierarchy = EmbeddingHierarchy.open(
        spec, {table.name: [blocks[table.dim]] * -(-table.rows // _BLOCK_ROWS) for table in spec.tables}
    )
    try:
        hierarchy.warm_up()
        yield hierarchy
    finally:
        hierarchy.close()


@contextlib.contextmanager
def _placed(spec: ModelSpec, hierarchy: EmbeddingHierarchy, hot: HotRows) -> Iterator[HotSparseNet]:
    net = HotSparseNet(spec, hierarchy, hot, AcceleratorMemory(hot.size_bytes), online_updates=False)
    try:
        hot_tables.warm_up(hierarchy.memory.row_format)
        yield net
    finally:
        net.close()


def _draw(spec: ModelSpec, items: int, rng: np.random.Generator) -> Keys:
    """The key matrix of `items` items, as the load generator draws them."""
    columns = []
    for feature in spec.features:
        rows = spec.table(feature.table).rows
        drawn = _SKEW.draw(rows, items * feature.lookups, rng, spread_seed_of(feature.name))
        columns.append(drawn.reshape(items, feature.lookups))
    return np.concatenate(columns, axis=1)


def _by_table(spec: ModelSpec, keys: Keys) -> dict[str, Keys]:
    """The keys of a key matrix by the table that they read."""
    read: dict[str, list[Keys]] = {table.name: [] for table in spec.tables}
    column = 0
    for feature in spec.features:
        read[feature.table].append(keys[:, column : column + feature.lookups].reshape(-1))
        column += feature.lookups
    return {table: np.concatenate(own) for table, own in read.items()}
