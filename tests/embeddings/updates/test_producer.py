import itertools
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.embeddings.store import StoreError, StoreUnavailable
from hebe.embeddings.updates import producer as batching
from hebe.embeddings.updates.contract import Topic
from hebe.embeddings.updates.limits import BatchingOptions
from hebe.embeddings.updates.message import decode, encode
from hebe.embeddings.updates.producer import BatchingProducer
from hebe.kernels.hash_tables.xxh64 import hash_key_reference

LONG_S = 3600.0


class ListCarrier:
    """Keeps what it is given; `faults` are raised by the calls to come, before or after they have taken a message."""

    def __init__(self, partitions=4):
        self.count, self.log, self.faults, self.closed, self.flushes = partitions, [], [], False, 0
        self.in_flight = []
        self.open = threading.Event()
        self.open.set()

    def partitions(self, _):
        return self.count

    def append(self, at, payload):
        assert self.open.wait(60)
        fault, taken = self.faults.pop(0) if self.faults else (None, True)
        if taken:
            self.log.append((at, decode(payload, at)))
        if fault:
            raise fault

    def flush(self, _):
        self.flushes += 1

    def unconfirmed(self):
        return self.in_flight

    def close(self):
        self.closed = True

    def table(self):
        """What the log makes of the tables."""
        tables = {}
        for at, message in self.log:
            for place, key in enumerate(message.keys.tolist()):
                assert at.partition == hash_key_reference(key) % self.count
                if message.rows is None:
                    tables.get(at.table, {}).pop(key, None)
                else:
                    tables.setdefault(at.table, {})[key] = message.rows[place].tolist()
        return {name: rows for name, rows in tables.items() if rows}

    def sequences(self):
        numbers = {}
        for at, message in self.log:
            numbers.setdefault(at, []).append(message.sequence)
        return numbers


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch):
    monkeypatch.setattr(batching, "FIRST_RETRY_S", 0.001)
    monkeypatch.setattr(batching, "LONGEST_RETRY_S", 0.002)


def rows_of(keys, stamp, dim=2):
    return np.full((len(keys), dim), stamp, np.float32) + np.arange(len(keys), dtype=np.float32)[:, None] / 1000


