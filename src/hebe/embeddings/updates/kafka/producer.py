"""The producer's side of Kafka: topics, and messages that reach them complete and in order."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from hebe.embeddings.store import StoreError, StoreUnavailable
from hebe.embeddings.updates.contract import Topic, TopicPartition
from hebe.embeddings.updates.kafka.options import (
    KafkaOptions,
    import_kafka,
    open_client,
    reason_of,
    topic_name,
    unavailable,
)

_LONGEST_PAUSE_S = 0.1
_RECORD_BYTES = 1000
"""What a record has besides its payload, at most."""


class KafkaCarrier:
    """An `UpdateCarrier` over one idempotent Kafka producer, which sends in the background.

    Partitions that are added to a topic meanwhile are not used: who places keys (`BatchingProducer`) asks for their
    number once, so that all that it sends of a key is in one partition and in order. A producer that starts later uses
    them, and places keys elsewhere than the one before it. As servers read partitions side by side, add some only when
    `hebe update lag` says that all is applied, and store the model anew: a server that reads the log from its oldest
    message passes over what is older than its rows.

    Nothing is given up: what the cluster has not confirmed is kept, and sent until it is. Where the cluster refuses a
    message for good, the client stops rather than leave a gap; `append` or `flush` then tell why, all that is not
    confirmed is sent anew, in order, by a new client, and consumers skip what came twice.
    """

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._kafka = import_kafka()
        self._unconfirmed: dict[int, tuple[TopicPartition, bytes]] = {}
        self._unconfirmed_bytes = 0
        self._count = 0
        self._failure: str | None = None
        self._last_error = ""
        self._producer = self._open()

    def partitions(self, topic: Topic) -> int:
        """See `UpdateCarrier.partitions`. Raises `StoreError` where the topic may not be made."""
        name = topic_name(topic)
        count = self._partition_count(name)
        if count:
            return count
        refusal = self._create(name) if self._options.create_topics else "create_topics is off"
        end_s = time.monotonic() + self._options.request_timeout_s
        while not (count := self._partition_count(name, may_create=True)):
            if time.monotonic() > end_s:
                raise StoreError(f"Kafka: there is no topic {name}, and it is not made: {refusal or 'no answer'}")
            time.sleep(_LONGEST_PAUSE_S)
        return count

    def append(self, at: TopicPartition, payload: bytes) -> None:
        """See `UpdateCarrier.append`."""
        most = self._options.most_message_bytes
        if len(payload) > most - _RECORD_BYTES:
            raise StoreError(f"Kafka: a message of {len(payload):,} bytes; most_message_bytes is {most:,}")
        self._serve(0)
        self._tell_failure()
        end_s = time.monotonic() + self._options.request_timeout_s
        while self._unconfirmed_bytes + len(payload) > self._options.most_buffered_bytes and self._unconfirmed:
            if time.monotonic() > end_s:
                raise self._unavailable()
            self._serve(_LONGEST_PAUSE_S)
            self._tell_failure()
        number = self._count
        self._count += 1
        self._unconfirmed[number] = (at, payload)
        self._unconfirmed_bytes += len(payload)
        self._produce(number)

    def flush(self, timeout_s: float) -> None:
        """See `UpdateCarrier.flush`."""
        end_s = time.monotonic() + timeout_s
        self._serve(0)
        self._tell_failure()
        while self._unconfirmed:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise self._unavailable()
            self._serve(min(left_s, _LONGEST_PAUSE_S))
            self._tell_failure()

    def unconfirmed(self) -> list[bytes]:
        """See `UpdateCarrier.unconfirmed`."""
        return [payload for _, payload in self._unconfirmed.values()]

    def close(self) -> None:
        """See `UpdateCarrier.close`. What is not confirmed is lost, or was on its way and is in the log."""
        self._discard(self._producer)

    def _open(self) -> Any:
        return open_client(
            self._kafka.Producer,
            {
                **self._options.client_settings,
                "enable.idempotence": True,
                "enable.gapless.guarantee": True,
                "acks": "all",
                "message.timeout.ms": 0,
                "message.max.bytes": self._options.most_message_bytes,
                "queue.buffering.max.kbytes": max(1024, self._options.most_buffered_bytes // 512),
                "queue.buffering.max.messages": 1_000_000,
                "linger.ms": 1,  # rows have waited for their batch already
                "error_cb": self._on_error,
            },
        )

    def _produce(self, number: int) -> None:
        at, payload = self._unconfirmed[number]
        confirm = partial(self._on_delivery, number)
        try:
            self._producer.produce(topic_name(at.topic), value=payload, partition=at.partition, on_delivery=confirm)
        except Exception as fault:  # the client has stopped, or the message is too large for it: kept, told, tried anew
            self._failure = self._failure or reason_of(fault)

    def _serve(self, timeout_s: float) -> None:
        """Let the client call us back: confirmations and errors."""
        try:
            self._producer.poll(timeout_s)
        except Exception as fault:  # how the client tells that it has stopped
            self._failure = self._failure or reason_of(fault)

    def _tell_failure(self) -> None:
        """Raise what made the client stop; from then on another client has all that is not confirmed."""
        if self._failure is None:
            return
        failure, self._failure = self._failure, None
        old, self._producer = self._producer, self._open()
        self._discard(old)
        for number in list(self._unconfirmed):
            self._produce(number)
        raise StoreError(f"Kafka refuses messages, which are kept: {failure}", "the update log refuses messages")

    def _on_delivery(self, number: int, error: Any, _message: Any) -> None:
        # The client may call this while it raises: nothing may be asked of the error here.
        if error is None:
            _, payload = self._unconfirmed.pop(number, (None, b""))
            self._unconfirmed_bytes -= len(payload)
        elif self._failure is None:
            self._failure = f"{error}"

    def _on_error(self, error: Any) -> None:
        self._last_error = f"{error.name()}: {error.str()}"

    def _unavailable(self) -> StoreUnavailable:
        return unavailable(
            f"{len(self._unconfirmed)} messages of {self._unconfirmed_bytes:,} bytes are not confirmed yet",
            self._last_error,
        )

    def _discard(self, producer: Any) -> None:
        try:
            producer.purge(in_queue=True, in_flight=True, blocking=False)
            failure = self._failure
            producer.flush(0)
            self._failure = failure
        except Exception:  # one that has stopped says so once more
            self._failure = None

    def _partition_count(self, name: str, may_create: bool = False) -> int:
        """0 where there is no such topic. Asking for one by its name makes it, on clusters that do so by themselves."""
        try:
            found = self._producer.list_topics(*([name] if may_create else []), timeout=self._options.request_timeout_s)
        except Exception as fault:
            raise unavailable("no answer about topics", reason_of(fault)) from None
        topic = found.topics.get(name)
        if topic is None or topic.error is not None:
            return 0
        return len(topic.partitions)

    def _create(self, name: str) -> str | None:
        """Ask for the topic to be made; returns why it is not. Somebody else may have made it meanwhile."""
        admin = open_client(
            self._kafka.admin.AdminClient, {**self._options.client_settings, "error_cb": self._on_error}
        )
        wanted = self._kafka.admin.NewTopic(name, self._options.num_partitions, self._options.replication_factor)
        timeout_s = self._options.request_timeout_s
        try:
            admin.create_topics([wanted], request_timeout=timeout_s, operation_timeout=timeout_s)[name].result()
        except Exception as fault:
            return reason_of(fault)
        return None
