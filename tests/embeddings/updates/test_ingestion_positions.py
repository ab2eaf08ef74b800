"""A store that knows its positions in the log says where ingestion begins, whatever the group says."""

import numpy as np
import pytest

from hebe.embeddings.rocksdb_store import RocksDbStore
from hebe.embeddings.updates import sequence_check
from hebe.embeddings.updates.ingestion_options import IngestionOptions

from .ingestions import AT, TIMEOUT_S, make_ingestion
from .list_source import DIMS, ListSource
from .update_conformance import rows_for


def test_a_store_with_positions_says_where_to_begin(tmp_path):
    source = ListSource()
    for number in range(100):
        source.add(number, [number], stamp=number)
    store = RocksDbStore(tmp_path / "store", DIMS)
    with make_ingestion(source, store) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert store.positions() == {"L/m/users/0": 99}
    source.next[AT] = 0  # the group forgot
    source.add(99, [3], stamp=0.5)  # repeated by the trainer, across our restart
    source.add(100, [3], stamp=7.0)
    with make_ingestion(source, store) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    statistics = ingestion.statistics()
    assert (statistics.messages, statistics.duplicates) == (1, 1)
    assert source.seeks == [("users", -1), ("users", 99 - sequence_check.MOST_HELD)]
    assert store.positions() == {"L/m/users/0": 101}
    assert store.size("users") == 100
    source.identity = "M"  # another log: its offsets say nothing about the store, nor does its group
    source.next[AT] = 100
    with make_ingestion(source, store) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert source.seeks[2:] == [("users", -1)]
    assert store.positions() == {"L/m/users/0": 101, "M/m/users/0": 101}
    store.close()


def test_a_store_made_anew_is_given_what_the_group_had_applied_to_the_old_one(tmp_path):
    source = ListSource()
    for number in range(100):
        source.add(number, [number], stamp=number)
    for directory in ("damaged", "new"):
        store = RocksDbStore(tmp_path / directory, DIMS)
        with make_ingestion(source, store) as ingestion:
            assert ingestion.drain(TIMEOUT_S)
        assert source.committed == {AT: 99}
        assert store.size("users") == 100
        assert store.positions() == {"L/m/users/0": 99}
        store.close()


def test_offsets_that_the_store_alone_knew_are_committed(tmp_path):
    """As after a crash between writing and committing: the group catches up although nothing new comes."""
    source = ListSource()
    for number in range(100):
        source.add(number, [number])
    store = RocksDbStore(tmp_path / "store", DIMS)
    with make_ingestion(source, store) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    source.committed, source.next[AT] = {AT: 10}, 11
    with make_ingestion(source, store) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert source.committed == {AT: 99}
    assert ingestion.statistics().messages == 0
    store.close()


def test_what_the_log_removed_while_the_server_was_away_is_a_gap(tmp_path, caplog):
    source = ListSource()
    for number in range(100):
        source.add(number, [number])
    store = RocksDbStore(tmp_path / "store", DIMS)
    with make_ingestion(source, store) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    for number in range(100, 150):
        source.add(number, [number])
    source.seek = lambda at, _: source.next.update({at: 120})  # all before is gone
    with make_ingestion(source, store) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    statistics = ingestion.statistics()
    assert (statistics.gaps, statistics.missing, statistics.rows) == (1, 20, 30)
    assert "offsets 100 to 119 of partition 0 of model m, table users were removed from the log" in caplog.text
    store.close()


def test_a_store_that_has_begun_before_needs_no_beginning_and_one_made_anew_does(tmp_path):
    source = ListSource()
    source.lost = {AT: (0, 9)}
    for number in range(100):
        source.add(number, [number])
    gaps = []
    for directory in ("store", "store", "new"):
        store = RocksDbStore(tmp_path / directory, DIMS)
        source.add(len(source.log[AT]), [5])
        with make_ingestion(source, store) as ingestion:
            assert ingestion.drain(TIMEOUT_S)
        gaps.append(ingestion.statistics().last_gaps)
        store.close()
    assert gaps == [(sequence_check.Gap(AT, None, 0, 9),), (), (sequence_check.Gap(AT, None, 0, 9),)]


@pytest.mark.parametrize("identity", ["L", "another"])
def test_a_log_that_goes_back_while_it_is_read_is_read_from_there(tmp_path, caplog, identity):
    """As Redis restored from a copy, or emptied: its offsets are others now, and so are the store's positions."""
    source = ListSource()
    for number in range(100):
        source.add(number, [number])
    store = RocksDbStore(tmp_path / "store", DIMS)
    with make_ingestion(source, store) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
        with source.lock:
            source.log[AT][40:] = []
            source.next[AT], source.committed, source.identity = 40, {AT: 39}, identity
            for number in range(5):
                source.add(number, [1000 + number], producer="q")
        assert ingestion.drain(TIMEOUT_S)
        assert source.committed == {AT: 44}
        source.add(5, [1005], producer="q")
        assert ingestion.drain(TIMEOUT_S)
    assert caplog.text.count("begins anew") == 1
    assert store.size("users") == 106
    assert store.positions() == {"L/m/users/0": 99, **({"another/m/users/0": 45} if identity == "another" else {})}
    store.close()


def test_a_log_made_anew_under_the_same_name_is_noticed(tmp_path, caplog):
    source = ListSource()
    for number in range(200):
        source.add(number, [number])
    store = RocksDbStore(tmp_path / "store", DIMS)
    with make_ingestion(source, store) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    source = ListSource()
    source.seek = lambda at, _: source.next.update({at: 0})  # such an offset is not there: it begins with the oldest
    source.add(0, [-5], producer="q")
    with make_ingestion(source, store) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert "begins anew" in caplog.text
    assert store.size("users") == 201
    assert source.committed == {AT: 0}
    store.close()


def test_swaps_do_not_confuse_a_store_with_positions(tmp_path):
    source = ListSource()
    for number in (1, 0, 3, 4, 2, 5):
        source.add(number, [number, 77], stamp=number)
    store = RocksDbStore(tmp_path / "store", DIMS)
    options = IngestionOptions(max_batch_size=2, poll_timeout_ms=5)
    with make_ingestion(source, store, options) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    rows, found = np.zeros((7, 3), np.float32), np.zeros(7, np.bool_)
    assert store.query("users", np.array([0, 1, 2, 3, 4, 5, 77]), rows, found) == 7
    assert rows[6].tolist() == rows_for(np.array([77]), 5)[0].tolist()
    assert store.positions() == {"L/m/users/0": 5}
    store.close()
