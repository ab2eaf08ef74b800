"""Updates over Kafka: what every update log does, on mock brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from hebe.embeddings.store import StoreError
from hebe.embeddings.updates.contract import UpdateLog
from hebe.embeddings.updates.kafka.log import KafkaLog
from hebe.embeddings.updates.kafka.producer import KafkaCarrier
from hebe.embeddings.updates.producer import UpdateCarrier
from tests.embeddings.updates.conformance.beginning_conformance import BeginningConformance, Trimmable
from tests.embeddings.updates.conformance.fault_conformance import FaultConformance
from tests.embeddings.updates.conformance.kafka_logs import quick
from tests.embeddings.updates.conformance.update_conformance import UpdateLogConformance
from tests.servers.kafka_broker import KafkaBroker


class TestConformance(UpdateLogConformance, FaultConformance, BeginningConformance):
    @pytest.fixture
    def make_log(self) -> Iterator[Callable[[], UpdateLog]]:
        with KafkaBroker() as broker:
            yield lambda: KafkaLog(quick(broker, session_timeout_ms=3000))

    @pytest.fixture
    def carrier_of(self) -> Callable[[UpdateLog], UpdateCarrier]:
        return lambda log: KafkaCarrier(log.options)

    @pytest.fixture
    def trimmable(self, broker: KafkaBroker) -> Trimmable:
        return KafkaLog(quick(broker)), lambda count: broker.delete_records("hebe.m.users", 0, count)

    def assert_groups(self, log: UpdateLog, expected: list[str]) -> None:
        """The mock brokers do not tell; all else is refused likewise."""
        assert expected
        with pytest.raises(
            StoreError, match=r"groups are not listed: _UNSUPPORTED_FEATURE.*; name those that you mean"
        ):
            log.groups()

    def test_a_group_that_is_no_more_is_forgotten(self, make_log: Callable[[], UpdateLog]) -> None:
        """By the brokers."""
        with pytest.raises(StoreError, match="group g is left to the brokers"):
            make_log().forget_group("g")
