from __future__ import annotations

import contextlib
import time

import numpy as np
import pytest

from hebe.embeddings.store import StoreError, StoreUnavailable
from hebe.embeddings.updates.boot_clock import boot_s
from hebe.embeddings.updates.contract import Delivery, TopicPartition, UpdateSource
from hebe.embeddings.updates.group_progress import GroupProgress, ends_and_committed
from hebe.embeddings.updates.ingestion.ingestion import UpdateIngestion
from hebe.embeddings.updates.kafka.log import KafkaLog
from hebe.embeddings.updates.limits import BatchingOptions
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
    API_HEARTBEAT,
    API_OFFSET_COMMIT,
    NOT_LEADER_FOR_PARTITION,
    REBALANCE_IN_PROGRESS,
    REQUEST_TIMED_OUT,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_MEMBER_ID,
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
        log.group_lag("g")
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
    assert sum(source.lag().values()) > 0
    broker.fail_next(API_OFFSET_COMMIT)
    end_s = time.monotonic() + TIMEOUT_S
    while any(source.lag().values()):
        assert time.monotonic() < end_s
        with contextlib.suppress(StoreUnavailable):
            source.commit(offsets)
    assert not any(log.group_lag("g").values())
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
    assert not any(log.group_lag("g").values())
    source.close()


def test_a_source_of_which_no_commit_could_be_sent_leaves_its_group(broker: KafkaBroker, threads_refused) -> None:
    log = KafkaLog(quick(broker))
    push(log, range(20))
    source = log.source("g", [USERS])
    offsets = last_offsets(take_rows(source, 20))
    threads_refused.add("hebe-kafka-commit")
    with pytest.raises(StoreUnavailable, match="a commit cannot be sent"):
        source.commit(offsets)
    source.close()
    other = log.source("g", [USERS])
    take_rows(other, 20)
    other.close()


def test_what_a_server_may_not_read_is_said_at_once(broker: KafkaBroker) -> None:
    log = KafkaLog(quick(broker))
    push(log, range(5))
    source = log.source("g", [USERS])
    broker.fail_next(API_FETCH, *[TOPIC_AUTHORIZATION_FAILED] * 50)
    with pytest.raises(StoreError, match="Kafka refuses: TOPIC_AUTHORIZATION_FAILED") as raised:
        poll_on(source)
    assert not isinstance(raised.value, StoreUnavailable)
    source.close()


def test_what_the_cluster_removed_while_a_group_was_away_is_told(broker: KafkaBroker) -> None:
    """The mock brokers keep some megabytes of a partition, as retention would."""
    broker.create_topic("hebe.m.users", 1)
    log = KafkaLog(quick(broker))
    push(log, range(10))
    source = log.source("g", [USERS])
    source.commit(last_offsets(take_rows(source, 10)[:1]))
    source.close()
    producer = log.producer(BatchingOptions(linger_s=0.0))
    for number in range(30):
        producer.send("m", "users", np.arange(100, 110), np.full((10, 20_000), number, np.float32))
        producer.flush(TIMEOUT_S)
    producer.close()
    source = log.source("g", [USERS])
    found: list[Delivery] = []
    while not found:
        found += source.poll(1, 0.2)
    [told] = found
    assert told.fault == f"messages 1 to {told.offset} were removed from Kafka before this group had read them"
    rest: list[Delivery] = []
    while not rest:
        rest += source.poll(1, 0.2)  # one, so that others are left for the next reader
    assert rest[0].offset == told.offset + 1
    source.commit(last_offsets(found))
    source.commit(last_offsets(rest))
    source.close()
    source = log.source("g", [USERS])
    again = take_rows(source, 10)
    assert again[0].offset == rest[-1].offset + 1
    assert all(delivery.message for delivery in again)
    source.close()


