"""What share of a batch's rows is real under a deadline: Redis over RocksDB against the better one of the two alone.

Batches of a ranking model, 6,400 uniform keys each, through a cache of a twentieth of the rows: about 19 in 20 have to
come from the tiers below. One Redis of this machine, a RocksDB each. The three take turns, batch by batch, with a pause
after each in which what came late is put away. A batch counts in full if it ended in time, and not at all otherwise.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Mapping
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
from hebe.machine.process_limits import handed_over_soon
from hebe.models.catalog import entry
from hebe.report.figures import Figure, ratio_of_medians
from hebe_lab.local_redis import NOT_INSTALLED, local_redis, redis_is_installed

DESCRIPTION = "Real rows within a deadline: Redis over RocksDB against the better one of the two."

_MODEL, _SCALE, _ITEMS = "dlrm-rmc1", 0.01, 8
_CACHE_FRACTION = 0.05
_DEADLINES_MS = (5, 20, 50)
_GRACE_S = 5e-3
"""A batch has ended in time so long after its deadline: a thread may have to wait for the GIL."""
_PAUSE_S = 0.01
_BOTH, _REDIS, _ROCKSDB = "Redis over RocksDB", "Redis", "RocksDB"

Shares = Mapping[str, npt.NDArray[np.float64]]


def run(quick: bool, progress: Progress) -> list[Figure]:
    """Measure `quality.*`. Raises RuntimeError where there is no Redis."""
    if not redis_is_installed():
        raise RuntimeError(NOT_INSTALLED)
    learned, turns, batches = (60, 10, 10) if quick else (200, 40, 20)
    figures = []
    with _opened() as contestants, handed_over_soon():
        for deadline_ms in progress.track(_DEADLINES_MS, description="batches under deadlines"):
            _measure(contestants, deadline_ms / 1e3, 1, learned)
            shares, took_ms = _measure(contestants, deadline_ms / 1e3, turns, batches)
            figures.append(_figure(deadline_ms, shares, took_ms))
    return figures


def _figure(deadline_ms: int, shares: Shares, took_ms: Mapping[str, float]) -> Figure:
    best = max((_REDIS, _ROCKSDB), key=lambda name: float(np.median(shares[name])))
    value, low, high = ratio_of_medians(shares[_BOTH], np.maximum(shares[best], 1e-3))
    by_tier = ", ".join(f"{name} {np.median(own):.3f} (p95 {took_ms[name]:.1f} ms)" for name, own in shares.items())
    name = f"quality.two_tiers_over_best_one.{deadline_ms}_ms"
    note = f"real rows of batches that ended within the deadline and {_GRACE_S * 1e3:g} ms: {by_tier}"
    return Figure(name, value, "ratio", low, high, len(shares[_BOTH]), ">= 1.0", note=note)


class _Contestant:
    """Tiers of the model, which batches are looked up in."""

    def __init__(self, hierarchy: EmbeddingHierarchy) -> None:
        self._hierarchy = hierarchy
        self._scratch = hierarchy.new_scratch(_ITEMS)
        self._out = np.empty((_ITEMS, hierarchy.spec.sparse_width), np.float32)

    def look_up(self, keys: npt.NDArray[np.int64], deadline_s: float) -> tuple[float, float]:
        """The share of keys whose rows are real, and how long it took."""
        started_s = time.perf_counter()
        report = self._hierarchy.lookup(keys, self._out, self._scratch, timeout_s=deadline_s)
        return 1 - report.keys.defaulted / report.keys.total, time.perf_counter() - started_s


@contextlib.contextmanager
def _opened() -> Iterator[Mapping[str, _Contestant]]:
    spec = entry(_MODEL, scale=_SCALE)
    chance = np.random.default_rng(1)
    tables = {table.name: chance.standard_normal((table.rows, table.dim), np.float32) for table in spec.tables}
    with contextlib.ExitStack() as opened:
        volatile = VolatileConfig(VolatileType.REDIS, address=opened.enter_context(local_redis()))
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="hebe-quality-")))
        contestants = {}
        for name in (_BOTH, _REDIS, _ROCKSDB):
            place, redis, rocksdb = directory / name, name != _ROCKSDB, name != _REDIS
            config = HierarchyConfig(
                cache=CacheConfig(cache_fraction=_CACHE_FRACTION),
                volatile_db=volatile if redis else VolatileConfig(),
                persistent_db=PersistentConfig(PersistentType.ROCKS_DB, str(place)) if rocksdb else PersistentConfig(),
            )
            hierarchy = EmbeddingHierarchy.open(spec, tables, persistent_dir=place, identity=name, config=config)
            opened.callback(hierarchy.close)
            hierarchy.warm_up()
            contestants[name] = _Contestant(hierarchy)
        yield contestants


def _measure(
    contestants: Mapping[str, _Contestant], deadline_s: float, turns: int, batches: int
) -> tuple[Shares, Mapping[str, float]]:
    """The share of real rows in time by turn, and the 95th percentile of a lookup's milliseconds."""
    chance, names = np.random.default_rng(2), list(contestants)
    rows, columns = entry(_MODEL, scale=_SCALE).tables[0].rows, entry(_MODEL, scale=_SCALE).lookups_per_item
    shares = {name: np.zeros(turns) for name in names}
    took_s: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(turns):
        for _ in range(batches):
            for place in chance.permutation(len(names)):
                name = names[place]
                share, seconds = contestants[name].look_up(chance.integers(0, rows, (_ITEMS, columns)), deadline_s)
                took_s[name].append(seconds)
                shares[name][turn] += share * (seconds <= deadline_s + _GRACE_S) / batches
                time.sleep(_PAUSE_S)
    return shares, {name: float(np.percentile(own, 95)) * 1e3 for name, own in took_s.items()}
