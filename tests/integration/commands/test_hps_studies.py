"""The studies of HPS with a Redis Cluster that they start and end themselves."""

import pytest
from rich.progress import Progress

from hebe_lab.studies.hps import insertion as hps_insertion_runs
from hebe_lab.studies.hps import tiers as hps_tiers_runs
from hebe_lab.studies.hps.insertion import HASH_MAP, REDIS, ROCKSDB, fill_all
from hebe_lab.studies.hps.setting import DataSet
from hebe_lab.studies.hps.tiers import LITTLE, MUCH_REDIS, Combination, Effort, measure_combinations


def test_redis_takes_rows_in_too(monkeypatch):
    monkeypatch.setattr(hps_insertion_runs, "available_bytes", lambda: 1 << 30)
    with Progress(disable=True) as progress:
        done = fill_all((0.001, 0.002), 500_000, 1, progress)
    assert [each.store for each in done] == [REDIS, HASH_MAP, ROCKSDB]
    assert all(tuple(each.rates) == (0.001, 0.002) for each in done)


def test_redis_holds_its_share_and_rocksdb_has_the_rest(monkeypatch):
    monkeypatch.setattr(hps_tiers_runs, "_TURN_ITEMS", 64)
    effort = Effort(2, 4_000, 8_192, (64, 128), 3)
    on_disk = Combination(0.05, disk=True)
    with Progress(disable=True) as progress:
        answers = measure_combinations(DataSet(2, 4_000), effort, [LITTLE, MUCH_REDIS, on_disk], progress)
    for of in answers.values():
        assert sum(of.had) == pytest.approx(1.0)
    assert answers[LITTLE].had[1] > answers[MUCH_REDIS].had[1] > 0.0
    assert answers[on_disk].had[1] == 0.0
    assert answers[on_disk].had[2] > answers[LITTLE].had[2] > 0.0
