from __future__ import annotations

import contextlib
import time

import pytest

from hebe.embeddings.store import StoreError, StoreUnavailable
from hebe.embeddings.updates import partitioned_source
from hebe.embeddings.updates.contract import Delivery, TopicPartition, UpdateSource
from hebe.embeddings.updates.ingestion.ingestion import UpdateIngestion
from hebe.embeddings.updates.kafka.log import KafkaLog
from tests.embeddings.stores.dict_store import DictStore
from tests.embeddings.updates.conformance.kafka_logs import messages_in_transactions, poll_on, quick
from tests.embeddings.updates.conformance.update_conformance import (
    TIMEOUT_S,
    USERS,
    assert_in_order,
    last_offsets,
    push,
    tables_of,
    take,
    take_rows,
)
from tests.servers.kafka_broker import (
    API_FETCH,
    API_OFFSET_COMMIT,
    NOT_LEADER_FOR_PARTITION,
    REQUEST_TIMED_OUT,
    TOPIC_AUTHORIZATION_FAILED,
    KafkaBroker,
)


def test_a_source_says_that_the_brokers_are_away_and_goes_on(broker: KafkaBroker) -> None:
    log = KafkaLog(quick(broker, request_timeout_s=0.5))
    push(log, range(20))
    source = log.source("g", [USERS])
    source.commit(last_offsets(take_rows(source, 20)))
    broker.down()
    with pytest.raises(StoreUnavailable, match="Kafka"):
        poll_on(source)
    with pytest.raises(StoreUnavailable, match="Kafka"):
        log.reader_lag("g")
    broker.up()
    expected = push(log, range(20), 3.0)
    found: list[Delivery] = []
    end_s = time.monotonic() + TIMEOUT_S
    while sum(len(d.message.keys) for d in found if d.message) < 20:
        assert time.monotonic() < end_s
        with contextlib.suppress(StoreUnavailable):
            found += source.poll(10, 0.1)
    assert tables_of(found) == {"users": expected}
    source.close()


def test_a_fetch_that_fails_leaves_nothing_out(broker: KafkaBroker) -> None:
    log = KafkaLog(quick(broker))
    expected = push(log, range(60))
    source = log.source("g", [USERS])
    broker.fail_next(API_FETCH, NOT_LEADER_FOR_PARTITION, REQUEST_TIMED_OUT)
    found = take_rows(source, 60)
    assert_in_order(found)
    assert tables_of(found) == {"users": expected}
    source.close()


def test_a_commit_that_fails_is_made_good_by_the_next(broker: KafkaBroker) -> None:
    log = KafkaLog(quick(broker, request_timeout_s=1.0))
    push(log, range(20))
    source = log.source("g", [USERS])
    offsets = last_offsets(take_rows(source, 20))
    broker.fail_next(API_OFFSET_COMMIT, *[REQUEST_TIMED_OUT] * 20)
    with pytest.raises(StoreUnavailable, match="commit"):
        source.commit(offsets)
    assert any(log.reader_lag("g").values())
    broker.fail_next(API_OFFSET_COMMIT)
    end_s = time.monotonic() + TIMEOUT_S
    while any(log.reader_lag("g").values()):
        assert time.monotonic() < end_s
        with contextlib.suppress(StoreUnavailable):
            source.commit(offsets)
    assert not any(log.reader_lag("g").values())
    source.close()


def test_a_commit_that_no_thread_was_there_for_is_made_good_by_the_next(broker: KafkaBroker, threads_refused) -> None:
    log = KafkaLog(quick(broker))
    push(log, range(20))
    source = log.source("g", [USERS])
    offsets = last_offsets(take_rows(source, 20))
    threads_refused.add("hebe-kafka-commit")
    with pytest.raises(StoreUnavailable, match="a commit cannot be sent: can't start new thread"):
        source.commit(offsets)
    threads_refused.clear()
    source.commit(offsets)
    assert not any(log.reader_lag("g").values())
    source.close()


def test_a_source_of_which_no_commit_could_be_sent_is_closed(broker: KafkaBroker, threads_refused) -> None:
    log = KafkaLog(quick(broker))
    push(log, range(20))
    source = log.source("g", [USERS])
    offsets = last_offsets(take_rows(source, 20))
    threads_refused.add("hebe-kafka-commit")
    with pytest.raises(StoreUnavailable, match="a commit cannot be sent"):
        source.commit(offsets)
    source.close()


def test_what_a_server_may_not_read_is_said_at_once(broker: KafkaBroker) -> None:
    log = KafkaLog(quick(broker))
    push(log, range(5))
    source = log.source("g", [USERS])
    broker.fail_next(API_FETCH, *[TOPIC_AUTHORIZATION_FAILED] * 50)
    with pytest.raises(StoreError, match="Kafka refuses: TOPIC_AUTHORIZATION_FAILED") as raised:
        poll_on(source)
    assert not isinstance(raised.value, StoreUnavailable)
    source.close()


