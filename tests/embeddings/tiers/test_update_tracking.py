import contextlib
import math

import numpy as np
import pytest

from hebe.embeddings.store import StoreError
from hebe.embeddings.tiers.update_tracking import RecentUpdates, UpdateLag, UpdateTimes


class Asked:
    """Times of two tables, and a clock to set."""

    def __init__(self, **options) -> None:
        self.now_s = 1e6
        self.times = UpdateTimes(["users", "items"], lambda: self.now_s, **options)

    def within(self, last_s: float, users: list[int], items: list[int]) -> list[bool] | None:
        starts = np.array([0, len(users), len(users) + len(items)])
        keys = np.array([*users, *items], np.int64)
        found = self.times.since(self.now_s - last_s, ["users", "items"], keys, starts)
        return None if found is None else found.tolist()


def test_what_was_updated_of_late_is_told_by_table_until_it_is_long_ago() -> None:
    asked = Asked()
    assert asked.within(60.0, [1], [1]) is None
    asked.times.note("users", np.array([1, -(2**63), 2**63 - 1]))
    asked.now_s += 40
    asked.times.note("items", np.array([1]))
    assert asked.within(60.0, [1, 2, -(2**63), 2**63 - 1], [1, 2]) == [True, False, True, True, True, False]
    asked.now_s += 40
    assert asked.within(60.0, [1, 2], [1, 2]) == [False, False, True, False]
    asked.times.note("users", np.array([1]))
    assert asked.within(60.0, [1], [1]) == [True, True]
    asked.now_s += 61
    assert asked.within(60.0, [1], [1]) is None
    assert asked.within(60.0, [], []) is None


def test_in_an_infinite_past_anything_may_have_been_updated() -> None:
    asked = Asked()
    assert asked.within(math.inf, [1, 2], [1]) == [True] * 3
    asked.times.note("users", np.array([1]))
    assert asked.within(math.inf, [1, 2], [1]) == [True] * 3
    assert asked.within(1e9, [1, 2], [1]) == [True, False, False]


@pytest.mark.parametrize("slots", [1, 2, 64, 1 << 21])
def test_keys_may_be_taken_for_others_but_no_update_is_missed(slots) -> None:
    asked, random = Asked(slots=slots), np.random.default_rng(slots)
    keys = random.integers(-(2**63), 2**63 - 1, 2000)
    asked.times.note("users", keys[:1000])
    found = asked.within(1.0, keys.tolist(), [])
    assert found is not None
    assert all(found[:1000])
    if slots > 1000:
        assert sum(found[1000:]) < 10