@pytest.mark.parametrize(("group", "newest"), [(None, False), (None, True), ("g", False)])
def test_what_the_cluster_removes_under_a_readers_hands_is_told(
    broker: KafkaBroker, group: str | None, newest: bool
) -> None:
    broker.create_topic("hebe.m.users", 1)
    log = KafkaLog(quick(broker))
    source = log.source(group, [USERS], newest=newest)
    end_s = time.monotonic() + TIMEOUT_S
    while not source.assigned():
        assert time.monotonic() < end_s
        source.poll(10, 0.1)
    push(log, range(10))
    first = take_rows(source, 10)
    here = [source._place(first[0].at)]
    source._consumer.pause(here)  # it fetches nothing meanwhile
    expected = push(log, range(100, 150), 1.0)
    broker.delete_records("hebe.m.users", 0, 8)
    source._consumer.resume(here)
    found = take(source, lambda found: any(d.message is not None and 149 in d.message.keys for d in found))
    told, *rest = found
    whose = "they were read" if group is None else "this group had read them"
    assert told.fault == f"messages {first[-1].offset + 1} to 7 were removed from Kafka before {whose}"
    assert told.offset == 7
    assert [delivery.offset for delivery in rest] == list(range(8, 8 + len(rest)))
    assert tables_of(rest) == {"users": {key: row for key, row in expected.items() if key >= 130}}
    assert source.lost_beginning(told.at) is None
    source.close()