@pytest.mark.parametrize("newest", [False, True])
def test_what_the_cluster_removes_while_it_is_read_is_reported(broker: KafkaBroker, newest: bool) -> None:
    broker.create_topic("hebe.m.users", 1)
    log = KafkaLog(quick(broker))
    source = log.source("g", [USERS], newest=newest)
    end_s = time.monotonic() + TIMEOUT_S
    while not source.assigned():
        assert time.monotonic() < end_s
        source.poll(10, 0.1)
    push(log, range(10))
    take_rows(source, 10)
    broker.fail_next(API_FETCH, *[REQUEST_TIMED_OUT] * 30)  # it fetches nothing meanwhile
    time.sleep(0.3)
    expected = push(log, range(100, 150), 1.0)
    broker.delete_records("hebe.m.users", 0, 8)
    found = take(source, lambda found: any(d.message is not None and 149 in d.message.keys for d in found))
    told, *rest = found
    assert told.error is not None
    assert not told.restarts
    assert told.offset == 7
    assert [delivery.offset for delivery in rest] == list(range(8, 8 + len(rest)))
    assert tables_of(rest) == {"users": {key: row for key, row in expected.items() if key >= 130}}
    assert source.lost_beginning(told.at) is None
    source.close()


def test_partitions_that_are_added_are_read_from_their_beginning(
    broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Mock brokers cannot add any, so an empty topic is made anew with more, which looks the same from here."""
    broker.create_topic("hebe.m.users", 2)
    log = KafkaLog(quick(broker))
    source = log.source("g", [USERS], newest=True)
    end_s = time.monotonic() + TIMEOUT_S
    while len(source.assigned()) < 2:
        assert time.monotonic() < end_s
        assert not source.poll(10, 0.1)
    broker.delete_topic("hebe.m.users")
    broker.create_topic("hebe.m.users", 4)
    expected = push(log, range(40))
    found = take(source, lambda found: tables_of(found).get("users") == expected)
    assert_in_order(found)
    assert {delivery.at.partition for delivery in found} == {0, 1, 2, 3}
    assert all(source.lost_beginning(delivery.at) is None for delivery in found)
    assert "topic hebe.m.users has 4 partitions now and had 2" in caplog.text
    assert caplog.text.count("partitions now") == 1
    source.close()


def test_a_topic_that_begins_again_is_read_from_its_beginning(broker: KafkaBroker) -> None:
    broker.create_topic("hebe.m.users", 1)
    log = KafkaLog(quick(broker))
    push(log, range(20))
    source = log.source("g", [USERS])
    take_rows(source, 20, commit=True)
    broker.delete_topic("hebe.m.users")
    broker.create_topic("hebe.m.users", 1)
    expected = push(log, range(10), 1.0)
    found = take(source, lambda found: sum(len(d.message.keys) for d in found if d.message) >= 10)
    assert [d.restarts for d in found if d.message is None] == [True]
    assert found[0].restarts
    assert tables_of(found[1:]) == {"users": expected}
    source.commit(last_offsets(found))
    assert not any(source.lag().values())
    source.close()


AT = TopicPartition("m", "users", 0)


def is_behind(source: UpdateSource) -> bool:
    assert not source.poll(10, 0.1)
    return any(source.lag().values())


@pytest.mark.parametrize("commits_at_once", [True, False])
def test_marks_of_transactions_are_no_messages_that_a_reader_lacks(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch, commits_at_once: bool
) -> None:
    monkeypatch.setattr(partitioned_source, "REPORT_S", 0.0)
    broker.create_topic("hebe.m.users", 1)
    messages, log = messages_in_transactions(broker, AT), KafkaLog(quick(broker))
    assert [next(messages), next(messages)] == [0, 2]
    with contextlib.closing(log.source("g", [USERS])) as source:
        assert [d.offset for d in take_rows(source, 2, commit=commits_at_once)] == [0, 2]
        take(source, lambda _: source.last_offset(AT) == 2)
        if not commits_at_once:
            assert source.lag()[AT] > 0
            source.commit({AT: 0})
            assert source.lag()[AT] > 0, "one is left"
            source.commit({AT: 2})
            assert log.reader_lag("g") == {AT: 0}
        take(source, lambda _: not is_behind(source) and log.reader_lag("g") == {AT: 0})
        assert next(messages) == 4
        assert (log.reader_lag("g"), source.lag()) == ({AT: 2}, {AT: 2})
        [last] = take_rows(source, 1)
        assert last.offset == 4
        source.seek(AT, 0)
        assert source.last_offset(AT) == 5, "it is not known yet, once more"
        assert [d.offset for d in take_rows(source, 2)] == [2, 4]
        take(source, lambda _: source.last_offset(AT) == 4)


@pytest.mark.parametrize("newest", [True, False])
def test_a_reader_of_its_own_has_all_that_ends_with_a_mark(broker: KafkaBroker, newest: bool) -> None:
    broker.create_topic("hebe.m.users", 1)
    messages = messages_in_transactions(broker, AT)
    assert next(messages) == 0
    with contextlib.closing(KafkaLog(quick(broker)).source(None, [USERS], newest=newest)) as source:
        source.commit(last_offsets(take_rows(source, 0 if newest else 1)))
        take(source, lambda _: bool(source.assigned()) and not is_behind(source))
        assert next(messages) == 2
        [found] = take_rows(source, 1)
        source.commit({AT: found.offset})
        take(source, lambda _: not is_behind(source))
        assert source.last_offset(AT) == 2


def test_a_server_has_caught_up_with_a_log_that_ends_with_a_mark(broker: KafkaBroker) -> None:
    broker.create_topic("hebe.m.users", 1)
    assert next(messages_in_transactions(broker, AT)) == 0
    log, store = KafkaLog(quick(broker)), DictStore({"users": 1})
    with UpdateIngestion(log.source("g", [USERS]), {"volatile": store}, "m", {"users": 1}) as ingestion:
        assert ingestion.catch_up(TIMEOUT_S)
        assert store.size("users") == 1
        assert not any(log.reader_lag("g").values())
