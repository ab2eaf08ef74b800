"""The log that needs no broker: a directory on this machine's disk, written and read by any number of processes.

    log.json                             format, identity, partitions a topic
    topics/MODEL/TABLE/PARTITION/        segment files (`segments`)
    groups/GROUP/                        members and committed offsets (`group`)

What was appended survives a crash of any process at once, and one of the machine after `flush` (`fsync` says so). The
disk must be local: the locks are the system's.

A log that does not have what was read of it, or committed, is told by a delivery with a fault, and read from its oldest
message on: it was emptied, put back from a copy, or the machine lost power before it was on the disk. While there is no
log.json there is no log: trainers and servers wait for it, or for one that is made anew.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hebe.embeddings.store import StoreError, StoreUnavailable
from hebe.embeddings.updates.contract import Delivery, Topic, TopicPartition
from hebe.embeddings.updates.directory.group import GroupMember, begun_topics, committed_offset, forget_group
from hebe.embeddings.updates.directory.segments import (
    PartitionEnd,
    PartitionReader,
    PartitionWriter,
    Record,
    file_faults,
    segments,
)
from hebe.embeddings.updates.limits import MOST_PARTITIONS, BatchingOptions
from hebe.embeddings.updates.message import MessageFault, decode
from hebe.embeddings.updates.producer import BatchingProducer
from hebe.spec import check_name

log = logging.getLogger("hebe.updates")

FORMAT = 1
_RECORD = "log.json"
REBALANCE_S = 0.5
"""How often a member looks who else is there."""
_POLL_S = 0.02
_MOST_POLL_BYTES = 64 << 20
_WENT_BACK = "the log directory does not have what was read of it: it was emptied or went back; updates may be lost"
_MADE_ANEW = "the log directory was made anew: what it held and was not applied yet is lost"


class Fsync(StrEnum):
    """When appended messages are forced to the disk."""

    FLUSH = "flush"
    """At `flush` and `close`."""
    APPEND = "append"
    """Before `append` returns: each message."""
    NEVER = "never"
    """The system writes them when it likes."""


@dataclass(frozen=True, slots=True)
class LogDirectoryOptions:
    """How a log directory is kept. Raises ValueError naming a field that is out of range.

    `partitions` of each topic are fixed when the log is made. A partition is kept in segments of `segment_bytes`; whole
    segments go that are older than `retention_s` seconds, or beyond `retention_bytes` (None: kept). Whoever follows
    more slowly than that misses messages, and is told of the gap.
    """

    partitions: int = 4
    segment_bytes: int = 64 << 20
    retention_bytes: int | None = 4 << 30
    retention_s: float | None = 7 * 86400.0
    fsync: Fsync = Fsync.FLUSH

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("partitions", self.partitions, 1, MOST_PARTITIONS),
            ("segment_bytes", self.segment_bytes, 1 << 10, 1 << 32),
            ("retention_bytes", self.retention_bytes, 1 << 10, 1 << 60),
            ("retention_s", self.retention_s, 0, 1e10),
        ):
            if value is not None and not least <= value <= most:
                raise ValueError(f"{name} is {value}: must lie in [{least}, {most}]")


def is_log_directory(path: Path) -> bool:
    """Whether there is a log."""
    return (path / _RECORD).is_file()


@dataclass(frozen=True, slots=True)
class LogRecord:
    """What log.json says: another identity is another log."""

    identity: str
    partitions: int


class RecordFile:
    """log.json of the log in directory `path`, looked at as often as one likes. For one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[tuple[int, ...], LogRecord] | None = None

    def read(self) -> LogRecord:
        """What it says now. Raises `StoreUnavailable` while there is none, `StoreError` where it is corrupted."""
        file = self._path / _RECORD
        try:
            with file_faults(self._path, "cannot be read"):
                stat = os.stat(file)
                look = stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns
                if self._known is None or self._known[0] != look:
                    self._known = look, _parsed(self._path, file.read_bytes()[:10_000])
        except StoreUnavailable as fault:
            if not isinstance(fault.__cause__, FileNotFoundError):
                raise
            raise StoreUnavailable(
                f"update log {self._path}: its {_RECORD} is gone: put the log back, or start one that writes to it "
                "anew, which makes another log",
                "update log: gone",
            ) from None
        return self._known[1]


