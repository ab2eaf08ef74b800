"""A server's side of Kafka: one member of a consumer group, or a reader of its own."""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hebe.embeddings.store import StoreError, StoreUnavailable
from hebe.embeddings.updates.boot_clock import boot_s
from hebe.embeddings.updates.contract import Delivery, Topic, TopicPartition
from hebe.embeddings.updates.kafka.options import (
    KafkaOptions,
    import_kafka,
    open_client,
    reason_of,
    topic_name,
    unavailable,
)
from hebe.embeddings.updates.message import MessageFault, decode

log = logging.getLogger("hebe.updates")

_SHORTEST_PROBE_S, _LONGEST_PROBE_S = 0.05, 1.0
_NO_MEMBER = frozenset({"UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID"})
"""A commit of whom the group holds for gone: the partitions are others' now."""
_OLD_GENERATION = "ILLEGAL_GENERATION"
"""A commit of a member that has not heard yet which partitions are its own now."""
_PASSING = frozenset({"REBALANCE_IN_PROGRESS", "_NO_OFFSET", _OLD_GENERATION})
_WAITING = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "_MAX_POLL_EXCEEDED",
                      "LEADER_NOT_AVAILABLE"})  # fmt: skip
"""What a consumer says of topics that are not there yet and of a rest that it took: it goes on by itself."""
_END = "_PARTITION_EOF"
"""What it says, in its turn among the messages, when it has no more of a partition."""
_REFUSED = frozenset({"TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"})


@dataclass(slots=True)
class _Assigned:
    """A partition that is ours now. `first` and `last` are the offsets handed over since, `committed` the next one."""

    first: int | None = None
    last: int | None = None
    committed: int | None = None
    begun_at: int | None = None
    """The offset that is to be read first, 0 for the oldest; None where the group says which."""
    oldest: int | None = None
    """The offset of the first message that came."""
    end: int | None = None
    """Where the log ended when all was handed over, until more is: what lies before it and after `last` are no
    messages, but marks of transactions, which nobody is handed.
    """

    def done_before(self, committed: int) -> int:
        """Before which offset all is applied, if all before `committed` is."""
        handed_over = self.last is None or committed > self.last
        return max(committed, self.end) if self.end is not None and handed_over else committed


