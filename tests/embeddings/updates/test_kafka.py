"""Updates over Kafka: what every update log does, on mock brokers, and what becomes of it when these fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from hebe.embeddings.store import StoreError
from hebe.embeddings.updates.batching import UpdateCarrier
from hebe.embeddings.updates.contract import UpdateLog
from hebe.embeddings.updates.kafka import KafkaLog, KafkaOptions
from hebe.embeddings.updates.kafka_carrier import KafkaCarrier

from ...kafka_broker import KafkaBroker
from .fault_conformance import FaultConformance
from .update_conformance import UpdateLogConformance


def quick(broker: KafkaBroker, **changed: object) -> KafkaOptions:
    """Mock brokers make topics by themselves, of 4 partitions."""
    fast = {"metadata_refresh_interval_ms": 200, "session_timeout_ms": 1500, "create_topics": False}
    return KafkaOptions(broker.brokers, **{**fast, **changed})


class TestConformance(UpdateLogConformance, FaultConformance):
    @pytest.fixture
    def make_log(self) -> Iterator[Callable[[], UpdateLog]]:
        with KafkaBroker() as broker:
            yield lambda: KafkaLog(quick(broker))

    @pytest.fixture
    def carrier_of(self) -> Callable[[UpdateLog], UpdateCarrier]:
        return lambda log: KafkaCarrier(log.options)

    def assert_groups(self, log: UpdateLog, expected: list[str]) -> None:
        """The mock brokers do not tell; all else is refused likewise."""
        assert expected
        with pytest.raises(
            StoreError, match=r"groups are not listed: _UNSUPPORTED_FEATURE.*; name those that you mean"
        ):
            log.groups()
