"""One partition of a log directory: segment files that only grow, named by the offset of their first message.

    00000000000000000000.segment   records, one after another, the oldest
    00000000000000004711.segment   the newest; writers append here, one at a time, under append.lock
    append.lock

A record is a header (magic, payload bytes, offset, CRC-32 of the payload, CRC-32 of the header) and the payload. What a
writer that died left unfinished at the end is nothing to readers, and the next writer cuts it off. What is damaged
further ahead is stepped over to the next whole header, and told. Files are read, never mapped: one that is cut off
under a mapping would end the process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hebe.embeddings.store import StoreError, StoreUnavailable
from hebe.embeddings.updates.limits import MOST_BYTES

_HEADER = struct.Struct("<4sIQII")
_MAGIC = b"HREC"
_SUFFIX = ".segment"
_LOCK = "append.lock"
LOCK_TIMEOUT_S = 5.0
_LOCK_POLL_S = 0.002
_LISTING_S = 1.0
_NEEDS_SOMEBODY = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True, slots=True)
class Record:
    """What stands at an offset: a payload, or `fault`, why it is none."""

    offset: int
    payload: bytes
    fault: str | None = None


@contextlib.contextmanager
def file_faults(path: Path, what: str) -> Iterator[None]:
    """Turn what the file system raises into a `StoreError` that names the path; `StoreUnavailable` if it may heal."""
    try:
        yield
    except OSError as fault:
        reason = "the disk is full; free some" if fault.errno in _FULL else fault.strerror or str(fault)
        kind = StoreError if fault.errno in _NEEDS_SOMEBODY else StoreUnavailable
        raise kind(f"update log {path}: {what}: {reason}", f"update log: {what}") from fault


def segments(directory: Path) -> list[int]:
    """First offsets of the segments, ascending; none if there is no such directory."""
    with contextlib.suppress(FileNotFoundError):
        names = (name.removesuffix(_SUFFIX) for name in os.listdir(directory) if name.endswith(_SUFFIX))
        return sorted(int(name) for name in names if name.isdecimal())
    return []


def segment_path(directory: Path, first: int) -> Path:
    """The segment that begins with that offset."""
    return directory / f"{first:020d}{_SUFFIX}"


def _read(file: int, size: int, place: int) -> bytes:
    parts = []
    while size > 0 and (part := os.pread(file, size, place)):
        parts.append(part)
        size -= len(part)
        place += len(part)
    return b"".join(parts)


def _parse(header: bytes) -> tuple[int, int, int] | None:
    """(payload bytes, offset, payload's CRC) of a whole header, else None."""
    if len(header) < _HEADER.size:
        return None
    magic, size, offset, check, header_check = _HEADER.unpack_from(header)
    if magic != _MAGIC or size > MOST_BYTES or header_check != zlib.crc32(header[: _HEADER.size - 4]):
        return None
    return size, offset, check


def _next_header(file: int, place: int, end: int) -> int | None:
    """The first place after `place` where a whole record's header stands."""
    step = 1 << 20
    first = place + 1
    while first < end:
        piece = _read(file, step + _HEADER.size, first)
        found = piece.find(_MAGIC)
        while 0 <= found < step:
            parsed = _parse(piece[found : found + _HEADER.size])
            if parsed is not None and first + found + _HEADER.size + parsed[0] <= end:
                return first + found
            found = piece.find(_MAGIC, found + 1)
        first += step
    return None


class _Walk:
    """A place in the segments of a partition that moves from record to record; the file there is open."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.first = -1
        """The segment's first offset; -1 before any is open."""
        self.place = 0
        self.next_offset = 0
        self.file = -1

    def open(self, first: int) -> None:
        file = os.open(segment_path(self.directory, first), os.O_RDONLY | os.O_CLOEXEC)
        self.close()
        self.file, self.first, self.place, self.next_offset = file, first, 0, max(first, self.next_offset)

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
        self.file = self.first = -1

    def header(self) -> tuple[int, int, int] | None:
        """What the header here says, if it is whole and the payload too (the file is long enough)."""
        parsed = _parse(_read(self.file, _HEADER.size, self.place))
        if parsed is None or self.place + _HEADER.size + parsed[0] > self.size():
            return None
        return parsed

    def size(self) -> int:
        return os.fstat(self.file).st_size

    def is_there(self) -> bool:
        """Whether the file is still the segment that stands there: nobody has removed, replaced or shortened it."""
        own = os.fstat(self.file)
        try:
            there = os.stat(segment_path(self.directory, self.first))
        except FileNotFoundError:
            return False
        return os.path.samestat(own, there) and own.st_size >= self.place

    def step(self, parsed: tuple[int, int, int]) -> None:
        self.place += _HEADER.size + parsed[0]
        self.next_offset = max(self.next_offset, parsed[1] + 1)

    def skip_damage(self) -> bool:
        """Go to the next whole header, if there is one ahead in this segment."""
        found = _next_header(self.file, self.place, self.size())
        if found is not None:
            self.place = found
        return found is not None


class PartitionEnd:
    """Follows the end of a partition: the offset that its next message will have."""

    def __init__(self, directory: Path) -> None:
        self._walk = _Walk(directory)

    def next_offset(self) -> int:
        """See above; 0 if there is no such partition. Raises OSError."""
        walk = self._walk
        newest = segments(walk.directory)[-1:]
        if not newest or newest[0] != walk.first or not walk.is_there():
            walk.close()  # the first look, a new segment, or somebody has emptied the log or made it anew
            walk.place = walk.next_offset = 0
        if not newest:
            return 0
        if walk.first < 0:
            walk.open(newest[0])
        while walk.place < walk.size():
            parsed = walk.header()
            if parsed is not None:
                walk.step(parsed)
            elif not walk.skip_damage():
                break
        return walk.next_offset

    @property
    def place(self) -> tuple[int, int]:
        """The newest segment's first offset, and where its last whole record ends."""
        return self._walk.first, self._walk.place

    def is_of(self, file: int) -> bool:
        """Whether that open file is the newest segment, which must exist."""
        return os.path.samestat(os.fstat(self._walk.file), os.fstat(file))

    def close(self) -> None:
        """Close the file."""
        self._walk.close()


@contextlib.contextmanager
def _locked(directory: Path, how: int, timeout_s: float) -> Iterator[bool]:
    """Hold the partition's lock; gives False when it cannot be had in time.

    Sharing it takes no more than to read the file: whoever reads a log may be nobody who can write there. Where there
    is none, no writer has it.
    """
    access = os.O_RDONLY if how == fcntl.LOCK_SH else os.O_RDWR | os.O_CREAT
    try:
        lock = os.open(directory / _LOCK, access | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:
        if how != fcntl.LOCK_SH:
            raise
        yield True
        return
    try:
        end_s = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(lock, how | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end_s:
                    yield False
                    return
                time.sleep(_LOCK_POLL_S)
        yield True
    finally:
        os.close(lock)


class PartitionWriter:
    """Appends to a partition, taking turns with other writers, of other processes too. For one thread.

    A segment of `segment_bytes` is followed by a new one. Of the older ones those go that were last written more than
    `retention_s` seconds ago, and the oldest while all together are more than `retention_bytes`.
    """

    def __init__(
        self, directory: Path, segment_bytes: int, retention_bytes: int | None, retention_s: float | None
    ) -> None:
        self._directory, self._segment_bytes = directory, segment_bytes
        self._retention_bytes, self._retention_s = retention_bytes, retention_s
        self._end = PartitionEnd(directory)
        self._file, self._first = -1, -1
        self._dirty = False

    def append(self, payload: bytes) -> int:
        """Add a message; returns its offset. All of it is in the log, or nothing. Raises `StoreError`."""
        with file_faults(self._directory, "cannot append"):
            self._directory.mkdir(parents=True, exist_ok=True)
            with _locked(self._directory, fcntl.LOCK_EX, LOCK_TIMEOUT_S) as held:
                if not held:
                    raise StoreUnavailable(f"update log {self._directory}: another writer keeps it locked")
                return self._append(payload)

    def sync(self) -> None:
        """Return when what was appended survives a crash of the machine."""
        if self._dirty:
            with file_faults(self._directory, "cannot write"):
                os.fdatasync(self._file)
            self._dirty = False

    def close(self) -> None:
        """Close the files."""
        self._end.close()
        if self._file >= 0:
            os.close(self._file)
        self._file = self._first = -1

    def _append(self, payload: bytes) -> int:
        offset = self._end.next_offset()
        first, place = self._end.place
        if first < 0:
            self._begin(0)
            place = 0
        elif place and place + len(payload) > self._segment_bytes:
            self._open(first)
            os.ftruncate(self._file, place)
            self._begin(offset)
            self._remove_old()
            place = 0
        else:
            self._open(first)
        if os.fstat(self._file).st_size > place:
            os.ftruncate(self._file, place)  # what a writer that died left there
        header = _HEADER.pack(_MAGIC, len(payload), offset, zlib.crc32(payload), 0)[:-4]
        record = memoryview(header + struct.pack("<I", zlib.crc32(header)) + payload)
        written = 0
        try:
            while written < len(record):
                written += os.pwrite(self._file, record[written:], place + written)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, place)
            raise
        self._dirty = True
        return offset

    def _open(self, first: int) -> None:
        if first != self._first or not self._end.is_of(self._file):
            file = os.open(segment_path(self._directory, first), os.O_RDWR | os.O_CLOEXEC)
            self._take(file, first)

    def _begin(self, first: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._take(os.open(segment_path(self._directory, first), flags, 0o666), first)
        parent = os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(parent)  # so that the file is still there after a crash of the machine
        finally:
            os.close(parent)

    def _take(self, file: int, first: int) -> None:
        if self._dirty:  # another writer has begun a new segment meanwhile
            os.fdatasync(self._file)
        if self._file >= 0:
            os.close(self._file)
        self._file, self._first, self._dirty = file, first, False

    def _remove_old(self) -> None:
        known = segments(self._directory)[:-1]
        stats = [os.stat(segment_path(self._directory, first)) for first in known]
        total = sum(stat.st_size for stat in stats)
        for first, stat in zip(known, stats, strict=True):
            too_old = self._retention_s is not None and stat.st_mtime < time.time() - self._retention_s
            if not too_old and (self._retention_bytes is None or total <= self._retention_bytes):
                return
            segment_path(self._directory, first).unlink(missing_ok=True)
            total -= stat.st_size


class PartitionReader:
    """Reads a partition from the message after `offset` on; -1 begins with the oldest.

    `oldest` is the first offset of the segment with which it began, None before it has. `went_back` says that the log
    does not have what was read last: it ends before that, or was emptied or replaced. Then nothing more is read.
    """

    def __init__(self, directory: Path, offset: int) -> None:
        self.oldest: int | None = None
        self.went_back = False
        self._walk = _Walk(directory)
        self._walk.next_offset = offset + 1
        self._reached = 0
        """The offset after the last that was seen in the log; at its end no less than the one that is wanted next."""
        self._unfinished = (-1, 0, 0)
        """A segment, and the place and size at which it was found to end with what is no record."""
        self._listed_s = 0.0

    def read(self, most: int, most_bytes: int) -> list[Record]:
        """The next messages that are there, at most so many, and no more once they have `most_bytes`."""
        records: list[Record] = []
        size = 0
        try:
            with file_faults(self._walk.directory, "cannot read"):
                while len(records) < most and size < most_bytes and (record := self._next()) is not None:
                    records.append(record)
                    size += len(record.payload)
        except StoreError:
            if not records:
                raise
        return records

    def close(self) -> None:
        """Close the file."""
        self._walk.close()

    def _next(self) -> Record | None:
        walk = self._walk
        wanted = walk.next_offset
        if self.went_back or (walk.first < 0 and not self._open()):
            return None
        while True:
            record = self._here(wanted)
            if record is not None:
                if record.offset >= wanted:
                    return record
                continue
            if walk.place < walk.size() and (record := self._damaged(wanted)) is not None:
                return record
            if not self._move_on():
                return None

    def _open(self) -> bool:
        """Open the segment with the next offset, or the oldest if retention has removed that."""
        walk = self._walk
        known = segments(walk.directory)
        if not known:
            self.went_back = walk.next_offset > 0
            return False
        with contextlib.suppress(FileNotFoundError):  # removed between; the next call finds another
            walk.open(max((first for first in known if first <= walk.next_offset), default=known[0]))
            self._reached = walk.first
            self.oldest = walk.first if self.oldest is None else self.oldest
        return walk.first >= 0

    def _here(self, wanted: int) -> Record | None:
        """The record here, if it is whole; its payload only if it is wanted."""
        walk = self._walk
        parsed = walk.header()
        if parsed is None:
            return None
        size, offset, check = parsed
        self._reached = offset + 1
        if offset < wanted:
            walk.step(parsed)
            return Record(offset, b"")
        payload = _read(walk.file, size, walk.place + _HEADER.size)
        if zlib.crc32(payload) == check:
            walk.step(parsed)
            return Record(offset, payload)
        with self._still() as still:
            if not still or walk.header() != parsed:
                return None  # a writer was cutting off and writing here
            payload = _read(walk.file, size, walk.place + _HEADER.size)
        walk.step(parsed)
        good = zlib.crc32(payload) == check
        return Record(offset, payload, None if good else "its checksum in the log does not fit: damaged on disk")

    def _damaged(self, wanted: int) -> Record | None:
        """Step over what is no record, if more comes after it."""
        walk = self._walk
        if self._unfinished == (walk.first, walk.place, walk.size()):
            return None
        with self._still() as still:
            if not still or walk.header() is not None:
                return None
            begin = walk.place
            if walk.skip_damage():
                parsed = walk.header()
                assert parsed is not None
                offset = parsed[1] - 1
            else:
                newer = [first for first in segments(walk.directory) if first > walk.first]
                if not newer:  # the end, which somebody has not finished
                    self._unfinished = (walk.first, walk.place, walk.size())
                    return None
                walk.place = walk.size()
                offset = newer[0] - 1
            payload = _read(walk.file, min(walk.place - begin, MOST_BYTES), begin)
        fault = f"bytes {begin} to {walk.place} of segment {walk.first} are no message: damaged on disk"
        walk.next_offset = max(walk.next_offset, offset + 1)
        self._reached = offset + 1
        return Record(max(offset, wanted), payload, fault)

    def _still(self) -> contextlib.AbstractContextManager[bool]:
        """Keep writers out for a moment, if they are; they are asked again later if not."""
        return _locked(self._walk.directory, fcntl.LOCK_SH, 0.0)

    def _move_on(self) -> bool:
        """Go to the next segment, if this one is at its end and will not grow."""
        walk = self._walk
        if not walk.is_there():
            known = segments(walk.directory)
            if known and known[0] > walk.first:  # removed by retention while it was read: what follows it is there
                walk.close()
                return self._open()
            self.went_back = True
            return False
        following = walk.next_offset
        if following == walk.first or not segment_path(walk.directory, following).exists():
            # The usual case: nothing has come. Somebody may have removed the segment that follows, though.
            if time.monotonic() < self._listed_s + _LISTING_S:
                return False
            self._listed_s = time.monotonic()
            newer = [first for first in segments(walk.directory) if first > walk.first]
            if not newer:
                self.went_back = self._ends_too_soon()
                return False
            following = newer[0]
        if walk.header() is None:  # else it grew before the new one was begun
            with contextlib.suppress(FileNotFoundError):
                walk.open(following)
                self._reached = following
        return True

    def _ends_too_soon(self) -> bool:
        """Whether the newest segment, to whose end it has come, ends before the offset that is wanted."""
        walk = self._walk
        size = walk.size()
        is_end = walk.place == size or self._unfinished == (walk.first, walk.place, size)
        return is_end and self._reached < walk.next_offset
