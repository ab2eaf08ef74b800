"""Small refreshes of the real tiers, in parts and whole, and lookups meanwhile."""

import numpy as np
import pytest

from hebe.embeddings.cache.host_cache import HostCache
from hebe_lab.studies.hps import refresh as hps_refresh_runs
from hebe_lab.studies.hps.refresh import fits, measure_meanwhile, measure_refreshes
from hebe_lab.studies.hps.setting import HASH_MAP, ROCKSDB, ROW_BYTES

CAPACITY_BYTES = 5_000 * ROW_BYTES


@pytest.fixture(autouse=True)
def _little_is_copied(monkeypatch):
    monkeypatch.setattr(hps_refresh_runs, "_COPIED_BYTES", 8 << 20)


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
    monkeypatch.setattr(hps_refresh_runs, "available_bytes", lambda: 1_000_000_000)
    assert fits(3e8)
    assert not fits(4e8)
