"""What every `UpdateLog` must do, whatever carries it. A log's tests subclass `UpdateLogConformance`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from hebe.embeddings.updates import partitioned_source
from hebe.embeddings.updates.contract import Delivery, Topic, TopicPartition, UpdateLog, UpdateSource
from hebe.embeddings.updates.limits import BatchingOptions
from hebe.embeddings.updates.producer import UpdateCarrier

USERS, ITEMS = Topic("m", "users"), Topic("m", "items")
TIMEOUT_S = 20.0
SMALL = BatchingOptions(max_rows=5, linger_s=0.01)


def take(source: UpdateSource, done: Callable[[list[Delivery]], bool], commit: bool = False) -> list[Delivery]:
    """Poll until `done`, as it must be within TIMEOUT_S."""
    found: list[Delivery] = []
    end_s = time.monotonic() + TIMEOUT_S
    while not done(found):
        assert time.monotonic() < end_s, f"only {len(found)} messages came"
        news = source.poll(10, 0.2)
        assert len(news) <= 10
        found += news
        if commit and news:
            source.commit(last_offsets(news))
    return found


def take_rows(source: UpdateSource, keys: int, commit: bool = False) -> list[Delivery]:
    """Poll until so many keys have come."""
    return take(source, lambda found: sum(len(d.message.keys) for d in found if d.message) >= keys, commit)


def last_offsets(deliveries: Iterable[Delivery]) -> dict[TopicPartition, int]:
    return {delivery.at: delivery.offset for delivery in deliveries}


def tables_of(deliveries: Iterable[Delivery]) -> dict[str, dict[int, list[float]]]:
    """What the messages make of the tables, applied in the order given."""
    tables: dict[str, dict[int, list[float]]] = {}
    for delivery in deliveries:
        message = delivery.message
        assert message is not None, delivery.error
        table = tables.setdefault(delivery.at.table, {})
        for place, key in enumerate(message.keys.tolist()):
            if message.rows is None:
                table.pop(key, None)
            else:
                table[key] = message.rows[place].tolist()
    return tables


def assert_in_order(deliveries: Iterable[Delivery]) -> None:
    """Offsets grow, and each producer's numbers are without a gap, in each partition."""
    offsets: dict[TopicPartition, int] = {}
    numbers: dict[tuple[TopicPartition, str], int] = {}
    for delivery in deliveries:
        assert delivery.offset > offsets.get(delivery.at, -1)
        offsets[delivery.at] = delivery.offset
        assert delivery.message is not None
        name = (delivery.at, delivery.message.producer)
        assert delivery.message.sequence == numbers.get(name, -1) + 1
        numbers[name] = delivery.message.sequence


def rows_for(keys: np.ndarray, stamp: float, dim: int = 3) -> np.ndarray:
    return np.asarray(keys[:, None] * 10 + stamp + np.arange(dim), np.float32)


def push(log: UpdateLog, keys: Iterable[int], stamp: float = 0.0, topic: Topic = USERS) -> dict[int, list[float]]:
    """Send rows in small messages; returns them."""
    array = np.array(list(keys), np.int64)
    rows = rows_for(array, stamp)
    producer = log.producer(SMALL)
    producer.send(topic.model, topic.table, array, rows)
    producer.close()
    return dict(zip(array.tolist(), rows.tolist(), strict=True))


