"""Online updates over Kafka, one topic per table (HPS 6). The client side of any cluster; see `KafkaOptions`."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hebe.embeddings.store import StoreError
from hebe.embeddings.updates.contract import Topic, TopicPartition
from hebe.embeddings.updates.kafka.options import (
    KafkaOptions,
    identity_of,
    import_kafka,
    open_client,
    reason_of,
    topic_name,
    topic_of,
    unavailable,
)
from hebe.embeddings.updates.kafka.producer import KafkaCarrier
from hebe.embeddings.updates.kafka.source import KafkaReading
from hebe.embeddings.updates.limits import BatchingOptions
from hebe.embeddings.updates.partitioned_source import PartitionedSource
from hebe.embeddings.updates.producer import BatchingProducer


class KafkaLog:
    """An `UpdateLog` in Kafka. What readers report are commits of Kafka's consumer groups of their names, which have no
    members. Raises `StoreError` where confluent-kafka is not installed or the settings are refused; connects when first
    used.
    """

    def __init__(self, options: KafkaOptions | None = None) -> None:
        self.options = options or KafkaOptions()
        self._kafka = import_kafka()

    def producer(self, options: BatchingOptions | None = None) -> BatchingProducer:
        """See `UpdateLog.producer`."""
        return BatchingProducer(KafkaCarrier(self.options), options)

    def identity(self) -> str:
        """See `UpdateLog.identity`."""
        with self._client() as client:
            return identity_of(self._metadata(client))

    def source(self, reader: str | None, topics: Sequence[Topic], *, newest: bool = False) -> PartitionedSource:
        """See `UpdateLog.source`."""
        return PartitionedSource(KafkaReading(self.options, reader, topics), reader, topics, newest=newest)

    def topics(self) -> Sequence[Topic]:
        """See `UpdateLog.topics`: those of the cluster's topics that have names of ours."""
        with self._client() as client:
            names = self._metadata(client).topics
        return sorted(topic for name in names if (topic := topic_of(name)) is not None)

    def readers(self) -> list[str]:
        """See `UpdateLog.readers`. Raises `StoreError` for brokers that do not list them."""
        timeout_s = self.options.request_timeout_s
        admin = self._admin()  # which ends with its last name
        try:
            found = admin.list_consumer_groups(request_timeout=timeout_s).result(timeout_s + 1)
        except Exception as error:  # of the client, or of the future that it gives
            raise _unlisted(error) from None
        if found.errors:  # of the brokers that did not answer: their groups are missing
            raise _unlisted(found.errors[0])
        return sorted(group.group_id for group in found.valid)

    def reader_lag(self, reader: str) -> Mapping[TopicPartition, int]:
        """See `UpdateLog.reader_lag`."""
        timeout_s = self.options.request_timeout_s
        lags = {}
        with self._client(reader) as client:
            try:
                for name, found in self._metadata(client).topics.items():
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
            except self._kafka.KafkaException as error:
                raise unavailable("no answer about offsets", reason_of(error)) from None
        return lags

    def forget_reader(self, reader: str) -> bool:
        """See `UpdateLog.forget_reader`: deletes the consumer group that has the reader's commits."""
        if reader not in self.readers():  # brokers that do not list groups delete none, and the client dies of it
            return False
        timeout_s = self.options.request_timeout_s
        admin = self._admin()
        try:
            admin.delete_consumer_groups([reader], request_timeout=timeout_s)[reader].result(timeout_s + 1)
        except Exception as error:  # of the client, or of the future that it gives
            raise StoreError(f"Kafka: reader {reader} is not forgotten: {reason_of(error)}") from None
        return True

    def close(self) -> None:
        """See `UpdateLog.close`: nothing is kept open."""

    @contextlib.contextmanager
    def _client(self, group: str | None = None) -> Iterator[Any]:
        """A consumer that never subscribes, so that it is a member of no group."""
        settings = {**self.options.client_settings, "group.id": group or f"hebe-{secrets.token_hex(8)}"}
        settings |= {"enable.auto.commit": False, "error_cb": lambda _error: None}
        client = open_client(self._kafka.Consumer, settings)
        try:
            yield client
        finally:
            client.close()

    def _admin(self) -> Any:
        return open_client(self._kafka.admin.AdminClient, self.options.client_settings)

    def _metadata(self, client: Any) -> Any:
        try:
            return client.list_topics(timeout=self.options.request_timeout_s)
        except self._kafka.KafkaException as error:
            raise unavailable("no broker answers", reason_of(error)) from None


def _unlisted(error: BaseException) -> StoreError:
    return StoreError(f"Kafka: its readers are not listed: {reason_of(error)}; name those that you mean")


__all__ = ["KafkaLog", "KafkaOptions", "topic_name", "topic_of"]
