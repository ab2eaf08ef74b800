"""How fast updates are applied: the rate, intervals, who catches up, and what is there when all is drained."""

import itertools
import threading
import time
from types import SimpleNamespace

import pytest

from hebe.embeddings.store import StoreUnavailable
from hebe.embeddings.updates.contract import Delivery
from hebe.embeddings.updates.ingestion import ingestion as module
from hebe.embeddings.updates.ingestion.ingestion import UpdateIngestion
from hebe.embeddings.updates.ingestion.options import IngestionOptions
from tests.embeddings.stores.dict_store import DictStore
from tests.embeddings.updates.conformance.ingestions import AT, TIMEOUT_S, Listener, make_ingestion, rows_of, wait_until
from tests.embeddings.updates.conformance.list_source import DIMS, ListSource


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


def test_who_catches_up_does_so_at_no_rate_and_has_one_afterwards():
    source, store = ListSource(), DictStore(DIMS)
    for number in range(10):
        source.add(number, range(100))
    options = IngestionOptions(max_rows_per_s=0.001, max_batch_size=100, poll_timeout_ms=5)
    with make_ingestion(source, store, options, catches_up=True) as ingestion:
        assert ingestion.catch_up(TIMEOUT_S)
        assert ingestion.statistics().rows == 1000
        source.add(10, [1])
        assert ingestion.drain(TIMEOUT_S), "the first one is not bounded"
        source.add(11, [1])
        assert not ingestion.drain(0.05)


def test_who_cannot_catch_up_is_waited_for_no_longer_than_that():
    source, store = ListSource(), DictStore(DIMS)
    store.fault = StoreUnavailable("away")
    source.add(0, [1])
    with make_ingestion(source, store) as ingestion:
        assert not ingestion.catch_up(0.05)
        with pytest.raises(ZeroDivisionError):
            ingestion.catch_up(TIMEOUT_S, lambda: 1 / 0)
        store.fault = None
        assert ingestion.catch_up(TIMEOUT_S)
        source.faults = [StoreUnavailable("away")] * 10**6
        assert not ingestion.catch_up(0.05)
        source.faults = []


class Pauses:
    """In place of an ingestion's own: none of it is waited for, and what comes meanwhile is told to it."""

    def __init__(self, monkeypatch, meanwhile=lambda _number: None):
        self.seconds = []
        monkeypatch.setattr(UpdateIngestion, "_pause", lambda ingestion, seconds: self._take(ingestion, seconds))
        self._meanwhile = meanwhile

    def _take(self, ingestion, seconds):
        self.seconds.append(seconds)
        self._meanwhile(len(self.seconds))
        ingestion._closing.wait(0.001)


def test_after_an_idle_time_news_are_applied_at_once_and_then_at_intervals(monkeypatch):
    source, store = ListSource(), DictStore(DIMS)
    pauses = Pauses(monkeypatch, lambda number: source.add(number, [number]) if number < 20 else None)
    source.add(0, [0])
    with make_ingestion(source, store, IngestionOptions(interval_s=3600, poll_timeout_ms=5)) as ingestion:
        wait_until(lambda: len(pauses.seconds) > 30)
        assert ingestion.statistics().rows == 1, "the others wait for the next interval"
        wait_until(lambda: source.next[AT] == 20)  # but not at the source
        assert max(pauses.seconds) <= 0.1, "where they are taken a few at a time"
        wait_until(lambda: source.committed)  # what is applied is committed meanwhile
        assert ingestion.drain(TIMEOUT_S)
        assert ingestion.statistics().rows == 20


def test_close_does_not_wait_for_the_end_of_a_backlog(monkeypatch):
    source, polls = ListSource(), []

    def poll_without_end(most, _timeout_s):
        polls.append(most)
        if len(polls) == 10:
            ingestion._closing.set()
        return [Delivery(AT, len(polls), None, "broken", b"x")]

    with make_ingestion(source, DictStore(DIMS), IngestionOptions(interval_s=3600, poll_timeout_ms=5)) as ingestion:
        monkeypatch.setattr(source, "poll", poll_without_end)
        wait_until(lambda: source.closed)
    assert [most for most in polls if most] == [64] * 10


def test_between_batches_of_an_interval_others_have_their_turn(monkeypatch):
    source, store = ListSource(), DictStore(DIMS)
    pauses = Pauses(monkeypatch)
    insert = store.insert
    monkeypatch.setattr(store, "insert", lambda *batch: (time.sleep(0.05), insert(*batch)))
    source.add(0, [0, 1, 2])
    with make_ingestion(
        source, store, IngestionOptions(interval_s=3600, max_batch_size=1, poll_timeout_ms=5)
    ) as ingestion:
        wait_until(lambda: ingestion.statistics().rows == 3 and len(pauses.seconds) >= 3)
    assert min(pauses.seconds[:3]) >= 4 * 0.05, "longer than the batch took, and than news are waited for"


def pauses_alone_take_time(monkeypatch, meanwhile=lambda: None):
    """The clock of ingestions stands but for their pauses, of which none is waited for: these, as they come."""
    wall, pauses = SimpleNamespace(now=1000.0), []

    def pause(ingestion, seconds):
        pauses.append(seconds)
        wall.now += max(seconds, 0.0)
        meanwhile()
        ingestion._closing.wait(0.001)

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: wall.now))
    monkeypatch.setattr(UpdateIngestion, "_pause", pause)
    return pauses


