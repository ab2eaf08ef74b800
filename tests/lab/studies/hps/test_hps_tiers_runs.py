"""Small tiers of each combination, run in turns."""

import pytest
from rich.progress import Progress

from hebe_lab.studies.hps import tiers as hps_tiers_runs
from hebe_lab.studies.hps.setting import ROW_BYTES, DataSet
from hebe_lab.studies.hps.tiers import (
    COMBINATIONS,
    TABLE_MEMORY,
    WHOLE_CACHE,
    Combination,
    Effort,
    measure_combinations,
    rows_that_fit,
)

SMALL = Effort(2, 2_000, 4_096, (8, 64), 3)
ON_DISK = Combination(0.1, disk=True)


def test_each_tier_gives_what_it_holds(monkeypatch):
    monkeypatch.setattr(hps_tiers_runs, "_TURN_ITEMS", 16)
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
    monkeypatch.setattr(hps_tiers_runs, "available_bytes", lambda: 1 << 30)
    large = Effort(2, 10**9, 1, (8,), 1)
    rows = rows_that_fit(large, COMBINATIONS)
    assert 0 < rows * large.tables * ROW_BYTES < (1 << 30) / 5
    assert rows_that_fit(SMALL, COMBINATIONS) == SMALL.rows
    assert rows_that_fit(large, [TABLE_MEMORY]) > 5 * rows
