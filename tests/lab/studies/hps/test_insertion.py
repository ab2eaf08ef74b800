"""hps-insertion: what it tells of given rates, and a small run."""

import numpy as np
import pytest
from rich.progress import Progress

from hebe_lab.studies.hps import insertion as hps_insertion
from hebe_lab.studies.hps.insertion import HASH_MAP, PAPER_BATCH_BYTES, REDIS, ROCKSDB, Effort, Filled, told
from hebe_lab.study import StudyError, StudyOptions
from tests.lab.studies.study_page import page_of

SIZES_GB = (0.001, 0.002)


def filled(store, threads, first, last, sizes_gb=(1.0, 10.0)):
    return Filled(store, threads, {sizes_gb[0]: np.full(4, first), sizes_gb[1]: np.full(4, last)})


def test_what_given_rates_come_to():
    result = told(
        Effort((1.0, 10.0), PAPER_BATCH_BYTES),
        [
            filled(REDIS, 1, 200.0, 100.0),
            filled(HASH_MAP, 2, 900.0, 800.0),
            filled(HASH_MAP, 1, 600.0, 500.0),
            filled(ROCKSDB, 1, 50.0, 40.0),
        ],
    )
    figures = {figure.name: figure for figure in result.figures}
    assert figures["hps.table2.hash_map_over_redis"].value == pytest.approx(8.0)
    assert figures["hps.table2.hash_map_over_redis"].paper == 1.51
    assert figures["hps.table2.hash_map_over_rocksdb"].value == pytest.approx(20.0)
    assert figures["hps.table2.hash_map"].value == 800.0
    assert figures["hps.table2.redis"].paper == 162.0
    rates, gains, kept = result.tables
    assert rates.columns[1:5] == ["hash map: the paper", "ours, 1 thread", "ours, 2 threads", "Redis: the paper"]
    assert rates.rows[0] == [1.0, None, "600", "900", None, "200", None, "50"]
    assert rates.rows[1] == [10.0, 245.3, "500", "800", 162.0, "100", 52.1, "40"]
    assert [row[0] for row in gains.rows] == [REDIS, ROCKSDB]
    assert kept.rows[-1] == [ROCKSDB, "0.80", "1, 10", "0.72"]
    assert page_of(hps_insertion, result).count("<svg") == 1


def test_what_does_not_fit_or_is_not_installed_is_left_out_and_said():
    result = told(Effort((1.0, 10.0, 25.0), PAPER_BATCH_BYTES), [filled(HASH_MAP, 1, 600.0, 500.0)])
    assert [figure.name for figure in result.figures] == ["hps.table2.hash_map"]
    assert "apt install redis-server" in result.content[0]
    assert "More than 10 GB of hash map do not fit here" in result.content[0]
    assert page_of(hps_insertion, result)
    with pytest.raises(StudyError, match="1 GB of rows fit neither"):
        told(Effort((1.0,), PAPER_BATCH_BYTES), [])


def test_the_study_runs(monkeypatch):
    monkeypatch.setattr(hps_insertion, "redis_is_installed", lambda: False)
    monkeypatch.setattr(hps_insertion, "EFFORTS", [Effort(SIZES_GB, 500_000)] * 3)
    with Progress(disable=True) as progress:
        result = hps_insertion.run(StudyOptions(quick=True), progress)
    assert {"hps.table2.hash_map", "hps.table2.rocksdb"} <= {figure.name for figure in result.figures}