CALLS = st.lists(
    st.tuples(st.sampled_from(["users", "items"]), st.booleans(), st.lists(st.integers(-3, 9), max_size=12)),
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(CALLS, st.integers(1, 5), st.integers(1, 7), st.sampled_from([0.0, 0.001, LONG_S]))
def test_the_log_says_what_was_sent(calls, partitions, max_rows, linger_s):
    carrier, expected = ListCarrier(partitions), {}
    with BatchingProducer(carrier, BatchingOptions(max_rows=max_rows, linger_s=linger_s)) as producer:
        for stamp, (table, goes, keys) in enumerate(calls):
            keys = np.array(keys, np.int64)
            rows = rows_of(keys, stamp, 1 if table == "users" else 3)
            if goes:
                producer.delete("m", table, keys)
                for key in keys.tolist():
                    expected.get(table, {}).pop(key, None)
            else:
                producer.send("m", table, keys, rows)
                expected.setdefault(table, {}).update(zip(keys.tolist(), rows.tolist(), strict=True))
    assert carrier.closed
    assert carrier.table() == {name: rows for name, rows in expected.items() if rows}
    assert all(len(message.keys) <= max_rows for _, message in carrier.log)
    assert all(numbers == list(range(len(numbers))) for numbers in carrier.sequences().values())


def test_the_partitions_of_a_topic_are_those_that_it_had_at_first():
    """One that has more later would have older and newer updates of a key in two, which are read side by side."""
    carrier, keys = ListCarrier(partitions=2), np.arange(50)
    with BatchingProducer(carrier) as producer:
        producer.send("m", "users", keys, rows_of(keys, 1))
        producer.flush()
        carrier.count = 4
        producer.send("m", "users", keys, rows_of(keys, 2))
        producer.flush()
        producer.send("m", "items", keys, rows_of(keys, 1))
    placed = {topic: {} for topic in ("users", "items")}
    for at, message in carrier.log:
        for key in message.keys.tolist():
            placed[at.table].setdefault(key, set()).add(at.partition)
    assert placed["users"] == {key: {hash_key_reference(key) % 2} for key in keys.tolist()}
    assert placed["items"] == {key: {hash_key_reference(key) % 4} for key in keys.tolist()}


def test_messages_are_filled_up_to_rows_and_bytes():
    carrier = ListCarrier(1)
    with BatchingProducer(carrier, BatchingOptions(max_rows=10, linger_s=LONG_S)) as producer:
        for first in range(0, 35, 5):
            keys = np.arange(first, first + 5)
            producer.send("m", "t", keys, rows_of(keys, 0))
    assert [len(message.keys) for _, message in carrier.log] == [10, 10, 10, 5]
    carrier = ListCarrier(1)
    with BatchingProducer(carrier, BatchingOptions(max_message_bytes=1024, linger_s=LONG_S), name="p") as producer:
        keys = np.arange(100)
        producer.send("m", "t", keys, rows_of(keys, 0, 8))
    assert [len(message.keys) for _, message in carrier.log] == [24, 24, 24, 24, 4]  # 40 bytes a row, 52 a message


def test_rows_do_not_wait_for_ever():
    carrier = ListCarrier(1)
    producer = BatchingProducer(carrier, BatchingOptions(linger_s=0.01), clock=lambda: 77.0)
    keys = np.arange(3)
    producer.send("m", "t", keys, rows_of(keys, 0))
    end_s = time.monotonic() + 60
    while not carrier.log and time.monotonic() < end_s:
        time.sleep(0.001)
    assert carrier.log[0][1].sent_s == 77
    producer.close()


def test_a_message_tells_the_times_of_its_oldest_and_of_its_newest_row():
    carrier, now_s = ListCarrier(1), [100.0]
    options = BatchingOptions(max_rows=4, linger_s=LONG_S)
    with BatchingProducer(carrier, options, clock=lambda: now_s[0]) as producer:
        for now_s[0], keys in ((100.0, [1]), (101.0, [2]), (107.0, [3, 4, 5]), (106.0, [6])):  # clocks go back too
            producer.send("m", "t", np.array(keys), rows_of(keys, 0))
    times = [(len(message.keys), message.sent_s, message.newest_s) for _, message in carrier.log]
    assert times == [(4, 100.0, 107.0), (2, 107.0, 107.0)]


@pytest.mark.parametrize("taken", [True, False])
def test_what_is_not_taken_is_tried_again_under_its_number(taken):
    carrier = ListCarrier(1)
    carrier.faults = [(StoreUnavailable("gone"), taken)] * 3 + [(RuntimeError("of its own kind"), taken)]
    with BatchingProducer(carrier, BatchingOptions(max_rows=1)) as producer:
        keys = np.arange(3)
        producer.send("m", "t", keys, rows_of(keys, 0))
        end_s = time.monotonic() + 60
        while carrier.faults and time.monotonic() < end_s:
            time.sleep(0.001)
    assert carrier.sequences().popitem()[1] == [0] * (4 if taken else 0) + [0, 1, 2]
    assert set(carrier.table()["t"]) == {0, 1, 2}


def test_flush_raises_what_keeps_the_log_and_loses_nothing():
    carrier = ListCarrier(1)
    producer = BatchingProducer(carrier, BatchingOptions(linger_s=LONG_S))
    keys = np.arange(3)
    producer.send("m", "t", keys, rows_of(keys, 0))
    carrier.open.clear()
    with pytest.raises(StoreUnavailable, match="has not taken"):
        producer.flush(0.01)
    carrier.faults = [(StoreUnavailable("the broker is gone"), False)] * 100_000
    carrier.open.set()
    with pytest.raises(StoreUnavailable, match="the broker is gone"):
        producer.flush(0.2)
    carrier.faults = [(StoreError("not permitted"), False)] * 100_000
    with pytest.raises(StoreError, match="not permitted"):
        producer.flush(60)
    carrier.faults = []
    producer.flush(60)
    assert set(carrier.table()["t"]) == {0, 1, 2}
    assert carrier.flushes == 1
    assert producer.waiting_bytes == 0
    producer.close()


def test_what_waits_is_bounded_and_a_refused_call_has_taken_nothing():
    carrier = ListCarrier(1)
    carrier.open.clear()
    options = BatchingOptions(max_rows=100, max_waiting_bytes=4000, send_timeout_s=0.01)
    producer = BatchingProducer(carrier, options)
    keys = np.arange(100)
    sent = 0

    def fill():
        nonlocal sent
        for sent in itertools.count():
            producer.send("m", "t", keys + 100 * sent, rows_of(keys, sent))

    with pytest.raises(StoreUnavailable, match="has not taken"):
        fill()
    assert 1 <= sent <= 4
    assert producer.waiting_bytes <= 4000
    carrier.open.set()
    producer.flush(60)
    assert sorted(carrier.table()["t"]) == list(range(100 * sent))
    producer.close()


def test_a_close_that_fails_says_so_and_ends():
    carrier = ListCarrier(1)
    carrier.faults = [(StoreError("not permitted"), False)] * 100_000
    producer = BatchingProducer(carrier)
    producer.send("m", "t", np.arange(1), rows_of([0], 0))
    with pytest.raises(StoreError, match="not permitted"):
        producer.close()
    assert carrier.closed
    producer.close()
    with pytest.raises(StoreError, match="closed"):
        producer.delete("m", "t", np.arange(1))


def test_a_log_that_cannot_be_reached_yet_is_waited_for():
    carrier, answers = ListCarrier(2), iter([StoreUnavailable("not yet"), 2])

    def partitions(topic):
        assert topic == Topic("m", "t")
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    carrier.partitions = partitions
    with BatchingProducer(carrier) as producer:
        producer.delete("m", "t", np.arange(4))
    assert sorted(key for _, message in carrier.log for key in message.keys.tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("m", "t", np.arange(2), np.zeros((2, 2))), "rows are float64"),
        (("m", "t", np.arange(2), np.zeros(2, np.float32)), r"rows are float32 \[2\]"),
        (("m", "t", np.arange(2), np.zeros((2, 0), np.float32)), r"rows are float32 \[2, 0\]"),
        (("m", "t", np.arange(2), np.zeros((3, 1), np.float32)), "3 rows for 2 keys"),
        (("m", "t", np.arange(2, dtype=np.int32), np.zeros((2, 1), np.float32)), "keys are int32"),
        (("m", "t", np.arange(2)[:, None], np.zeros((2, 1), np.float32)), r"keys are int64 \[2, 1\]"),
        (("m", "t", np.arange(1), np.full((1, 1), np.nan, np.float32)), "not all finite"),
        (("m/x", "t", np.arange(1), np.zeros((1, 1), np.float32)), "model name"),
        (("m", "../t", np.arange(1), np.zeros((1, 1), np.float32)), "table name"),
        (("m", "t", np.arange(1), np.zeros((1, 300), np.float32)), "a row of dim 300: max_message_bytes is 1,024"),
        (("m", "known", np.arange(1), np.zeros((1, 3), np.float32)), "had dim 2, these have 3"),
    ],
)
def test_arrays_of_another_kind_are_refused(arguments, fault):
    carrier = ListCarrier()
    with BatchingProducer(carrier, BatchingOptions(max_message_bytes=1024)) as producer:
        producer.send("m", "known", np.arange(1), np.zeros((1, 2), np.float32))
        with pytest.raises(ValueError, match=fault):
            producer.send(*arguments)
    assert len(carrier.log) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_rows", 0),
        ("max_message_bytes", 17 << 20),
        ("linger_s", -1),
        ("max_waiting_bytes", 0),
        ("linger_s", np.nan),
    ],
)
def test_options_out_of_range_are_named(field, value):
    with pytest.raises(ValueError, match=field):
        BatchingOptions(**{field: value})


