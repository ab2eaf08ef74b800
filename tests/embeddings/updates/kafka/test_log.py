"""Updates over Kafka: what every update log does, on mock brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import ClassVar

import confluent_kafka
import pytest

from hebe.embeddings.store import StoreError
from hebe.embeddings.updates.contract import UpdateLog
from hebe.embeddings.updates.kafka.log import KafkaLog, KafkaOptions
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
            yield lambda: KafkaLog(quick(broker))

    @pytest.fixture
    def carrier_of(self) -> Callable[[UpdateLog], UpdateCarrier]:
        return lambda log: KafkaCarrier(log.options)

    @pytest.fixture
    def trimmable(self, broker: KafkaBroker) -> Trimmable:
        return KafkaLog(quick(broker)), lambda count: broker.delete_records("hebe.m.users", 0, count)

    def assert_readers(self, log: UpdateLog, expected: list[str]) -> None:  # noqa: ARG002  (as the others have it)
        """The mock brokers do not list them; all else is refused likewise."""
        with pytest.raises(StoreError):
            log.readers()


class _Admin:
    """In place of the client that asks brokers, which the mock ones do not answer."""

    groups: ClassVar[dict[str, str | None]] = {}
    """By group, why it cannot be deleted."""

    def __init__(self, settings: dict[str, object]) -> None:
        assert settings["bootstrap.servers"]

    def list_consumer_groups(self, request_timeout: float) -> Future[SimpleNamespace]:
        assert request_timeout > 0
        listed: Future[SimpleNamespace] = Future()
        listed.set_result(SimpleNamespace(errors=[], valid=[SimpleNamespace(group_id=name) for name in self.groups]))
        return listed

    def delete_consumer_groups(self, groups: list[str], request_timeout: float) -> dict[str, Future[None]]:
        assert request_timeout > 0
        answers: dict[str, Future[None]] = {group: Future() for group in groups}
        for group, answer in answers.items():
            refusal = self.groups[group]
            if refusal is None:
                del self.groups[group]
                answer.set_result(None)
            else:
                answer.set_exception(confluent_kafka.KafkaException(confluent_kafka.KafkaError(68, refusal)))
        return answers


def test_a_reader_that_is_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", _Admin)
    monkeypatch.setattr(_Admin, "groups", {"gone": None, "serves": "it is not empty"})
    log = KafkaLog(KafkaOptions("127.0.0.1:1"))
    assert log.readers() == ["gone", "serves"]
    assert log.forget_reader("gone")
    assert not log.forget_reader("gone")
    with pytest.raises(StoreError, match="it is not empty"):
        log.forget_reader("serves")
    assert log.readers() == ["serves"]


def test_brokers_that_list_no_readers_forget_none(broker: KafkaBroker) -> None:
    """And the client is not asked to delete, of which it would die."""
    with pytest.raises(StoreError):
        KafkaLog(quick(broker)).forget_reader("g")
