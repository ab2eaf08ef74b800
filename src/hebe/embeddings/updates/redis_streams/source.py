"""A server's side of Redis Streams: one member of a group that shares partitions by leases, or a reader of its own.

A lease is a token in Redis with a time at which it ends. Every read and commit shows the token, so of a partition that
another member has taken over nothing more is read or committed here; a thread prolongs leases while rows are applied.
Rows are written elsewhere, where nobody asks for tokens: a lease that may have ended is given up here, by a clock that
goes on while the process, or the machine, stands still.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import threading
import time
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hebe.embeddings.store import StoreError
from hebe.embeddings.updates.boot_clock import boot_s
from hebe.embeddings.updates.contract import Delivery, Topic, TopicPartition
from hebe.embeddings.updates.limits import MOST_BYTES
from hebe.embeddings.updates.message import MessageFault, decode
from hebe.embeddings.updates.redis_streams.partition import (
    LogCommands,
    PartitionCommands,
    TopicCommands,
    count_of,
    int_of,
    partition_lags,
    wait_command,
)
from hebe.spec import check_name

if TYPE_CHECKING:
    from hebe.embeddings.redis.nodes import RedisNodes

_LONGEST_ROUND_S = 0.5
"""Between two looks at who else is there; new topics are found within this time."""
_CLUSTER_PAUSE_S = 0.02
"""Between two looks for news in a cluster, where nobody can wait for several partitions at once."""
_MOST_READ_BYTES = 16 << 20
_MOST_COUNT = 256
_MOST_DIGESTS = 100_000
_EMPTIED = "the log in Redis was emptied: what it held and was not applied yet is lost"
_WENT_BACK = "the log in Redis went back to an older state: updates that it had taken may be lost"


@dataclass(slots=True)
class _Partition:
    """A partition that is ours. `position` is the offset read last, with its digest if that is known."""

    commands: PartitionCommands
    token: bytes
    position: int = 0
    digest: bytes = b""
    first: int | None = None
    """Where this member began to hand over; what is committed lies between it and `last`."""
    last: int | None = None
    committed: int = 0
    digests: dict[int, bytes] = field(default_factory=dict)
    oldest: int | None = None
    """The offset of the first message that came, where the partition was read from its oldest on."""
    lease_ends_s: float = math.inf
    """By `boot_s`; no later than in Redis."""
    leaving_s: float | None = None
    """Since when it is to be given back, once all that was handed over is committed."""

    def handed_over(self, offset: int, digest: bytes) -> None:
        self.first = offset if self.first is None else self.first
        self.last = offset
        self.digests[offset] = digest
        if len(self.digests) > _MOST_DIGESTS:
            del self.digests[next(iter(self.digests))]

    @property
    def outstanding(self) -> bool:
        """Whether something was handed over that is not committed."""
        return self.last is not None and self.last > self.committed


class RedisSource:
    """An `UpdateSource` over Redis Streams, for one thread at a time; it closes `nodes`. See `UpdateLog.source`."""

    def __init__(
        self,
        nodes: RedisNodes,
        group: str | None,
        topics: Sequence[Topic],
        *,
        newest: bool,
        lease_s: float,
        most_poll_gap_s: float,
        longest_wait_s: float,
    ) -> None:
        for topic in topics:
            check_name("model", topic.model)
            check_name("table", topic.table)
        if group is not None:
            check_name("group", group)
        self._nodes, self._newest = nodes, newest
        self._group = None if group is None else group.encode()
        self._member = secrets.token_hex(8).encode()
        self._topics = {topic: TopicCommands(topic) for topic in sorted(set(topics))}
        self._counts: dict[Topic, int] = {}
        self._parts: dict[TopicPartition, _Partition] = {}
        self._lease_s, self._most_poll_gap_s, self._longest_wait_s = lease_s, most_poll_gap_s, longest_wait_s
        self._identity: bytes | None = None
        self._emptied: set[TopicPartition] = set()
        self._due: deque[Delivery] = deque()
        """What the next poll hands over before it reads."""
        self._round_s = float("-inf")
        self._rounds = 0
        self._turn = 0
        self._in_cluster = False
        self._polled_s = time.monotonic()
        self._closed = threading.Event()
        self._away = False
        """Since it left the group, until the next poll."""
        self._keeping = threading.Lock()
        """Held while leases are prolonged, or all given back."""
        self._keeper: threading.Thread | None = None
        if group is not None:
            self._keeper = threading.Thread(target=self._keep, name="hebe-update-leases", daemon=True)
            self._keeper.start()

    @property
    def shares(self) -> bool:
        """See `UpdateSource.shares`."""
        return self._group is not None

    @property
    def lacks(self) -> bool:
        """See `CountingSource.lacks`."""
        return sum(self._counts.values()) > len(self._parts)

    def poll(self, max_messages: int, timeout_s: float) -> Sequence[Delivery]:
        """See `UpdateSource.poll`."""
        end_s = time.monotonic() + timeout_s
        while True:
            self._check_open()
            self._away = False
            now_s = self._polled_s = time.monotonic()
            if now_s >= self._round_s:
                self._meet()
            found = self._read(max_messages) if max_messages > 0 else []
            left_s = end_s - time.monotonic()
            if found or max_messages <= 0 or left_s <= 0:
                return found
            self._wait(min(left_s, max(0.0, self._round_s - time.monotonic())))

    def seek(self, at: TopicPartition, offset: int) -> None:
        """See `UpdateSource.seek`."""
        part = self._parts.get(at)
        if part is not None:
            part.position = part.first = part.last = max(0, offset)
            if self._group is None:
                part.committed = part.position
            part.oldest = None
            part.digest = b""
            part.digests.clear()
            self._due = deque(delivery for delivery in self._due if delivery.at != at)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See `UpdateSource.commit`. Offsets that were not handed over since the partition became ours are others'."""
        self._check_open()
        due = []
        for at, offset in offsets.items():
            part = self._parts.get(at)
            if part is None or part.first is None or part.last is None or not part.first <= offset <= part.last:
                continue
            if offset > part.committed:
                due.append((at, part, offset))
        if self._group is not None and due:
            answers = self._nodes.execute(
                [
                    part.commands.commit(self._group, part.token, offset, part.digests.get(offset, b""))
                    for _, part, offset in due
                ]
            )
            for (at, part, _), answer in zip(due, answers, strict=True):
                if answer == 0:
                    self._lose(at, part)
            due = [each for each, answer in zip(due, answers, strict=True) if answer == 1]
        for _, part, offset in due:
            part.committed = offset
            for done in [each for each in part.digests if each <= offset]:
                del part.digests[done]

    def assigned(self) -> frozenset[TopicPartition]:
        """See `UpdateSource.assigned`. What was read under a lease that has ended is read anew under the next one."""
        now_s = boot_s()
        for at, part in [(at, part) for at, part in self._parts.items() if now_s >= part.lease_ends_s]:
            self._lose(at, part)
        return frozenset(self._parts)

    def lag(self) -> Mapping[TopicPartition, int]:
        """See `UpdateSource.lag`."""
        self._check_open()
        return partition_lags(self._nodes, {at: part.committed for at, part in self._parts.items()})

    def lost_beginning(self, at: TopicPartition) -> tuple[int, int] | None:
        """See `UpdateSource.lost_beginning`."""
        self._check_open()
        part = self._parts.get(at)
        if part is None or part.oldest is None:
            return None
        first = self.first_offset(at)
        return (first, part.oldest - 1) if first is not None and first < part.oldest else None

    def first_offset(self, at: TopicPartition) -> int | None:
        """See `UpdateSource.first_offset`."""
        self._check_open()
        return int_of(self._nodes.execute([PartitionCommands(at).first()])[0]) or None

    def last_offset(self, at: TopicPartition) -> int:
        """See `UpdateSource.last_offset`: offsets begin with 1."""
        self._check_open()
        [end] = self._nodes.execute([PartitionCommands(at).end()])
        return (int_of(end[0]) if isinstance(end, list) and end else 0) or -1

    def log_identity(self) -> str:
        """See `UpdateSource.log_identity`."""
        self._check_open()
        return f"redis:{self._ask_identity().decode(errors='replace')}"

    def leave(self) -> None:
        """See `UpdateSource.leave`. What cannot be given back now is free when the lease ends."""
        if self._group is None:
            return
        with self._keeping:
            self._away = True
            parts, self._parts = self._parts, {}
            self._round_s = float("-inf")
            self._nodes.execute(
                [part.commands.release(self._group, part.token) for part in parts.values()]
                + [commands.leave(self._group, self._member) for commands in self._topics.values()]
            )

    def close(self) -> None:
        """See `UpdateSource.close`. What cannot be given back now is free when the lease ends."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._keeper is not None:
            self._keeper.join()
        with contextlib.suppress(StoreError):
            self.leave()
        self._parts = {}
        self._nodes.close()

    def _meet(self) -> None:
        """Look which topics, members and log there are; take and give back partitions accordingly."""
        identity = self._ask_identity()
        if self._identity is not None and identity != self._identity:
            self._forget_log()
        self._identity = identity
        unknown = [topic for topic in self._topics if not self._counts.get(topic)]
        answers = self._nodes.execute([self._topics[topic].partitions() for topic in unknown])
        self._counts.update({topic: count_of(answer) for topic, answer in zip(unknown, answers, strict=True)})
        if self._group is None:
            for topic, count in self._counts.items():
                self._take_all(topic, count)
        else:
            self._share(self._group)
        self._rounds += 1
        self._round_s = time.monotonic() + min(_LONGEST_ROUND_S, self._lease_s / 3)

    def _ask_identity(self) -> bytes:
        [identity] = self._nodes.execute([LogCommands.identity(secrets.token_hex(8).encode())])
        if not isinstance(identity, bytes):
            raise StoreError("the update log in Redis is damaged: it has no identity")
        return identity

    def _forget_log(self) -> None:
        """Another log is there now: what we knew of the old one is of no more use, but that it was."""
        self._emptied = {
            TopicPartition(topic.model, topic.table, partition)
            for topic, count in self._counts.items()
            for partition in range(count)
        }
        self._parts, self._counts = {}, {}

    def _take_all(self, topic: Topic, count: int) -> None:
        for partition in range(count):
            at = TopicPartition(topic.model, topic.table, partition)
            if at not in self._parts:
                part = _Partition(PartitionCommands(at), b"")
                if self._newest and self._rounds == 0:
                    [end] = self._nodes.execute([part.commands.end()])
                    self._begin(part, end if isinstance(end, list) else [])
                self._own(at, part)

    def _share(self, group: bytes) -> None:
        """Each of `n` members is to have every n-th partition of a topic, whichever; who has more gives back."""
        topics = [topic for topic in self._topics if self._counts.get(topic)]
        lease_ms = self._lease_ms()
        answers = self._nodes.execute([self._topics[topic].join(group, self._member, lease_ms) for topic in topics])
        for topic, members in zip(topics, answers, strict=True):
            names = sorted(name for name in members if isinstance(name, bytes)) if isinstance(members, list) else []
            if self._member not in names:
                continue
            # Turned by the topic's name, so that of many topics with a rest not one member has all the rest.
            place = (names.index(self._member) + zlib.crc32(f"{topic.model}/{topic.table}".encode())) % len(names)
            share, rest = divmod(self._counts[topic], len(names))
            self._approach(group, topic, share + (place < rest), place)

    def _approach(self, group: bytes, topic: Topic, share: int, place: int) -> None:
        """Give back, or claim, partitions of a topic until `share` are ours."""
        ours = {at: part for at, part in self._parts.items() if at.topic == topic}
        now_s = time.monotonic()
        for part in ours.values():
            part.leaving_s = None if len(ours) <= share else part.leaving_s
        staying = [at for at, part in ours.items() if part.leaving_s is None]
        for at in sorted(staying, key=lambda at: ours[at].outstanding)[: max(0, len(staying) - share)]:
            ours[at].leaving_s = now_s
        for at, part in ours.items():
            if part.leaving_s is not None and (not part.outstanding or now_s > part.leaving_s + self._lease_s):
                self._nodes.execute([part.commands.release(group, part.token)])
                self._parts.pop(at, None)
        count = self._counts[topic]
        missing = share - len(ours)
        for turn in range(count if missing > 0 else 0):
            at = TopicPartition(topic.model, topic.table, (place * count // max(1, share) + turn) % count)
            if at in ours or missing <= 0:
                continue
            missing -= self._claim(group, at)

    def _claim(self, group: bytes, at: TopicPartition) -> bool:
        part = _Partition(PartitionCommands(at), secrets.token_hex(8).encode())
        part.lease_ends_s = self._lease_end()
        [answer] = self._nodes.execute([part.commands.claim(group, part.token, self._lease_ms(), self._newest)])
        if not isinstance(answer, list) or answer[0] == 0:
            return False
        self._begin(part, answer[1:])
        self._own(at, part)
        if answer[0] == 2:
            self._report(at, _WENT_BACK)
        return True

    def _begin(self, part: _Partition, offset_and_digest: Sequence[Any]) -> None:
        if len(offset_and_digest) == 2:
            part.position = part.committed = int_of(offset_and_digest[0])
            part.digest = offset_and_digest[1] or b""

    def _own(self, at: TopicPartition, part: _Partition) -> None:
        if at in self._emptied:
            self._emptied.discard(at)
            self._report(at, _EMPTIED)
        self._parts[at] = part

    def _lose(self, at: TopicPartition, part: _Partition) -> None:
        if self._parts.get(at) is part:
            del self._parts[at]
        self._round_s = float("-inf")

    def _report(self, at: TopicPartition, what: str) -> None:
        self._due.append(_told(at, what))

    def _read(self, max_messages: int) -> list[Delivery]:
        found = [self._due.popleft() for _ in range(min(max_messages, len(self._due)))]
        found = [delivery for delivery in found if delivery.at in self._parts]
        room = max_messages - len(found)
        places = [at for at, part in self._parts.items() if part.leaving_s is None]
        if not places or not room:
            return found
        self._turn += 1
        start = self._turn % len(places)  # another first each time, so that none starves
        places = (places[start:] + places[:start])[:room]
        count = max(1, min(_MOST_COUNT, room // len(places)))
        most_bytes = _MOST_READ_BYTES // len(places)
        lease_ends_s = self._lease_end()
        answers = self._nodes.execute(
            [
                self._parts[at].commands.read(
                    self._group or b"", self._parts[at].token, self._lease_ms(), self._parts[at].position,
                    self._parts[at].digest, count, most_bytes, MOST_BYTES,
                )
                for at in places
            ]
        )  # fmt: skip
        for at, answer in zip(places, answers, strict=True):
            if isinstance(answer, list) and answer:
                found += self._understand(at, self._parts[at], answer, lease_ends_s)
        self._due.extend(found[max_messages:])  # faults came between the messages, and made it too many
        return found[:max_messages]

    def _understand(
        self, at: TopicPartition, part: _Partition, answer: list[Any], lease_ends_s: float
    ) -> list[Delivery]:
        """What a read answered, as deliveries; moves the position, and the end of the lease."""
        kind, *entries = answer
        if kind == b"lost":
            self._lose(at, part)
            return []
        part.lease_ends_s = max(part.lease_ends_s, lease_ends_s)
        if kind == b"back":
            return self._went_back(at, part)
        found: list[Delivery] = []
        if kind == b"empty":
            last, digest = int_of(entries[0]), entries[1] or b""
            entries = []
            found.append(self._gap(at, part, last))
            part.position, part.digest = last, digest
        for entry in entries:
            number = int_of(entry[0])
            if kind == b"gap" and part.digest and number > part.position + 1:
                found.append(self._gap(at, part, number - 1))
            found.append(self._delivery(at, number, entry[2], entry[3]))
            part.oldest = number if not part.position else part.oldest
            part.handed_over(number, entry[1])
            part.position, part.digest = number, entry[1]
        return found

    def _gap(self, at: TopicPartition, part: _Partition, last: int) -> Delivery:
        missing = f"messages {part.position + 1} to {last}" if part.position else f"all messages up to {last}"
        part.handed_over(last, b"")
        return Delivery(at, last, None, f"{missing} were removed from the log in Redis before this group had read them")

    def _went_back(self, at: TopicPartition, part: _Partition) -> list[Delivery]:
        """The log does not have what we read last. Begin anew where the group stands there, and say so."""
        begin: Sequence[Any] = []
        if self._group is not None:
            claim = part.commands.claim(self._group, part.token, self._lease_ms(), False, part.position)
            [answer] = self._nodes.execute([claim])
            if not isinstance(answer, list) or answer[0] == 0:
                self._lose(at, part)
                return []
            begin = answer[1:]
        part.position, part.digest, part.digests = 0, b"", {}
        part.first = part.last = None
        part.committed = 0
        self._begin(part, begin)
        return [_told(at, _WENT_BACK)]

    def _delivery(self, at: TopicPartition, number: int, payload: bytes, size: int) -> Delivery:
        if size < 0:
            return Delivery(at, number, None, "an entry without payload", b"")
        if size > len(payload):
            return Delivery(at, number, None, f"{size:,} bytes: a message has at most {MOST_BYTES:,}", payload)
        try:
            return Delivery(at, number, decode(payload, at))
        except MessageFault as fault:
            return Delivery(at, number, None, str(fault), payload)

    def _wait(self, longest_s: float) -> None:
        """Return when there may be news."""
        bells = [(part.commands, part.position) for part in self._parts.values() if part.leaving_s is None]
        if not bells or self._in_cluster:
            self._closed.wait(min(longest_s, _CLUSTER_PAUSE_S))
            return
        wait_ms = int(1000 * min(longest_s, self._longest_wait_s))
        if wait_ms <= 0:
            self._closed.wait(longest_s)
            return
        try:
            self._nodes.execute([wait_command(bells, wait_ms)])
        except StoreError as fault:
            if "CROSSSLOT" not in str(fault) and "MOVED" not in str(fault) and "redirected" not in str(fault):
                raise
            self._in_cluster = True

    def _keep(self) -> None:
        """The thread: prolong leases and memberships for as long as somebody polls."""
        assert self._group is not None
        while not self._closed.wait(self._lease_s / 3):
            if time.monotonic() <= self._polled_s + self._most_poll_gap_s:
                with self._keeping, contextlib.suppress(StoreError):  # the polling thread meets it too, and says so
                    if not self._away:
                        self._prolong(self._group)

    def _prolong(self, group: bytes) -> None:
        lease_ms, lease_ends_s = self._lease_ms(), self._lease_end()
        parts = list(self._parts.values())
        joins = [
            commands.join(group, self._member, lease_ms)
            for topic, commands in self._topics.items()
            if self._counts.get(topic)
        ]
        answers = self._nodes.execute([part.commands.renew(group, part.token, lease_ms) for part in parts] + joins)
        for part, answer in zip(parts, answers, strict=False):
            # One that is another's now does not come back: a read that was answered before has prolonged it no further.
            part.lease_ends_s = max(part.lease_ends_s, lease_ends_s) if answer == 1 else -math.inf

    def _lease_end(self) -> float:
        """Of a lease that is asked for now: by then it has not ended in Redis, which gives as much time later."""
        return math.inf if self._group is None else boot_s() + self._lease_s

    def _lease_ms(self) -> int:
        return round(1000 * self._lease_s)

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise StoreError("the update source is closed")


def _told(at: TopicPartition, what: str) -> Delivery:
    """What is to be told of the log, at an offset that no message has: all are larger, and to commit it does nothing.

    Not at that of the message read last: those that come now may be smaller.
    """
    return Delivery(at, 0, None, what)