@pytest.mark.parametrize("group", [None, "g"])
def test_partitions_that_are_added_are_read_from_their_beginning(
    broker: KafkaBroker, group: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Mock brokers cannot add any, so an empty topic is made anew with more, which looks the same from here."""
    broker.create_topic("hebe.m.users", 2)
    log = KafkaLog(quick(broker, session_timeout_ms=3000))
    source = log.source(group, [USERS], newest=group is None)
    end_s = time.monotonic() + TIMEOUT_S
    while len(source.assigned()) < 2:
        assert time.monotonic() < end_s
        assert not source.poll(10, 0.1)
    broker.delete_topic("hebe.m.users")
    broker.create_topic("hebe.m.users", 4)
    expected = push(log, range(40))
    found = take(source, lambda found: tables_of(found).get("users") == expected)
    # A group's members may lose partitions and get them back meanwhile, and read again what nobody has committed.
    assert_in_order(found if group is None else {(d.at, d.offset): d for d in found}.values())
    assert {delivery.at.partition for delivery in found} == {0, 1, 2, 3}
    assert all(source.lost_beginning(delivery.at) is None for delivery in found)
    if group is None:
        assert "topic hebe.m.users has 4 partitions now and had 2" in caplog.text
        assert caplog.text.count("partitions now") == 1
    source.close()


def test_who_was_silent_too_long_reads_again_what_it_did_not_commit(broker: KafkaBroker) -> None:
    """As the coordinator says when a session has run out: a machine that stood still is enough."""
    log = KafkaLog(quick(broker))
    expected = push(log, range(40))
    source = log.source("g", [USERS])
    found = take_rows(source, 40)
    committed = last_offsets(found[: len(found) // 2])
    source.commit(committed)
    broker.fail_next(API_HEARTBEAT, UNKNOWN_MEMBER_ID)
    left = {(d.at, d.offset) for d in found if d.offset > committed.get(d.at, -1)}
    again = take(source, lambda news: len(news) >= len(left))
    assert {(d.at, d.offset) for d in again} == left
    assert tables_of([*found, *again]) == {"users": expected}
    source.close()


def test_who_is_held_for_gone_when_it_commits_writes_nothing_any_more(broker: KafkaBroker) -> None:
    log = KafkaLog(quick(broker))
    push(log, range(40))
    with contextlib.closing(log.source("g", [USERS])) as source:
        found = take_rows(source, 40)
        assert source.assigned()
        broker.fail_next(API_OFFSET_COMMIT, UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID)
        source.commit(last_offsets(found))
        assert source.assigned() == frozenset()
        again = take(source, lambda news: len(news) >= len(found))
        assert {(d.at, d.offset) for d in again} == {(d.at, d.offset) for d in found}


def test_a_commit_that_is_owed_outlives_a_question_and_a_failure(broker: KafkaBroker) -> None:
    """Else the group stays behind until the next message comes."""
    log = KafkaLog(quick(broker))
    push(log, range(40))
    with contextlib.closing(log.source("g", [USERS])) as source:
        found = take_rows(source, 40)
        broker.fail_next(API_OFFSET_COMMIT, REBALANCE_IN_PROGRESS, REBALANCE_IN_PROGRESS, TOPIC_AUTHORIZATION_FAILED)
        source.commit(last_offsets(found))  # put off
        source._polled_s -= 60.0
        assert source.assigned()  # asks, and is put off too
        with contextlib.suppress(StoreError):
            source.poll(10, 0.1)  # pays what is owed, and fails
        take(source, lambda _: bool(lag := log.group_lag("g")) and not any(lag.values()))


@pytest.mark.parametrize("known", [True, False])
def test_who_stood_still_asks_the_group_before_it_writes_on(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """The client itself hears only later that the group has given its partitions to others."""
    log = KafkaLog(quick(broker))
    push(log, range(40))
    source = log.source("g", [USERS])
    found = take_rows(source, 40)
    ours = source.assigned()
    still_s = boot_s() + 2.0
    monkeypatch.setattr("hebe.embeddings.updates.kafka.source.boot_s", lambda: still_s)
    source.poll(0, 0.0)  # which is no answer of the group's
    if not known:
        broker.fail_next(API_OFFSET_COMMIT, UNKNOWN_MEMBER_ID)
    assert source.assigned() == (ours if known else frozenset())
    monkeypatch.undo()
    if known:
        assert not source.poll(10, 0.5)
    else:
        again = take(source, lambda news: len(news) >= len(found))
        assert {(d.at, d.offset) for d in again} == {(d.at, d.offset) for d in found}
    source.close()


def test_a_look_that_fails_in_the_middle_leaves_no_partition_out(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("hebe.m.users", 2)
    log = KafkaLog(quick(broker))
    push(log, range(20))
    source = log.source(None, [USERS], newest=True)
    watermarks, asked = source._watermarks, []

    def fail_once(at: TopicPartition) -> tuple[int, int]:
        asked.append(at)
        if len(asked) == 2:
            raise StoreUnavailable("away")
        return watermarks(at)

    monkeypatch.setattr(source, "_watermarks", fail_once)
    with pytest.raises(StoreUnavailable, match="away"):
        source.poll(10, 0.1)
    assert not source.poll(10, 0.1)
    assert {at.partition for at in source.assigned()} == {0, 1}
    expected = push(log, range(20), 1.0)
    assert tables_of(take_rows(source, 20)) == {"users": expected}
    source.close()


AT = TopicPartition("m", "users", 0)


def is_behind(source: UpdateSource) -> bool:
    assert not source.poll(10, 0.1)
    return any(source.lag().values())


@pytest.mark.parametrize("commits_at_once", [True, False])
def test_marks_of_transactions_are_no_messages_that_a_group_lacks(broker: KafkaBroker, commits_at_once: bool) -> None:
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
            assert log.group_lag("g") == {AT: 0}
        take(source, lambda _: not is_behind(source) and log.group_lag("g") == {AT: 0})
        assert next(messages) == 4
        assert (log.group_lag("g"), source.lag()) == ({AT: 2}, {AT: 2})
        [last] = take_rows(source, 1)
        assert last.offset == 4
        source.seek(AT, 0)
        assert source.last_offset(AT) == 5, "it is not known yet, once more"
        assert [d.offset for d in take_rows(source, 2)] == [2, 4]
        take(source, lambda _: source.last_offset(AT) == 4)


def test_who_begins_behind_the_last_message_makes_good_what_the_group_seems_to_lack(broker: KafkaBroker) -> None:
    """As one finds it that died before it knew that there was no more."""
    broker.create_topic("hebe.m.users", 1)
    assert next(messages_in_transactions(broker, AT)) == 0
    log = KafkaLog(quick(broker))
    with contextlib.closing(log.source("g", [USERS])) as source:
        take_rows(source, 1)
        source._assigned[AT].end = None
        source.commit({AT: 0})
    assert log.group_lag("g") == {AT: 1}
    with contextlib.closing(log.source("g", [USERS])) as source:
        take(source, lambda _: bool(source.assigned()) and not is_behind(source) and log.group_lag("g") == {AT: 0})
        assert source.last_offset(AT) == 1


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
        progress = GroupProgress()
        progress.look(1.0, *ends_and_committed(log, [USERS], "g"))
        assert progress.has_all_until_s == 1.0


class _End:
    """As the client tells that it has no more of a partition."""

    def topic(self) -> str:
        return "hebe.m.users"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 1

    def error(self) -> _End:
        return self

    def name(self) -> str:
        return "_PARTITION_EOF"


def test_an_end_that_nobody_has_looked_at_is_no_end_after_a_seek(broker: KafkaBroker) -> None:
    broker.create_topic("hebe.m.users", 1)
    log = KafkaLog(quick(broker))
    push(log, range(5))
    with contextlib.closing(log.source(None, [USERS])) as source:
        take_rows(source, 5)
        source._held.append(_End())
        source.seek(AT, -1)
        assert not source._held
        take_rows(source, 5)
