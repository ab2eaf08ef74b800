import itertools
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.embeddings.rocksdb_store import RocksDbStore
from hebe.embeddings.store import StoreError, StoreUnavailable
from hebe.embeddings.updates import ingestion as module
from hebe.embeddings.updates import sequence_check
from hebe.embeddings.updates.contract import Delivery, Topic, TopicPartition, UpdateMessage
from hebe.embeddings.updates.ingestion import IngestionOptions, UpdateIngestion
from hebe.embeddings.updates.log_directory import DirectoryCarrier, LogDirectory

from ..dict_store import DictStore
from .list_source import DIMS, ListSource
from .update_conformance import SMALL, last_offsets, push, rows_for, take_rows

USERS, ITEMS = Topic("m", "users"), Topic("m", "items")
QUICK = IngestionOptions(failure_backoff_ms=1, poll_timeout_ms=5)
TIMEOUT_S = 20.0


def make_ingestion(source, store, options=QUICK, **more):
    return UpdateIngestion(source, {"store": store}, "m", DIMS, options, **more)


def wait_until(done):
    end_s = time.monotonic() + TIMEOUT_S
    while not done():
        assert time.monotonic() < end_s
        time.sleep(0.002)


def rows_of(store, table="users"):
    return {key: row.tolist() for key, row in store.tables[table].items()}


AT = TopicPartition("m", "users", 0)


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(DIMS)), st.booleans(), st.lists(st.integers(-2, 6), min_size=1, max_size=6)),
        max_size=15,
    ),
    st.integers(1, 9),
    st.integers(0, 3),
)
def test_what_was_sent_is_in_the_store(messages, max_batch_size, faults):
    source, store, expected = ListSource(DIMS), DictStore(DIMS), {table: {} for table in DIMS}
    source.faults = [StoreUnavailable("away"), RuntimeError("odd")][:faults]
    numbers = defaultdict(itertools.count)
    for stamp, (table, goes, keys) in enumerate(messages):
        source.add(next(numbers[table]), keys, stamp, table, goes=goes)
        for place, key in enumerate(keys):
            if goes:
                expected[table].pop(key, None)
            else:
                expected[table][key] = rows_for(np.array(keys), stamp, DIMS[table])[place].tolist()
    options = IngestionOptions(failure_backoff_ms=1, poll_timeout_ms=2, max_batch_size=max_batch_size)
    with make_ingestion(source, store, options) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert {table: rows_of(store, table) for table in DIMS} == expected
    statistics = ingestion.statistics()
    assert statistics.messages == len(messages)
    assert statistics.rows == sum(len(keys) for _, goes, keys in messages if not goes)
    assert statistics.deletes == sum(len(keys) for _, goes, keys in messages if goes)
    assert statistics.visible["store"].answers == len(messages)
    assert source.closed
    assert not any(source.lag().values())


def test_offsets_are_committed_after_the_store_has_the_rows():
    source, store, asked = ListSource(), DictStore(DIMS), threading.Event()
    store.gate.clear()
    insert = store.insert
    store.insert = lambda *arguments: asked.set() or insert(*arguments)
    source.add(0, [1, 2])
    ingestion = make_ingestion(source, store)
    assert asked.wait(TIMEOUT_S)
    assert not source.committed
    store.gate.set()
    wait_until(lambda: source.committed == {AT: 0})
    assert set(rows_of(store)) == {1, 2}
    ingestion.close()


def test_a_store_that_is_away_is_waited_for_and_nothing_lost(caplog):
    caplog.set_level(logging.INFO, "hebe.updates")
    source, store = ListSource(), DictStore(DIMS)
    store.fault = StoreUnavailable("Redis is away")
    ingestion = make_ingestion(source, store)
    for number in range(20):
        source.add(number, [number], goes=number == 7)
    wait_until(lambda: ingestion.statistics().failures >= 3)
    statistics = ingestion.statistics()
    assert (statistics.is_failing, statistics.last_error, statistics.rows) == (True, "Redis is away", 0)
    assert not source.committed
    store.fault = ValueError("of another kind")
    wait_until(lambda: ingestion.statistics().last_error == "ValueError: of another kind")
    store.fault = None
    assert ingestion.drain(TIMEOUT_S)
    assert not ingestion.statistics().is_failing
    ingestion.close()
    assert set(rows_of(store)) == set(range(20)) - {7}
    assert source.committed == {AT: 19}
    texts = [record.getMessage() for record in caplog.records]
    assert sum("Redis is away" in text for text in texts) == 1, "said once, not at every attempt"
    assert sum("go on" in text for text in texts) == 1


