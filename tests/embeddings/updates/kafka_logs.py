"""Kafka as tests ask it."""

from __future__ import annotations

import time

from hebe.embeddings.updates.contract import UpdateSource
from hebe.embeddings.updates.kafka import KafkaOptions

from ...kafka_broker import (
    KafkaBroker,
)
from .update_conformance import (
    TIMEOUT_S,
)


def quick(broker: KafkaBroker, **changed: object) -> KafkaOptions:
    """Mock brokers make topics by themselves, of 4 partitions. They wait a session at most for members to join anew."""
    fast = {"metadata_refresh_interval_ms": 200, "session_timeout_ms": 1500, "create_topics": False}
    return KafkaOptions(broker.brokers, **{**fast, **changed})


def poll_on(source: UpdateSource) -> None:
    """Poll until that fails."""
    end_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end_s:
        source.poll(10, 0.1)
