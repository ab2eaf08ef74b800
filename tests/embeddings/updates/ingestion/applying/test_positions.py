"""A store that knows its positions in the log says where ingestion begins."""

import contextlib

import numpy as np
import pytest

from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import StoreError, StoreUnavailable
from hebe.embeddings.updates.contract import Delivery, TopicPartition, UpdateMessage
from hebe.embeddings.updates.ingestion import sequence_check
from hebe.embeddings.updates.ingestion.options import IngestionOptions
from hebe.spec import EmbeddingTableSpec
from tests.embeddings.updates.conformance.ingestions import AT, QUICK, TIMEOUT_S, Listener, make_ingestion
from tests.embeddings.updates.conformance.list_source import DIMS, ListSource
from tests.embeddings.updates.conformance.update_conformance import rows_for


def test_a_store_with_positions_says_where_to_begin(tmp_path):
    source = ListSource()
    for number in range(100):
        source.add(number, [number], stamp=number)
    store = RocksDbStore(tmp_path / "store", DIMS)
    with make_ingestion(source, store) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert store.positions() == {"L/m/users/0": 99}
    source.add(99, [3], stamp=0.5)  # repeated by the trainer, across our restart
    source.add(100, [3], stamp=7.0)
    with make_ingestion(source, store) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    statistics = ingestion.statistics()
    assert (statistics.messages, statistics.duplicates) == (1, 1)
    assert source.seeks == [("users", -1), ("users", 99 - sequence_check.MOST_HELD)]
    assert store.positions() == {"L/m/users/0": 101}
    assert store.size("users") == 100
    source.identity = "M"  # another log: its offsets say nothing about the store
    with make_ingestion(source, store) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert source.seeks[2:] == [("users", -1)]
    assert ingestion.statistics().poison == 1, "what the other log had, and the store did not take, is lost"
    assert store.positions() == {"L/m/users/0": 101, "M/m/users/0": 101}
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


def test_each_table_goes_on_where_it_was_though_it_was_not_followed_or_came_later(tmp_path):
    """A server may want fewer tables of a store than were loaded, and more later."""
    users, items = (EmbeddingTableSpec(table, 300, dim) for table, dim in DIMS.items())
    zeros = {table: np.zeros((300, dim), np.float32) for table, dim in DIMS.items()}
    source = ListSource(tuple(DIMS))

    def followed(*tables):
        source.places = frozenset(TopicPartition("m", table.name, 0) for table in tables)
        store = RocksDbStore.load(tmp_path / "store", tables, zeros, "first", read_only=False)
        with contextlib.closing(store):
            with make_ingestion(source, store) as ingestion:
                assert ingestion.drain(TIMEOUT_S)
            assert ingestion.statistics().gaps == 0
            keys = np.arange(300)
            for table in tables:
                rows, found = np.zeros((300, table.dim), np.float32), np.zeros(300, np.bool_)
                assert store.query(table.name, keys, rows, found) == 300
                sent = len(source.log[TopicPartition("m", table.name, 0)])
                assert np.array_equal(rows[:sent], rows_for(keys[:sent], 1.0, table.dim)), table.name
                assert not rows[sent:].any()
            return store.verify(), store.positions()

    def send(table, sequences):
        for number in sequences:
            source.add(number, [number], stamp=1.0, table=table.name)

    send(users, range(100))
    send(items, range(100))
    assert followed(users) == ({"users": 300}, {"L/m/users/0": 99})
    both = {"users": 300, "items": 300}
    assert followed(users, items) == (both, {"L/m/users/0": 99, "L/m/items/0": 99})
    send(users, range(100, 200))
    send(items, range(100, 200))
    assert followed(users) == (both, {"L/m/users/0": 199, "L/m/items/0": 99})
    send(items, range(200, 210))
    assert followed(items) == (both, {"L/m/users/0": 199, "L/m/items/0": 209})


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
            source.lose_end(40, identity)
            for number in range(5):
                source.add(number, [1000 + number], producer="q")
        assert ingestion.drain(TIMEOUT_S)
        assert source.committed == {AT: 44}
        source.add(5, [1005], producer="q")
        assert ingestion.drain(TIMEOUT_S)
    assert caplog.text.count("it went back") == 1
    assert store.size("users") == 106
    assert store.positions() == {"L/m/users/0": 45} | (
        {"L/m/users/0": 99, "another/m/users/0": 45} if identity == "another" else {}
    )
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
    assert "behind offset 199, up to which the store has its updates: it ends with offset 0" in caplog.text
    assert ingestion.statistics().poison == 1
    assert store.size("users") == 201
    assert source.committed == {AT: 0}
    store.close()


