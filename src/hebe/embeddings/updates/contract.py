"""What trainers and servers agree on, whatever carries the messages (Kafka, Redis Streams, a log directory).

A topic is one table of one model. It is cut into partitions by key, `XXH64(key) % partitions` as in a volatile store,
so that all updates of a key are in one partition and in order there. A producer numbers its messages in each partition
from 0 on; a consumer that sees a number missing reports a gap, and one that it has seen already skips the message.

`UpdateLog` is one log, whatever carries it: Kafka, Redis Streams, a directory. `producer.BatchingProducer` is the
producer for all of them, over an `UpdateCarrier`; `ingestion.UpdateIngestion` applies a source to a store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hebe.embeddings.store import KeyArray, RowArray

if TYPE_CHECKING:
    from hebe.embeddings.updates.limits import BatchingOptions


@dataclass(frozen=True, slots=True, order=True)
class Topic:
    """The updates of table `table` of model `model`."""

    model: str
    table: str


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One ordered log: partition `partition` of the topic of table `table` of model `model`."""

    model: str
    table: str
    partition: int

    @property
    def topic(self) -> Topic:
        """The topic that this is a part of."""
        return Topic(self.model, self.table)


@dataclass(frozen=True, slots=True, eq=False)
class UpdateMessage:
    """Some rows of one table, or keys that go.

    `keys` int64 `[n]`; `rows` float32 `[n, dim]`, None for tombstones: the keys are deleted. `producer` names one run
    of a trainer, `sequence` counts its messages in this partition. `sent_s` is when its oldest row was sent, by the
    producer's wall clock (Unix seconds), and `span_s` how many seconds later the newest one was.
    """

    producer: str
    sequence: int
    sent_s: float
    keys: KeyArray
    rows: RowArray | None
    span_s: float = 0.0

    @property
    def newest_s(self) -> float:
        """When its newest row was sent (Unix seconds): rows that training exported since then have all of it."""
        return self.sent_s + self.span_s

    @property
    def mark(self) -> str:
        """By which it is known again, and told from any other of its partition."""
        return f"{self.producer}/{self.sequence}"


def data_bytes(keys: KeyArray, rows: RowArray | None) -> int:
    """What keys and rows, or keys that go, take."""
    return keys.nbytes + (0 if rows is None else rows.nbytes)


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a source hands over: a message, or `error`, which says why these bytes are none (a poison message) or what
    happened to the log itself.
    """

    at: TopicPartition
    offset: int
    """Where it stands in its partition; later ones are larger, not always by one, until one `restarts`."""
    message: UpdateMessage | None
    error: str | None = None
    payload: bytes | None = None
    """The bytes of a poison message, for whoever puts it aside; None of an error that is the log's own."""
    restarts: bool = False
    """Of such an error: the partition is read again from its oldest message, as it went back or is another log's."""

    @property
    def mark(self) -> str:
        """The message's, or of a poison message one of its bytes; "" of an error that is the log's own."""
        if self.message is not None:
            return self.message.mark
        return "" if self.payload is None else f"poison {hashlib.blake2b(self.payload, digest_size=8).hexdigest()}"


@dataclass(frozen=True, slots=True, eq=False)
class LogPlace:
    """Where updates of a table stand in the log: `offsets`, int64 `[n]`, has for each key that of its message in
    `partition`. `position` is the offset up to which nothing of the partition is outstanding with them, None within a
    message.
    """

    partition: int
    offsets: KeyArray
    position: int | None


REPORT_EXPIRY_S = 86400.0
"""A reader that has not reported for so long is gone: nothing is kept for it any longer."""
_DELIVERY_BYTES = 1 << 10
"""What a delivery takes beside its keys and rows, or the bytes of a poison message."""


def delivery_bytes(delivery: Delivery) -> int:
    """What a delivery takes in memory, about."""
    message = delivery.message
    data = len(delivery.payload or b"") if message is None else data_bytes(message.keys, message.rows)
    return _DELIVERY_BYTES + data


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

    def close(self, timeout_s: float = 10.0) -> None:
        """Flush, then let go."""
        ...

    def keys_in_log(self) -> tuple[int, int]:
        """Of how many keys that were sent or deleted the log has the messages, and of how many more it may have them:
        it was given them, and has not said that it took them. Of what still waits it has none.
        """
        ...


