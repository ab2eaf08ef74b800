import shutil
import threading

import pytest
from rich.progress import Progress

from hebe.embeddings.hash_map.hash_map_store import HashMapStore
from hebe_lab.bench.embeddings import stores as embeddings_stores


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    monkeypatch.setattr(embeddings_stores, "_QUICK", embeddings_stores._Effort(rows=20_000, lookups=3))


def figures():
    with Progress(disable=True) as progress:
        return {figure.name: figure for figure in embeddings_stores.stores_figures(True, progress)}


def test_measures_what_it_promises():
    measured = figures()
    assert {name for name, figure in measured.items() if figure.target} == {
        "hash_map.over_redis",
        "hash_map.over_rocksdb",
        "hash_map.over_dict",
        "hash_map.insert_over_redis",
        "hash_map.insert_over_rocksdb",
        "hash_map.bytes_over_raw",
    }
    assert all(figure.value > 0 for figure in measured.values())
    assert "20,000 rows of 128 floats" in measured["hash_map.over_redis"].note


def test_without_redis_its_figures_are_left_out_and_a_table_that_does_not_fit_is_halved(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(embeddings_stores, "available_bytes", lambda: 15 << 20)
    measured = figures()
    assert "hash_map.over_rocksdb" in measured
    assert not any("redis" in name for name in measured)
    assert "10,000 rows of 128 floats, batches of 4096 (20,000 rows do not fit)" in measured["hash_map.over_dict"].note


class _Store:
    """Has every row, and answers a thread only while another one asks it too."""

    def __init__(self, data, events):
        self._data, self._events, self._both = data, events, threading.Barrier(2, timeout=30.0)

    def query(self, _table, keys, rows, found):
        self._both.wait()
        self._events.append("query")
        rows[:], found[:] = self._data.of(keys), True


def test_between_the_batches_of_two_threads_nothing_is_drawn_or_checked(monkeypatch):
    data, events = embeddings_stores._Data(20_000), []
    draw, check = data.batches, data.check

    def noted_batches(count, seed):
        for keys in draw(count, seed):
            events.append("draw")
            yield keys

    def noted_check(*answer):
        events.append("check")
        check(*answer)

    monkeypatch.setattr(data, "batches", noted_batches)
    monkeypatch.setattr(data, "check", noted_check)
    rates = embeddings_stores._two_threads(_Store(data, events), data, embeddings_stores._Effort(20_000, lookups=3))
    assert rates.size == 5
    assert (rates > 0).all()
    assert events == ["draw"] * 6 + [*["query"] * 6, "check", "check"] * 5


def test_wrong_rows_are_noticed(monkeypatch):
    def query(_store, _table, _keys, rows, found):
        rows[:], found[:] = 0, True

    monkeypatch.setattr(HashMapStore, "query", query)
    with pytest.raises(RuntimeError, match="hash map gave wrong rows"):
        figures()