def test_waiting_keeps_the_membership(monkeypatch):
    monkeypatch.setattr(module, "_HEARTBEAT_S", 0.01)
    source, store = ListSource(), DictStore(DIMS)
    store.fault = StoreUnavailable("away")
    source.add(0, [1])
    options = IngestionOptions(failure_backoff_ms=50, poll_timeout_ms=5)
    with make_ingestion(source, store, options):
        wait_until(lambda: source.heartbeats > 2)


def test_duplicates_are_skipped_and_swaps_put_right():
    source, store = ListSource(), DictStore(DIMS)
    for number in (0, 1, 0, 1, 3, 2, 2, 4):
        source.add(number, [7, 100 + number], stamp=number)
    with make_ingestion(source, store) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert rows_of(store) == {key: rows_for(np.array([key]), 4 if key == 7 else key - 100)[0].tolist()
                              for key in (7, 100, 101, 102, 103, 104)}  # fmt: skip
    statistics = ingestion.statistics()
    assert (statistics.duplicates, statistics.reordered, statistics.gaps) == (3, 1, 0)
    assert source.committed == {AT: 7}


def test_gaps_are_reported_and_the_rest_goes_on(monkeypatch, caplog):
    monkeypatch.setattr(sequence_check, "WAIT_S", 0.05)
    source, store = ListSource(), DictStore(DIMS)
    for number in (0, 3, 4):
        source.add(number, [number])
    with make_ingestion(source, store) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
        statistics = ingestion.statistics()
    assert set(rows_of(store)) == {0, 3, 4}
    assert (statistics.gaps, statistics.missing) == (1, 2)
    assert "messages 1 to 2 of producer p are missing in partition 0 of model m, table users" in caplog.text


def test_poison_goes_aside_and_the_rest_goes_on(tmp_path, caplog):
    source, store = ListSource(("users", "others")), DictStore(DIMS)
    source.put(Delivery(AT, 0, None, "truncated", b"xyz"))
    source.add(0, [1])
    source.add(1, [2], dim=5)
    source.put(Delivery(AT, 0, UpdateMessage("p", 2, 0.0, np.array([3]), np.full((1, 3), np.nan, np.float32))))
    source.put(Delivery(TopicPartition("m", "others", 0), 0, UpdateMessage("p", 0, 0.0, np.array([4]), None)))
    source.add(3, [5])
    with make_ingestion(source, store, quarantine=tmp_path / "aside") as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert set(rows_of(store)) == {1, 5}
    assert ingestion.statistics().poison == 4
    kept = {path.name for path in (tmp_path / "aside").glob("*.message")}
    assert kept == {"m.users.0.0.message", "m.users.0.2.message", "m.users.0.3.message", "m.others.0.0.message"}
    for text in ("truncated", "dim 5, those of table users have 3", "not all finite", "no table others of model m"):
        assert text in caplog.text
    assert source.committed == {AT: 4, TopicPartition("m", "others", 0): 0}


def test_the_listener_hears_of_what_is_in_the_store(caplog):
    source, store, heard = ListSource(), DictStore(DIMS), []

    def listener(table, keys, rows):
        stored = [
            None if key not in store.tables[table] else store.tables[table][key].tolist() for key in keys.tolist()
        ]
        heard.append((table, keys.tolist(), stored == [None] if rows is None else stored == rows.tolist()))
        raise RuntimeError("of the listener's own")

    source.add(0, [1, 2])
    with make_ingestion(source, store, listener=listener) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
        source.add(1, [2], goes=True)
        assert ingestion.drain(TIMEOUT_S)
    assert heard == [("users", [1, 2], True), ("users", [2], True)]
    assert "listener failed" in caplog.text


def test_what_is_older_than_the_model_is_passed_over():
    """Also what an older model would have called poison: it is neither put aside nor in the way."""
    source, store = ListSource(), DictStore(DIMS)
    source.add(0, [1], sent_s=99.0)
    source.add(1, [2], dim=7, sent_s=99.0)
    source.add(2, [3], sent_s=100.0)
    source.add(3, [4], sent_s=101.0)
    source.add(4, [3], goes=True, sent_s=99.9)  # of a trainer whose clock went back
    with make_ingestion(source, store, since_s=100.0) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert set(rows_of(store)) == {3, 4}
    statistics = ingestion.statistics()
    assert (statistics.passed_over, statistics.messages, statistics.poison, statistics.gaps) == (3, 2, 0, 0)
    assert statistics.visible["store"].answers == 2
    assert source.committed == {AT: 4}


