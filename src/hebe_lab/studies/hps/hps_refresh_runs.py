"""Refreshes of caches of several sizes, in parts and whole, and queries meanwhile. For `refresh`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.embeddings.store import KeyArray, RowArray
from hebe.embeddings.tiers.tiers import Tiers
from hebe.machine.memory import available_bytes
from hebe_lab.studies.hps.hps_warmup_runs import open_tiers, tiers_config
from hebe_lab.studies.hps.setting import DIM, PAPER_BATCH, ROW_BYTES, DataSet, Values

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