def ingested(source, store, options=QUICK):
    """What an ingestion has done that was open until all was applied."""
    with make_ingestion(source, store, options) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    return ingestion.statistics()


def stamps_of(store, count):
    """By key, of the keys from 0 on, the stamp of the row that is there."""
    rows, found = np.zeros((count, 3), np.float32), np.zeros(count, np.bool_)
    store.query("users", np.arange(count), rows, found)
    return [rows[key, 0] - 10 * key if found[key] else None for key in range(count)]


def go_back(source, offset):
    """As a log that was put back from a copy, or lost what was not on the disk yet: the rest is gone."""
    source.log[AT][offset:] = []
    source.committed = {}
    source.next[AT] = 0


@pytest.mark.parametrize("new", [1, 30, 59, 60, 61, 100, 300])
def test_a_log_that_went_back_while_nobody_read_it_is_applied_from_its_beginning(tmp_path, caplog, new):
    """However far it has grown again: its offsets are others from where it went back to, wherever that was."""
    source = ListSource()
    for number in range(100):
        source.add(number, [number], stamp=1)
    with contextlib.closing(RocksDbStore(tmp_path / "store", DIMS)) as store:
        assert ingested(source, store).messages == 100
        assert store.marks() == {"L/m/users/0": "p/99"}
        go_back(source, 40)
        for number in range(new):
            source.add(number, [100 + number], stamp=2, producer="q")
        statistics = ingested(source, store)
        assert stamps_of(store, 100 + new) == [1] * 100 + [2] * new
        assert (statistics.poison, statistics.gaps, statistics.messages) == (1, 0, 40 + new)
        assert "the log went back behind offset 99" in caplog.text
        assert source.committed == {AT: 39 + new}
        source.add(new, [0], stamp=3, producer="q")
        statistics = ingested(source, store)
        assert (statistics.poison, statistics.messages) == (0, 1), "from then on it is the log that the store knows"
        assert (store.positions(), store.marks()) == ({"L/m/users/0": 40 + new}, {"L/m/users/0": f"q/{new}"})


def test_what_is_told_of_a_log_that_went_back_is_which_message_is_there(tmp_path):
    source = ListSource()
    for number in range(10):
        source.add(number, [number])
    with contextlib.closing(RocksDbStore(tmp_path / "store", DIMS)) as store:
        ingested(source, store)
        go_back(source, 4)
        for number in range(20):
            source.add(number, [number], producer="q")
        told = ingested(source, store).last_poison
    assert told == (
        "partition 0 of model m, table users: the log went back behind offset 9, up to which the store has its "
        "updates: it has message q/5 there, which was p/9; what it holds is applied again, and updates that it had "
        "before may be lost",
    )


def test_a_log_that_went_back_is_found_out_anew_until_the_store_has_something_of_it(tmp_path):
    """Whatever ends the ingestion before: nothing of the log is taken for applied."""
    source = ListSource()
    for number in range(100):
        source.add(number, [number])
    with contextlib.closing(RocksDbStore(tmp_path / "store", DIMS)) as store:
        ingested(source, store)
        go_back(source, 0)
        assert [ingested(source, store).poison for _ in range(2)] == [1, 1]
        assert store.positions() == {"L/m/users/0": 99}
        for number in range(5):
            source.add(number, [200 + number], producer="q")
        assert [ingested(source, store).poison for _ in range(2)] == [1, 0]
        assert (store.size("users"), store.positions()) == (105, {"L/m/users/0": 4})


def test_a_log_that_went_back_while_it_was_read_and_again_after_that_loses_nothing(tmp_path):
    source = ListSource()
    for number in range(100):
        source.add(number, [number])
    with contextlib.closing(RocksDbStore(tmp_path / "store", DIMS)) as store:
        with make_ingestion(source, store) as ingestion:
            assert ingestion.drain(TIMEOUT_S)
            with source.lock:
                source.lose_end(40)
                for number in range(5):
                    source.add(number, [1000 + number], producer="q")
            assert ingestion.drain(TIMEOUT_S)
        assert (store.positions(), store.marks()) == ({"L/m/users/0": 44}, {"L/m/users/0": "q/4"})
        for number in range(5, 105):  # far beyond the position of before
            source.add(number, [1000 + number], producer="q")
        assert ingested(source, store).messages == 100
        assert store.size("users") == 205


