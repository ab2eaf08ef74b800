"""Who listens to an ingestion hears of what is in the stores; where there are none, of all that was sent."""

from collections import defaultdict

import pytest

from hebe.embeddings.store import StoreUnavailable
from hebe.embeddings.updates.contract import Delivery
from hebe.embeddings.updates.directory.log import LogDirectory
from hebe.embeddings.updates.ingestion import sequence_check
from hebe.embeddings.updates.ingestion.ingestion import UpdateIngestion
from hebe.embeddings.updates.ingestion.options import IngestionOptions
from tests.embeddings.stores.dict_store import DictStore
from tests.embeddings.updates.conformance.ingestions import (
    AT,
    QUICK,
    TIMEOUT_S,
    Listener,
    make_ingestion,
    rows_of,
    wait_until,
)
from tests.embeddings.updates.conformance.list_source import DIMS, ListSource
from tests.embeddings.updates.conformance.update_conformance import USERS, push


def test_the_listener_hears_of_what_is_in_the_store(caplog):
    source, store, heard = ListSource(), DictStore(DIMS), []

    def listener(table, keys, rows, place):
        assert (place.offsets == place.position).all()
        stored = [
            None if key not in store.tables[table] else store.tables[table][key].tolist() for key in keys.tolist()
        ]
        heard.append((table, keys.tolist(), stored == [None] if rows is None else stored == rows.tolist()))
        raise RuntimeError("of the listener's own")

    source.add(0, [1, 2])
    listening = Listener(listener)
    with make_ingestion(source, store, listener=listening) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
        source.add(1, [2], goes=True)
        assert ingestion.drain(TIMEOUT_S)
    assert heard == [("users", [1, 2], True), ("users", [2], True)]
    assert "listener failed" in caplog.text
    assert listening.begun == [(AT, -1, "L")]
    assert listening.announced == [("users", [0, 0]), ("users", [1])]


def test_each_try_to_write_is_announced_and_only_what_is_written_is_said_to_be():
    source, store, written = ListSource(), DictStore(DIMS), []
    store.fault = StoreUnavailable("away")
    source.add(0, [1])
    listening = Listener(lambda *what: written.append(what))
    with make_ingestion(source, store, listener=listening) as ingestion:
        wait_until(lambda: len(listening.announced) >= 3)
        assert not written
        store.fault = None
        assert ingestion.drain(TIMEOUT_S)
    assert len(written) == 1
    assert set(map(str, listening.announced)) == {str(("users", [0]))}


@pytest.mark.parametrize("identity", ["L", "another"])
def test_a_listener_is_told_where_a_log_begins_again(identity):
    source, written = ListSource(), []
    source.add(0, [1])
    listening = Listener(lambda *what: written.append((what[1].tolist(), what[3].position)))
    with make_ingestion(source, DictStore(DIMS), listener=listening) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
        with source.lock:
            source.lose_end(0, identity)
            source.add(0, [2], producer="q")
        assert ingestion.drain(TIMEOUT_S)
    assert listening.begun == [(AT, -1, "L"), (AT, -1, identity)]
    assert written == [([1], 0), ([2], 0)]


def test_without_stores_the_listener_hears_of_all():
    source, heard = ListSource(DIMS), defaultdict(list)
    source.add(0, [1, 2])
    source.add(0, [3], table="items", goes=True)
    source.add(1, [4], dim=9)
    options = IngestionOptions(failure_backoff_ms=1, poll_timeout_ms=5, max_batch_size=1)

    def listener(table, keys, rows, _place):
        heard[table] += [(key, rows is None) for key in keys.tolist()]

    with UpdateIngestion(source, {}, "m", DIMS, options, listener=Listener(listener)) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert heard == {"users": [(1, False), (2, False)], "items": [(3, True)]}
    statistics = ingestion.statistics()
    assert (statistics.messages, statistics.rows, statistics.deletes, statistics.poison) == (2, 2, 1, 1)
    assert {tier: seen.answers for tier, seen in statistics.visible.items()} == {"cache": 2}


def test_a_listener_reports_nothing_and_begins_with_the_newest(tmp_path):
    log, store, heard = LogDirectory(tmp_path / "log"), DictStore(DIMS), []
    push(log, range(50))
    source = log.source(None, [USERS], newest=True)

    def listener(table, keys, rows, _place):
        heard.append((table, keys.tolist(), rows.tolist()))

    listening = Listener(listener)
    with UpdateIngestion(source, {}, "m", DIMS, QUICK, listener=listening) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
        assert not heard
        assert {at: position for at, position, _ in listening.begun} == {
            at: source.last_offset(at) for at in source.assigned()
        }
        with make_ingestion(log.source("shared", [USERS]), store) as writing:
            push(log, range(100, 120), 3.0)
            assert writing.drain(TIMEOUT_S)
            assert ingestion.drain(TIMEOUT_S)
    assert {table for table, _, _ in heard} == {"users"}
    told = {key: row for _, keys, rows in heard for key, row in zip(keys, rows, strict=True)}
    assert told == {key: row for key, row in rows_of(store).items() if key >= 100}
    assert len(told) == 20
    assert set(rows_of(store)) == {*range(50), *range(100, 120)}
    assert log.readers() == ["shared"]
    assert not listening.announced, "it writes nothing"


def test_a_listener_that_has_missed_something_says_so(monkeypatch):
    """The log may have removed it once those had it who write, and the rows that are listened for are old for good."""
    monkeypatch.setattr(sequence_check, "WAIT_S", 0.02)
    source, heard, asked = ListSource(), [], []
    source.add(0, [0])

    def listener(*news):
        heard.append(news[1].tolist())

    with UpdateIngestion(
        source, {}, "m", DIMS, QUICK, listener=Listener(listener), begin={AT: 0}, missed=lambda: asked.append(0)
    ) as ingestion:
        source.add(1, [1])
        assert ingestion.drain(TIMEOUT_S)
        assert not asked
        source.put(Delivery(AT, 0, None, "messages 2 to 4 were removed from the log"))
        wait_until(lambda: asked)
        source.add(2, [2])
        source.put(Delivery(AT, 0, None, "truncated", b"xyz"))
        assert ingestion.drain(TIMEOUT_S)
        assert len(asked) == 1, "who writes could not apply that either"
        source.add(4, [4])
        assert ingestion.drain(TIMEOUT_S)
        assert len(asked) == 1, "nor has who writes what its producer's numbers lack"
    assert heard == [[1], [2], [4]]


def test_a_log_that_is_away_as_a_listener_begins_is_told_again_where_that_is(monkeypatch):
    source, heard, away = ListSource(), [], [StoreUnavailable("away")]
    for number in range(4):
        source.add(number, [number])
    source.next[AT] = 4  # after the newest
    seek = source.seek

    def seek_or_fail(at, offset):
        if away:
            raise away.pop()
        seek(at, offset)

    monkeypatch.setattr(source, "seek", seek_or_fail)

    def listener(*news):
        heard.append(news[1].tolist())

    with UpdateIngestion(source, {}, "m", DIMS, QUICK, listener=Listener(listener), begin={AT: 1}) as ingestion:
        wait_until(lambda: heard)
        assert ingestion.drain(TIMEOUT_S)
    assert heard == [[2, 3]]
