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
from typing import TYPE_CHECKING, Protocol, runtime_checkable

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
    """What a source handed over: a message, or `fault`, which says why these bytes are none (a poison message), or what
    is wrong with the log itself.
    """

    at: TopicPartition
    offset: int
    """Where it stands in its partition; later ones are larger, not always by one."""
    message: UpdateMessage | None
    fault: str | None = None
    payload: bytes | None = None
    """The bytes of a poison message, for whoever puts it aside; None of a fault that is the log's own."""

    @property
    def mark(self) -> str:
        """The message's, or of a poison message one of its bytes; "" of a fault that is the log's own."""
        if self.message is not None:
            return self.message.mark
        return "" if self.payload is None else f"poison {hashlib.blake2b(self.payload, digest_size=8).hexdigest()}"


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
    """A server's side: one member of a consumer group that shares the partitions of the subscribed tables.

    Raises `StoreUnavailable` while the log cannot be reached; trying again is harmless.
    """

    @property
    def shares(self) -> bool:
        """Whether it is a member of a group: what is not assigned to it may be another's, or soon its own."""
        ...

    def poll(self, max_messages: int, timeout_s: float) -> Sequence[Delivery]:
        """What has come since, in order within each partition; empty after `timeout_s` without news.

        Begins, for each partition that is assigned to this member, after the group's committed offset (else at the
        oldest message). A message whose bytes are broken, or not of this partition, comes with `fault`. With
        `max_messages` 0 it hands over nothing and only shows that the member lives: who is slow calls it meanwhile.
        """
        ...

    def seek(self, at: TopicPartition, offset: int) -> None:
        """Next hand over, of a partition assigned to this member, what follows `offset` (-1: the oldest there is).

        For a store that knows better than the group what it holds, as after a crash of the machine.
        """
        ...

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The group has applied everything up to and including these offsets. Call it after the store has the rows.

        Partitions that are no longer this member's are passed over.
        """
        ...

    def assigned(self) -> frozenset[TopicPartition]:
        """The partitions that are this member's now. One that is missing was lost, and comes with a later poll at best,
        from the committed offset on. It may ask the log, and wait for its answer: it is for the thread that polls.
        """
        ...

    def lag(self) -> Mapping[TopicPartition, int]:
        """Messages of each assigned partition that are not committed yet; without a group, that come after what was
        committed or was sought since.
        """
        ...

    def lost_beginning(self, at: TopicPartition) -> tuple[int, int] | None:
        """The first and the last offset that the log had removed of a partition before it was read from its oldest
        message on; asked once a message of it was handed over.

        None where nothing was removed, where that cannot be known, and where the partition was begun elsewhere: after
        what the group has committed, after the newest message, or where `seek` said.
        """
        ...

    def first_offset(self, at: TopicPartition) -> int | None:
        """The offset of the first message that an assigned partition ever had; None where that cannot be known."""
        ...

    def last_offset(self, at: TopicPartition) -> int:
        """The offset of the newest message that the log has of an assigned partition; -1 if it has none.

        A position beyond it is one of another log, or of one that went back since.
        """
        ...

    def log_identity(self) -> str:
        """Names this log: another one after it was emptied or made anew, so that old offsets are told from new."""
        ...

    def leave(self) -> None:
        """Leave the group, so that its other members take over, until the next `poll`. Without a group: nothing."""
        ...

    def close(self) -> None:
        """Leave the group; its other members take over."""
        ...


@runtime_checkable
class CountingSource(Protocol):
    """An `UpdateSource` that knows how many partitions there are."""

    @property
    def lacks(self) -> bool:
        """Whether its topics have partitions that are not this member's now."""
        ...


class UpdateLog(Protocol):
    """One log that trainers append to and servers read. Raises `StoreUnavailable` while it cannot be reached."""

    def producer(self, options: BatchingOptions | None = None) -> UpdateProducer:
        """A new producer, with a name of its own; close it."""
        ...

    def source(self, group: str | None, topics: Sequence[Topic], *, newest: bool = False) -> UpdateSource:
        """A new member of consumer group `group`, subscribed to `topics`, which need not exist yet; close it.

        With None it is no member of any: all partitions are its own, and `commit` is kept nowhere. Where nothing is
        committed it begins with the oldest message, or after the newest if `newest`.
        """
        ...

    def topics(self) -> Sequence[Topic]:
        """All topics that the log has, in order."""
        ...

    def groups(self) -> Sequence[str]:
        """The consumer groups that there are, in order; a cluster that others use too may name theirs."""
        ...

    def group_lag(self, group: str) -> Mapping[TopicPartition, int]:
        """Messages that the group has not committed, of each partition of the topics that it has begun to read: those
        that it has committed any of, and others where that can be known.
        """
        ...

    def forget_group(self, group: str) -> bool:
        """Forget what a group that is no more has committed, so that nothing is kept for it; False if there is none.

        Raises `StoreError` while the group has a member, and where the log leaves its groups to others.
        """
        ...

    def close(self) -> None:
        """Let go of connections and files; producers and sources are closed on their own."""
        ...