def test_what_the_rate_takes_is_not_taken_for_work(monkeypatch):
    source, store, pauses = ListSource(), DictStore(DIMS), pauses_alone_take_time(monkeypatch)
    source.add(0, [0, 1])
    options = IngestionOptions(max_rows_per_s=2, interval_s=3600, max_batch_size=1, poll_timeout_ms=5)
    with make_ingestion(source, store, options) as ingestion:
        wait_until(lambda: ingestion.statistics().rows == 2 and len(pauses) >= 5)
    assert max(pauses) == 0.5, "four times as long otherwise"


def test_what_comes_within_an_interval_is_applied_together(monkeypatch):
    monkeypatch.setattr(module, "_DRAIN_LAG_S", 0.0)
    source, store = ListSource(), DictStore(DIMS)
    batches, sent = [], itertools.count()

    def send_ten():
        for number in itertools.islice(sent, 10 if len(batches) < 4 else 0):
            source.add(number, [number % 7])

    pauses_alone_take_time(monkeypatch, send_ten)
    send_ten()
    with make_ingestion(
        source,
        store,
        IngestionOptions(interval_s=0.5, poll_timeout_ms=5),
        listener=Listener(lambda *batch: batches.append(batch)),
    ) as ingestion:
        wait_until(lambda: len(batches) >= 4)
        assert ingestion.drain(TIMEOUT_S)
    count = next(sent)
    assert ingestion.statistics().rows == count > 100, "all that came is counted"
    assert sum(len(keys) for _, keys, *_ in batches) < count / 2, "of a key's rows in an interval one is applied"


def test_what_is_there_is_drained_while_more_comes():
    source, store, stop = ListSource(DIMS), DictStore(DIMS), threading.Event()
    for number in range(300):
        source.add(number, [number], table="items")

    def send():
        for number in itertools.count():
            source.add(number, [0], stamp=number)
            if stop.wait(0.001):
                return

    sender = threading.Thread(target=send)
    with make_ingestion(source, store) as ingestion:
        sender.start()
        try:
            assert ingestion.drain(TIMEOUT_S)
            assert store.size("items") == 300
            assert sender.is_alive()
        finally:
            stop.set()
            sender.join()


@pytest.mark.parametrize("ahead_s", [-3600.0, 0.0, 3600.0])
def test_drained_is_what_the_log_had_whatever_the_clocks_of_trainers_say(monkeypatch, ahead_s):
    monkeypatch.setattr(module, "_DRAIN_LAG_S", 0.0)
    source, store, asked = ListSource(DIMS), DictStore(DIMS), threading.Event()
    for number in range(300):
        source.add(number, [number], sent_s=time.time() + ahead_s)
    insert, more = store.insert, itertools.count()

    def insert_while_more_comes(table, keys, rows):
        assert asked.wait(TIMEOUT_S)
        source.add(next(more), [0], table="items", sent_s=time.time() + ahead_s)
        insert(table, keys, rows)

    store.insert = insert_while_more_comes
    options = IngestionOptions(failure_backoff_ms=1, poll_timeout_ms=5, max_batch_size=10)
    with make_ingestion(source, store, options) as ingestion:
        wait = ingestion._drains._changed.wait_for
        ingestion._drains._changed.wait_for = lambda *arguments: asked.set() or wait(*arguments)
        assert ingestion.drain(TIMEOUT_S)
        assert store.size("users") == 300
        assert source.committed[AT] == 299


def test_what_a_store_made_anew_lacks_is_not_drained_though_the_group_has_committed_it(monkeypatch):
    monkeypatch.setattr(module, "_DRAIN_LAG_S", 0.0)
    source, go_on = ListSource(DIMS), threading.Event()
    with make_ingestion(source, DictStore(DIMS)) as ingestion:
        source.add(0, [1])
        assert ingestion.drain(TIMEOUT_S)
    store = DictStore(DIMS)
    store.positions, store.marks = dict, dict
    store.apply = lambda table, keys, rows, _position, **_: go_on.wait(TIMEOUT_S) and store.insert(table, keys, rows)
    with make_ingestion(source, store) as ingestion:
        assert not ingestion.drain(0.05)
        go_on.set()
        assert ingestion.drain(TIMEOUT_S)
        assert set(rows_of(store)) == {1}


def test_more_than_is_kept_in_memory_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(module, "_WAITING_BYTES", 1)
    source, store = ListSource(), DictStore(DIMS)
    pauses = Pauses(monkeypatch)
    for number in range(300):
        source.add(number, [number])
    with make_ingestion(source, store, IngestionOptions(interval_s=3600, poll_timeout_ms=5)) as ingestion:
        wait_until(lambda: ingestion.statistics().rows == 300)
    assert not pauses.seconds


def test_a_source_that_hands_over_little_at_a_time_is_asked_until_it_has_no_more(monkeypatch):
    source, store = ListSource(), DictStore(DIMS)
    poll, batches = source.poll, []
    monkeypatch.setattr(source, "poll", lambda most, timeout_s: poll(min(most, 3), timeout_s))
    Pauses(monkeypatch)
    for number in range(150):
        source.add(number, [number])
    options = IngestionOptions(interval_s=3600, poll_timeout_ms=5)
    with make_ingestion(source, store, options, listener=Listener(lambda *batch: batches.append(batch))) as ingestion:
        wait_until(lambda: batches)
        assert ingestion.statistics().rows == 150
    assert len(batches) == 1
