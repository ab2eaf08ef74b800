"""Small fills of the real stores."""

import pytest
from rich.progress import Progress

from hebe.embeddings.hash_map.hash_map_store import HashMapStore
from hebe_lab.studies.hps import insertion as hps_insertion
from hebe_lab.studies.hps.insertion import PAIR_BYTES, fill_all, fitting
from hebe_lab.studies.hps.setting import HASH_MAP, REDIS, ROCKSDB

SIZES_GB = (0.001, 0.002)


def test_only_capacities_for_which_there_is_room_are_filled(monkeypatch):
    monkeypatch.setattr(hps_insertion, "available_bytes", lambda: 10 * 10**9)
    assert fitting(HASH_MAP, (1.0, 5.0, 10.0)) == (1.0, 5.0)
    assert fitting(REDIS, (1.0, 5.0, 10.0)) == (1.0,)


def test_the_real_stores_take_all_rows(monkeypatch):
    monkeypatch.setattr(hps_insertion, "redis_is_installed", lambda: False)
    with Progress(disable=True) as progress:
        done = fill_all(SIZES_GB, 200_000, 2, progress)
    assert [(each.store, each.threads) for each in done] == [(HASH_MAP, 1), (HASH_MAP, 2), (ROCKSDB, 1)]
    for each in done:
        assert tuple(each.rates) == SIZES_GB
        assert len(each.rates[0.001]) == -(-(10**6 // PAIR_BYTES) // (200_000 // PAIR_BYTES))
        assert all((rates > 0).all() for rates in each.rates.values())


def test_a_store_that_loses_rows_is_noticed(monkeypatch):
    monkeypatch.setattr(hps_insertion, "redis_is_installed", lambda: False)
    insert = HashMapStore.insert
    monkeypatch.setattr(HashMapStore, "insert", lambda store, table, keys, rows: insert(store, table, keys, 2 * rows))
    with Progress(disable=True) as progress, pytest.raises(RuntimeError, match="hash map has not the rows"):
        fill_all(SIZES_GB, 200_000, 1, progress)