def _parsed(path: Path, content: bytes) -> LogRecord:
    try:
        record = json.loads(content)
        if record["format"] != FORMAT:
            raise StoreError(f"update log {path}: has format {record['format']}, this version reads {FORMAT}")
        check_name("identity", record["identity"])
        LogDirectoryOptions(partitions=record["partitions"])
        return LogRecord(record["identity"], record["partitions"])
    except (ValueError, KeyError, TypeError) as fault:
        raise StoreError(f"update log {path}: {_RECORD} is corrupted: {fault}") from fault


class LogDirectory:
    """An `UpdateLog` in directory `path`, which is made if it is missing.

    Raises `StoreError` for a directory that holds something else or a log of another format.
    """

    def __init__(self, path: Path, options: LogDirectoryOptions | None = None) -> None:
        self.path = Path(path)
        self.options = options or LogDirectoryOptions()
        with file_faults(self.path, "cannot be opened"):
            self.path.mkdir(parents=True, exist_ok=True)
            self._make_record()
        record = RecordFile(self.path).read()
        self.identity, self.partitions = record.identity, record.partitions
        self._following = threading.Lock()
        self._ends: dict[TopicPartition, PartitionEnd] = {}
        """Of partitions that were asked about. Segments are long: who asks again has only read what came since."""
        weakref.finalize(self, _close_all, self._ends)

    def producer(self, options: BatchingOptions | None = None) -> BatchingProducer:
        """See `UpdateLog.producer`."""
        return BatchingProducer(DirectoryCarrier(self), options)

    def source(self, group: str | None, topics: Sequence[Topic], *, newest: bool = False) -> DirectorySource:
        """See `UpdateLog.source`."""
        return DirectorySource(self, group, topics, newest)

    def topics(self) -> list[Topic]:
        """See `UpdateLog.topics`."""
        with file_faults(self.path, "cannot be read"):
            found = (self.path / "topics").glob("*/*")
            return sorted(Topic(path.parent.name, path.name) for path in found if path.is_dir())

    def groups(self) -> list[str]:
        """See `UpdateLog.groups`."""
        with file_faults(self.path, "cannot be read"):
            return sorted(path.name for path in (self.path / "groups").glob("*") if path.is_dir())

    def group_lag(self, group: str) -> dict[TopicPartition, int]:
        """See `UpdateLog.group_lag`."""
        path, topics = self.group_path(group), self.topics()
        begun = [topic for topic in begun_topics(path) if topic in topics]
        parts = [TopicPartition(topic.model, topic.table, part) for topic in begun for part in range(self.partitions)]
        return {at: self.outstanding(at, committed_offset(path, at)) for at in parts}

    def forget_group(self, group: str) -> bool:
        """See `UpdateLog.forget_group`. Nothing is kept for groups here; this one begins anew if it comes back."""
        return forget_group(self.group_path(group))

    def close(self) -> None:
        """See `UpdateLog.close`. Who asks it something afterwards has files opened anew."""
        with self._following:
            _close_all(self._ends)

    def partition_path(self, at: TopicPartition) -> Path:
        """Where the segments of a partition are."""
        return self.path / "topics" / at.model / at.table / str(at.partition)

    def group_path(self, group: str) -> Path:
        """Where a consumer group is kept: a directory of its own right below `groups`, which its name cannot leave.

        Raises `SpecError` for any other name.
        """
        check_name("group", group)
        return self.path / "groups" / group

    def next_offset(self, at: TopicPartition) -> int:
        """The offset that the next message of the partition will have. What was there when it was asked last is not
        read again.
        """
        with self._following, file_faults(self.path, "cannot be read"):
            end = self._ends.get(at)
            if end is None:
                end = self._ends[at] = PartitionEnd(self.partition_path(at))
            return end.next_offset()

    def outstanding(self, at: TopicPartition, committed: int | None) -> int:
        """Messages of the partition after the committed one that are still there."""
        directory = self.partition_path(at)
        with file_faults(self.path, "cannot be read"):
            oldest = next(iter(segments(directory)), 0)
            following = self.next_offset(at)
            if committed is None or committed >= following:  # none, or of a log that went back: all of it comes anew
                committed = -1
            return max(0, following - max(oldest, committed + 1))

    def _make_record(self) -> None:
        """The first to come writes it."""
        file = self.path / _RECORD
        if not file.exists():
            strangers = [name for name in os.listdir(self.path) if not name.startswith(f".{_RECORD}")]
            if strangers and not file.exists():
                raise StoreError(f"update log {self.path}: is not empty and holds no log: give another directory")
            self._write_record(file)

    def _write_record(self, file: Path) -> None:
        temporary = self.path / f".{_RECORD}.{secrets.token_hex(4)}"
        try:
            record = {"format": FORMAT, "identity": secrets.token_hex(8), "partitions": self.options.partitions}
            with open(temporary, "w") as written:
                json.dump(record, written)
                written.flush()
                os.fsync(written.fileno())
            os.link(temporary, file)
        except FileExistsError:
            pass  # another was first
        finally:
            temporary.unlink(missing_ok=True)


