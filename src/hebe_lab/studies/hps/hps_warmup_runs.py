"""Runs a cold cache warm: batches through the tiers one after another, and what each met. For `warmup`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hebe.embeddings.config.hierarchy_config import (
    CacheConfig,
    HierarchyConfig,
    PersistentConfig,
    PersistentType,
    VolatileConfig,
    VolatileType,
)
from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.machine.memory import available_bytes
from hebe.models.architectures.ranking_model import initial_rows
from hebe_lab.studies.hps.setting import HASH_MAP, ROW_BYTES, DataSet, Values

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
