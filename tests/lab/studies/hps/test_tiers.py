"""hps-tiers: what it tells of given times, and a small run.

Small tiers of each combination, run in turns.
"""

import numpy as np
import pytest
from rich.progress import Progress

from hebe_lab import local_redis
from hebe_lab.studies.hps import tiers as hps_tiers
from hebe_lab.studies.hps.setting import ROW_BYTES, DataSet
from hebe_lab.studies.hps.tiers import (
    COMBINATIONS,
    LITTLE,
    LITTLE_MORE,
    REDIS,
    TABLE_MEMORY,
    WHOLE_CACHE,
    Combination,
    Effort,
    Measured,
    measure_combinations,
    rows_that_fit,
    told,
)
from hebe_lab.study import StudyOptions
from tests.lab.studies.study_page import page_of

SMALL = Effort(2, 2_000, 4_096, (8, 64), 3)


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch):
    """The DenseNet is as large as ever."""
    monkeypatch.setattr(hps_tiers, "_TURN_ITEMS", 16)


def measured(sparse_s, dense_s=0.010, had=(0.9, 0.08, 0.02)):
    """Batches of 8 take `sparse_s` to be looked up, of 64 five times as much."""
    sparse = {8: np.full(3, sparse_s), 64: np.full(3, 5 * sparse_s)}
    return Measured(sparse, {batch: taken + dense_s for batch, taken in sparse.items()}, had)


def test_what_given_times_come_to():
    times_s = {each: 0.001 * (1 + number) for number, each in enumerate(COMBINATIONS)}
    times_s[LITTLE_MORE] = times_s[LITTLE] / 1.25
    result = told(DataSet(2, 1000), SMALL, {each: measured(taken_s) for each, taken_s in times_s.items()})
    figures = {figure.name: figure for figure in result.figures}
    assert figures["hps.fig10.more_redis.lookups"].value == pytest.approx(1.25)
    assert figures["hps.fig10.more_redis.lookups"].paper == 1.24
    assert 1.0 < figures["hps.fig10.more_redis.end_to_end"].value < 1.25
    assert figures["hps.fig10.over_table_memory.cache_100_hash_map_100"].value == pytest.approx(0.5)
    lookups, whole, claims = result.tables
    assert lookups.rows[0] == ["table memory", "8,000", "12,800", "90.0%", "8.0%", "2.0%"]
    assert whole.rows[0] == ["table memory", "727", "4,267"]
    assert len(lookups.rows) == len(whole.rows) == len(COMBINATIONS)
    assert claims.rows[0][1] == "1.25"
    assert claims.rows[0][3] == "1.24"
    assert claims.rows[-1][1] == "1.60"
    assert page_of(hps_tiers, result).count("<svg") == 2


def test_without_redis_its_combinations_are_left_out(monkeypatch):
    monkeypatch.setattr(local_redis, "redis_is_installed", lambda: False)
    monkeypatch.setattr(hps_tiers, "EFFORTS", [SMALL] * 3)
    with Progress(disable=True) as progress:
        result = hps_tiers.run(StudyOptions(quick=True), progress)
    assert "apt install redis-server" in result.content[0]
    assert [row[0] for row in result.tables[0].rows] == [each.label for each in COMBINATIONS if each.level_2 != REDIS]
    assert not any("redis" in figure.name for figure in result.figures)
    assert page_of(hps_tiers, result)


ON_DISK = Combination(0.1, disk=True)


def test_each_tier_gives_what_it_holds(monkeypatch):
    monkeypatch.setattr(hps_tiers, "_TURN_ITEMS", 16)
    with Progress(disable=True) as progress:
        answers = measure_combinations(DataSet(2, 2_000), SMALL, [TABLE_MEMORY, WHOLE_CACHE, ON_DISK], progress)
    assert answers[TABLE_MEMORY].had == (1.0, 0.0, 0.0)
    assert answers[WHOLE_CACHE].had[2] == answers[ON_DISK].had[1] == 0.0
    for each in (WHOLE_CACHE, ON_DISK):
        assert sum(answers[each].had) == pytest.approx(1.0)
    assert answers[ON_DISK].had[0] < answers[WHOLE_CACHE].had[0]
    for of in answers.values():
        assert [len(of.sparse_s[batch]) for batch in SMALL.batches] == [3, 3]
        assert all((of.sparse_s[batch] < of.whole_s[batch]).all() for batch in SMALL.batches)


def test_tables_are_as_large_as_all_combinations_fit_together(monkeypatch):
    monkeypatch.setattr(hps_tiers, "available_bytes", lambda: 1 << 30)
    large = Effort(2, 10**9, 1, (8,), 1)
    rows = rows_that_fit(large, COMBINATIONS)
    assert 0 < rows * large.tables * ROW_BYTES < (1 << 30) / 5
    assert rows_that_fit(SMALL, COMBINATIONS) == SMALL.rows
    assert rows_that_fit(large, [TABLE_MEMORY]) > 5 * rows