class KafkaSource:
    """An `UpdateSource` over a Kafka consumer, for one thread at a time. See `UpdateLog.source`."""

    def __init__(self, options: KafkaOptions, group: str | None, topics: Sequence[Topic], *, newest: bool) -> None:
        self._options, self._group, self._newest = options, group, newest
        self._kafka = import_kafka()
        self._topics = {topic_name(topic): topic for topic in topics}
        self._assigned: dict[TopicPartition, _Assigned] = {}
        self._revoked: set[TopicPartition] = set()
        """What was taken from us since the present poll began."""
        self._held: deque[Any] = deque()
        """Messages that came when none were asked for."""
        self._seeks: dict[TopicPartition, int | None] = {}
        """Where to go on, as soon as the client can: the next offset, or None for the committed one."""
        self._owed: dict[TopicPartition, int] = {}
        """Commits that a rebalance put off."""
        self._committing: threading.Thread | None = None
        self._looked_s = float("-inf")
        self._alive_s = time.monotonic()
        self._silence_s = options.session_timeout_ms / 1000 / 2
        """Who has not polled for so long may be held for gone: its last heartbeat may be older still."""
        self._polled_s = boot_s()
        """The last poll; of a silence that the group was not asked about since, the last one before it."""
        self._down = False
        self._last_error = ""
        self._closed = False
        self._away = False
        """Since it left the group, until the next poll."""
        self._consumer = self._open()

    @property
    def shares(self) -> bool:
        """See `UpdateSource.shares`."""
        return self._group is not None

    def poll(self, max_messages: int, timeout_s: float) -> Sequence[Delivery]:
        """See `UpdateSource.poll`."""
        self._check_open()
        end_s = time.monotonic() + timeout_s
        if self._away:
            self._consumer, self._away = self._open(), False
        if self._group is None:
            self._assign_all()
        self._seek_due()
        try:
            self._pay_owed()
        except StoreError:  # nor may a commit that always fails keep the client from saying what is ours
            self._revoked.clear()
            self._keep(self._take(0, 0.0))
            raise
        self._revoked.clear()
        messages = self._take(max_messages, timeout_s)
        while not (found := self._deliveries(self._keep(messages), max_messages)) and max_messages > 0:
            left_s = end_s - time.monotonic()
            if left_s <= 0 or self._down:
                break
            self._seek_due()
            self._revoked.clear()
            messages = self._take(max_messages, left_s)
        if found:
            self._alive_s, self._down = time.monotonic(), False
        else:
            self._probe()
        return found

    def seek(self, at: TopicPartition, offset: int) -> None:
        """See `UpdateSource.seek`."""
        self._check_open()
        part = self._assigned.get(at)
        if part is None:
            return
        self._drop_held({at})
        part.first = part.last = offset
        part.end = None
        if self._group is None:
            part.committed = offset + 1
        part.begun_at, part.oldest = max(0, offset + 1), None
        self._seeks[at] = offset + 1 if offset >= 0 else self._kafka.OFFSET_BEGINNING

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See `UpdateSource.commit`. Offsets that were not handed over since the partition became ours are others'."""
        self._check_open()
        due = dict(self._owed)
        for at, offset in offsets.items():
            part = self._assigned.get(at)
            if part is None or part.first is None or part.last is None or not part.first <= offset <= part.last:
                continue
            if part.committed is None or part.committed <= offset:
                due[at] = max(part.done_before(offset + 1) - 1, due.get(at, offset))
        due = {at: offset for at, offset in due.items() if at in self._assigned}
        if not due:
            return
        if self._group is None:
            self._note_committed(due)
            return
        self._commit_as_member(due)

    def assigned(self) -> frozenset[TopicPartition]:
        """See `UpdateSource.assigned`. After a silence, as if this process was stopped for a while, the group is asked:
        what it has given to others must not be written any more, and the client may hear of that only later.
        """
        now_s = boot_s()
        if self._group is not None and self._assigned and now_s - self._polled_s > self._silence_s:
            answer = self._ask()
            if answer is None or answer in _NO_MEMBER:
                self.leave()
            elif answer != _OLD_GENERATION:
                self._polled_s = now_s
        return frozenset(self._assigned)

    def lag(self) -> Mapping[TopicPartition, int]:
        """See `UpdateSource.lag`."""
        self._check_open()
        lags = {}
        self._learn_committed()
        for at, part in list(self._assigned.items()):
            low, high = self._watermarks(at)
            lags[at] = max(0, high - max(low, part.done_before(part.committed or 0)))
            self._owe_end(at)
        return lags

    def lost_beginning(self, at: TopicPartition) -> tuple[int, int] | None:
        """See `UpdateSource.lost_beginning`: offsets begin with 0."""
        self._check_open()
        part = self._assigned.get(at)
        if part is None or not part.oldest or part.begun_at:
            return None
        if part.begun_at is None:
            self._learn_committed()
            if part.committed is not None or self._newest:
                return None
        oldest = min(part.oldest, self._watermarks(at)[0])  # what is between are no messages, as of transactions
        return (0, oldest - 1) if oldest else None

    def first_offset(self, at: TopicPartition) -> int:  # noqa: ARG002  (all begin alike)
        """See `UpdateSource.first_offset`."""
        return 0

    def last_offset(self, at: TopicPartition) -> int:
        """See `UpdateSource.last_offset`."""
        self._check_open()
        newest, part = self._watermarks(at)[1] - 1, self._assigned.get(at)
        if part is None or part.last is None or part.end is None or newest >= part.end:
            return newest
        return min(newest, part.last)

    def log_identity(self) -> str:
        """See `UpdateSource.log_identity`: the cluster's own identity."""
        self._check_open()
        return f"kafka:{self._metadata(self._options.request_timeout_s).cluster_id}"

    def leave(self) -> None:
        """See `UpdateSource.leave`."""
        if self._group is not None and not self._away:
            self._away = True
            self._let_go()

    def close(self) -> None:
        """See `UpdateSource.close`."""
        if self._closed:
            return
        self._closed = True
        if not self._away:
            self._let_go()

    def _let_go(self) -> None:
        if self._committing is not None:
            self._committing.join(self._options.request_timeout_s)
            self._committing = None
        try:
            self._consumer.close()
        finally:
            self._assigned.clear()
            self._held.clear()
            self._owed.clear()
            self._seeks.clear()

    def _open(self) -> Any:
        options = self._options
        consumer = open_client(
            self._kafka.Consumer,
            {
                **options.client_settings,
                "group.id": self._group if self._group is not None else f"hebe-{secrets.token_hex(8)}",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                # Without a group a source says itself where it begins: this is for what is removed under its hands.
                "auto.offset.reset": "latest" if self._newest and self._group is not None else "earliest",
                "allow.auto.create.topics": False,
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": options.session_timeout_ms,
                "heartbeat.interval.ms": max(50, options.session_timeout_ms // 5),
                "max.poll.interval.ms": options.most_poll_gap_ms,
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
        if self._group is not None:
            consumer.subscribe(
                list(self._topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
            )
        return consumer

    def _take(self, most: int, timeout_s: float) -> list[Any]:
        """Up to `most` messages; waits for the first one only. Serves the client's callbacks in any case."""
        taken = [self._held.popleft() for _ in range(min(most, len(self._held)))]
        now_s = boot_s()
        if not self._assigned or now_s - self._polled_s <= self._silence_s:
            self._polled_s = now_s
        try:
            # Whoever waits for longer at a time cannot tell that from being stopped.
            first = self._consumer.poll(0 if taken or most <= 0 else min(timeout_s, 1.0, self._silence_s / 2))
            if first is not None:
                self._held.append(first)
            if most > len(taken) and self._held:
                taken.append(self._held.popleft())
                taken += self._consumer.consume(most - len(taken), 0) if most > len(taken) else []
        except Exception as fault:  # how the client tells that it has stopped for good
            self._held.extendleft(reversed(taken))
            raise StoreError(f"Kafka: the consumer has failed: {reason_of(fault)}") from None
        return taken

    def _keep(self, messages: list[Any]) -> list[Any]:
        """Those that are messages of our partitions, or ends of these; faults of the client are noted or raised."""
        kept, refused = [], None
        for message in messages:
            error = message.error()
            if error is None or error.name() == _END:
                kept.append(message)
                continue
            if error.name() in _WAITING:
                continue
            self._last_error = f"{error.name()}: {error.str()}"
            if error.name() in _REFUSED:
                refused = self._last_error
        if self._revoked:
            # What came before a partition was taken and given back may be out of order: begin where it is committed.
            for at in self._revoked & self._assigned.keys():
                self._seeks[at] = None
            self._drop_held(self._revoked)
        kept = [
            message
            for message in kept
            if (at := self._partition_of(message)) in self._assigned and at not in self._revoked | self._seeks.keys()
        ]
        if refused is not None:
            self._held.extendleft(reversed(kept))
            raise StoreError(f"Kafka refuses: {refused}", "the update log refuses this server")
        return kept

    def _deliveries(self, messages: list[Any], most: int) -> list[Delivery]:
        found: list[Delivery] = []
        for place, message in enumerate(messages):
            if message.error() is not None:
                at = self._partition_of(message)
                self._assigned[at].end = message.offset()
                self._owe_end(at)
                continue
            try:
                gap = self._gap_before(message)
            except StoreUnavailable:
                self._held.extendleft(reversed(messages[place:]))
                if found:
                    return found
                raise
            found += [] if gap is None else [gap]
            if len(found) == most:
                self._held.extendleft(reversed(messages[place:]))
                return found
            found.append(self._delivery(message))
        return found

    def _gap_before(self, message: Any) -> Delivery | None:
        """What the cluster has removed before it was read here, or by the group if a partition's first message came."""
        at, offset = self._partition_of(message), message.offset()
        part = self._assigned[at]
        wanted = None
        if part.oldest is not None and part.last is not None:
            wanted = part.last + 1
        elif part.first is None and self._group is not None and offset:
            self._learn_committed()
            wanted = part.committed
        if wanted is None or offset <= wanted:
            return None
        oldest = min(offset, self._watermarks(at)[0])
        if oldest <= wanted:  # offsets that are no messages, as of transactions
            return None
        part.first = oldest - 1 if part.first is None else part.first
        part.last = oldest - 1
        whose = "they were read" if self._group is None else "this group had read them"
        missing = f"messages {wanted} to {oldest - 1}"
        return Delivery(at, oldest - 1, None, f"{missing} were removed from Kafka before {whose}")

    def _delivery(self, message: Any) -> Delivery:
        at, offset, payload = self._partition_of(message), message.offset(), message.value()
        part = self._assigned[at]
        part.first = offset if part.first is None else part.first
        part.oldest = offset if part.oldest is None else part.oldest
        part.last, part.end = offset, None
        if payload is None:
            return Delivery(at, offset, None, "a record without a value", b"")
        try:
            return Delivery(at, offset, decode(payload, at))
        except MessageFault as fault:
            return Delivery(at, offset, None, str(fault), payload)

    def _partition_of(self, message: Any) -> TopicPartition:
        topic = self._topics[message.topic()]
        return TopicPartition(topic.model, topic.table, message.partition())

    def _place(self, at: TopicPartition, offset: int | None = None) -> Any:
        name = topic_name(at.topic)
        if offset is None:
            return self._kafka.TopicPartition(name, at.partition)
        return self._kafka.TopicPartition(name, at.partition, offset)

    def _drop_held(self, parts: set[TopicPartition]) -> None:
        self._held = deque(
            message
            for message in self._held
            if ((error := message.error()) is not None and error.name() != _END)
            or self._partition_of(message) not in parts
        )

    def _seek_due(self) -> None:
        """Move the client to where `seek`, or a partition that came back, wants it; what cannot be yet stays due."""
        for at, offset in list(self._seeks.items()):
            if at not in self._assigned:
                del self._seeks[at]
                continue
            try:
                if offset is None:
                    offset = self._committed_of(at)
                self._consumer.seek(self._place(at, offset))
            except (self._kafka.KafkaException, StoreUnavailable) as fault:
                self._last_error = reason_of(fault)
                continue
            self._drop_held({at})
            del self._seeks[at]

    def _committed_of(self, at: TopicPartition) -> int:
        [place] = self._committed([at])
        if place.offset >= 0:
            return int(place.offset)
        return int(self._kafka.OFFSET_END if self._newest else self._kafka.OFFSET_BEGINNING)

    def _committed(self, parts: Sequence[TopicPartition]) -> Sequence[Any]:
        try:
            places: Sequence[Any] = self._consumer.committed(
                [self._place(at) for at in parts], timeout=self._options.request_timeout_s
            )
        except self._kafka.KafkaException as fault:
            raise unavailable("no answer about committed offsets", reason_of(fault)) from None
        return places

    def _watermarks(self, at: TopicPartition) -> tuple[int, int]:
        """Offset of the oldest message, and the next one's."""
        try:
            marks = self._consumer.get_watermark_offsets(self._place(at), timeout=self._options.request_timeout_s)
        except self._kafka.KafkaException as fault:
            raise unavailable("no answer about offsets", reason_of(fault)) from None
        if marks is None:
            raise unavailable("no answer about offsets", self._last_error)
        low, high = marks
        return int(low), int(high)

    def _learn_committed(self) -> None:
        unknown = [at for at, part in self._assigned.items() if part.committed is None]
        if not unknown or self._group is None:
            return
        for at, place in zip(unknown, self._committed(unknown), strict=True):
            if place.offset >= 0:
                self._assigned[at].committed = place.offset

    def _ask(self) -> str | None:
        """What the group answers to a commit of what is committed anyway (`_commit`); None if it does not."""
        try:
            self._learn_committed()
            due = {}
            for at, part in self._assigned.items():
                begun = part.committed
                if begun is None and part.first is not None:
                    begun = part.first
                    if part.begun_at is None and not self._newest:
                        part.begun_at = 0  # as it was: the group said nothing, and now it would
                if begun is not None:
                    due[at] = max(begun - 1, -1, self._owed.get(at, -1))
            return self._commit(due) if due else ""  # without anything handed over there is nothing to write
        except StoreError as fault:
            self._last_error = str(fault)
            return None

    def _commit_as_member(self, due: Mapping[TopicPartition, int]) -> None:
        """Commit; if the group holds us for gone, `assigned` is to ask."""
        if self._commit(due) in _NO_MEMBER:
            self._polled_s = -math.inf

    def _commit(self, due: Mapping[TopicPartition, int]) -> str:
        """Commit in a thread: without a coordinator the client would keep us for most of a minute. Returns the name of
        what is in the way, which is no failure, and "" if it is done.
        """
        end_s = time.monotonic() + self._options.request_timeout_s
        if self._committing is not None:
            self._committing.join(max(0.0, end_s - time.monotonic()))
            if self._committing.is_alive():
                raise unavailable("an earlier commit is not answered yet", self._last_error)
        places = [self._place(at, offset + 1) for at, offset in due.items()]
        answers: list[Any] = []

        def ask() -> None:
            try:
                done = self._consumer.commit(offsets=places, asynchronous=False)
                answers.append(next((place.error for place in done if place.error is not None), None))
            except Exception as fault:
                answers.append(fault.args[0] if isinstance(fault, self._kafka.KafkaException) else fault)

        thread = threading.Thread(target=ask, name="hebe-kafka-commit", daemon=True)
        try:
            thread.start()
        except RuntimeError as fault:  # the system has none left; that passes
            raise unavailable("a commit cannot be sent", str(fault)) from None
        self._committing = thread
        thread.join(max(0.01, end_s - time.monotonic()))
        if not answers:
            raise unavailable("a commit is not answered in time", self._last_error)
        error = answers[0]
        name: str = error.name() if hasattr(error, "name") else ""
        if error is None:
            self._note_committed(due)
            self._alive_s = time.monotonic()
        elif name in _PASSING:
            self._owed.update(due)
        elif name in _NO_MEMBER:
            self._owed.clear()
        elif name in _REFUSED:
            raise StoreError(f"Kafka refuses: {name}", "the update log refuses this server")
        else:
            raise unavailable("a commit failed", name or error)
        return name

    def _note_committed(self, done: Mapping[TopicPartition, int]) -> None:
        for at, offset in done.items():
            if at in self._assigned:
                self._assigned[at].committed = offset + 1
            if self._owed.get(at, offset + 1) <= offset:
                del self._owed[at]

    def _owe_end(self, at: TopicPartition) -> None:
        """What comes after the last message is committed too, or the group would seem to be behind for ever."""
        committed, done = (part := self._assigned[at]).committed, part.done_before(part.committed or 0)
        if self._group is not None and committed is not None and committed < done:
            self._owed[at] = max(done - 1, self._owed.get(at, -1))

    def _pay_owed(self) -> None:
        self._owed = {at: offset for at, offset in self._owed.items() if at in self._assigned}
        if self._owed:
            self._commit_as_member(dict(self._owed))

    def _on_assign(self, _consumer: Any, places: list[Any]) -> None:
        for place in places:
            self._assigned[self._at(place)] = _Assigned()

    def _on_revoke(self, _consumer: Any, places: list[Any]) -> None:
        for place in places:
            at = self._at(place)
            self._revoked.add(at)
            self._assigned.pop(at, None)
            self._owed.pop(at, None)
            self._seeks.pop(at, None)

    def _at(self, place: Any) -> TopicPartition:
        topic = self._topics[place.topic]
        return TopicPartition(topic.model, topic.table, place.partition)

    def _assign_all(self) -> None:
        """Without a group: take partitions that are not ours yet. One that comes later is read from its beginning."""
        now_s = time.monotonic()
        if now_s - self._looked_s < self._options.metadata_refresh_interval_ms / 1000:
            return
        first_look = self._looked_s == float("-inf")
        found = self._metadata(self._options.request_timeout_s).topics
        begun: dict[TopicPartition, _Assigned] = {}
        for name, topic in self._topics.items():
            there = found[name].partitions if name in found else ()
            added = [at for p in there if (at := TopicPartition(topic.model, topic.table, p)) not in self._assigned]
            if 0 < len(added) < len(there):
                log.warning(
                    "Kafka: topic %s has %d partitions now and had %d: trainers that start from now on put keys into "
                    "other partitions than those before, and of a key an older update may be applied after a newer one",
                    name, len(there), len(there) - len(added),
                )  # fmt: skip
            for at in added:
                end = self._watermarks(at)[1] if self._newest and first_look else None
                begun[at] = _Assigned(committed=end, begun_at=end or 0)
        if begun:
            beginning = self._kafka.OFFSET_BEGINNING
            self._consumer.incremental_assign(
                [self._place(at, beginning if part.committed is None else part.committed) for at, part in begun.items()]
            )
            self._assigned.update(begun)
        self._looked_s = now_s

    def _probe(self) -> None:
        """Nothing came: is that because nothing was sent? Ask the cluster if it was said to be gone, or silent long."""
        silent_s = time.monotonic() - self._alive_s
        if not self._down and silent_s < self._options.request_timeout_s:
            return
        timeout_s = (
            min(_LONGEST_PROBE_S, self._options.request_timeout_s) if self._down else self._options.request_timeout_s
        )
        self._metadata(max(_SHORTEST_PROBE_S, timeout_s))
        self._alive_s, self._down = time.monotonic(), False

    def _metadata(self, timeout_s: float) -> Any:
        try:
            return self._consumer.list_topics(timeout=timeout_s)
        except self._kafka.KafkaException as fault:
            self._down = True
            raise unavailable("no broker answers", self._last_error or reason_of(fault)) from None

    def _on_error(self, error: Any) -> None:
        self._last_error = f"{error.name()}: {error.str()}"
        self._down = self._down or error.name() in ("_ALL_BROKERS_DOWN", "_AUTHENTICATION", "_SSL")

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the update source is closed")