def test_without_stores_the_listener_hears_of_all():
    source, heard = ListSource(DIMS), defaultdict(list)
    source.add(0, [1, 2])
    source.add(0, [3], table="items", goes=True)
    source.add(1, [4], dim=9)
    options = IngestionOptions(failure_backoff_ms=1, poll_timeout_ms=5, max_batch_size=1)

    def listener(table, keys, rows):
        heard[table] += [(key, rows is None) for key in keys.tolist()]

    with UpdateIngestion(source, {}, "m", DIMS, options, listener=listener) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert heard == {"users": [(1, False), (2, False)], "items": [(3, True)]}
    statistics = ingestion.statistics()
    assert (statistics.messages, statistics.rows, statistics.deletes, statistics.poison) == (2, 2, 1, 1)
    assert {tier: seen.answers for tier, seen in statistics.visible.items()} == {"cache": 2}


def test_a_listener_takes_no_part_in_a_group_and_begins_with_the_newest(tmp_path):
    log, store, heard = LogDirectory(tmp_path / "log"), DictStore(DIMS), []
    push(log, range(50))
    source = log.source(None, [USERS], newest=True)

    def listener(table, keys, rows):
        heard.append((table, keys.tolist(), rows.tolist()))

    with UpdateIngestion(source, {}, "m", DIMS, QUICK, listener=listener) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
        assert not heard
        with make_ingestion(log.source("shared", [USERS]), store) as writing:
            push(log, range(100, 120), 3.0)
            assert writing.drain(TIMEOUT_S)
            assert ingestion.drain(TIMEOUT_S)
    assert {table for table, _, _ in heard} == {"users"}
    told = {key: row for _, keys, rows in heard for key, row in zip(keys, rows, strict=True)}
    assert told == {key: row for key, row in rows_of(store).items() if key >= 100}
    assert len(told) == 20
    assert set(rows_of(store)) == {*range(50), *range(100, 120)}
    assert os.listdir(tmp_path / "log" / "groups") == ["shared"]


def test_drained_is_who_has_nothing_to_wait_for():
    """No partition: nothing was ever sent to a log that is read alone; of a group's it may be that none came yet."""
    source = ListSource(())
    with make_ingestion(source, DictStore(DIMS)) as ingestion:
        assert not ingestion.drain(0.05)
        source.shares = False
        assert ingestion.drain(TIMEOUT_S)


def test_a_fault_of_the_log_between_two_batches_loses_none():
    """Of any kind: what the source had handed over is not handed over again."""
    source, store = ListSource(), DictStore(DIMS)
    source.commit_faults = [StoreUnavailable("away"), RuntimeError("odd"), StoreUnavailable("away")]
    for number in range(30):
        source.add(number, [number])
    options = IngestionOptions(failure_backoff_ms=1, poll_timeout_ms=5, max_batch_size=2, max_commit_interval=2)
    with make_ingestion(source, store, options) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert set(rows_of(store)) == set(range(30))
    assert (ingestion.statistics().failures, ingestion.statistics().messages) == (3, 30)
    assert source.committed == {AT: 29}


def test_batches_until_a_commit_are_counted_by_partition(monkeypatch):
    """A commit writes as many offsets as there are partitions: it is not made for a batch of each."""
    monkeypatch.setattr(module, "_COMMIT_S", 1e6)
    source, store = ListSource(("users", "items")), DictStore(DIMS)
    for number in range(3):
        source.add(number, [number])
        source.add(number, [number], table="items")
    committed = defaultdict(list)
    insert = store.insert

    def noted_insert(table, keys, rows):
        committed[table].append(source.committed.get(TopicPartition("m", table, 0)))
        insert(table, keys, rows)

    store.insert = noted_insert
    options = IngestionOptions(failure_backoff_ms=1, poll_timeout_ms=5, max_batch_size=1, max_commit_interval=2)
    with make_ingestion(source, store, options) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert committed == {"users": [None, None, 1], "items": [None, None, 1]}


