"""What is told of a log that no longer has its oldest messages, to whom it matters, whatever carries it.

A log's tests subclass `BeginningConformance` beside `UpdateLogConformance`, with a fixture `trimmable`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from hebe.embeddings.updates.contract import Delivery, Topic, TopicPartition, UpdateLog, UpdateMessage, UpdateSource
from hebe.embeddings.updates.ingestion.ingestion import UpdateIngestion
from hebe.embeddings.updates.ingestion.options import IngestionOptions
from hebe.embeddings.updates.message import encode
from hebe.embeddings.updates.producer import UpdateCarrier
from tests.embeddings.stores.dict_store import DictStore

USERS = Topic("m", "users")
AT = TopicPartition("m", "users", 0)
QUICK = IngestionOptions(failure_backoff_ms=1, poll_timeout_ms=20)
TIMEOUT_S = 60.0
FIRST_SENT_S = 1_000_000.0
COUNT = 40

Trimmable = tuple[UpdateLog, Callable[[int], None]]
"""An empty log, and what removes so many of the oldest messages of partition 0 of its table, or a few less."""


def send(log: UpdateLog, carrier_of: Callable[[UpdateLog], UpdateCarrier], first: int = 0, count: int = COUNT) -> None:
    """Messages of one key, its number, each a second after the one before."""
    carrier = carrier_of(log)
    carrier.partitions(USERS)
    for number in range(first, first + count):
        rows = np.full((1, 24), number, np.float32)
        carrier.append(AT, encode(UpdateMessage("p", number, FIRST_SENT_S + number, np.array([number]), rows), AT))
    carrier.flush(TIMEOUT_S)
    carrier.close()


def read(source: UpdateSource, until_key: int = COUNT - 1) -> list[Delivery]:
    """All from where it stands to the message of that key."""
    found: list[Delivery] = []
    end_s = time.monotonic() + TIMEOUT_S
    while not found or found[-1].message is None or found[-1].message.keys[0] != until_key:
        assert time.monotonic() < end_s
        found += source.poll(7, 0.1)
    return found


class BeginningConformance:
    """See the module's text."""

    def test_a_whole_log_has_its_beginning(
        self, trimmable: Trimmable, carrier_of: Callable[[UpdateLog], UpdateCarrier]
    ) -> None:
        log, _ = trimmable
        send(log, carrier_of)
        for reader in (None, "g"):
            source = log.source(reader, [USERS])
            assert source.lost_beginning(AT) is None
            assert len(read(source)) == COUNT
            assert source.lost_beginning(AT) is None
            source.close()

    def test_who_begins_with_the_oldest_message_is_told_that_it_is_not_the_first(
        self, trimmable: Trimmable, carrier_of: Callable[[UpdateLog], UpdateCarrier]
    ) -> None:
        log, trim = trimmable
        send(log, carrier_of)
        before = log.source(None, [USERS])
        offsets = [delivery.offset for delivery in read(before)]
        before.close()
        trim(25)
        for reader in (None, "new"):
            source = log.source(reader, [USERS])
            found = read(source)
            gone = COUNT - len(found)
            assert 15 <= gone <= 25
            assert [delivery.offset for delivery in found] == offsets[gone:]
            assert source.lost_beginning(AT) == (offsets[0], offsets[gone] - 1)
            source.commit({AT: found[-1].offset})
            source.seek(AT, -1)
            assert len(read(source)) == len(found)
            assert source.lost_beginning(AT) == (offsets[0], offsets[gone] - 1)
            source.seek(AT, offsets[35])
            assert len(read(source)) == 4
            assert source.lost_beginning(AT) is None, "it has not asked for them"
            source.close()
        newest = log.source(None, [USERS], newest=True)
        while not newest.assigned():
            assert not newest.poll(10, 0.1)
        send(log, carrier_of, COUNT, 1)
        assert len(read(newest, COUNT)) == 1
        assert newest.lost_beginning(AT) is None
        newest.close()

    @pytest.mark.parametrize(
        ("begun", "since_s", "is_reported"),
        [
            (False, None, True),
            (False, FIRST_SENT_S + 3, True),
            (False, FIRST_SENT_S + 30, False),
            (True, FIRST_SENT_S + 3, False),
        ],
    )
    def test_updates_that_are_gone_are_a_gap_unless_the_rows_have_them(
        self,
        trimmable: Trimmable,
        carrier_of: Callable[[UpdateLog], UpdateCarrier],
        caplog: pytest.LogCaptureFixture,
        begun: bool,
        since_s: float | None,
        is_reported: bool,
    ) -> None:
        log, trim = trimmable
        send(log, carrier_of)
        before = log.source(None, [USERS])
        begin = {AT: read(before)[30].offset} if begun else {}
        before.close()
        trim(25)
        store, source = DictStore({"users": 24}), log.source("g", [USERS])
        stores = {"store": store}
        with UpdateIngestion(source, stores, "m", store.dims, QUICK, begin=begin, since_s=since_s) as ingestion:
            assert ingestion.drain(TIMEOUT_S)
            send(log, carrier_of, COUNT, 3)
            assert ingestion.drain(TIMEOUT_S)
            statistics = ingestion.statistics()
        kept = set(store.tables["users"])
        assert kept >= {COUNT - 1, COUNT, COUNT + 2}
        expected = (1, min(kept), 0) if is_reported else (0, 0, 0)
        assert (statistics.gaps, statistics.missing, statistics.poison) == expected
        texts = [record.getMessage() for record in caplog.records]
        told = [text for text in texts if "removed from the log" in text]
        assert len(told) == is_reported
        assert all("partition 0 of model m, table users" in text and "lost here" in text for text in told)