class UpdateLogConformance:
    """Subclasses define the fixture `make_log`: a callable that gives an empty log of at least 2 partitions a topic,
    and `carrier_of`: a carrier of such a log. Logs are closed by the fixture.
    """

    def test_all_comes_in_order(self, make_log: Callable[[], UpdateLog]) -> None:
        log, rng = make_log(), np.random.default_rng(0)
        expected: dict[str, dict[int, list[float]]] = {"users": {}, "items": {}}
        producer, sent = log.producer(SMALL), 0
        for stamp in range(12):
            table = ("users", "items")[stamp % 2]
            keys = rng.integers(-(2**63), 2**63 - 1, 20) if stamp < 4 else np.array(sorted(expected[table]))[::3]
            sent += len(keys)
            if stamp % 5 == 4:
                producer.delete("m", table, keys)
                for key in keys.tolist():
                    expected[table].pop(key, None)
            else:
                rows = rows_for(keys, stamp, 3 if table == "users" else 1)
                producer.send("m", table, keys, rows)
                expected[table].update(zip(keys.tolist(), rows.tolist(), strict=True))
        producer.close()
        source = log.source("g", [USERS, ITEMS])
        found = take_rows(source, sent)
        assert not source.poll(10, 0.1)
        assert_in_order(found)
        assert tables_of(found) == expected
        assert {delivery.at for delivery in found} <= source.assigned()
        source.close()

    def test_every_reader_has_all_partitions_from_the_oldest_message_on(
        self, make_log: Callable[[], UpdateLog]
    ) -> None:
        """Nothing of the log says where a reader begins, whatever it has reported."""
        log = make_log()
        expected = push(log, range(30))
        for reader in ("one", "other", "one", None):
            source = log.source(reader, [USERS])
            assert tables_of(take_rows(source, 30, commit=True)) == {"users": expected}
            assert len(source.assigned()) >= 2
            assert {source.begun_after(at) for at in source.assigned()} == {-1}
            assert not any(source.lag().values())
            source.close()

    def test_two_at_once_have_the_same(self, make_log: Callable[[], UpdateLog]) -> None:
        log = make_log()
        sources = [log.source(reader, [USERS]) for reader in ("one", "other")]
        expected = push(log, range(30))
        for source in sources:
            assert tables_of(take_rows(source, 30)) == {"users": expected}
        assert sources[0].assigned() == sources[1].assigned()
        for source in sources:
            source.close()

    def test_poison_is_told_and_the_rest_goes_on(
        self, make_log: Callable[[], UpdateLog], carrier_of: Callable[[UpdateLog], UpdateCarrier]
    ) -> None:
        log = make_log()
        at = TopicPartition("m", "users", 0)
        carrier = carrier_of(log)
        assert carrier.partitions(USERS) >= 2
        carrier.append(at, b"not a message")
        carrier.append(at, b"HEBU" + bytes(60))
        carrier.flush(TIMEOUT_S)
        carrier.close()
        expected = push(log, range(30))
        source = log.source("g", [USERS])
        found = take(source, lambda found: sum(len(d.message.keys) for d in found if d.message) >= 30)
        poison = [delivery for delivery in found if delivery.message is None]
        assert [delivery.payload for delivery in poison] == [b"not a message", b"HEBU" + bytes(60)]
        assert [delivery.at for delivery in poison] == [at, at]
        assert all(delivery.error for delivery in poison)
        assert poison[0].offset < poison[1].offset
        assert tables_of(delivery for delivery in found if delivery.message) == {"users": expected}
        source.close()

    def test_what_a_reader_reports_is_what_it_lacks(self, make_log: Callable[[], UpdateLog]) -> None:
        log = make_log()
        push(log, range(50))
        source = log.source("g", [USERS])
        found = take_rows(source, 50)
        by_part: dict[TopicPartition, list[Delivery]] = {}
        for delivery in found:
            by_part.setdefault(delivery.at, []).append(delivery)
        assert {at: lag for at, lag in source.lag().items() if lag} == {at: len(d) for at, d in by_part.items()}
        source.commit({at: deliveries[0].offset for at, deliveries in by_part.items()})
        expected = {at: len(deliveries) - 1 for at, deliveries in by_part.items()}
        assert {at: source.lag()[at] for at in by_part} == expected
        reported = log.reader_lag("g")
        assert {at: reported[at] for at in by_part} == expected
        source.commit(last_offsets(found))
        source.commit({TopicPartition("m", "nobody", 0): 3})
        source.commit({at: deliveries[-1].offset + 1 for at, deliveries in by_part.items()})
        assert not any(source.lag().values()), "what was not handed over cannot be applied"
        assert not any(log.reader_lag("g").values())
        source.close()
        push(log, range(50))
        assert sum(log.reader_lag("g").values()) > 0
        assert log.reader_lag("nobody") == {}
        self.assert_readers(log, ["g"])

    def assert_readers(self, log: UpdateLog, expected: list[str]) -> None:
        assert list(log.readers()) == expected

    def test_a_reader_without_a_name_reports_nothing(self, make_log: Callable[[], UpdateLog]) -> None:
        log = make_log()
        push(log, range(30))
        reader = log.source(None, [USERS])
        take_rows(reader, 30, commit=True)
        assert not any(reader.lag().values())
        reader.close()
        self.assert_readers(log, [])

    def test_a_report_is_repeated_and_follows_a_seek(
        self, make_log: Callable[[], UpdateLog], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The store is made anew, say, and has less than it had."""
        log = make_log()
        push(log, range(30))
        source = log.source("g", [USERS])
        found = take_rows(source, 30, commit=True)
        assert not any(log.reader_lag("g").values())
        for at in source.assigned():
            source.seek(at, -1)
        source.poll(0, 0.0)
        assert sum(log.reader_lag("g").values()) in (len(found), 0), "Kafka commits no less than the first offset"
        monkeypatch.setattr(partitioned_source, "REPORT_S", 0.0)
        take_rows(source, 30, commit=True)
        for _ in range(2):
            source.poll(0, 0.0)
        assert not any(log.reader_lag("g").values())
        source.close()

    def test_a_source_goes_where_it_is_told(self, make_log: Callable[[], UpdateLog]) -> None:
        log = make_log()
        push(log, range(60))
        source = log.source("g", [USERS])
        found = take_rows(source, 60, commit=True)
        at = found[0].at
        offsets = [delivery.offset for delivery in found if delivery.at == at]
        source.seek(at, -1)
        again = take(source, lambda news: len(news) >= len(offsets))
        assert [(d.at, d.offset) for d in again] == [(at, offset) for offset in offsets]
        source.seek(at, offsets[1])
        again = take(source, lambda news: len(news) >= len(offsets) - 2)
        assert [d.offset for d in again] == offsets[2:]
        source.close()

    def test_who_begins_with_the_newest_has_what_comes_then(self, make_log: Callable[[], UpdateLog]) -> None:
        log = make_log()
        push(log, range(30))
        reader = log.source(None, [USERS], newest=True)
        assert not reader.poll(10, 1.0)
        assert not any(reader.lag().values())
        assert {at: reader.begun_after(at) for at in reader.assigned()} == {
            at: reader.last_offset(at) for at in reader.assigned()
        }
        expected = push(log, range(5), 7.0)
        assert tables_of(take_rows(reader, 5)) == {"users": expected}
        reader.close()

    def test_a_reader_has_before_it_what_it_is_sent_back_to(self, make_log: Callable[[], UpdateLog]) -> None:
        log = make_log()
        expected = push(log, range(30))
        reader = log.source(None, [USERS], newest=True)
        assert not reader.poll(10, 1.0)
        for at in reader.assigned():
            reader.seek(at, -1)
        left = reader.lag()
        found = take_rows(reader, 30, commit=True)
        assert tables_of(found) == {"users": expected}
        assert sum(left.values()) == len(found)
        assert not any(reader.lag().values())
        reader.close()

    @pytest.mark.parametrize("newest", [False, True])
    def test_a_topic_may_come_later(self, make_log: Callable[[], UpdateLog], newest: bool) -> None:
        """All of it is new then."""
        log = make_log()
        assert list(log.topics()) == []
        source = log.source("g", [USERS, ITEMS], newest=newest)
        assert list(source.poll(10, 0.1)) == []
        expected = push(log, range(20), topic=ITEMS)
        assert sum(source.lag().values()) > 0, "it looks for what is new"
        assert tables_of(take_rows(source, 20)) == {"items": expected}
        assert ITEMS in log.topics()
        source.close()

    def test_a_poll_of_nothing_hands_over_nothing(self, make_log: Callable[[], UpdateLog]) -> None:
        log = make_log()
        push(log, range(30))
        source = log.source("g", [USERS])
        found = take(source, lambda found: len(found) >= 1)
        for _ in range(5):
            assert not source.poll(0, 0.0)
        found += take_rows(source, 30 - sum(len(d.message.keys) for d in found if d.message))
        assert_in_order(found)
        source.close()
        source.close()

    def test_it_says_how_far_a_partition_goes_whatever_was_read_of_it(self, make_log: Callable[[], UpdateLog]) -> None:
        log = make_log()
        push(log, range(1))
        source = log.source("g", [USERS])
        [first] = take_rows(source, 1)
        assert source.last_offset(first.at) == first.offset
        others = source.assigned() - {first.at}
        assert others
        assert {source.last_offset(at) for at in others} == {-1}, "there is nothing in them"
        push(log, range(100))
        ends = {at: source.last_offset(at) for at in source.assigned()}
        assert ends == last_offsets(take_rows(source, 100))
        source.seek(first.at, first.offset)
        assert source.last_offset(first.at) == ends[first.at]
        source.close()

    def test_a_log_has_a_name(self, make_log: Callable[[], UpdateLog]) -> None:
        log = make_log()
        push(log, range(3))
        one, other = log.source("one", [USERS]), log.source(None, [ITEMS])
        assert one.log_identity() == other.log_identity() == log.identity() != ""
        one.close()
        other.close()
