"""How a source reads a log in Redis Streams: plain reads, which show what was read last."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hebe.embeddings.store import StoreError
from hebe.embeddings.updates.contract import Topic, TopicPartition
from hebe.embeddings.updates.limits import MOST_BYTES
from hebe.embeddings.updates.partitioned_source import Found, Record, Removed, WentBack
from hebe.embeddings.updates.redis_streams.partition import (
    LogCommands,
    PartitionCommands,
    TopicCommands,
    count_of,
    int_of,
    partition_lags,
    wait_command,
)

if TYPE_CHECKING:
    from hebe.embeddings.redis.nodes import RedisNodes

_CLUSTER_PAUSE_S = 0.02
"""Between two looks for news in a cluster, where nobody can wait for several partitions at once."""
_MOST_READ_BYTES = 16 << 20
_MOST_COUNT = 256


def ask_identity(nodes: RedisNodes) -> bytes:
    """The log's identity, which it gets if it has none, as after it was emptied."""
    [identity] = nodes.execute([LogCommands.identity(secrets.token_hex(8).encode())])
    if not isinstance(identity, bytes):
        raise StoreError("the update log in Redis is damaged: it has no identity")
    return identity


def identity_text(identity: bytes) -> str:
    """See `UpdateLog.identity`."""
    return f"redis:{identity.decode(errors='replace')}"


@dataclass(slots=True)
class _Place:
    """Where one partition is read: the number read last, 0 before the first, with its digest if that is known."""

    commands: PartitionCommands
    position: int = 0
    digest: bytes = b""


class RedisReading:
    """The `PartitionedLog` of Redis Streams; it closes `nodes`. Offsets begin with 1."""

    look_every_s = 0.5

    def __init__(
        self, nodes: RedisNodes, reader: str | None, topics: Sequence[Topic], *, longest_wait_s: float
    ) -> None:
        self._nodes, self._longest_wait_s = nodes, longest_wait_s
        self._reader = (reader or "").encode()
        self._topics = sorted(set(topics))
        self._places: dict[TopicPartition, _Place] = {}
        self._identity = b""
        self._in_cluster = False

    def look(self) -> tuple[str, list[TopicPartition]]:
        """See `PartitionedLog.look`."""
        identity = self._identity = ask_identity(self._nodes)
        answers = self._nodes.execute([TopicCommands(topic).partitions() for topic in self._topics])
        counts = zip(self._topics, map(count_of, answers), strict=True)
        return identity_text(identity), [
            TopicPartition(of.model, of.table, part) for of, count in counts for part in range(count)
        ]

    def begin(self, at: TopicPartition, offset: int | None) -> int:
        """See `PartitionedLog.begin`."""
        place = _Place(PartitionCommands(at), max(0, offset or 0))
        if offset is None:
            [end] = self._nodes.execute([place.commands.end()])
            place.position, place.digest = _end(end)
        self._places[at] = place
        return place.position or -1

    def read(self, places: Sequence[TopicPartition], max_messages: int) -> list[Found]:
        """See `PartitionedLog.read`."""
        places = places[:max_messages]
        count = max(1, min(_MOST_COUNT, max_messages // len(places)))
        most_bytes = _MOST_READ_BYTES // len(places)
        reads = []
        for place in (self._places[at] for at in places):
            reads.append(place.commands.read(place.position, place.digest, count, most_bytes, MOST_BYTES))
        *answers, identity = self._nodes.execute([*reads, LogCommands.known_identity()])
        if identity != self._identity:  # asked last: what was read may be of another log
            return [WentBack(places[0])]
        found: list[Found] = []
        for at, answer in zip(places, answers, strict=True):
            if isinstance(answer, list) and answer:
                found += self._understand(at, self._places[at], answer)
        return found

    def wait(self, timeout_s: float) -> None:
        """See `PartitionedLog.wait`."""
        wait_ms = int(1000 * min(timeout_s, self._longest_wait_s))
        if not self._places or self._in_cluster or wait_ms <= 0:
            time.sleep(max(0.0, min(timeout_s, _CLUSTER_PAUSE_S) if self._in_cluster else timeout_s))
            return
        try:
            bells = [(place.commands, place.position) for place in self._places.values()]
            self._nodes.execute([wait_command(bells, wait_ms)])
        except StoreError as error:
            if not any(word in str(error) for word in ("CROSSSLOT", "MOVED", "redirected")):
                raise
            self._in_cluster = True

    def kept_from(self, at: TopicPartition, offset: int) -> int:  # noqa: ARG002  (numbers have no holes)
        """See `PartitionedLog.kept_from`."""
        return offset

    def first(self, at: TopicPartition) -> int | None:
        """See `PartitionedLog.first`."""
        return int_of(self._nodes.execute([PartitionCommands(at).first()])[0]) or None

    def end(self, at: TopicPartition) -> int:
        """See `PartitionedLog.end`."""
        return _end(self._nodes.execute([PartitionCommands(at).end()])[0])[0] or -1

    def left(self, done: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """See `PartitionedLog.left`."""
        return partition_lags(self._nodes, {at: max(0, offset) for at, offset in done.items()})

    def report(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See `PartitionedLog.report`."""
        self._nodes.execute(
            [self._places[at].commands.report(self._reader, max(0, offset)) for at, offset in offsets.items()]
        )

    def close(self) -> None:
        """See `PartitionedLog.close`."""
        self._nodes.close()

    def _understand(self, at: TopicPartition, place: _Place, answer: list[Any]) -> list[Found]:
        """What a read answered; moves the position."""
        kind, *entries = answer
        if kind == b"back":
            return [WentBack(at)]
        if kind == b"empty":
            place.position, place.digest = int_of(entries[0]), entries[1] or b""
            return [Removed(at, place.position)]
        found: list[Found] = []
        for number, digest, payload, size in entries:
            place.position, place.digest = int_of(number), digest
            error = None
            if size < 0:
                error = "an entry without payload"
            elif size > len(payload):
                error = f"{size:,} bytes: a message has at most {MOST_BYTES:,}"
            found.append(Record(at, place.position, payload, error))
        return found


def _end(reply: Any) -> tuple[int, bytes]:
    """Number and digest of the last entry; 0 where there is none."""
    number, digest = reply if isinstance(reply, list) and len(reply) == 2 else (None, None)
    return int_of(number), digest or b""
