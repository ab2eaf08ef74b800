"""The log that needs no broker: a directory on this machine's disk, written and read by any number of processes.

    log.json                             format, identity, partitions a topic
    topics/MODEL/TABLE/PARTITION/        segment files (`segments`)
    readers/READER.json                  how far the reader of that name has reported its store to be (`reports`)

What was appended survives a crash of any process at once, and one of the machine after `flush` (`fsync` says so). The
disk must be local: the locks are the system's.

A log that does not have what was read of it is reported by a delivery with an error, and read from its oldest message
on: it was emptied, put back from a copy, or the machine lost power before it was on the disk. While there is no
log.json there is no log: trainers and servers wait for it, or for another one in its place.
"""

from __future__ import annotations

import json
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
from hebe.embeddings.updates.contract import Topic, TopicPartition
from hebe.embeddings.updates.directory.reports import read_report, reporting, write_report
from hebe.embeddings.updates.directory.segments import (
    PartitionEnd,
    PartitionReader,
    PartitionWriter,
    file_faults,
    segments,
)
from hebe.embeddings.updates.limits import MOST_PARTITIONS, BatchingOptions
from hebe.embeddings.updates.partitioned_source import Found, PartitionedSource, Record, WentBack
from hebe.embeddings.updates.producer import BatchingProducer
from hebe.spec import check_name

FORMAT = 1
_RECORD = "log.json"
_POLL_S = 0.02
_MOST_POLL_BYTES = 64 << 20


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
        self._file = RecordFile(self.path)
        self.record = self._file.read()
        self._following = threading.Lock()
        self._ends: dict[TopicPartition, PartitionEnd] = {}
        """Of partitions that were asked about. Segments are long: who asks again has only read what came since."""
        weakref.finalize(self, _close_all, self._ends)

    @property
    def partitions(self) -> int:
        """How many a topic has."""
        return self.record.partitions

    def identity(self) -> str:
        """See `UpdateLog.identity`."""
        with self._following:
            return self._file.read().identity

    def producer(self, options: BatchingOptions | None = None) -> BatchingProducer:
        """See `UpdateLog.producer`."""
        return BatchingProducer(DirectoryCarrier(self), options)

    def source(self, reader: str | None, topics: Sequence[Topic], *, newest: bool = False) -> PartitionedSource:
        """See `UpdateLog.source`."""
        return PartitionedSource(_DirectoryReading(self, reader, topics), reader, topics, newest=newest)

    def topics(self) -> list[Topic]:
        """See `UpdateLog.topics`."""
        with file_faults(self.path, "cannot be read"):
            found = (self.path / "topics").glob("*/*")
            return sorted(Topic(path.parent.name, path.name) for path in found if path.is_dir())

    def readers(self) -> list[str]:
        """See `UpdateLog.readers`."""
        return reporting(self.path / "readers")

    def reader_lag(self, reader: str) -> dict[TopicPartition, int]:
        """See `UpdateLog.reader_lag`."""
        reported = read_report(self.report_path(reader)) or {}
        topics = set(self.topics())
        begun = sorted(at for at in reported if at.topic in topics and at.partition < self.partitions)
        return {at: self.outstanding(at, reported[at]) for at in begun}

    def forget_reader(self, reader: str) -> bool:
        """Raises `StoreError`: a report expires by itself, and no message is kept for it."""
        raise StoreError(
            f"update log {self.path}: what reader {reader} has reported expires by itself, after a day without a report"
        )

    def close(self) -> None:
        """See `UpdateLog.close`. Who asks it something afterwards has files opened anew."""
        with self._following:
            _close_all(self._ends)

    def partition_path(self, at: TopicPartition) -> Path:
        """Where the segments of a partition are."""
        return self.path / "topics" / at.model / at.table / str(at.partition)

    def report_path(self, reader: str) -> Path:
        """The file of a reader's reports: right below `readers`, which its name cannot leave. Raises `SpecError`."""
        check_name("reader", reader)
        return self.path / "readers" / f"{reader}.json"

    def next_offset(self, at: TopicPartition) -> int:
        """The offset that the next message of the partition will have. What was there when it was asked last is not
        read again.
        """
        with self._following, file_faults(self.path, "cannot be read"):
            end = self._ends.get(at)
            if end is None:
                end = self._ends[at] = PartitionEnd(self.partition_path(at))
            return end.next_offset()

    def outstanding(self, at: TopicPartition, done: int) -> int:
        """Messages of the partition after offset `done` that are still there."""
        directory = self.partition_path(at)
        with file_faults(self.path, "cannot be read"):
            oldest = next(iter(segments(directory)), 0)
            following = self.next_offset(at)
            if done >= following:  # of a log that went back: all of it is read again
                done = -1
            return max(0, following - max(oldest, done + 1))

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
        self._record = log.record
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
        """Raise unless there is the log; go over to another one in its place."""
        record = self._file.read()
        if record == self._record:
            return
        if record.partitions != self._record.partitions:
            raise StoreError(
                f"update log {self._log.path}: had {self._record.partitions} partitions a topic, now it has "
                f"{record.partitions}: it is another log; restart the producer too"
            )
        self.close()
        self._record = record


