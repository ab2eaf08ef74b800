"""Kafka as tests ask it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import confluent_kafka
import numpy as np

from hebe.embeddings.updates.contract import TopicPartition, UpdateMessage, UpdateSource
from hebe.embeddings.updates.kafka.log import KafkaOptions, topic_name
from hebe.embeddings.updates.message import encode
from tests.servers.kafka_broker import KafkaBroker

from .update_conformance import TIMEOUT_S


def quick(broker: KafkaBroker, **changed: object) -> KafkaOptions:
    """Mock brokers make topics by themselves, of 4 partitions."""
    fast = {"metadata_refresh_interval_ms": 200, "create_topics": False}
    return KafkaOptions(broker.brokers, **{**fast, **changed})


def poll_on(source: UpdateSource) -> None:
    """Poll until that fails."""
    end_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end_s:
        source.poll(10, 0.1)


def messages_in_transactions(broker: KafkaBroker, at: TopicPartition) -> Iterator[int]:
    """Each time that it is asked one more message, in a transaction of its own, of which the log keeps a mark behind
    it: as of what MirrorMaker copies. Gives the message's offset.
    """
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.brokers, "transactional.id": "mirror"})
    producer.init_transactions(TIMEOUT_S)
    sequence = 0
    while True:
        keys = np.array([sequence])
        message = UpdateMessage("trainer", sequence, time.time(), keys, keys[:, None].astype(np.float32))
        offsets: list[int] = []
        producer.begin_transaction()
        producer.produce(
            topic_name(at.topic),
            encode(message, at),
            partition=at.partition,
            on_delivery=lambda _fault, sent, offsets=offsets: offsets.append(sent.offset()),
        )
        producer.commit_transaction(TIMEOUT_S)
        yield offsets[0]
        sequence += 1
