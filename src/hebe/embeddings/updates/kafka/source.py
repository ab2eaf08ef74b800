"""How a source reads a log in Kafka: it assigns all partitions by hand, and commits offsets without being a member."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    unavailable,
)
from hebe.embeddings.updates.partitioned_source import Found, Record

log = logging.getLogger("hebe.updates")

_SHORTEST_PROBE_S, _LONGEST_PROBE_S = 0.05, 1.0
_LONGEST_WAIT_S = 1.0
_WAITING = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "LEADER_NOT_AVAILABLE"})
"""What a consumer says of topics that are not there yet: it goes on by itself."""
_END = "_PARTITION_EOF"
"""What it says, in its turn among the messages, when it has no more of a partition."""
_REFUSED = frozenset({"TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"})


@dataclass(slots=True)
class _Place:
    """Where one partition is read."""

    last: int
    """The offset of the last message that came, or after which it was begun."""
    end: int | None = None
    """Where the log ended when all had come, until more comes: what lies between `last` and it are no messages, but
    marks of transactions, which nobody is handed.
    """

    def next_after(self, done: int) -> int:
        """Before which offset all is applied, if all up to `done` is."""
        return max(done + 1, self.end) if self.end is not None and done >= self.last else done + 1


class KafkaReading:
    """The `PartitionedLog` of Kafka. Reports are commits of the consumer group `reader`."""

    def __init__(self, options: KafkaOptions, reader: str | None, topics: Sequence[Topic]) -> None:
        self._options = options
        self.look_every_s = options.metadata_refresh_interval_ms / 1000
        self._kafka = import_kafka()
        self._topics = {topic_name(topic): topic for topic in sorted(set(topics))}
        self._counts: dict[str, int] = {}
        self._places: dict[TopicPartition, _Place] = {}
        self._held: deque[Any] = deque()
        """Messages that came and were not read."""
        self._committing: threading.Thread | None = None
        self._alive_s = time.monotonic()
        self._down = False
        self._last_error = ""
        self._consumer = open_client(
            self._kafka.Consumer,
            {
                **options.client_settings,
                "group.id": reader or f"hebe-{secrets.token_hex(8)}",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                # Where to begin is always said: this is for what is removed while it is read.
                "auto.offset.reset": "earliest",
                "allow.auto.create.topics": False,
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 50,
                "fetch.message.max.bytes": options.most_message_bytes,
                "receive.message.max.bytes": max(1 << 26, 4 * options.most_message_bytes),
                "queued.max.messages.kbytes": max(1024, options.most_buffered_bytes >> 10),
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "error_cb": self._on_error,
            },
        )

    def look(self) -> tuple[str, list[TopicPartition]]:
        """See `PartitionedLog.look`."""
        found = self._metadata(self._options.request_timeout_s)
        parts = []
        for name, topic in self._topics.items():
            there = sorted(found.topics[name].partitions) if name in found.topics else []
            known = self._counts.get(name, 0)
            if 0 < known < len(there):
                log.warning(
                    "Kafka: topic %s has %d partitions now and had %d: trainers that start from now on put keys into "
                    "other partitions than those before, and of a key an older update may be applied after a newer one",
                    name, len(there), known,
                )  # fmt: skip
            self._counts[name] = max(known, len(there))
            parts += [TopicPartition(topic.model, topic.table, partition) for partition in there]
        return identity_of(found), parts

    def begin(self, at: TopicPartition, offset: int | None) -> int:
        """See `PartitionedLog.begin`."""
        if offset is None:
            offset = self._watermarks(at)[1] - 1
        place = self._place(at, offset + 1 if offset >= 0 else self._kafka.OFFSET_BEGINNING)
        try:
            if at in self._places:  # a seek would fail until the client has begun to fetch
                self._consumer.incremental_unassign([self._place(at)])
                del self._places[at]
            self._consumer.incremental_assign([place])
        except self._kafka.KafkaException as error:
            raise unavailable("a partition is not begun", reason_of(error)) from None
        self._places[at] = _Place(offset)
        self._held = deque(message for message in self._held if self._of(message) != at)
        return offset

    def read(self, places: Sequence[TopicPartition], max_messages: int) -> list[Found]:  # noqa: ARG002  (it takes turns)
        """See `PartitionedLog.read`."""
        self._poll(0.0)
        taken = [self._held.popleft() for _ in range(min(max_messages, len(self._held)))]
        if max_messages > len(taken):
            try:
                taken += self._consumer.consume(max_messages - len(taken), 0)
            except Exception as error:
                self._held.extendleft(reversed(taken))
                raise _stopped(error) from None
        messages, refused = [], None
        for message in taken:
            failed = message.error()
            if failed is None or failed.name() == _END:
                messages.append(message)
            elif failed.name() not in _WAITING:
                self._last_error = f"{failed.name()}: {failed.str()}"
                refused = self._last_error if failed.name() in _REFUSED else refused
        if refused is not None:
            self._held.extendleft(reversed(messages))
            raise StoreError(f"Kafka refuses: {refused}", "the update log refuses this server")
        if messages:
            self._alive_s, self._down = time.monotonic(), False
        else:
            self._probe()
        return [record for message in messages if (record := self._record(message)) is not None]

    def wait(self, timeout_s: float) -> None:
        """See `PartitionedLog.wait`."""
        self._poll(min(timeout_s, _LONGEST_WAIT_S))

    def kept_from(self, at: TopicPartition, offset: int) -> int:
        """See `PartitionedLog.kept_from`: what is between are no messages, as of transactions."""
        return min(offset, self._watermarks(at)[0])

    def first(self, at: TopicPartition) -> int:  # noqa: ARG002  (all begin alike)
        """See `PartitionedLog.first`."""
        return 0

    def end(self, at: TopicPartition) -> int:
        """See `PartitionedLog.end`."""
        newest, place = self._watermarks(at)[1] - 1, self._places[at]
        return min(newest, place.last) if place.end is not None and newest < place.end else newest

    def left(self, done: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """See `PartitionedLog.left`."""
        left = {}
        for at, offset in done.items():
            low, high = self._watermarks(at)
            left[at] = max(0, high - max(low, self._places[at].next_after(offset)))
        return left

    def report(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See `PartitionedLog.report`. What comes after the last message is committed too, or the reader would seem to
        be behind for ever.

        In a thread: without a coordinator the client would block for most of a minute.
        """
        end_s = time.monotonic() + self._options.request_timeout_s
        if self._committing is not None:
            self._committing.join(max(0.0, end_s - time.monotonic()))
            if self._committing.is_alive():
                raise unavailable("an earlier commit is not answered yet", self._last_error)
        places = [self._place(at, self._places[at].next_after(offset)) for at, offset in offsets.items()]
        answers: list[Any] = []

        def ask() -> None:
            try:
                done = self._consumer.commit(offsets=places, asynchronous=False)
                answers.append(next((place.error for place in done if place.error is not None), None))
            except Exception as error:
                answers.append(error.args[0] if isinstance(error, self._kafka.KafkaException) else error)

        thread = threading.Thread(target=ask, name="hebe-kafka-commit", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has none left; that passes
            raise unavailable("a commit cannot be sent", str(error)) from None
        self._committing = thread
        thread.join(max(0.01, end_s - time.monotonic()))
        if not answers:
            raise unavailable("a commit is not answered in time", self._last_error)
        if (failed := answers[0]) is not None:
            name = failed.name() if hasattr(failed, "name") else ""
            if name in _REFUSED:
                raise StoreError(f"Kafka refuses: {name}", "the update log refuses this server")
            raise unavailable("a commit failed", name or failed)
        self._alive_s = time.monotonic()

    def close(self) -> None:
        """See `PartitionedLog.close`."""
        if self._committing is not None:
            self._committing.join(self._options.request_timeout_s)
        self._consumer.close()

    def _record(self, message: Any) -> Record | None:
        """A message as a record; None of the end of a partition, which is noted."""
        at, offset = self._of(message), message.offset()
        assert at is not None
        place = self._places[at]
        if message.error() is not None:
            place.end = offset
            return None
        place.last, place.end = offset, None
        payload = message.value()
        return Record(at, offset, payload or b"", None if payload is not None else "a record without a value")

    def _of(self, message: Any) -> TopicPartition | None:
        """The partition of a message; None of an error that is not of a partition."""
        topic = self._topics.get(message.topic())
        return None if topic is None else TopicPartition(topic.model, topic.table, message.partition())

    def _place(self, at: TopicPartition, offset: int | None = None) -> Any:
        name = topic_name(at.topic)
        if offset is None:
            return self._kafka.TopicPartition(name, at.partition)
        return self._kafka.TopicPartition(name, at.partition, offset)

    def _poll(self, timeout_s: float) -> None:
        """Wait for a message, and hold it. Serves the client's callbacks in any case."""
        try:
            message = self._consumer.poll(timeout_s)
        except Exception as error:
            raise _stopped(error) from None
        if message is not None:
            self._held.append(message)

    def _watermarks(self, at: TopicPartition) -> tuple[int, int]:
        """Offset of the oldest message, and the next one's."""
        try:
            marks = self._consumer.get_watermark_offsets(self._place(at), timeout=self._options.request_timeout_s)
        except self._kafka.KafkaException as error:
            raise unavailable("no answer about offsets", reason_of(error)) from None
        if marks is None:
            raise unavailable("no answer about offsets", self._last_error)
        low, high = marks
        return int(low), int(high)

    def _probe(self) -> None:
        """Nothing came: is that because nothing was sent? Ask the cluster if it was said to be gone, or silent long."""
        timeout_s = self._options.request_timeout_s
        if not self._down and time.monotonic() - self._alive_s < timeout_s:
            return
        self._metadata(max(_SHORTEST_PROBE_S, min(_LONGEST_PROBE_S, timeout_s) if self._down else timeout_s))
        self._alive_s, self._down = time.monotonic(), False

    def _metadata(self, timeout_s: float) -> Any:
        try:
            return self._consumer.list_topics(timeout=timeout_s)
        except self._kafka.KafkaException as error:
            self._down = True
            raise unavailable("no broker answers", self._last_error or reason_of(error)) from None

    def _on_error(self, error: Any) -> None:
        self._last_error = f"{error.name()}: {error.str()}"
        self._down = self._down or error.name() in ("_ALL_BROKERS_DOWN", "_AUTHENTICATION", "_SSL")


def _stopped(error: BaseException) -> StoreError:
    """How the client says that it has stopped for good."""
    return StoreError(f"Kafka: the consumer has failed: {reason_of(error)}")
