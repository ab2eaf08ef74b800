"""hps-refresh: what it tells of given times, and a small run.

Small refreshes of the real tiers, in parts and whole, and lookups meanwhile.
"""

import numpy as np
import pytest
from rich.progress import Progress

from hebe.embeddings.cache.host_cache import HostCache
from hebe_lab.studies.hps import refresh as hps_refresh
from hebe_lab.studies.hps.refresh import Effort, Meanwhile, Refreshes, fits, measure_meanwhile, measure_refreshes, told
from hebe_lab.studies.hps.setting import HASH_MAP, ROCKSDB, ROW_BYTES
from hebe_lab.study import StudyError, StudyOptions
from tests.lab.studies.study_page import page_of


def refreshes(rows, rows_per_s, whole=3.0):
    update_s = np.full(3, rows / rows_per_s)
    return Refreshes(rows, 0.01 * update_s, update_s, 0.5 * update_s, whole * update_s)


def test_what_given_times_come_to():
    measured = {1.0: refreshes(1_900_000, 10e6), 5.0: refreshes(9_500_000, 8e6)}
    meanwhile = Meanwhile(np.array([1.0, 1.0, 2.0]), np.array([1.5, 1.5, 4.0]), 7)
    result = told(measured, 1.0, refreshes(1_900_000, 10e6, whole=40.0), meanwhile, [10.0, 20.0])
    values = {figure.name: figure for figure in result.figures}
    assert values["hps.refresh.over_copy"].value == pytest.approx(0.5 / 1.01)
    assert values["hps.refresh.over_copy"].met
    assert values["hps.refresh.dump_over_update"].value == pytest.approx(0.01)
    assert values["hps.refresh.rocksdb_over_update"].value == pytest.approx(40.0)
    assert values["hps.refresh.bandwidth_spread"].value == pytest.approx(1.25)
    assert values["hps.refresh.update.1_gb"].value == pytest.approx(5.12)
    assert values["hps.refresh.update.1_gb"].paper == 194.20
    assert values["hps.refresh.query_p50_over_alone"].value == pytest.approx(1.5)
    assert values["hps.refresh.query_p99_over_alone"].value == pytest.approx(4.0 / 2.0)
    assert [row[2:] for row in result.tables[2].rows] == [["1.000", "2.000"], ["1.500", "4.000"]]
    assert result.tables[0].rows[0][:5] == ["1", "1,900,000", "190.0", "1.90", "5.12"]
    page = page_of(hps_refresh, result)
    assert "Capacities of 10, 20 GB do not fit" in page
    assert page.count("<svg") == 1


def test_a_small_run(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(hps_refresh, "EFFORTS", (Effort((0.002, 0.004), 0.002, 2, 0.05, 2),) * 3)
    monkeypatch.setattr(hps_refresh, "_COPIED_BYTES", 8 << 20)
    result = hps_refresh.run(StudyOptions(quick=True), Progress(disable=True))
    assert [row[0] for row in result.tables[0].rows] == ["0.002", "0.004", "0.002, RocksDB below"]
    assert all(int(str(row[1]).replace(",", "")) > 3000 for row in result.tables[0].rows)
    assert all(int(row[1]) > 0 for row in result.tables[2].rows)
    assert not list(tmp_path.iterdir())


def test_a_memory_that_holds_no_capacity_ends_the_study(monkeypatch):
    monkeypatch.setattr(hps_refresh, "available_bytes", lambda: 1_000)
    with pytest.raises(StudyError, match="does not fit into the free memory"):
        hps_refresh.run(StudyOptions(quick=True), Progress(disable=True))


CAPACITY_BYTES = 5_000 * ROW_BYTES


@pytest.fixture(autouse=True)
def _little_is_copied(monkeypatch):
    monkeypatch.setattr(hps_refresh, "_COPIED_BYTES", 8 << 20)


@pytest.mark.parametrize("below", [HASH_MAP, ROCKSDB])
def test_every_repeat_has_its_times(below, tmp_path):
    advanced = []
    found = measure_refreshes(CAPACITY_BYTES, below, tmp_path, 2, lambda: advanced.append(1))
    assert len(advanced) == 2
    assert 0.8 * 5_000 < found.rows <= 5_000
    assert found.row_bytes == found.rows * ROW_BYTES
    for seconds in (found.dump_s, found.update_s, found.copy_s, found.whole_s):
        assert seconds.shape == (2,)
        assert (seconds > 0).all()


def test_an_update_that_does_not_reach_all_rows_is_noticed(tmp_path, monkeypatch):
    update = HostCache.update
    monkeypatch.setattr(
        HostCache, "update", lambda cache, table, keys, rows: update(cache, table, keys[:-1], rows[:-1])
    )
    with pytest.raises(RuntimeError, match=r"replaced \d+ of|reached \d+ of"):
        measure_refreshes(CAPACITY_BYTES, HASH_MAP, tmp_path, 1, lambda: None)


def test_lookups_are_taken_without_and_with_refreshes_beside_them(tmp_path):
    found = measure_meanwhile(CAPACITY_BYTES, HASH_MAP, tmp_path, 0.05, 2)
    assert found.refreshes > 0
    assert min(len(found.alone_ms), len(found.refreshed_ms)) > 0
    assert np.concatenate([found.alone_ms, found.refreshed_ms]).min() > 0


def test_what_the_free_memory_holds_fits(monkeypatch):
    monkeypatch.setattr(hps_refresh, "available_bytes", lambda: 1_000_000_000)
    assert fits(3e8)
    assert not fits(4e8)