def _close_all(ends: dict[TopicPartition, PartitionEnd]) -> None:
    for end in ends.values():
        end.close()
    ends.clear()


class DirectoryCarrier:
    """The `UpdateCarrier` of a log directory."""

    def __init__(self, log: LogDirectory) -> None:
        self._log = log
        self._file = RecordFile(log.path)
        self._record = LogRecord(log.identity, log.partitions)
        self._writers: dict[TopicPartition, PartitionWriter] = {}

    def partitions(self, topic: Topic) -> int:
        """See `UpdateCarrier.partitions`."""
        self._check_log()
        with file_faults(self._log.path, "cannot make a topic"):
            self._log.partition_path(TopicPartition(topic.model, topic.table, 0)).parent.mkdir(
                parents=True, exist_ok=True
            )
        return self._log.partitions

    def append(self, at: TopicPartition, payload: bytes) -> None:
        """See `UpdateCarrier.append`. When it returns, readers see the message."""
        self._check_log()
        writer = self._writers.get(at)
        if writer is None:
            options = self._log.options
            writer = self._writers[at] = PartitionWriter(
                self._log.partition_path(at), options.segment_bytes, options.retention_bytes, options.retention_s
            )
        writer.append(payload)
        if self._log.options.fsync is Fsync.APPEND:
            writer.sync()

    def flush(self, timeout_s: float) -> None:  # noqa: ARG002  (a disk cannot be hurried)
        """See `UpdateCarrier.flush`."""
        self._check_log()
        if self._log.options.fsync is not Fsync.NEVER:
            for writer in self._writers.values():
                writer.sync()

    def unconfirmed(self) -> tuple[()]:
        """See `UpdateCarrier.unconfirmed`."""
        return ()

    def close(self) -> None:
        """See `UpdateCarrier.close`."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _check_log(self) -> None:
        """Raise unless there is the log; go over to one that was made anew."""
        record = self._file.read()
        if record == self._record:
            return
        if record.partitions != self._record.partitions:
            raise StoreError(
                f"update log {self._log.path}: had {self._record.partitions} partitions a topic, now it has "
                f"{record.partitions}: it was made anew; start the producer anew too"
            )
        self.close()
        self._record = record


@dataclass(slots=True)
class _Assigned:
    """A partition that is this source's."""

    reader: PartitionReader
    committed: int | None
    delivered: int
    begun: int
    """The offset after which this source began."""
    last: int | None
    """The offset after which the next message must be the next one; None where some may be missing rightly."""
    leaving: bool = False
    oldest: int | None = None
    """The offset with which the log began, where it was read from there on, once something of it was."""
    fault: str | None = None
    """What is to be told of the log before any message."""

    @property
    def done(self) -> int:
        """The offset up to which nothing is left to do."""
        return self.begun if self.committed is None else self.committed

    def is_outstanding(self) -> bool:
        """Whether something was handed over that is not committed."""
        return self.delivered > self.done


