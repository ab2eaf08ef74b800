import itertools
import logging
import time
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.embeddings.memory.resident_rows import ResidentRows
from hebe.embeddings.memory.table_memory import TableMemory
from hebe.embeddings.store import StoreUnavailable
from hebe.embeddings.updates.contract import Delivery, TopicPartition, UpdateMessage
from hebe.embeddings.updates.ingestion import ingestion as module
from hebe.embeddings.updates.ingestion import sequence_check
from hebe.embeddings.updates.ingestion.ingestion import UpdateIngestion
from hebe.embeddings.updates.ingestion.options import IngestionOptions
from hebe.kernels.lookup.row_format import RowFormat
from tests.embeddings.stores.dict_store import DictStore
from tests.embeddings.updates.conformance.ingestions import AT, QUICK, TIMEOUT_S, make_ingestion, rows_of, wait_until
from tests.embeddings.updates.conformance.list_source import DIMS, ListSource
from tests.embeddings.updates.conformance.update_conformance import rows_for


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(DIMS)), st.booleans(), st.lists(st.integers(-2, 6), min_size=1, max_size=6)),
        max_size=15,
    ),
    st.integers(1, 9),
    st.integers(0, 3),
    st.sampled_from([0.0, 0.005]),
)
def test_what_was_sent_is_in_the_store(messages, max_batch_size, faults, interval_s):
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
    options = IngestionOptions(None, interval_s, max_batch_size, failure_backoff_ms=1, poll_timeout_ms=2)
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


def test_a_beginning_that_is_gone_is_told_once_and_when_the_source_knows():
    source, store = ListSource(), DictStore(DIMS)
    asked, faults = [], [StoreUnavailable("away")]

    def lost_beginning(at):
        asked.append(at)
        if faults:
            raise faults.pop()
        return 0, 9

    source.lost_beginning = lost_beginning
    source.put(Delivery(AT, 0, None, "truncated", b"xyz"))
    with make_ingestion(source, store) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
        assert ingestion.statistics().gaps == 0, "when the oldest was sent nobody knows"
        for number in range(3):
            source.add(number, [number])
        assert ingestion.drain(TIMEOUT_S)
        assert asked == [AT, AT]
        with source.lock:
            source.lose_end(1)
            source.add(1, [7], producer="q")
        assert ingestion.drain(TIMEOUT_S)
    assert asked == [AT, AT, AT]
    statistics = ingestion.statistics()
    assert (statistics.gaps, statistics.missing, statistics.failures) == (1, 10, 1), "the same one"
    assert set(rows_of(store)) == {0, 1, 2, 7}


def test_a_beginning_that_stores_began_with_is_not_missed():
    source, store = ListSource(), DictStore(DIMS)
    source.lost = {AT: (0, 9)}
    source.add(0, [5])
    with make_ingestion(source, store, has_beginning=True) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
        assert ingestion.statistics().gaps == 0


def test_keys_that_a_store_has_no_place_for_are_counted_and_told(caplog):
    memory = TableMemory({"users": (10, 3), "items": (5, 1)})
    memory.fill({"users": np.zeros((10, 3), np.float32), "items": np.zeros((5, 1), np.float32)})
    store, source = ResidentRows(memory), ListSource(DIMS)
    for number in range(25):
        source.add(number, [number, number + 10], stamp=number)
    source.add(0, [4, 5], table="items")
    source.add(25, [70], goes=True)
    options = IngestionOptions(failure_backoff_ms=1, poll_timeout_ms=5, max_batch_size=2)
    with make_ingestion(source, store, options) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    statistics = ingestion.statistics()
    assert (statistics.refused, statistics.rows, statistics.deletes) == (25 + 15 + 1, 52, 1)
    told = [record.getMessage() for record in caplog.records if "keys of updates so far" in record.getMessage()]
    assert [text.split()[2] for text in told if "table users of model m" in text] == ["1", "10"]
    assert len([text for text in told if "table items of model m" in text]) == 1
    rows, found = np.zeros((1, 3), np.float32), np.zeros(1, np.bool_)
    store.query("users", np.array([9]), rows, found)
    assert rows.tolist() == rows_for(np.array([9]), 9).tolist()
    memory.close()


