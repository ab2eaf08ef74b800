"""hps-warmup: what it tells of given curves, and a small run."""

import numpy as np
import pytest
from rich.progress import Progress

from hebe_lab.studies.hps import warmup as hps_warmup
from hebe_lab.studies.hps.setting import HASH_MAP, POWER_LAW, ROCKSDB, DataSet
from hebe_lab.studies.hps.warmup import (
    AMPLIFIED,
    LARGE,
    SMALL,
    THRESHOLDS,
    Case,
    Effort,
    Trace,
    iterations_to_warm,
    popular_hit_rate,
    steady,
    told,
)
from hebe_lab.study import StudyOptions
from tests.lab.studies.study_page import page_of


def cases():
    return [
        *(Case(HASH_MAP, cache, threshold) for cache in (LARGE, SMALL) for threshold in THRESHOLDS),
        Case(HASH_MAP, LARGE, 1.0, AMPLIFIED),
        *(Case(ROCKSDB, LARGE, threshold) for threshold in THRESHOLDS),
    ]


def trace(hit_rate, latency_ms, iterations=60):
    rates = np.minimum(hit_rate, np.arange(iterations) / 20)
    return Trace(rates, np.full(iterations, latency_ms), np.zeros(iterations), 0)


def test_what_given_curves_come_to():
    latencies_ms = {0.0: 1.0, 0.5: 2.0, 1.0: 4.0}
    traces = {
        case: trace(1.0 if case.skew == AMPLIFIED else 0.6 + case.cache, latencies_ms[case.threshold] + case.cache)
        for case in cases()
    }
    result = told(DataSet(2, 1000), traces)
    values = {figure.name: figure for figure in result.figures}
    assert values["hps.warmup.hit_rate.cache_1_percent.threshold_1"].value == pytest.approx(0.61)
    assert values["hps.warmup.hit_rate.cache_1_percent.threshold_1"].paper == 0.70
    assert values["hps.warmup.hit_rate.cache_5_percent.threshold_half"].value == pytest.approx(0.65)
    assert values["hps.warmup.hit_rate.amplified"].paper == 1.0
    assert values["hps.warmup.latency.small_over_large_cache"].value == pytest.approx(4.01 / 4.05)
    assert values["hps.warmup.latency.rocksdb.threshold_0_over_1"].value == pytest.approx(1.05 / 4.05)
    assert [row[:3] for row in result.tables[0].rows][:2] == [["hash map", "5%", "0"], ["hash map", "5%", "0.5"]]
    assert len(result.tables[0].rows) == 10
    assert page_of(hps_warmup, result).count("<svg") == 6


@pytest.mark.parametrize(("rows", "share", "batch"), [(500, 0.1, 64), (20_000, 0.05, 1024), (500, 0.5, 1)])
def test_the_hit_rate_of_popular_rows(rows, share, batch):
    weight = np.arange(1, rows + 1) ** -POWER_LAW.alpha
    asked = 1 - (1 - weight / weight.sum()) ** batch
    expected = asked[: int(share * rows)].sum() / asked.sum()
    assert popular_hit_rate(rows, share, batch) == pytest.approx(expected, rel=1e-9)


def test_the_hit_rate_of_popular_rows_where_ranks_are_grouped():
    rows = 3_000_000
    weight = np.arange(1, rows + 1) ** -POWER_LAW.alpha
    asked = 1 - (1 - weight / weight.sum()) ** 1024
    assert popular_hit_rate(rows, 0.1, 1024) == pytest.approx(asked[: rows // 10].sum() / asked.sum(), rel=1e-5)


def test_when_a_cache_is_warm():
    rising = np.r_[np.linspace(0, 0.8, 30), np.full(60, 0.8)]
    assert 25 <= iterations_to_warm(rising) <= 31
    assert iterations_to_warm(np.full(10, 0.5)) == 1
    assert len(steady(rising)) == 30


@pytest.mark.usefixtures("_small")
def test_a_small_run(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = hps_warmup.run(StudyOptions(quick=True), Progress(disable=True))
    values = {figure.name: figure.value for figure in result.figures}
    plain = values["hps.warmup.hit_rate.cache_5_percent.threshold_1"]
    assert values["hps.warmup.hit_rate.cache_1_percent.threshold_1"] < plain < values["hps.warmup.hit_rate.amplified"]
    assert {row[0] for row in result.tables[0].rows} == {HASH_MAP, ROCKSDB}
    assert not list(tmp_path.iterdir())


@pytest.fixture
def _small(monkeypatch):
    monkeypatch.setattr(hps_warmup, "EFFORTS", (Effort(2, 5000, 20, 1),) * 3)