class DirectorySource:
    """The `UpdateSource` of a log directory. May be used by several threads, one at a time.

    A partition that another member should have is given back once what was handed over of it is committed, so no two
    members ever apply the same partition.
    """

    def __init__(self, log: LogDirectory, group: str | None, topics: Sequence[Topic], newest: bool = False) -> None:
        for topic in topics:
            check_name("model", topic.model)
            check_name("table", topic.table)
        self._log, self._topics, self._newest = log, sorted(set(topics)), newest
        self._group = None if group is None else log.group_path(group)
        self._member = None if self._group is None else GroupMember(self._group, self._topics, log.partitions)
        self._file = RecordFile(log.path)
        self._record = LogRecord(log.identity, log.partitions)
        self._assigned: dict[TopicPartition, _Assigned] = {}
        self._lost: set[TopicPartition] = set()
        """Partitions of a log that is no more, until the new log's is ours."""
        self._rebalanced_s = float("-inf")
        self._turn = 0
        self._closed = False
        self._lock = threading.RLock()

    @property
    def shares(self) -> bool:
        """See `UpdateSource.shares`."""
        return self._group is not None

    def poll(self, max_messages: int, timeout_s: float) -> list[Delivery]:
        """See `UpdateSource.poll`."""
        end_s = time.monotonic() + timeout_s
        while True:
            with self._lock:
                self._check_open()
                self._check_log()
                self._join()
                self._rebalance()
                deliveries = self._read(max_messages)
            left_s = end_s - time.monotonic()
            if deliveries or max_messages <= 0 or left_s <= 0:
                return deliveries
            time.sleep(min(_POLL_S, left_s))

    def seek(self, at: TopicPartition, offset: int) -> None:
        """See `UpdateSource.seek`."""
        with self._lock:
            if at in self._assigned:
                self._go_on_after(at, offset)
                self._assigned[at].begun = offset
                self._assigned[at].last = self._assigned[at].oldest = None

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See `UpdateSource.commit`. The offsets outlive this process, see `GroupMember.commit`.

        Those that were not handed over since the partition was begun say nothing of this log, and are passed over.
        """
        with self._lock:
            self._check_open()
            for at, offset in offsets.items():
                assigned = self._assigned.get(at)
                if assigned is None or not assigned.begun < offset <= assigned.delivered:
                    continue
                if assigned.committed == offset:
                    continue
                if self._member is not None:
                    self._member.commit(at, offset)
                assigned.committed = offset

    def assigned(self) -> frozenset[TopicPartition]:
        """See `UpdateSource.assigned`."""
        with self._lock:
            return frozenset(self._assigned)

    def lag(self) -> dict[TopicPartition, int]:
        """See `UpdateSource.lag`."""
        with self._lock:
            return {at: self._log.outstanding(at, assigned.done) for at, assigned in self._assigned.items()}

    def lost_beginning(self, at: TopicPartition) -> tuple[int, int] | None:
        """See `UpdateSource.lost_beginning`: offsets begin with 0."""
        with self._lock:
            assigned = self._assigned.get(at)
            return (0, assigned.oldest - 1) if assigned is not None and assigned.oldest else None

    def first_offset(self, at: TopicPartition) -> int:  # noqa: ARG002  (all begin alike)
        """See `UpdateSource.first_offset`."""
        return 0

    def last_offset(self, at: TopicPartition) -> int:
        """See `UpdateSource.last_offset`."""
        with self._lock:
            self._check_open()
            return self._log.next_offset(at) - 1

    def log_identity(self) -> str:
        """See `UpdateSource.log_identity`."""
        with self._lock:
            return self._record.identity

    def leave(self) -> None:
        """See `UpdateSource.leave`."""
        with self._lock:
            if self._member is not None:
                self._let_go()
                self._member.close()
                self._member = None

    def close(self) -> None:
        """See `UpdateSource.close`. Closing twice is harmless."""
        with self._lock:
            self._closed = True
            self._let_go()
            if self._member is not None:
                self._member.close()

    def _let_go(self) -> None:
        for assigned in self._assigned.values():
            assigned.reader.close()
        self._assigned.clear()

    def _join(self) -> None:
        """Be a member again after `leave`."""
        if self._group is not None and self._member is None:
            self._member = GroupMember(self._group, self._topics, self._record.partitions)
            self._rebalanced_s = float("-inf")

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the update source is closed")

    def _check_log(self) -> None:
        """Raise unless there is the log; of one that was made anew everything begins anew."""
        record = self._file.read()
        if record == self._record:
            return
        if self._group is not None and self._member is not None:
            member = GroupMember(self._group, self._topics, record.partitions)
            self._member.close()
            self._member = member
        self._let_go()
        self._lost = self._all_partitions()
        self._record, self._rebalanced_s = record, float("-inf")

    def _read(self, max_messages: int) -> list[Delivery]:
        deliveries: list[Delivery] = []
        bytes_left = _MOST_POLL_BYTES
        places = [at for at, assigned in self._assigned.items() if not assigned.leaving]
        self._turn += 1
        for index in range(len(places)):  # another first each time, so that none starves
            if len(deliveries) >= max_messages or bytes_left <= 0:
                break
            at = places[(self._turn + index) % len(places)]
            assigned = self._assigned[at]
            try:
                if assigned.reader.went_back:
                    self._begin_anew(at)
                fault, assigned.fault = assigned.fault, None
                records = [] if fault else assigned.reader.read(max_messages - len(deliveries), bytes_left)
            except StoreError:
                if not deliveries:
                    raise
                break  # hand over what there is; the next call meets the fault again
            if fault is not None:  # at the smallest offset: what was handed over before, and what comes, have no less
                deliveries.append(Delivery(at, 0, None, fault))
            if records and assigned.last is None and assigned.delivered < 0:
                assigned.oldest = assigned.reader.oldest
            for record in records:
                if assigned.last is not None and record.offset > assigned.last + 1:
                    missing = f"messages {assigned.last + 1} to {record.offset - 1}"
                    fault = f"{missing} were removed from the log before this group had read them"
                    deliveries.append(Delivery(at, record.offset - 1, None, fault))
                    self._go_on_after(at, record.offset - 1)
                    break
                deliveries.append(_delivery(at, record))
                assigned.delivered = assigned.last = record.offset
                bytes_left -= len(record.payload)
        return deliveries

    def _go_on_after(self, at: TopicPartition, offset: int) -> None:
        assigned = self._assigned[at]
        assigned.reader.close()
        assigned.reader = PartitionReader(self._log.partition_path(at), offset)
        assigned.delivered = assigned.last = offset

    def _begin_anew(self, at: TopicPartition) -> None:
        """The log does not have what was read last. What it has is read from the oldest message on: where it parted
        from what was read is not known."""
        assigned = self._assigned[at]
        if self._member is not None:
            self._member.commit(at, -1)  # or else who comes after us would go on in the middle
            assigned.committed = -1
        log.warning("update log %s: %s", self._log.partition_path(at), _WENT_BACK)
        self._go_on_after(at, -1)
        assigned.begun, assigned.last, assigned.oldest, assigned.fault = -1, None, None, _WENT_BACK

    def _rebalance(self) -> None:
        """Give back, and take, what the members alive call for."""
        now_s = time.monotonic()
        if now_s < self._rebalanced_s + REBALANCE_S and not any(a.leaving for a in self._assigned.values()):
            return
        self._rebalanced_s = now_s
        targets = self._targets()
        for at in list(self._assigned):
            assigned = self._assigned[at]
            if self._member is not None and not self._member.keeps(at, assigned.committed):
                self._assigned.pop(at).reader.close()
                continue
            assigned.leaving = at not in targets
            if assigned.leaving and not assigned.is_outstanding():
                self._assigned.pop(at).reader.close()
                if self._member is not None:
                    self._member.give_back(at)
        for at in sorted(targets - set(self._assigned)):
            if self._member is None or at in self._member.held or self._member.take(at):
                self._assign(at)

    def _targets(self) -> set[TopicPartition]:
        return self._all_partitions() if self._member is None else self._member.targets()

    def _all_partitions(self) -> set[TopicPartition]:
        parts = range(self._record.partitions)
        return {TopicPartition(topic.model, topic.table, part) for topic in self._topics for part in parts}

    def _assign(self, at: TopicPartition) -> None:
        committed = None if self._group is None else committed_offset(self._group, at)
        begin = self._begin(at, committed)
        reader = PartitionReader(self._log.partition_path(at), begin)
        fault = _MADE_ANEW if at in self._lost else None
        self._lost.discard(at)
        self._assigned[at] = _Assigned(reader, committed, begin, begin, committed, fault=fault)

    def _begin(self, at: TopicPartition, committed: int | None) -> int:
        """The offset after which a partition is read."""
        if committed is not None:
            return committed
        if not self._newest or at in self._lost:
            return -1
        return self._log.next_offset(at) - 1


def _delivery(at: TopicPartition, record: Record) -> Delivery:
    fault = record.fault
    if fault is None:
        try:
            return Delivery(at, record.offset, decode(record.payload, at))
        except MessageFault as why:
            fault = str(why)
    return Delivery(at, record.offset, None, fault, record.payload)
