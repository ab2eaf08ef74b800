from __future__ import annotations

import numpy as np
import pytest

from hebe.embeddings.store import StoreUnavailable
from hebe.embeddings.updates.kafka.log import KafkaLog
from tests.embeddings.updates.conformance.kafka_logs import quick
from tests.embeddings.updates.conformance.update_conformance import (
    SMALL,
    TIMEOUT_S,
    USERS,
    assert_in_order,
    push,
    rows_for,
    tables_of,
    take_rows,
)
from tests.servers.kafka_broker import API_PRODUCE, NOT_LEADER_FOR_PARTITION, REQUEST_TIMED_OUT, KafkaBroker


def test_what_is_sent_while_the_brokers_are_away_arrives_in_order(broker: KafkaBroker) -> None:
    log = KafkaLog(quick(broker))
    producer = log.producer(SMALL)
    keys = np.arange(100)
    producer.send("m", "users", keys[:50], rows_for(keys[:50], 0.0))
    producer.flush(TIMEOUT_S)
    broker.down()
    producer.send("m", "users", keys, rows_for(keys, 1.0))
    with pytest.raises(StoreUnavailable):
        producer.flush(0.3)
    broker.up()
    producer.flush(TIMEOUT_S)
    producer.close()
    source = log.source("g", [USERS])
    found = take_rows(source, 150)
    assert_in_order(found)
    assert tables_of(found) == {"users": dict(zip(keys.tolist(), rows_for(keys, 1.0).tolist(), strict=True))}
    source.close()


def test_refused_messages_are_sent_anew_and_none_is_left_out(broker: KafkaBroker) -> None:
    log = KafkaLog(quick(broker))
    push(log, [0])
    broker.fail_next(API_PRODUCE, NOT_LEADER_FOR_PARTITION, REQUEST_TIMED_OUT, NOT_LEADER_FOR_PARTITION)
    expected = push(log, range(60), 1.0)
    source = log.source("g", [USERS])
    found = take_rows(source, 61)
    distinct = {(d.at, d.message.producer, d.message.sequence): d for d in found if d.message is not None}
    assert sum(len(d.message.keys) for d in distinct.values() if d.message) == 61
    assert tables_of(found) == {"users": expected}
    source.close()


def test_a_trainer_goes_on_with_the_partitions_that_it_began_with(broker: KafkaBroker) -> None:
    broker.create_topic("hebe.m.users", 2)
    log, keys = KafkaLog(quick(broker)), np.arange(40)
    with log.producer(SMALL) as producer:
        producer.send("m", "users", keys, rows_for(keys, 0.0))
        producer.flush(TIMEOUT_S)
        broker.delete_topic("hebe.m.users")
        broker.create_topic("hebe.m.users", 4)
        producer.send("m", "users", keys, rows_for(keys, 1.0))
    source = log.source(None, [USERS])
    assert {delivery.at.partition for delivery in take_rows(source, 40)} == {0, 1}
    push(log, keys.tolist(), 2.0)
    assert {delivery.at.partition for delivery in take_rows(source, 40)} == {0, 1, 2, 3}
    source.close()


def test_what_the_brokers_have_not_confirmed_they_may_have(broker: KafkaBroker) -> None:
    producer, keys = KafkaLog(quick(broker)).producer(SMALL), np.arange(60)
    producer.send("m", "users", keys, rows_for(keys, 0.0))
    producer.flush(TIMEOUT_S)
    broker.down()
    producer.send("m", "users", keys[:20], rows_for(keys[:20], 1.0))
    with pytest.raises(StoreUnavailable):
        producer.flush(0.3)
    assert producer.keys_in_log() == (60, 20)
    broker.up()
    producer.close()
    assert producer.keys_in_log() == (80, 0)