@pytest.mark.parametrize("between", [0, 1, 5])
def test_poison_and_repetitions_at_a_position_do_not_make_it_another(tmp_path, between):
    source = ListSource()
    for number in range(10):
        source.add(number, [number])
    for _ in range(between):
        source.put(Delivery(AT, 0, None, "broken", b"x"))
        source.add(9, [9])
    source.add(10, [10])
    source.add(12, [12])  # which waits for one that was lost, and is before what comes after it
    options = IngestionOptions(max_batch_size=1, failure_backoff_ms=1, poll_timeout_ms=5)
    with contextlib.closing(RocksDbStore(tmp_path / "store", DIMS)) as store:
        assert ingested(source, store, options).gaps == 1
        source.put(Delivery(AT, 0, None, "broken", b"x"))
        for number in (13, 14):
            source.add(number, [number])
            statistics = ingested(source, store, options)
            assert (statistics.messages, statistics.last_poison[1:], statistics.gaps) == (1, (), 0)
            assert not any("went back" in told for told in statistics.last_poison)


@pytest.mark.parametrize("fault", ["poison", "repeated", "of an older model", "of another dim"])
def test_messages_without_rows_to_apply_are_not_met_again(tmp_path, fault):
    source = ListSource()
    source.add(0, [7])
    with contextlib.closing(RocksDbStore(tmp_path / "store", DIMS)) as store:
        ingested(source, store)
    if fault == "poison":
        source.put(Delivery(AT, 0, None, "broken", b"x"))
    elif fault == "repeated":
        source.add(0, [8])
    elif fault == "of an older model":
        source.add(1, [8], sent_s=1.0)
    else:
        source.add(1, [8], dim=2)
    with contextlib.closing(RocksDbStore(tmp_path / "store", DIMS)) as store:
        counts, heard = [], []
        for _ in range(2):
            with make_ingestion(
                source, store, since_s=100.0, listener=Listener(lambda *told: heard.append(told))
            ) as each:
                assert each.drain(TIMEOUT_S)
            statistics = each.statistics()
            counts.append((statistics.poison, statistics.duplicates, statistics.passed_over))
            assert store.positions() == {"L/m/users/0": 1}
        assert all(not keys.size for _, keys, _, _ in heard), "of a position alone"
        assert sum(counts[0]) == 1
        assert counts[1] == (0, 0, 0)
        assert store.size("users") == 1


def test_a_store_that_is_away_gets_the_position_behind_poison_later_and_not_before_the_rows(tmp_path, monkeypatch):
    source = ListSource()
    with contextlib.closing(RocksDbStore(tmp_path / "store", DIMS)) as store, monkeypatch.context() as away:
        applied, apply = [], store.apply

        def failing(table, keys, rows, position=None, **more):
            if len(applied) < 6:
                applied.append(position)
                raise StoreError("away")
            applied.append(position)
            return apply(table, keys, rows, position, **more)

        away.setattr(store, "apply", failing)
        source.add(0, [7])
        source.put(Delivery(AT, 0, None, "broken", b"x"))
        ingested(source, store)
        assert applied == [("L/m/users/0", 0)] * 7 + [("L/m/users/0", 1)]
        assert store.positions() == {"L/m/users/0": 1}


def test_a_log_that_went_back_to_where_a_store_has_but_poison_is_applied(tmp_path):
    source = ListSource()
    with contextlib.closing(RocksDbStore(tmp_path / "store", DIMS)) as store:
        for payload in (b"x", b"y"):
            source.put(Delivery(AT, 0, None, "broken", payload))
        with make_ingestion(source, store) as ingestion:
            assert ingestion.drain(TIMEOUT_S)
            assert store.positions() == {"L/m/users/0": 1}
            with source.lock:
                source.lose_end(0)
                source.add(0, [7])
            assert ingestion.drain(TIMEOUT_S)
        assert (store.size("users"), store.positions()) == (1, {"L/m/users/0": 0})
        go_back(source, 0)
        for payload in (b"x", b"z"):
            source.put(Delivery(AT, 0, None, "broken", payload))
        assert ingested(source, store).poison == 3, "that it went back, and two messages"
        go_back(source, 0)
        for number in (8, 9):
            source.add(number - 8, [number], producer="q")
        assert ingested(source, store).messages == 2
        assert (store.size("users"), store.positions()) == (3, {"L/m/users/0": 1})


def test_poison_of_a_table_that_is_not_here_has_no_position(tmp_path):
    source = ListSource(("users", "ghost"))
    source.add(0, [7])
    source.put(Delivery(TopicPartition("m", "ghost", 0), 0, None, "broken", b"x"))
    with contextlib.closing(RocksDbStore(tmp_path / "store", DIMS)) as store:
        assert ingested(source, store).poison == 1
        assert store.positions() == {"L/m/users/0": 0}


