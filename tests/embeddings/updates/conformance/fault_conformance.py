"""What an ingestion must make of a log in which everything is wrong that can be, whatever carries it.

A log's tests subclass `FaultConformance` beside `UpdateLogConformance`, with the same fixtures.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hebe.embeddings.store import StoreUnavailable
from hebe.embeddings.updates.contract import Topic, TopicPartition, UpdateLog, UpdateMessage
from hebe.embeddings.updates.ingestion import sequence_check
from hebe.embeddings.updates.ingestion.ingestion import UpdateIngestion
from hebe.embeddings.updates.ingestion.options import IngestionOptions
from hebe.embeddings.updates.ingestion.sequence_check import Gap
from hebe.embeddings.updates.message import encode
from hebe.embeddings.updates.producer import UpdateCarrier
from tests.embeddings.stores.dict_store import DictStore

USERS = Topic("m", "users")
DIMS = {"users": 3}
QUICK = IngestionOptions(failure_backoff_ms=1, poll_timeout_ms=20, max_batch_size=7, max_commit_interval=3)
TIMEOUT_S = 60.0


def wait_until(done: Callable[[], bool]) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not done():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def rows_of(store: DictStore) -> dict[int, list[float]]:
    return {key: row.tolist() for key, row in store.tables["users"].items()}


class Sender:
    """Writes messages by hand, past the producer, which would not make such."""

    def __init__(self, carrier: UpdateCarrier, partition: int = 0) -> None:
        self.carrier, self.at = carrier, TopicPartition("m", "users", partition)
        self.carrier.partitions(USERS)

    def message(self, sequence: int, keys: list[int], value: float | None, producer: str = "p", dim: int = 3) -> bytes:
        """Rows of `value`, or tombstones."""
        array = np.array(keys, np.int64)
        rows = None if value is None else np.full((len(keys), dim), value, np.float32)
        return encode(UpdateMessage(producer, sequence, time.time(), array, rows), self.at)

    def append(self, *payloads: bytes) -> None:
        for payload in payloads:
            self.carrier.append(self.at, payload)
        self.carrier.flush(TIMEOUT_S)


class FaultConformance:
    """See the module's text."""

    def test_duplicate_swapped_truncated_and_corrupt_messages(
        self, make_log: Callable[[], UpdateLog], carrier_of: Callable[[UpdateLog], UpdateCarrier], tmp_path: Path
    ) -> None:
        log, store = make_log(), DictStore(DIMS)
        sender = Sender(carrier_of(log))
        messages = [sender.message(number, [number, 100], float(number)) for number in range(10)]
        corrupt = bytearray(messages[3])
        corrupt[-9] ^= 1
        stray = encode(UpdateMessage("p", 4, 0.0, np.array([9]), None), TopicPartition("m", "users", 1))
        poison = [messages[2][:-1], bytes(corrupt), b"", b"\0" * 100, stray, sender.message(0, [100], 9.0, "x", dim=5)]
        sender.append(messages[0], messages[1], messages[0])  # a repetition that is older than what the store has
        sender.append(*poison)
        sender.append(messages[3], messages[4], messages[2], messages[6], messages[5], messages[5])
        sender.append(messages[7], sender.message(8, [100], None), sender.message(8, [100], 77.0), messages[9])
        with UpdateIngestion(
            log.source("g", [USERS]), {"store": store}, "m", DIMS, QUICK, quarantine=tmp_path / "aside"
        ) as ingestion:
            assert ingestion.drain(TIMEOUT_S)
            statistics = ingestion.statistics()
        expected = {number: [float(number)] * 3 for number in range(10) if number != 8}
        assert rows_of(store) == expected | {100: [9.0] * 3}
        assert (statistics.duplicates, statistics.poison, statistics.messages) == (3, len(poison), 10)
        assert (statistics.reordered, statistics.gaps) == (2, 0)
        kept = sorted(file.read_bytes() for file in (tmp_path / "aside").glob("*.message"))
        assert kept == sorted(poison)
        assert not any(log.reader_lag("g").values())
        sender.carrier.close()

    def test_a_number_that_never_comes_is_a_gap_and_all_else_is_applied(
        self, make_log: Callable[[], UpdateLog], carrier_of: Callable[[UpdateLog], UpdateCarrier]
    ) -> None:
        log, store = make_log(), DictStore(DIMS)
        sender = Sender(carrier_of(log))
        sender.append(*(sender.message(number, [number], 1.0) for number in (0, 1, 5, 6)))
        sender.append(*(sender.message(number, [50 + number], 1.0, "q") for number in (0, 1)))
        with UpdateIngestion(log.source("g", [USERS]), {"store": store}, "m", DIMS, QUICK) as ingestion:
            assert ingestion.drain(TIMEOUT_S)
            statistics = ingestion.statistics()
        assert set(rows_of(store)) == {0, 1, 5, 6, 50, 51}
        [gap] = statistics.last_gaps
        assert (gap.at, gap.producer, gap.first, gap.last) == (sender.at, "p", 2, 4)
        assert (statistics.gaps, statistics.missing) == (1, 3)
        sender.carrier.close()

    def test_first_messages_that_never_came_are_a_gap_to_who_has_read_all_of_the_log(
        self,
        make_log: Callable[[], UpdateLog],
        carrier_of: Callable[[UpdateLog], UpdateCarrier],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(sequence_check, "WAIT_S", 0.05)
        log, store = make_log(), DictStore(DIMS)
        sender = Sender(carrier_of(log))
        sender.append(sender.message(0, [0], 1.0), sender.message(2, [2], 1.0, "q"))
        with UpdateIngestion(log.source("g", [USERS]), {"store": store}, "m", DIMS, QUICK) as ingestion:
            assert ingestion.drain(TIMEOUT_S)
            assert ingestion.statistics().last_gaps == (Gap(sender.at, "q", 0, 1),)
            begin = {at: offset for at, offset in ingestion.applied().items() if offset is not None}
        sender.append(sender.message(6, [6], 1.0, "r"))
        source = log.source("g", [USERS])
        with UpdateIngestion(source, {"store": store}, "m", DIMS, QUICK, begin=begin) as ingestion:
            assert ingestion.drain(TIMEOUT_S)
            assert not ingestion.statistics().gaps, "r may have sent them before that began"
        assert set(rows_of(store)) == {0, 2, 6}
        sender.carrier.close()

    def test_nothing_is_reported_that_the_store_has_not(
        self, make_log: Callable[[], UpdateLog], carrier_of: Callable[[UpdateLog], UpdateCarrier]
    ) -> None:
        """Also where the server ends in the middle of a batch."""
        log, store = make_log(), DictStore(DIMS)
        sender = Sender(carrier_of(log))
        sender.append(*(sender.message(number, [number], 1.0) for number in range(5)))
        with UpdateIngestion(log.source("g", [USERS]), {"store": store}, "m", DIMS, QUICK) as ingestion:
            assert ingestion.drain(TIMEOUT_S)
            store.fault = StoreUnavailable("stands still")
            sender.append(*(sender.message(number, [number], 1.0) for number in range(5, 20)))
            wait_until(lambda: ingestion.statistics().failures > 2)
            assert sum(log.reader_lag("g").values()) == 15
        assert set(rows_of(store)) == set(range(5))
        assert sum(log.reader_lag("g").values()) == 15
        sender.carrier.close()
