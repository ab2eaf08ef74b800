"""Online updates over Kafka, one topic per table (HPS 6). The client side of any cluster; see `KafkaOptions`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from hebe.embeddings.store import StoreError
from hebe.embeddings.updates.contract import Topic, TopicPartition
from hebe.embeddings.updates.kafka.options import (
    KafkaOptions,
    import_kafka,
    open_client,
    reason_of,
    topic_name,
    topic_of,
    unavailable,
)
from hebe.embeddings.updates.kafka.producer import KafkaCarrier
from hebe.embeddings.updates.kafka.source import KafkaSource
from hebe.embeddings.updates.limits import BatchingOptions
from hebe.embeddings.updates.producer import BatchingProducer


class KafkaLog:
    """An `UpdateLog` in Kafka. Groups are Kafka's consumer groups, offsets its offsets. Raises `StoreError` where
    confluent-kafka is not installed or the settings are refused; connects when first used.
    """

    def __init__(self, options: KafkaOptions | None = None) -> None:
        self.options = options or KafkaOptions()
        self._kafka = import_kafka()

    def producer(self, options: BatchingOptions | None = None) -> BatchingProducer:
        """See `UpdateLog.producer`."""
        return BatchingProducer(KafkaCarrier(self.options), options)

    def source(self, group: str | None, topics: Sequence[Topic], *, newest: bool = False) -> KafkaSource:
        """See `UpdateLog.source`."""
        return KafkaSource(self.options, group, topics, newest=newest)

    def topics(self) -> Sequence[Topic]:
        """See `UpdateLog.topics`: those of the cluster's topics that have names of ours."""
        client = self._client(f"hebe-{secrets.token_hex(8)}")
        try:
            return sorted(topic for name in self._found(client) if (topic := topic_of(name)) is not None)
        finally:
            client.close()

    def groups(self) -> list[str]:
        """See `UpdateLog.groups`. Raises `StoreError` for brokers that do not tell."""
        timeout_s = self.options.request_timeout_s
        client = open_client(self._kafka.admin.AdminClient, self.options.client_settings)
        try:
            found = client.list_consumer_groups(request_timeout=timeout_s).result(timeout_s + 1)
        except Exception as fault:  # of the client, or of the future that it gives
            raise _unlisted(fault) from None
        if found.errors:  # of the brokers that did not answer: their groups are missing
            raise _unlisted(found.errors[0])
        return sorted(group.group_id for group in found.valid)

    def group_lag(self, group: str) -> Mapping[TopicPartition, int]:
        """See `UpdateLog.group_lag`."""
        client = self._client(group)  # it never subscribes, so it is no member
        timeout_s = self.options.request_timeout_s
        lags = {}
        try:
            for name, found in self._found(client).items():
                topic = topic_of(name)
                if topic is None:
                    continue
                places = [self._kafka.TopicPartition(name, partition) for partition in sorted(found.partitions)]
                places = client.committed(places, timeout=timeout_s)
                if all(place.offset < 0 for place in places):
                    continue
                for place in places:
                    low, high = client.get_watermark_offsets(place, timeout=timeout_s)
                    at = TopicPartition(topic.model, topic.table, place.partition)
                    lags[at] = max(0, high - max(low, place.offset))
        except self._kafka.KafkaException as fault:
            raise unavailable("no answer about offsets", reason_of(fault)) from None
        finally:
            client.close()
        return lags

    def forget_group(self, group: str) -> bool:
        """Raises `StoreError`: it is of no use here, as no message is kept for a group."""
        raise StoreError(
            f"Kafka: group {group} is left to the brokers, which keep no messages for it and forget it themselves; "
            "kafka-consumer-groups --delete does so at once"
        )

    def close(self) -> None:
        """See `UpdateLog.close`: nothing is kept open."""

    def _client(self, group: str) -> Any:
        settings = {**self.options.client_settings, "group.id": group, "enable.auto.commit": False}
        return open_client(self._kafka.Consumer, {**settings, "error_cb": lambda _error: None})

    def _found(self, client: Any) -> dict[str, Any]:
        try:
            topics: dict[str, Any] = client.list_topics(timeout=self.options.request_timeout_s).topics
        except self._kafka.KafkaException as fault:
            raise unavailable("no broker answers", reason_of(fault)) from None
        return topics


def _unlisted(fault: BaseException) -> StoreError:
    return StoreError(f"Kafka: its groups are not listed: {reason_of(fault)}; name those that you mean")


__all__ = ["KafkaLog", "KafkaOptions", "KafkaSource", "topic_name", "topic_of"]
