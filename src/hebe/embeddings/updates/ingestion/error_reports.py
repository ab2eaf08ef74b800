"""What goes wrong with updates: counted, logged without repeating itself, and put aside where it is bytes.

Poison messages go to a directory that somebody can look into (`Quarantine`), with the bytes and the reason of each.
Where there is none, or no room, what is logged of a message has as much of its bytes as it takes to find who sent it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from hebe.embeddings.store import StoreError
from hebe.embeddings.updates.contract import Delivery, Topic, TopicPartition, UpdateMessage
from hebe.embeddings.updates.ingestion.sequence_check import Gap
from hebe.embeddings.updates.ingestion.statistics import IngestionCounter
from hebe.embeddings.updates.message import encode, sender_in

log = logging.getLogger("hebe.updates")

_LOG_AGAIN_S = 10.0
_TELL_AGAIN = 10
"""Keys that a store refuses, and rows that it cannot hold, are told anew once there are so many times as many."""


class Incidents:
    """Those of one ingestion of model `model`. Poison messages go to directory `quarantine`. `missed` is called where
    the log has lost messages.
    """

    def __init__(
        self, model: str, counter: IngestionCounter, quarantine: Path | None, missed: Callable[[], None] | None = None
    ) -> None:
        self._model, self._counter, self._missed = model, counter, missed
        self._quarantine = Quarantine(quarantine)
        self._log_error, self._log_error_s = "", -math.inf
        """What was logged last of the log itself, and when."""
        self._lost: dict[TopicPartition, Gap] = {}
        """Beginnings that were told."""
        self._totals: dict[tuple[str, str, str], int] = {}
        self._tell_at: dict[tuple[str, str, str], int] = {}
        """By what it is, tier and table, how many keys or rows that were, and at how many that is told next."""
        self._passed_over: set[Topic] = set()
        """Tables of whose messages some were passed over, which was told."""

    def gap(self, gap: Gap, what_then: str = "") -> None:
        """Messages are missing."""
        self._counter.gap(gap)
        log.warning("online updates: %s%s", gap, what_then)
        if gap.producer is None and self._missed is not None:
            self._missed()

    def lost_beginning(self, gap: Gap) -> None:
        """The log has removed the beginning of a partition that is read from its oldest message on."""
        if self._lost.get(gap.at) == gap:
            return
        self._lost[gap.at] = gap
        self.gap(
            gap,
            "; those sent after the model's rows were read out of training are lost here: load a version with newer "
            "rows, or let the log keep more",
        )

    def went_back(self, at: TopicPartition, offset: int, found: str) -> None:
        """The log is not the one, or not as far, as when a store took from it what was up to `offset`: `found` says
        what there is instead.
        """
        error = (
            f"the log went back behind offset {offset}, up to which the store has its updates: {found}; what it holds "
            "is applied again, and updates that it had before may be lost"
        )
        self._of_log(at, error)

    def other_log(self, at: TopicPartition, offset: int) -> None:
        """The log is another one than that from which a store took what was up to `offset`, as after it was emptied."""
        error = (
            f"the log is not the one that the store has updates of, up to offset {offset}: it was emptied or replaced; "
            "what it holds is applied, and updates that the other one had may be lost"
        )
        self._of_log(at, error)

    def of_source(self, delivery: Delivery) -> None:
        """The source reports what happened to the log."""
        self._of_log(delivery.at, delivery.error or "an error of the log")

    def poison(self, delivery: Delivery, fault: str) -> None:
        """A message can never be applied."""
        at = delivery.at
        where = self._quarantine.put(delivery, fault)
        message = f"message {delivery.offset} of partition {at.partition} of model {at.model}, table {at.table}"
        self._counter.poison(fault, f"{message}: {fault} ({where})")
        log.warning("online updates: %s cannot be applied: %s (%s)", message, fault, where)

    def _of_log(self, at: TopicPartition, error: str) -> None:
        place = f"partition {at.partition} of model {at.model}, table {at.table}"
        self._counter.poison(error, f"{place}: {error}")
        now_s = time.monotonic()
        if error != self._log_error or now_s > self._log_error_s + _LOG_AGAIN_S:  # it mostly comes of all partitions
            log.warning("online updates: %s, and perhaps others: %s", place, error)
            self._log_error, self._log_error_s = error, now_s
        if self._missed is not None:
            self._missed()

    def passed_over(self, at: TopicPartition, sent_s: float, since_s: float) -> None:
        """A message is older than the model's rows: it was sent at `sent_s`, they are as of `since_s` (Unix seconds).

        So it should be after each import. But who gave no `rows_as_of`, or whose trainer's clock is late, loses updates
        by it, and has nothing else to find that by.
        """
        self._counter.add(passed_over=1)
        if at.topic in self._passed_over:
            return
        self._passed_over.add(at.topic)
        log.info(
            "online updates: table %s of model %s has messages older than the model's rows, which have them, and they "
            "are passed over; the first was sent at %s, the rows are as of %s (rows_as_of)",
            at.table, at.model, _utc(sent_s), _utc(since_s),
        )  # fmt: skip

    def refused(self, tier: str, table: str, total: int, why: str) -> None:
        """A store has no place for `total` keys of updates so far; `why` says what would help."""
        if self._count("refused", tier, table, total):
            log.warning(
                "online updates: %d keys of updates so far have no place in table %s of model %s (%s), and are left "
                "out: %s",
                total, table, self._model, tier, why,
            )  # fmt: skip

    def unheld(self, tier: str, table: str, total: int) -> None:
        """A store could not hold `total` rows of updates so far as they were sent."""
        if self._count("unheld", tier, table, total):
            log.warning(
                "online updates: %d rows of updates so far have numbers that table %s of model %s (%s) cannot hold in "
                "its row format, and were clipped: store its rows as fp32, or correct what is sent",
                total, table, self._model, tier,
            )  # fmt: skip

    def _count(self, what: str, tier: str, table: str, total: int) -> bool:
        """Count those of `total` that are new; returns whether it is time to tell."""
        place = what, tier, table
        news = total - self._totals.get(place, 0)
        if not news:
            return False
        self._totals[place] = total
        self._counter.add(**{what: news})
        if total < self._tell_at.get(place, 1):
            return False
        self._tell_at[place] = _TELL_AGAIN * total
        return True

    def failed(self, what: str, fault: Exception) -> None:
        """A call to the source or a store failed, and is tried again."""
        text = str(fault) if isinstance(fault, StoreError) else f"{type(fault).__name__}: {fault}"
        if self._counter.failed(text):
            known = isinstance(fault, StoreError)
            log.warning("online updates: %s failed, trying again: %s", what, text, exc_info=None if known else fault)

    def succeeded(self) -> None:
        """A call went well."""
        if self._counter.succeeded():
            log.info("online updates go on")


def _utc(unix_s: float) -> str:
    try:
        return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # no year of ours: a clock may say anything
        return f"{unix_s:g} s"


MOST_MESSAGES = 1000
MOST_BYTES = 256 << 20
_TOLD_BYTES = 48
_SUFFIX = ".message"


class Quarantine:
    """Keeps up to `MOST_MESSAGES` messages, `MOST_BYTES` together, in `path`: what comes later is only counted.

    `MODEL.TABLE.PARTITION.OFFSET.DIGEST.message` holds a message's bytes, the file of that name and `.json` why it was
    put aside. The digest is of the bytes: a log that was made anew has other messages at the same offsets. None for
    `path` keeps nothing: what `put` returns must do.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = None if path is None else Path(path)
        self._count, self._bytes = 0, 0
        if self.path is not None:
            with contextlib.suppress(OSError):
                sizes = [entry.stat().st_size for entry in os.scandir(self.path) if entry.name.endswith(_SUFFIX)]
                self._count, self._bytes = len(sizes), sum(sizes)

    def put(self, delivery: Delivery, fault: str) -> str:
        """Put a message aside; returns where it is, or why it is nowhere and what it began with.

        Raises nothing: the rest must go on.
        """
        at = delivery.at
        payload = delivery.payload or b""
        if not payload and isinstance(delivery.message, UpdateMessage):
            with contextlib.suppress(ValueError):
                payload = encode(delivery.message, at)
        if self.path is None:
            return f"not kept: there is no quarantine directory; {_told(payload)}"
        if self._count >= MOST_MESSAGES or self._bytes + len(payload) > MOST_BYTES:
            held = f"{self.path} holds {self._count} messages of {self._bytes:,} bytes already"
            return f"not kept: {held}; {_told(payload)}"
        digest = hashlib.blake2b(payload, digest_size=4).hexdigest()
        file = self.path / f"{at.model}.{at.table}.{at.partition}.{delivery.offset}.{digest}{_SUFFIX}"
        told = file.with_name(f"{file.name}.json")
        unfinished = {each: each.with_name(f"{each.name}.unfinished") for each in (file, told)}
        record = {"model": at.model, "table": at.table, "partition": at.partition, "offset": delivery.offset}
        record |= {"fault": fault, "put_aside_s": time.time()}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            known = file.stat().st_size if file.exists() else None
            unfinished[file].write_bytes(payload)
            unfinished[told].write_text(json.dumps(record))
            for each, written in unfinished.items():  # who looks in meanwhile finds all of it or none
                written.replace(each)
        except OSError as why:
            for written in unfinished.values():  # what an earlier delivery left stays
                with contextlib.suppress(OSError):
                    written.unlink(missing_ok=True)
            return f"not kept: {self.path}: {why.strerror}; {_told(payload)}"
        self._count += known is None
        self._bytes += len(payload) - (known or 0)
        return str(file)


def _told(payload: bytes) -> str:
    """Of bytes that are kept nowhere, what helps to find their sender."""
    if not payload:
        return "it has no bytes"
    begin = f"its {len(payload):,} bytes begin with {payload[:_TOLD_BYTES].hex()}"
    sender = sender_in(payload)
    return begin if sender is None else f"{begin}, and name producer {sender[0]}, message {sender[1]}"
