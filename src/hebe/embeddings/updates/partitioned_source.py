"""What the sources of all update logs have in common: which partitions there are, where each was begun, how far it was
handed over and applied, and what became of the log meanwhile. `PartitionedLog` is what differs.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hebe.embeddings.store import StoreError
from hebe.embeddings.updates.contract import Delivery, Topic, TopicPartition
from hebe.embeddings.updates.message import MessageFault, decode
from hebe.spec import check_name

REPORT_S = 60.0
"""A report is repeated so often while nothing changes, so that it does not expire."""
_RETRY_S = 1.0
_WENT_BACK = "the log does not have what was read of it: it went back to an older state, and updates may be lost"
_OTHER_LOG = "the log was emptied or replaced by another one: what it held and was not applied yet is lost"


@dataclass(frozen=True, slots=True)
class Record:
    """What stands at an offset of a partition: the bytes of a message, or `error`, why they are none."""

    at: TopicPartition
    offset: int
    payload: bytes
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    """Nothing is left of what followed in a partition, up to offset `last`."""

    at: TopicPartition
    last: int


@dataclass(frozen=True, slots=True)
class WentBack:
    """The log does not have what was read last of a partition."""

    at: TopicPartition


Found = Record | Removed | WentBack


class PartitionedLog(Protocol):
    """One log as one source reads it. Raises `StoreUnavailable` while it cannot be reached."""

    look_every_s: float
    """How often `look` is asked; 0 for each poll."""

    def look(self) -> tuple[str, Collection[TopicPartition]]:
        """The log's identity, and all partitions that the topics have now."""
        ...

    def begin(self, at: TopicPartition, offset: int | None) -> int:
        """From now on read a partition after `offset` (-1: the oldest message, None: the newest), which is returned."""
        ...

    def read(self, places: Sequence[TopicPartition], max_messages: int) -> Iterable[Found]:
        """What follows in these partitions, the first of them first; nothing if nothing came. Does not wait."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Return when there may be news, after `timeout_s` at the latest."""
        ...

    def kept_from(self, at: TopicPartition, offset: int) -> int:
        """Up to which offset, at most `offset`, messages may have been removed from the beginning of a partition."""
        ...

    def first(self, at: TopicPartition) -> int | None:
        """See `UpdateSource.first_offset`."""
        ...

    def end(self, at: TopicPartition) -> int:
        """See `UpdateSource.last_offset`."""
        ...

    def left(self, done: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """How many messages each partition has after this offset (-1: all)."""
        ...

    def report(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The reader's store has all up to these offsets (-1: nothing)."""
        ...

    def close(self) -> None:
        """Let go of connections and files."""
        ...


@dataclass(slots=True)
class _Partition:
    """How far one is."""

    begun: int
    """The offset after which it was begun."""
    position: int
    """The offset that was handed over last, or `begun`."""
    done: int
    """The offset up to which the store has all."""
    follows: bool = False
    """Whether the log had something at `position`, so that no message after it may be missing."""
    oldest: int | None = None
    """The offset of the first message that came, where the partition was begun with its oldest one."""


class PartitionedSource:
    """An `UpdateSource` over `log`, which it closes."""

    def __init__(self, log: PartitionedLog, reader: str | None, topics: Sequence[Topic], *, newest: bool) -> None:
        for topic in topics:
            check_name("model", topic.model)
            check_name("table", topic.table)
        if reader is not None:
            check_name("reader", reader)
        self._log, self._reports, self._newest = log, reader is not None, newest
        self._identity: str | None = None
        self._parts: dict[TopicPartition, _Partition] = {}
        self._errors: deque[Delivery] = deque()
        """What became of the log, to be handed over first."""
        self._found: deque[Found] = deque()
        """What was read and not handed over."""
        self._turn = 0
        self._look_s = self._report_s = self._retry_s = float("-inf")
        """When to look, to report without a change, and to report after one that may have failed, next."""
        self._reported: dict[TopicPartition, int] = {}
        self._closed = False

    def poll(self, max_messages: int, timeout_s: float) -> list[Delivery]:
        """See `UpdateSource.poll`."""
        end_s = time.monotonic() + timeout_s
        while True:
            self._check_open()
            with contextlib.suppress(StoreError):  # it is tried again; whoever commits gets the error
                self._report(_RETRY_S)  # before partitions come that somebody is still to seek in
            if time.monotonic() >= self._look_s:
                self._look()
            found = self._read(max_messages) if max_messages > 0 else []
            now_s = time.monotonic()
            if found or max_messages <= 0 or now_s >= end_s:
                return found
            until_s = min(end_s, self._look_s) if self._log.look_every_s else end_s
            self._log.wait(max(0.0, until_s - now_s))

    def seek(self, at: TopicPartition, offset: int) -> None:
        """See `UpdateSource.seek`."""
        self._check_open()
        if at in self._parts:
            self._begin(at, offset)
            self._errors = deque(error for error in self._errors if error.at != at)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See `UpdateSource.commit`."""
        self._check_open()
        for at, offset in offsets.items():
            part = self._parts.get(at)
            if part is not None and part.begun <= offset <= part.position:
                part.done = offset
        self._report(0.0)

    def assigned(self) -> frozenset[TopicPartition]:
        """See `UpdateSource.assigned`."""
        return frozenset(self._parts)

    def lag(self) -> dict[TopicPartition, int]:
        """See `UpdateSource.lag`."""
        self._check_open()
        self._look()
        return self._log.left({at: part.done for at, part in self._parts.items()})

    def begun_after(self, at: TopicPartition) -> int:
        """See `UpdateSource.begun_after`."""
        part = self._parts.get(at)
        return -1 if part is None else part.begun

    def lost_beginning(self, at: TopicPartition) -> tuple[int, int] | None:
        """See `UpdateSource.lost_beginning`."""
        self._check_open()
        part = self._parts.get(at)
        if part is None or part.oldest is None:
            return None
        first, oldest = self._log.first(at), self._log.kept_from(at, part.oldest)
        return None if first is None or first >= oldest else (first, oldest - 1)

    def first_offset(self, at: TopicPartition) -> int | None:
        """See `UpdateSource.first_offset`."""
        self._check_open()
        return self._log.first(at)

    def last_offset(self, at: TopicPartition) -> int:
        """See `UpdateSource.last_offset`."""
        self._check_open()
        return self._log.end(at) if at in self._parts else -1

    def log_identity(self) -> str:
        """See `UpdateSource.log_identity`."""
        self._check_open()
        if self._identity is None:
            self._look()
        assert self._identity is not None
        return self._identity

    def close(self) -> None:
        """See `UpdateSource.close`. Closing twice is harmless."""
        if not self._closed:
            self._closed = True
            self._parts.clear()
            self._log.close()

    def _look(self) -> None:
        """Begin with partitions that are new, and report a log that is another one."""
        identity, partitions = self._log.look()
        is_first = self._identity is None
        if not is_first and identity != self._identity:
            self._errors = deque(Delivery(at, 0, None, _OTHER_LOG, restarts=True) for at in sorted(self._parts))
            self._parts, self._reported, self._identity = {}, {}, identity
            self._found.clear()
        begin = None if self._newest and is_first else -1  # a partition that comes later is new as a whole
        self._parts |= {at: self._begun(at, begin) for at in partitions if at not in self._parts}
        self._identity = identity
        self._look_s = time.monotonic() + self._log.look_every_s

    def _begun(self, at: TopicPartition, offset: int | None) -> _Partition:
        begun = self._log.begin(at, offset)
        return _Partition(begun, begun, begun, follows=offset is None and begun >= 0)

    def _begin(self, at: TopicPartition, offset: int) -> None:
        self._parts[at] = self._begun(at, offset)
        self._found = deque(found for found in self._found if found.at != at)

    def _read(self, max_messages: int) -> list[Delivery]:
        found: list[Delivery] = []
        try:
            if not self._found and not self._errors and self._parts:
                places = sorted(self._parts)
                self._turn = (self._turn + 1) % len(places)  # another first each time, so that none starves
                self._found.extend(self._log.read(places[self._turn :] + places[: self._turn], max_messages))
            while len(found) < max_messages and (self._errors or self._found):
                if (delivery := self._next()) is not None:
                    found.append(delivery)
        except StoreError:
            if not found:
                raise  # else the next call meets it again
        return found

    def _next(self) -> Delivery | None:
        """What comes next, of errors, or of what was read; that is kept until all that can fail is done."""
        if self._errors:
            return self._errors.popleft()
        found = self._found[0]
        part = self._parts.get(found.at)
        if part is None:
            self._found.popleft()
            return None
        if isinstance(found, WentBack) or (isinstance(found, Record) and found.offset <= part.position):
            return self._restart(found.at)
        removed_to = found.last if isinstance(found, Removed) else self._removed_before(part, found)
        if removed_to > part.position:
            missing = f"messages {part.position + 1} to {removed_to}"
            if part.position < 0:
                missing = f"all messages up to {removed_to}"
            part.position, part.follows = removed_to, True
            return Delivery(found.at, removed_to, None, f"{missing} were removed from the log before they were read")
        self._found.popleft()
        if isinstance(found, Removed):
            return None
        if part.begun < 0 and not part.follows:
            part.oldest = found.offset
        part.position, part.follows = found.offset, True
        return _delivery(found)

    def _removed_before(self, part: _Partition, record: Record) -> int:
        """The last offset that the log has removed between what was handed over last and a record."""
        if not part.follows or record.offset <= part.position + 1:
            return part.position
        return max(part.position, self._log.kept_from(record.at, record.offset) - 1)

    def _restart(self, at: TopicPartition) -> Delivery | None:
        """The log went back: where it parted from what was read is not known, so all that it has is read again."""
        identity = self._identity
        self._look()
        if identity != self._identity:
            return None  # it is another log, which is reported
        self._begin(at, -1)
        return Delivery(at, 0, None, _WENT_BACK, restarts=True)

    def _report(self, retry_s: float) -> None:
        """Report what has changed, and all from time to time."""
        now_s = time.monotonic()
        done = {at: part.done for at, part in self._parts.items()}
        if now_s < self._report_s:
            done = {at: offset for at, offset in done.items() if self._reported.get(at) != offset}
        if not self._reports or not done or (retry_s and now_s < self._retry_s):
            return
        self._retry_s = now_s + retry_s
        self._log.report(done)
        self._reported.update(done)
        self._report_s = now_s + REPORT_S

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the update source is closed")


def _delivery(record: Record) -> Delivery:
    error = record.error
    if error is None:
        try:
            return Delivery(record.at, record.offset, decode(record.payload, record.at))
        except MessageFault as why:
            error = str(why)
    return Delivery(record.at, record.offset, None, error, record.payload)
