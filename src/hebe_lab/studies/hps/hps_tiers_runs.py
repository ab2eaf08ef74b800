"""Opens a model behind several combinations of tiers and runs them in turns. For `tiers`."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
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
from hebe.runtime.executors.dense_graph import GraphMode, prepare
from hebe.runtime.executors.executor import ModelExecutor
from hebe_lab.local_redis import local_redis
from hebe_lab.studies.hps.hps_warmup_runs import LONGEST_WAIT_MS, open_tiers
from hebe_lab.studies.hps.setting import (
    HASH_MAP,
    REDIS,
    REDIS_NODES,
    REDIS_PARTITIONS,
    ROW_BYTES,
    DataSet,
    scratch_directory,
)
from hebe_lab.studies.hps.tiers import Combination, Effort, Measured

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
        redis = opened.enter_context(local_redis(REDIS_NODES)) if _any_redis(combinations) else ""
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