def test_a_slow_store_keeps_its_membership_and_commits_as_it_goes(monkeypatch):
    """A rebalance in the middle of what one poll brought: the rest is another's."""
    monkeypatch.setattr(module, "_HEARTBEAT_S", 0.0)
    monkeypatch.setattr(module, "_COMMIT_S", 0.0)
    source, store = ListSource(), DictStore(DIMS)
    for number in range(10):
        source.add(number, [number])

    seen = []

    def slow_insert(table, keys, rows):
        assert (table, rows.shape) == ("users", (1, 3))
        seen.append((keys.tolist(), source.heartbeats, source.committed.get(AT)))
        if len(seen) == 4:
            source.mine = frozenset()

    store.insert = slow_insert
    options = IngestionOptions(failure_backoff_ms=1, poll_timeout_ms=5, max_batch_size=1)
    with make_ingestion(source, store, options) as ingestion:
        wait_until(lambda: source.heartbeats >= 4)
        wait_until(lambda: not ingestion._orders)
    assert seen == [([0], 0, None), ([1], 1, 0), ([2], 2, 1), ([3], 3, 2)]
    assert source.committed == {AT: 3}
    assert ingestion.statistics().failures == 0


def test_several_stores_get_the_same_in_their_order():
    source, first, second, order = ListSource(), DictStore(DIMS), DictStore(DIMS), []
    first.insert_ = first.insert
    first.insert = lambda *args: (order.append("first"), first.insert_(*args))
    second.insert_ = second.insert
    second.insert = lambda *args: (order.append("second"), second.insert_(*args))
    source.add(0, [1, 2])
    with UpdateIngestion(source, {"persistent": first, "volatile": second}, "m", DIMS, QUICK) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert rows_of(first) == rows_of(second)
    assert order == ["first", "second"]
    assert {tier: seen.answers for tier, seen in ingestion.statistics().visible.items()} == {
        "persistent": 1,
        "volatile": 1,
    }


def test_partitions_that_were_lost_are_left_alone():
    source, store = ListSource(DIMS), DictStore(DIMS)
    source.add(0, [1])
    with make_ingestion(source, store) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
        store.fault = StoreUnavailable("away")
        source.add(1, [2])
        source.add(0, [9], table="items")
        wait_until(lambda: ingestion.statistics().failures >= 3)
        source.mine = frozenset({TopicPartition("m", "items", 0)})  # another member has users now, and applies it
        store.fault = None
        wait_until(lambda: rows_of(store, "items"))
        assert set(rows_of(store)) == {1}
        source.next[AT] = 1  # it died: from the committed offset on
        source.mine = frozenset(source.places)
        wait_until(lambda: set(rows_of(store)) == {1, 2})
        assert ingestion.drain(TIMEOUT_S)
    assert ingestion.statistics().gaps == 0


def test_the_rate_is_bounded():
    source, store = ListSource(), DictStore(DIMS)
    for number in range(10):
        source.add(number, range(100))
    options = IngestionOptions(max_rows_per_s=5000, max_batch_size=100, poll_timeout_ms=5)
    begun_s = time.monotonic()
    with make_ingestion(source, store, options) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert time.monotonic() - begun_s >= 900 / 5000
    assert ingestion.statistics().rows == 1000


def test_news_are_looked_for_at_intervals(monkeypatch):
    pauses, source, store = [], ListSource(), DictStore(DIMS)

    def pause(ingestion, seconds):
        pauses.append(seconds)
        if len(pauses) == 1:
            source.add(0, [1])  # comes while nobody looks
        else:
            ingestion._closing.wait(TIMEOUT_S)

    monkeypatch.setattr(UpdateIngestion, "_pause", pause)
    with make_ingestion(source, store, IngestionOptions(interval_s=3600, poll_timeout_ms=5)) as ingestion:
        wait_until(lambda: len(pauses) == 2)
    assert pauses == [3600, 3600]
    assert ingestion.statistics().rows == 1


def test_offsets_are_committed_after_so_many_batches():
    source, store, commits = ListSource(), DictStore(DIMS), []
    source.commit = lambda offsets: commits.append(dict(offsets)) or source.committed.update(offsets)
    for number in range(64 * 4):
        source.add(number, [number])
    options = IngestionOptions(max_batch_size=4, max_commit_interval=16, poll_timeout_ms=5)
    with make_ingestion(source, store, options) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert [commit[AT] for commit in commits][:4] == [63, 127, 191, 255]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_rows_per_s", 0),
        ("interval_s", -1),
        ("max_batch_size", 0),
        ("max_commit_interval", 0),
        ("failure_backoff_ms", 0),
        ("poll_timeout_ms", np.nan),
    ],
)
def test_options_out_of_range_are_named(field, value):
    with pytest.raises(ValueError, match=field):
        IngestionOptions(**{field: value})


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
    assert source.seeks == [("users", 99 - sequence_check.MOST_HELD)]
    assert store.positions() == {"L/m/users/0": 101}
    assert store.size("users") == 100
    source.identity = "M"  # another log: its offsets say nothing about the store
    source.next[AT] = 100
    with make_ingestion(source, store) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert len(source.seeks) == 1
    assert store.positions() == {"L/m/users/0": 101, "M/m/users/0": 101}
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


