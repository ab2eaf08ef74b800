"""hps-latency: what it tells of given times, and a small run.

A small race of the real contestants, and what memory allows them.
"""

import numpy as np
import pytest
import torch
from rich.progress import Progress

from hebe_lab.studies.hps import latency as hps_latency
from hebe_lab.studies.hps.latency import (
    PYTORCH,
    RESIDENT,
    Contestant,
    Effort,
    Race,
    Timed,
    batch_fits,
    rows_that_fit,
    told,
)
from hebe_lab.studies.hps.setting import HASH_MAP, DataSet
from hebe_lab.studies.hps.warmup import tiers_config
from hebe_lab.study import StudyError, StudyOptions
from tests.lab.studies.study_page import page_of


@pytest.fixture
def race(tmp_path, monkeypatch):
    monkeypatch.setattr(hps_latency, "_WARMING_BATCHES", 5)
    data = DataSet(3, 500)
    tiered = {"cached": tiers_config(HASH_MAP, 0.5, 0.8, tmp_path, filled=True)}
    with Race(data, tiered, tmp_path / "models") as made:
        yield made


def test_all_contestants_give_the_same_scores(race):
    race.warm()
    found = race.run(33, 0.0)  # which raises where they do not
    assert {each.name for each in found} == {PYTORCH, RESIDENT, "cached"}
    for each, timed in found.items():
        assert len(timed.seconds) == 3
        assert (timed.sparse_s <= timed.seconds).all()
        assert 0 <= timed.defaulted < (0.5 if each.name == "cached" else 1e-9)
    assert set(race.run(1, 0.0)) == set(found)  # fewer items than cores


def test_other_scores_end_the_study(race):
    with torch.no_grad():
        race._plain.table_weight("table0").mul_(-1)
    with pytest.raises(RuntimeError, match=r"the scores of .* differ from PyTorch's"):
        race.run(64, 0.0)


def test_memory_bounds_tables_and_batches(monkeypatch):
    monkeypatch.setattr(hps_latency, "available_bytes", lambda: 1 << 30)
    assert rows_that_fit(26, 1000) == 1000
    assert rows_that_fit(26, 1 << 30) * 26 * 512 < (1 << 30) / 4
    assert batch_fits(DataSet(26, 1), 32)
    assert not batch_fits(DataSet(26, 1), 131_072)


NAMES = (PYTORCH, RESIDENT, "Hebe, cache of 50%", "Hebe, cache of 5%")


def times(seconds, defaulted=0.0):
    return Timed(np.full(3, seconds), np.full(3, seconds / 4), defaulted)


@pytest.mark.parametrize("cores", [(1, 2), (1,)])
def test_what_given_times_come_to(cores):
    slowness = dict(zip(NAMES, (4.0, 2.0, 1.0, 3.0), strict=True))
    measured = {
        batch: {
            Contestant(name, count): times(batch * slow / count / 1e4, 0.01)
            for count in cores
            for name, slow in slowness.items()
        }
        for batch in (32, 1024)
    }
    result = told(DataSet(26, 1000), measured, [131_072])
    values = {figure.name: figure for figure in result.figures}
    assert values["hps.latency.speedup.batch_1024"].value == pytest.approx(4.0)
    assert values["hps.latency.speedup_one_core_resident.batch_32"].value == pytest.approx(2.0)
    assert values["hps.latency.best_throughput"].value == pytest.approx(1e4 * cores[-1])
    assert values["hps.latency.best_throughput_pytorch"].paper == 0.2e6
    beside = next(table for table in result.tables if table.title.startswith("Samples/s"))
    assert [row[0] for row in beside.rows] == [32, 1024, 2048, 131_072]
    assert beside.rows[1][2] == "2,400,000"
    assert beside.rows[3] == [131_072, None, "6,400,000", None, None, None, "62"]
    assert len([table for table in result.tables if table.title.startswith("Latency on")]) == len(cores)
    page = page_of(hps_latency, result)
    assert "Batches of 131,072 do not fit" in page
    assert page.count("<svg") == 2


def test_a_small_run(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(hps_latency, "EFFORTS", (Effort(100, (4, 64), 0.0),) * 3)
    monkeypatch.setattr(hps_latency, "_WARMING_BATCHES", 3)
    result = hps_latency.run(StudyOptions(quick=True), Progress(disable=True))
    assert result.tables[0].columns[1:5] == [name.removeprefix("Hebe, ") for name in NAMES]
    assert [row[0] for row in result.tables[0].rows] == [4, 64]
    assert not list(tmp_path.iterdir())


def test_a_memory_that_is_too_small_ends_the_study(monkeypatch):
    monkeypatch.setattr(hps_latency, "available_bytes", lambda: 0)
    monkeypatch.setattr(hps_latency, "_WARMING_BATCHES", 0)
    monkeypatch.setattr(hps_latency, "EFFORTS", (Effort(100, (4,), 0.0),) * 3)
    with pytest.raises(StudyError, match="does not hold the smallest batch"):
        hps_latency.run(StudyOptions(quick=True), Progress(disable=True))
