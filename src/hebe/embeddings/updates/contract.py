"""What trainers and servers agree on, whatever carries the messages (Kafka, Redis Streams, a log directory).

A topic is one table of one model. It is cut into partitions by key, `XXH64(key) % partitions` as in a volatile store,
so that all updates of a key are in one partition and in order there. A producer numbers its messages in each partition
from 0 on; a consumer that sees a number missing reports a gap, and one that it has seen already skips the message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hebe.embeddings.store import KeyArray, RowArray


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One ordered log: partition `partition` of the topic of table `table` of model `model`."""

    model: str
    table: str
    partition: int


@dataclass(frozen=True, slots=True, eq=False)
class UpdateMessage:
    """Some rows of one table, or keys that go.

    `keys` int64 `[n]`; `rows` float32 `[n, dim]`, None for tombstones: the keys are deleted. `producer` names one run
    of a trainer, `sequence` counts its messages in this partition. `sent_s` is the producer's wall clock
    (Unix seconds).
    """

    producer: str
    sequence: int
    sent_s: float
    keys: KeyArray
    rows: RowArray | None


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a source handed over: a message, or `fault`, which says why these bytes are none (a poison message)."""

    at: TopicPartition
    offset: int
    """Where it stands in its partition; later ones are larger, not always by one."""
    message: UpdateMessage | None
    fault: str | None = None
    payload: bytes = b""
    """The bytes of a poison message, for whoever puts it aside."""


class UpdateProducer(Protocol):
    """A trainer's side: batches rows, numbers and signs messages, and hands them to the log in order.

    Raises ValueError for arrays of another kind, `StoreUnavailable` when the log does not take messages in time.
    """

    def send(self, model: str, table: str, keys: KeyArray, rows: RowArray) -> None:
        """Put rows under keys. They may wait in a batch until it is full, `flush` or `close`."""
        ...

    def delete(self, model: str, table: str, keys: KeyArray) -> None:
        """Delete keys. In order with what was sent before."""
        ...

    def flush(self, timeout_s: float = 10.0) -> None:
        """Return when the log has all of it."""
        ...

    def close(self) -> None:
        """Flush, then let go."""
        ...


class UpdateSource(Protocol):
    """A server's side: one member of a consumer group that shares the partitions of the subscribed tables.

    Raises `StoreUnavailable` while the log cannot be reached; trying again is harmless.
    """

    def poll(self, max_messages: int, timeout_s: float) -> Sequence[Delivery]:
        """What has come since, in order within each partition; empty after `timeout_s` without news.

        Begins, for each partition that is assigned to this member, at the group's committed offset (else the oldest).
        """
        ...

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The group has applied everything up to and including these offsets. Call it after the store has the rows."""
        ...

    def assigned(self) -> frozenset[TopicPartition]:
        """The partitions that are this member's now."""
        ...

    def lag(self) -> Mapping[TopicPartition, int]:
        """Messages of each assigned partition that are not committed yet."""
        ...

    def close(self) -> None:
        """Leave the group; its other members take over."""
        ...
