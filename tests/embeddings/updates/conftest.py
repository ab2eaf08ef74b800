"""Brokers of a test's own, to be broken."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.kafka_broker import KafkaBroker
from tests.servers.redis_servers import RedisServer


@pytest.fixture
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture
def own() -> Iterator[RedisServer]:
    """A server to be broken."""
    with RedisServer(options=["appendonly yes", "appendfsync always"]) as server:
        yield server


@pytest.fixture
def small() -> Iterator[RedisServer]:
    with RedisServer(options=["maxmemory 12mb", "maxmemory-policy noeviction"]) as server:
        yield server