@pytest.mark.parametrize("gone", [30, 100, 101, 110])
def test_a_position_of_which_the_log_has_removed_the_message_is_believed(tmp_path, gone):
    source = ListSource()
    for number in range(100):
        source.add(number, [number])
    with contextlib.closing(RocksDbStore(tmp_path / "store", DIMS)) as store:
        ingested(source, store)
        for number in range(100, 120):
            source.add(number, [number])
        source.seek = lambda at, offset: source.next.update({at: max(offset + 1, gone)})
        statistics = ingested(source, store)
        assert (statistics.poison, statistics.messages) == (0, min(20, 120 - gone))
        assert statistics.missing == max(0, gone - 100)


def test_a_position_without_a_mark_is_believed_unless_the_log_ends_before_it(tmp_path, monkeypatch):
    """Stores of older versions have none; with the next update they have one."""
    source = ListSource()
    for number in range(100):
        source.add(number, [number])
    with contextlib.closing(RocksDbStore(tmp_path / "store", DIMS)) as store:
        with monkeypatch.context() as older:
            older.setattr(UpdateMessage, "mark", "")
            ingested(source, store)
        source.committed = {}
        statistics = ingested(source, store)
        assert (statistics.poison, statistics.messages, source.committed) == (0, 0, {AT: 99})
        assert store.marks() == {"L/m/users/0": ""}
        source.add(100, [100])
        assert ingested(source, store).messages == 1
        assert store.marks() == {"L/m/users/0": "p/100"}
        store.apply("users", np.array([0]), None, ("L/m/users/0", 100), anew=True)
        go_back(source, 40)
        statistics = ingested(source, store)
        assert (statistics.poison, statistics.messages) == (1, 40)


def test_nothing_is_reported_of_a_position_that_the_log_does_not_confirm(tmp_path):
    source, offsets = ListSource(), []
    for number in range(100):
        source.add(number, [number])
    with contextlib.closing(RocksDbStore(tmp_path / "store", DIMS)) as store:
        ingested(source, store)
        go_back(source, 0)
        for number in range(120):
            source.add(number, [number], producer="q")
        commit = source.commit
        source.commit = lambda now: offsets.append(now[AT]) or commit(now)
        options = IngestionOptions(max_batch_size=1, max_commit_interval=1, failure_backoff_ms=1, poll_timeout_ms=5)
        ingested(source, store, options)
    assert offsets == sorted(offsets)
    assert offsets[0] == 0


def test_a_store_that_is_away_when_a_log_went_back_takes_it_all_later(tmp_path, monkeypatch):
    source = ListSource()
    for number in range(100):
        source.add(number, [number])
    with contextlib.closing(RocksDbStore(tmp_path / "store", DIMS)) as store:
        ingested(source, store)
        go_back(source, 40)
        for number in range(100):
            source.add(number, [100 + number], producer="q")
        apply, last_offset = store.apply, source.last_offset
        faults = iter([StoreUnavailable("away"), None, StoreUnavailable("away"), StoreUnavailable("away")])

        def faulty(call):
            def called(*arguments, **more):
                if (fault := next(faults, None)) is not None:
                    raise fault
                return call(*arguments, **more)

            return called

        monkeypatch.setattr(store, "apply", faulty(apply))
        monkeypatch.setattr(source, "last_offset", faulty(last_offset))
        statistics = ingested(source, store)
        assert (statistics.failures, statistics.poison, store.size("users")) == (3, 1, 200)


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


def test_a_position_of_another_log_alone_is_reported_when_a_server_starts(tmp_path):
    """The log was replaced while it was down: what it had taken and the store had not is lost."""
    source, missed = ListSource(), []
    for number in range(10):
        source.add(number, [number])
    with contextlib.closing(RocksDbStore(tmp_path / "store", DIMS)) as store:
        ingested(source, store)
        source = ListSource()
        source.identity = "M"
        source.add(0, [100], producer="q")
        with make_ingestion(source, store, missed=lambda: missed.append(0)) as ingestion:
            assert ingestion.drain(TIMEOUT_S)
        assert (ingestion.statistics().poison, len(missed)) == (1, 1)
        assert store.positions() == {"L/m/users/0": 9, "M/m/users/0": 0}
        assert ingested(source, store).poison == 0, "the store knows it now"


def test_another_log_in_the_place_of_one_that_had_nothing_has_positions_of_its_own(tmp_path):
    source = ListSource()
    with contextlib.closing(RocksDbStore(tmp_path / "store", DIMS)) as store:
        with make_ingestion(source, store) as ingestion:
            assert ingestion.drain(TIMEOUT_S)
            with source.lock:
                source.lose_end(0, "M")
                source.add(0, [1])
            assert ingestion.drain(TIMEOUT_S)
        assert store.positions() == {"M/m/users/0": 0}