def test_rows_that_a_store_cannot_hold_are_counted_and_told(caplog):
    """Where table memory is fp16, in which a load of such a row is refused."""
    memory, source = TableMemory({"users": (10, 3)}, RowFormat.FP16), ListSource()
    memory.fill({"users": np.zeros((10, 3), np.float32)})
    source.add(0, [1, 2], stamp=7e4)
    source.add(1, [3], stamp=6e4)
    with make_ingestion(source, ResidentRows(memory)) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert (ingestion.statistics().unheld, ingestion.statistics().rows) == (2, 3)
    told = [record.getMessage() for record in caplog.records if "cannot hold" in record.getMessage()]
    assert len(told) == 1
    assert "2 rows of updates so far have numbers that table users of model m (store) cannot hold" in told[0]
    memory.close()


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
    assert str(tmp_path / "aside" / "m.users.0.0.") in " ".join(ingestion.statistics().last_poison)
    kept = {path.name.rsplit(".", 2)[0] for path in (tmp_path / "aside").glob("*.message")}
    assert kept == {"m.users.0.0", "m.users.0.2", "m.users.0.3", "m.others.0.0"}
    for text in ("truncated", "dim 5, those of table users have 3", "not all finite", "no table others of model m"):
        assert text in caplog.text
    assert source.committed == {AT: 4, TopicPartition("m", "others", 0): 0}


def test_what_is_older_than_the_model_is_passed_over(caplog):
    """Also what an older model would have called poison: it is neither put aside nor in the way."""
    caplog.set_level(logging.INFO, "hebe.updates")
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
    assert caplog.text.count("passed over; the first was sent at 1970-01-01T00:01:39") == 1


def test_a_message_is_as_new_as_its_newest_row_and_took_as_long_as_its_oldest():
    """Rows that were sent after the model's were read out of training may share a message with older ones."""
    source, store, now_s = ListSource(), DictStore(DIMS), time.time()
    source.add(0, [1], sent_s=now_s - 1001, span_s=0.5)
    source.add(1, [2, 3], sent_s=now_s - 1001, span_s=2.0)
    with make_ingestion(source, store, since_s=now_s - 1000) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert set(rows_of(store)) == {2, 3}
    statistics = ingestion.statistics()
    assert (statistics.passed_over, statistics.messages) == (1, 1)
    assert statistics.visible_histogram["store"].sum_s >= 1001


def test_drained_is_who_has_nothing_to_wait_for():
    with make_ingestion(ListSource(()), DictStore(DIMS)) as ingestion:
        assert ingestion.drain(TIMEOUT_S)


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


@pytest.mark.parametrize("size", [1, 100])
def test_of_poison_and_of_small_messages_little_is_kept_in_memory(monkeypatch, size):
    """A backlog that nobody can read, of a newer trainer, has no rows, and takes as much memory all the same."""
    monkeypatch.setattr(module, "_WAITING_BYTES", 10 * (1024 + size))
    source, store, kept = ListSource(), DictStore(DIMS), []
    poll = source.poll

    def poll_little(most, timeout_s):
        if not source.log:
            return []
        kept.append(sum(len(progress.delivered) for progress in ingestion._partitions.values()))
        return poll(min(most, 3), timeout_s)

    monkeypatch.setattr(source, "poll", poll_little)
    with make_ingestion(source, store, IngestionOptions(interval_s=1, poll_timeout_ms=5)) as ingestion:
        with source.lock:
            for number in range(1000):
                source.put(Delivery(AT, number, None, "of a newer version", b"x" * size))
            source.add(0, [7])
        assert ingestion.drain(TIMEOUT_S)
    assert max(kept) < 10 + 3
    assert (ingestion.statistics().poison, store.size("users")) == (1000, 1)