SERVER = """
    import sys, time
    from pathlib import Path
    from hebe.embeddings.rocksdb_store import RocksDbStore
    from hebe.embeddings.updates.contract import Topic
    from hebe.embeddings.updates.ingestion import IngestionOptions, UpdateIngestion
    from hebe.embeddings.updates.log_directory import LogDirectory

    log, store = LogDirectory(Path(sys.argv[1])), RocksDbStore(Path(sys.argv[2]), {"users": 3})
    source = log.source("server", [Topic("m", "users")])
    options = IngestionOptions(max_batch_size=16, max_commit_interval=7)
    ingestion = UpdateIngestion(source, {"persistent": store}, "m", {"users": 3}, options)
    while True:
        print(ingestion.statistics().messages, flush=True)
        time.sleep(0.001)
"""


def test_killed_in_the_middle_of_updates_it_has_what_the_log_says(tmp_path):
    """A real process, killed with -9 again and again while a trainer sends; then rows and log agree."""
    log = LogDirectory(tmp_path / "log")
    rng, expected = np.random.default_rng(0), {}
    stop = threading.Event()

    def train():
        with log.producer(SMALL) as producer:
            for stamp in itertools.count():
                keys = rng.integers(0, 500, 20)
                if stamp % 7 == 6:
                    producer.delete("m", "users", keys)
                    for key in keys.tolist():
                        expected.pop(key, None)
                else:
                    rows = rows_for(keys, stamp)
                    producer.send("m", "users", keys, rows)
                    expected.update(zip(keys.tolist(), rows.tolist(), strict=True))
                if stop.wait(0.002):
                    return

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        for _ in range(3):
            server = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(SERVER), str(tmp_path / "log"), str(tmp_path / "store")],
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
                text=True,
            )
            assert any(int(line) > 20 for line in server.stdout)
            server.send_signal(signal.SIGKILL)
            server.wait()
            server.stdout.close()
    finally:
        stop.set()
        trainer.join()
    store = RocksDbStore(tmp_path / "store", {"users": 3})
    source = log.source("server", [USERS])
    with UpdateIngestion(source, {"persistent": store}, "m", {"users": 3}, QUICK) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert ingestion.statistics().gaps == 0
    keys = np.array(sorted(expected))
    rows, found = np.zeros((len(keys), 3), np.float32), np.zeros(len(keys), np.bool_)
    assert store.query("users", keys, rows, found) == len(keys) == store.size("users")
    assert rows.tolist() == [expected[key] for key in keys.tolist()]
    store.close()


def test_servers_of_one_group_share_the_work_and_a_dead_ones_goes_to_the_other(tmp_path):
    """Two servers that share a volatile store; one is closed in the middle."""
    log, shared = LogDirectory(tmp_path / "log"), DictStore(DIMS)
    ingestions = [make_ingestion(log.source("shared", [USERS]), shared) for _ in range(2)]
    expected = push(log, range(100))
    wait_until(lambda: rows_of(shared) == expected)
    wait_until(lambda: all(ingestion.statistics().rows or not ingestion._source.assigned() for ingestion in ingestions))
    ingestions[0].close()
    expected = push(log, range(100), 5.0)
    wait_until(lambda: rows_of(shared) == expected)
    ingestions[1].close()
    assert not any(log.group_lag("shared").values())


def test_poison_in_a_real_log(tmp_path):
    log, store = LogDirectory(tmp_path / "log"), DictStore(DIMS)
    carrier = DirectoryCarrier(log)
    carrier.append(AT, b"broken")
    carrier.close()
    push(log, range(10))
    with make_ingestion(log.source("g", [USERS]), store, quarantine=tmp_path / "aside") as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert set(rows_of(store)) == set(range(10))
    assert (tmp_path / "aside" / "m.users.0.0.message").read_bytes() == b"broken"
    reader = log.source("g", [USERS])
    assert not reader.poll(10, 0.05)
    reader.commit(last_offsets([]))
    reader.close()


def test_a_closed_log_fails_no_more_than_a_poll(tmp_path):
    log, store = LogDirectory(tmp_path / "log"), DictStore(DIMS)
    source = log.source("g", [USERS])
    source.close()
    with make_ingestion(source, store) as ingestion:
        wait_until(lambda: ingestion.statistics().failures > 1)
    assert "closed" in ingestion.statistics().last_error
    with pytest.raises(StoreError, match="closed"):
        take_rows(source, 1)