def test_a_producers_arrays_may_be_used_again_at_once():
    carrier = ListCarrier(1)
    keys, rows = np.arange(2), np.ones((2, 2), np.float32)
    with BatchingProducer(carrier, BatchingOptions(linger_s=LONG_S)) as producer:
        producer.send("m", "t", keys, rows)
        keys[:], rows[:] = 9, 9
    assert carrier.table() == {"t": {0: [1, 1], 1: [1, 1]}}


def test_it_says_what_the_log_has_and_what_it_may_have():
    carrier, keys = ListCarrier(1), np.arange(25)
    producer = BatchingProducer(carrier, BatchingOptions(max_rows=10, linger_s=LONG_S))
    assert producer.keys_in_log() == (0, 0)
    producer.send("m", "users", keys, rows_of(keys, 1))
    producer.flush()
    assert producer.keys_in_log() == (25, 0)
    carrier.in_flight = [encode(carrier.log[-1][1], carrier.log[-1][0])]
    assert producer.keys_in_log() == (20, 5), "of those that the carrier sends in the background it has no answer yet"
    carrier.in_flight = []
    carrier.faults = [(None, True), *[(StoreUnavailable("gone"), True)] * 10_000]  # took it, and could not say so
    producer.delete("m", "users", keys)
    with pytest.raises(StoreUnavailable, match="gone"):
        producer.flush(0.05)
    assert producer.keys_in_log() == (35, 10), "the last 5 were never given to the log"
    carrier.faults = []
    producer.close()
    assert producer.keys_in_log() == (50, 0)
