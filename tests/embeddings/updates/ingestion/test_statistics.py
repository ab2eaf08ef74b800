import time

import pytest

from hebe.embeddings.updates.contract import TopicPartition
from hebe.embeddings.updates.ingestion import statistics as module
from hebe.embeddings.updates.ingestion.sequence_check import Gap
from hebe.embeddings.updates.ingestion.statistics import IngestionCounter

AT = TopicPartition("m", "t", 0)


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 1000.0

    monkeypatch.setattr(module.time, "monotonic", lambda: Clock.now)
    monkeypatch.setattr(module.time, "time", lambda: Clock.now)
    return Clock


def test_counts_and_gaps():
    counter = IngestionCounter(["persistent"])
    counter.add(messages=2, rows=5)
    counter.add(messages=1, deletes=3, duplicates=1, reordered=2)
    counter.gap(Gap(AT, "p", 3, 6))
    counter.add(refused=4)
    counter.poison("broken", "message 3: broken (nowhere)")
    counter.lag({AT: 4, TopicPartition("m", "t", 1): 3})
    read = counter.read()
    assert (read.messages, read.rows, read.deletes, read.duplicates, read.reordered) == (3, 5, 3, 1, 2)
    assert (read.gaps, read.missing, read.last_gaps) == (1, 4, (Gap(AT, "p", 3, 6),))
    assert (read.poison, read.last_error, read.is_failing) == (1, "broken", False)
    assert (read.refused, read.last_poison) == (4, ("message 3: broken (nowhere)",))
    assert read.lag_messages == 7


def test_lag_that_nobody_has_told_or_that_is_of_the_past_is_none():
    counter = IngestionCounter([])
    assert (counter.read().lag, counter.read().lag_messages) == (None, None)
    counter.lag({})
    assert counter.read().lag_messages == 0
    counter.lag(None)
    assert counter.read().lag_messages is None


def test_of_poison_the_last_is_remembered(monkeypatch):
    monkeypatch.setattr(module, "_MOST_POISON", 3)
    counter = IngestionCounter([])
    for number in range(10):
        counter.poison("broken", f"message {number}")
    assert counter.read().last_poison == ("message 7", "message 8", "message 9")


def test_failures_are_news_once():
    counter = IngestionCounter([])
    assert counter.failed("gone")
    assert not counter.failed("gone")
    assert counter.failed("otherwise gone")
    assert counter.read().is_failing
    assert counter.succeeded()
    assert not counter.succeeded()
    read = counter.read()
    assert (read.failures, read.last_error, read.is_failing) == (3, "otherwise gone", False)


def test_since_when_calls_fail(clock):
    counter = IngestionCounter([])
    counter.failed("gone")
    clock.now += 5
    counter.failed("gone")
    assert (counter.read().failing_s, counter.read().left_out_s) == (5.0, None)
    counter.succeeded()
    assert counter.read().failing_s is None


@pytest.mark.parametrize(
    "leave_out",
    [
        lambda counter: counter.add(refused=1),
        lambda counter: counter.poison("broken", "message 3"),
        lambda counter: counter.gap(Gap(AT, "p", 3, 6)),
    ],
)
def test_since_when_rows_are_left_out(clock, leave_out):
    counter = IngestionCounter([])
    counter.add(rows=1, refused=0)
    assert counter.read().left_out_s is None
    leave_out(counter)
    clock.now += 5
    leave_out(counter)
    assert counter.read().left_out_s == 5.0


def test_the_rate_is_of_the_last_seconds(clock):
    counter = IngestionCounter([])
    clock.now += 5
    counter.add(rows=100)
    assert counter.read().rows_per_s == 20
    for _ in range(100):
        clock.now += 0.25
        counter.add(rows=10, deletes=15)
    assert counter.read().rows_per_s == pytest.approx(100, rel=0.1)
    assert len(counter._recent) <= 22
    clock.now += 60
    assert counter.read().rows_per_s == 0


def test_update_to_visible_by_tier(clock):
    counter = IngestionCounter(["persistent", "volatile"])
    counter.visible("persistent", [clock.now - 1, clock.now - 3, clock.now - 2])
    counter.visible("volatile", [clock.now + 5])  # a clock that runs ahead
    visible = counter.read().visible
    assert visible["persistent"].answers == 3
    assert (visible["persistent"].p50_s, visible["persistent"].p99_s) == (2, 3)
    assert visible["volatile"].largest_s == 0


def test_the_histogram_is_cumulative_and_only_grows(clock):
    counter = IngestionCounter(["volatile"])
    counter.visible("volatile", [clock.now - 0.005, clock.now - 0.3, clock.now - 1e6])
    histogram = counter.read().visible_histogram["volatile"]
    assert histogram.bounds_s == module.VISIBLE_BOUNDS_S
    counts = dict(zip(histogram.bounds_s, histogram.at_most, strict=True))
    assert (counts[0.005], counts[0.25], counts[0.5], counts[86400.0], histogram.messages) == (1, 1, 2, 2, 3)
    assert histogram.sum_s == pytest.approx(1e6 + 0.305)
    counter.visible("volatile", [clock.now])
    later = counter.read().visible_histogram["volatile"]
    assert [b - a for a, b in zip(histogram.at_most, later.at_most, strict=True)] == [1] * len(later.bounds_s)


def test_clocks_are_the_machines():
    counter = IngestionCounter(["t"])
    counter.visible("t", [time.time()])
    assert 0 <= counter.read().visible["t"].largest_s < 60