class _DirectoryReading:
    """The `PartitionedLog` of a log directory."""

    look_every_s = 0.0

    def __init__(self, log: LogDirectory, reader: str | None, topics: Sequence[Topic]) -> None:
        self._log, self._topics = log, sorted(set(topics))
        self._report_path = None if reader is None else log.report_path(reader)
        self._file = RecordFile(log.path)
        self._readers: dict[TopicPartition, PartitionReader] = {}
        self._reported: dict[TopicPartition, int] = {}

    def look(self) -> tuple[str, list[TopicPartition]]:
        """See `PartitionedLog.look`."""
        record = self._file.read()
        parts = range(record.partitions)
        return record.identity, [TopicPartition(of.model, of.table, part) for of in self._topics for part in parts]

    def begin(self, at: TopicPartition, offset: int | None) -> int:
        """See `PartitionedLog.begin`."""
        if offset is None:
            offset = self.end(at)
        if at in self._readers:
            self._readers[at].close()
        self._readers[at] = PartitionReader(self._log.partition_path(at), offset)
        return offset

    def read(self, places: Sequence[TopicPartition], max_messages: int) -> list[Found]:
        """See `PartitionedLog.read`."""
        found: list[Found] = []
        bytes_left = _MOST_POLL_BYTES
        try:
            for at in places:
                if len(found) >= max_messages or bytes_left <= 0:
                    break
                reader = self._readers[at]
                records = reader.read(max_messages - len(found), bytes_left)
                bytes_left -= sum(len(record.payload) for record in records)
                found += [Record(at, record.offset, record.payload, record.fault) for record in records]
                if reader.went_back:
                    found.append(WentBack(at))
        except StoreError:
            if not found:
                raise  # else the next call meets it again
        return found

    def wait(self, timeout_s: float) -> None:
        """See `PartitionedLog.wait`."""
        time.sleep(min(_POLL_S, timeout_s))

    def kept_from(self, at: TopicPartition, offset: int) -> int:
        """See `PartitionedLog.kept_from`."""
        with file_faults(self._log.path, "cannot be read"):
            return min([offset, *segments(self._log.partition_path(at))[:1]])

    def first(self, at: TopicPartition) -> int:  # noqa: ARG002  (all begin alike)
        """See `PartitionedLog.first`."""
        return 0

    def end(self, at: TopicPartition) -> int:
        """See `PartitionedLog.end`."""
        return self._log.next_offset(at) - 1

    def left(self, done: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """See `PartitionedLog.left`."""
        return {at: self._log.outstanding(at, offset) for at, offset in done.items()}

    def report(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See `PartitionedLog.report`."""
        assert self._report_path is not None
        self._reported |= offsets
        write_report(self._report_path, self._reported)

    def close(self) -> None:
        """See `PartitionedLog.close`."""
        for reader in self._readers.values():
            reader.close()