class Watched:
    """A lag of 60 s that is watched, and its clock."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.lag = UpdateLag(60.0, lambda: self.now_s)

    def take_until(self, now_s: float) -> None:
        """Level 2 takes writes, every two seconds until then."""
        while self.now_s < now_s:
            self.now_s += 2.0
            self.lag.taking()

    def __call__(self) -> float:
        """How far back updates may be missing."""
        return self.now_s - self.lag.since_s


def test_what_nobody_watches_is_late_as_usual() -> None:
    behind = Watched()
    assert behind() == 60.0
    behind.now_s += 1000.0
    assert behind() == 60.0


def test_what_was_before_the_watch_is_unknown_until_it_has_taken_writes_for_long_enough() -> None:
    behind = Watched()
    behind.lag.watch()
    assert behind() == math.inf
    behind.now_s += 500.0
    assert behind() == math.inf, "it has not taken any"
    behind.take_until(1560.0)
    assert behind() == math.inf
    behind.take_until(1562.0)
    assert behind() == 60.0
    behind.now_s += 1.5
    assert behind() == 61.5, "it is known to have been taking them until then"


@pytest.mark.parametrize(("outage_s", "lasts_s"), [(30.0, 60.0), (90.0, 90.0), (600.0, 600.0)])
def test_after_an_outage_its_updates_are_late_for_as_long_as_it_was(outage_s: float, lasts_s: float) -> None:
    behind = Watched()
    behind.lag.watch()
    behind.take_until(2000.0)
    behind.now_s += outage_s
    assert behind() == 60.0 + outage_s
    behind.take_until(2000.0 + outage_s + lasts_s)
    assert behind.lag.since_s == 1940.0
    behind.take_until(2000.0 + outage_s + lasts_s + 4.0)
    assert behind() == 60.0


def test_who_knows_that_all_has_been_written_says_so() -> None:
    behind = Watched()
    behind.lag.watch()
    assert not behind.lag.waits, "it has not taken any"
    behind.take_until(1004.0)
    assert behind.lag.waits
    behind.lag.caught_up()
    assert behind() == 60.0
    behind.take_until(1006.0)
    assert behind() == 60.0
    assert not behind.lag.waits
    behind.now_s += 100.0
    behind.lag.caught_up()
    behind.take_until(1108.0)
    assert behind.lag.since_s == 946.0, "that was before the end of the outage"
    assert behind.lag.waits


def test_an_outage_soon_after_another_adds_to_it_and_a_moment_is_none() -> None:
    behind = Watched()
    behind.lag.watch()
    behind.take_until(2000.0)
    behind.now_s += 100.0
    behind.take_until(2150.0)
    behind.now_s += 50.0
    behind.take_until(2200.0)
    assert behind.lag.since_s == 1940.0
    behind.take_until(2270.0)
    assert behind() == 60.0
    behind.now_s += 8.0
    behind.lag.taking()
    assert behind() == 60.0


def test_what_the_log_does_not_have_as_written_may_be_missing_for_ever() -> None:
    """Level 2 takes writes, but those who are to write there are stuck."""
    behind = Watched()
    behind.lag.watch()
    behind.lag.written(-math.inf)
    behind.take_until(2000.0)
    assert behind() == math.inf
    behind.lag.written(1990.0)
    assert behind() == 60.0, "what may be on its way still"
    behind.take_until(9000.0)
    assert behind.lag.since_s == 1990.0
    behind.lag.written(9000.0)
    assert behind() == 60.0


def test_keys_are_overtaken_by_later_updates_alone():
    updates = RecentUpdates()
    updates.add(np.array([1, 2]))
    seen = updates.number
    keys = np.array([1, 2, 3, 4])
    assert not updates.overtaken(keys, seen).any()
    updates.add(np.array([2, 9]))
    updates.add(np.array([4]))
    assert updates.overtaken(keys, seen).tolist() == [False, True, False, True]
    assert updates.overtaken(keys, seen + 1).tolist() == [False, False, False, True]


def test_where_updates_are_forgotten_all_keys_are_overtaken():
    updates = RecentUpdates()
    for number in range(300):
        updates.add(np.array([number]))
    keys = np.array([0, 250, 999])
    assert updates.overtaken(keys, 0).all()
    assert updates.overtaken(keys, 200).tolist() == [False, True, False]


def test_what_was_put_into_level_2_is_remembered_for_as_long_as_it_may_matter():
    now = [10.0]
    updates = RecentUpdates(lambda: now[0])
    assert updates.filled_among(np.array([1])).size == 0
    updates.note_filled(np.array([5, 6]))
    for number in range(1000):
        updates.note_filled(np.array([8, 1000 + number]))
    assert updates.filled_among(np.array([8, 7, 6, 8])).tolist() == [6, 8]
    now[0] += 200.0
    updates.note_filled(np.array([6]))
    now[0] += 200.0
    assert updates.filled_among(np.array([8, 7, 6, 8])).tolist() == [6]
    now[0] += 200.0
    assert updates.filled_among(np.array([8, 7, 6, 8])).size == 0


def test_however_much_was_put_there_none_of_it_is_missed():
    updates, keys = RecentUpdates(), np.arange(0, 3_000_000, 3)
    updates.note_filled(keys)
    asked = keys[-5000:]
    assert np.array_equal(updates.filled_among(asked), asked)


def owed(updates, *, fails=False, meanwhile=()):
    """What is being paid; while it is, more is owed."""
    told = None
    with contextlib.suppress(StoreError), updates.paying() as keys:
        told = None if keys is None else keys.tolist()
        assert updates.owes, "it is not done yet"
        if meanwhile:
            updates.owe(np.array(meanwhile))
        if fails:
            raise StoreError("away")
    return told


def test_what_could_not_be_deleted_is_owed_until_it_is():
    updates = RecentUpdates()
    assert not updates.owes
    updates.owe(np.array([4, 2]))
    assert owed(updates, fails=True, meanwhile=[5, 4]) == [2, 4]
    assert updates.owes
    assert owed(updates, meanwhile=[4]) == [2, 4, 5]
    assert updates.owes, "it is owed anew"
    assert owed(updates) == [4]
    assert not updates.owes


def test_of_a_table_that_owes_too_much_all_is_owed():
    updates = RecentUpdates()
    for first in range(0, 1 << 20, 1 << 18):
        updates.owe(np.arange(first, first + (1 << 18)))
    assert sum(keys.size for keys in updates._owed) <= 1 << 17
    assert owed(updates, fails=True, meanwhile=[1]) is None
    assert owed(updates) is None
    assert not updates.owes


def test_of_keys_that_are_owed_again_and_again_each_is_owed_once():
    updates = RecentUpdates()
    for _ in range(1000):
        updates.owe(np.arange(1000))
    assert sum(keys.size for keys in updates._owed) <= 1 << 17
    assert owed(updates) == list(range(1000))
