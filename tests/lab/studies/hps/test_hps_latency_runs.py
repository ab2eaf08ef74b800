"""A small race of the real contestants, and what memory allows them."""

import pytest
import torch

from hebe_lab.studies.hps import latency as hps_latency_runs
from hebe_lab.studies.hps.latency import PYTORCH, RESIDENT, Race, batch_fits, rows_that_fit
from hebe_lab.studies.hps.setting import HASH_MAP, DataSet
from hebe_lab.studies.hps.warmup import tiers_config


@pytest.fixture
def race(tmp_path, monkeypatch):
    monkeypatch.setattr(hps_latency_runs, "_WARMING_BATCHES", 5)
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
    monkeypatch.setattr(hps_latency_runs, "available_bytes", lambda: 1 << 30)
    assert rows_that_fit(26, 1000) == 1000
    assert rows_that_fit(26, 1 << 30) * 26 * 512 < (1 << 30) / 4
    assert batch_fits(DataSet(26, 1), 32)
    assert not batch_fits(DataSet(26, 1), 131_072)