class UpdateSource(Protocol):
    """A server's side: reads all partitions of the tables that it was opened for. For one thread at a time.

    Raises `StoreUnavailable` while the log cannot be reached; trying again is harmless.
    """

    def poll(self, max_messages: int, timeout_s: float) -> Sequence[Delivery]:
        """What has come since, in order within each partition; empty after `timeout_s` without news.

        A message whose bytes are broken, or not of this partition, comes with `error`. So does, for each partition,
        that the log removed messages before they were read, went back to an older state, or is another one now. With
        `max_messages` 0 it hands over nothing and only looks after itself: who is slow calls it meanwhile.
        """
        ...

    def seek(self, at: TopicPartition, offset: int) -> None:
        """Next hand over, of an assigned partition, what follows `offset` (-1: the oldest there is)."""
        ...

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The store has everything up to and including these offsets, which a source with a name reports to the log.

        Offsets that were not handed over since the partition was begun are ignored.
        """
        ...

    def assigned(self) -> frozenset[TopicPartition]:
        """All partitions that there are, as of the last poll. They only grow, except for another log's."""
        ...

    def lag(self) -> Mapping[TopicPartition, int]:
        """Messages of each partition that come after what was committed, or was sought since. Asks the log also for
        partitions that are new.
        """
        ...

    def begun_after(self, at: TopicPartition) -> int:
        """The offset after which an assigned partition was begun; -1 for its oldest message."""
        ...

    def lost_beginning(self, at: TopicPartition) -> tuple[int, int] | None:
        """The first and the last offset that the log had removed of a partition before it was read from its oldest
        message on; asked once a message of it was handed over.

        None where nothing was removed, where that cannot be known, and where the partition was begun elsewhere: after
        the newest message, or where `seek` said.
        """
        ...

    def first_offset(self, at: TopicPartition) -> int | None:
        """The offset of the first message that a partition ever had; None where that cannot be known."""
        ...

    def last_offset(self, at: TopicPartition) -> int:
        """The offset of the newest message that the log has of a partition; -1 if it has none.

        A position beyond it is one of another log, or of one that went back since.
        """
        ...

    def log_identity(self) -> str:
        """Names the log that is read: another one after it was emptied or replaced, so that old offsets are not taken
        for new ones.
        """
        ...

    def close(self) -> None:
        """Let go of connections and files. What was reported stays."""
        ...


class UpdateLog(Protocol):
    """One log that trainers append to and servers read. Raises `StoreUnavailable` while it cannot be reached."""

    def identity(self) -> str:
        """Names this log: another name after it was emptied or replaced, so that positions can be compared."""
        ...

    def producer(self, options: BatchingOptions | None = None) -> UpdateProducer:
        """A new producer, with a name of its own; close it."""
        ...

    def source(self, reader: str | None, topics: Sequence[Topic], *, newest: bool = False) -> UpdateSource:
        """Reads all partitions of `topics`, which need not exist yet; close it.

        `reader` is the name under which it reports to the log how far its store is; with None it reports nothing. It
        begins with the oldest message, or after the newest if `newest`, unless `seek` says where.
        """
        ...

    def topics(self) -> Sequence[Topic]:
        """All topics that the log has, in order."""
        ...

    def readers(self) -> Sequence[str]:
        """The readers that have reported, in order; a cluster that others use too may name theirs."""
        ...

    def reader_lag(self, reader: str) -> Mapping[TopicPartition, int]:
        """Messages that come after what the reader has reported, of each partition of the topics that it reads."""
        ...

    def forget_reader(self, reader: str) -> bool:
        """Remove what a reader that is gone has reported; False if there is none.

        Raises `StoreError` while the reader is active, and of a log whose reports expire by themselves.
        """
        ...

    def close(self) -> None:
        """Let go of connections and files; producers and sources are closed on their own."""
        ...
