from types import SimpleNamespace

import numpy as np
import pytest

from hebe.embeddings.circuit_breaker import BreakerOptions
from hebe.embeddings.redis.connection import RedisFull
from hebe.embeddings.store import StoreError, StoreUnavailable
from hebe.embeddings.tiers.batch_lookup import Answer, BatchLookup
from hebe.embeddings.tiers.shared_fills import SharedFills
from hebe.embeddings.tiers.tier_client import GuardOptions, TierGuard
from hebe.embeddings.tiers.update_tracking import RecentUpdates
from hebe.embeddings.tiers.volatile_tier import VolatileTier
from tests.embeddings.stores.dict_store import DictStore

DIMS = {"users": 3, "items": 1}


@pytest.fixture
def answer():
    """Rows of level 3, each its key, for all but item 9."""
    batch = BatchLookup.of([("items", np.array([9, 1])), ("users", np.array([4, 5, 6]))], DIMS)
    batch.rows[:] = [9, 1, *[4] * 3, *[5] * 3, *[6] * 3]
    return Answer(batch, np.array([False, True, True, True, True]))


@pytest.fixture
def updates():
    return {table: RecentUpdates() for table in DIMS}


def first_numbers(store):
    return {table: {key: row[0] for key, row in rows.items()} for table, rows in store.tables.items()}


def test_it_is_filled_with_what_it_lacks(answer, updates):
    store = DictStore(DIMS)
    store.insert("users", np.array([5]), np.full((1, 3), 55, np.float32))
    VolatileTier.of_process(store).fill(answer, [0, 0], updates)
    assert first_numbers(store) == {"items": {1: 1}, "users": {4: 4, 5: 55, 6: 6}}
    assert updates["users"].filled_among(np.array([3, 4, 5, 6])).tolist() == [4, 5, 6]


def test_rows_that_an_update_has_overtaken_stay_out(answer, updates):
    store = DictStore(DIMS)
    updates["users"].add(np.array([4]))  # seen before the rows were read
    updates["users"].add(np.array([5, 7]))
    fill_tables = store.fill_tables

    def meanwhile(*arrays):
        updates["users"].add(np.array([6]))
        return fill_tables(*arrays)

    store.fill_tables = meanwhile
    VolatileTier.of_process(store).fill(answer, [0, 1], updates)
    assert first_numbers(store) == {"items": {1: 1}, "users": {4: 4}}


def take_back(tier, updates, table, keys, rows=None):
    keys = np.array(keys)
    updates[table].add(keys)
    tier.take_back(table, keys, rows, updates[table])


def test_an_update_takes_back_what_was_put_there(answer, updates):
    store = DictStore(DIMS)
    tier = VolatileTier.of_process(store)
    tier.fill(answer, [0, 0], updates)
    take_back(tier, updates, "users", [4, 7])
    take_back(tier, updates, "items", [9])
    assert first_numbers(store) == {"items": {1: 1}, "users": {5: 5, 6: 6}}


def test_an_update_leaves_its_own_rows_there(answer, updates):
    """Those that have been written there since by whoever brings it up to date."""
    store = DictStore(DIMS)
    tier = VolatileTier.of_process(store)
    tier.fill(answer, [0, 0], updates)
    new = np.array([[0, np.nan, 1], [7, 7, 7], [-4, -4, -4], [5, 5, 6], [np.nan, -0.0, 2]], np.float32)
    keys = np.array([4, 7, 5, 5, 4])  # the last of repeated ones wins
    store.insert("users", np.array([4, 7]), new[[4, 1]])
    take_back(tier, updates, "users", keys, new)
    assert sorted(store.tables["users"]) == [4, 6, 7], "5 was the row from before"
    assert np.array_equal(store.tables["users"][4], new[4], equal_nan=True)
    store.insert("users", np.array([40]), new[:1])
    take_back(tier, updates, "users", [40], new[4:])
    assert 40 in store.tables["users"], "it is nothing that was put there as a lower tier had it"


def test_what_is_on_its_way_there_when_an_update_comes_stays_noted(answer, updates):
    """It may be from a tier that has yet to be given that update, and takes it back when it is."""
    store = DictStore(DIMS)
    tier = VolatileTier.of_process(store)
    new = np.full((1, 3), 44, np.float32)
    updates["users"].add(np.array([4]))
    tier.fill(answer, [0, 1], updates)
    for _ in range(2):
        tier.take_back("users", np.array([4]), new, updates["users"])
        assert 4 not in store.tables["users"]
        store.insert("users", np.array([4]), new - 1)


def test_rows_that_cannot_be_compared_are_deleted_before_it_is_asked_again(answer, updates):
    store = DictStore(DIMS)
    tier = VolatileTier.of_process(store)
    tier.fill(answer, [0, 0], updates)
    store.fault = StoreError("gone")
    take_back(tier, updates, "users", [5], np.full((1, 3), 5, np.float32))
    assert tier.owes(updates)
    store.fault = None
    tier.settle(updates)
    assert not tier.owes(updates)
    assert first_numbers(store) == {"items": {1: 1}, "users": {4: 4, 6: 6}}


def test_what_it_cannot_be_told_to_delete_is_deleted_before_it_is_asked_again(answer, updates):
    store = DictStore(DIMS)
    tier = VolatileTier.of_process(store)
    tier.fill(answer, [0, 0], updates)
    store.fault = StoreError("gone")
    take_back(tier, updates, "users", [5])
    assert tier.owes(updates)
    tier.settle(updates)
    assert tier.owes(updates), "still not"
    store.fault = None
    tier.settle(updates)
    assert not tier.owes(updates)
    assert first_numbers(store) == {"items": {1: 1}, "users": {4: 4, 6: 6}}


def test_of_a_table_of_which_too_much_would_have_to_be_deleted_all_is(answer, updates):
    store = DictStore(DIMS)
    tier = VolatileTier.of_process(store)
    tier.fill(answer, [0, 0], updates)
    updates["users"].owe(np.arange(1000, 1_000_000))
    assert tier.owes(updates)
    tier.settle(updates)
    assert not tier.owes(updates)
    assert first_numbers(store) == {"items": {1: 1}, "users": {}}


def test_a_filling_that_fails_half_way_leaves_nothing_old(answer, updates):
    store = DictStore(DIMS)

    def half_way(tables, keys, starts, rows, bases, chosen):
        DictStore.insert_tables(store, tables, keys, starts, rows, bases, chosen)
        updates["users"].add(np.array([6]))
        store.fault = StoreError("gone")
        raise store.fault

    store.insert_tables = half_way
    tier = VolatileTier.of_process(store)
    with pytest.raises(StoreError, match="gone"):
        tier.fill(answer, [0, 0], updates)
    assert tier.owes(updates)
    store.fault = None
    tier.settle(updates)
    assert first_numbers(store) == {"items": {1: 1}, "users": {4: 4, 5: 5}}


@pytest.mark.parametrize("refused", ["rows", "notes for others", "times of use"])
def test_one_without_memory_has_no_room_for_some_seconds(answer, updates, monkeypatch, refused):
    """Its guard stays closed, as it answers questions."""

    def refuse(*_arguments):
        raise RedisFull("no memory left")

    now_s, store = 1000.0, DictStore(DIMS)
    tier = VolatileTier(store, TierGuard("tier", store, DIMS, GuardOptions(20.0)), SharedFills(lambda: now_s))
    used = [("users", np.array([4]))]
    call = (lambda: tier.touch(used)) if refused == "times of use" else (lambda: tier.fill(answer, [0, 0], updates))
    with monkeypatch.context() as full:
        if refused == "notes for others":
            full.setattr(tier.fills, "notes", SimpleNamespace(note=refuse))
        else:
            full.setattr(store, "insert_tables", refuse)
            full.setattr(store, "touch", refuse)
        assert tier.has_room
        with pytest.raises(RedisFull):
            call()
        assert (tier.available, tier.may_fill, tier.has_room) == (True, True, False)
        tier.touch(used)
    tier.touch(used)
    assert store.touched == [], "it is not even tried"
    now_s += 5.0
    assert tier.has_room
    tier.touch(used)
    assert store.touched == [4]
    tier.close()


def test_one_that_is_left_alone_is_told_nothing(answer, updates):
    store = DictStore(DIMS)
    breaker = BreakerOptions(failures=1, pause_s=1000.0, longest_pause_s=1000.0)
    guard = TierGuard("tier", store, DIMS, GuardOptions(20.0, breaker=breaker))
    tier = VolatileTier.guarded(store, guard)
    tier.fill(answer, [0, 0], updates)
    tier.touch([("users", np.array([4])), ("items", np.array([1]))])
    assert store.touched == [4, 1]
    store.fault = StoreError("gone")
    with pytest.raises(StoreUnavailable):
        guard.query_tables(("items",), np.array([1]), np.array([0, 1]), np.array([0, 1]), 20.0)
    assert not tier.available
    tier.touch([("users", np.array([4]))])
    tier.fill(answer, [0, 0], updates)
    take_back(tier, updates, "users", [4])
    store.fault = None
    assert 4 in store.tables["users"]
    assert store.touched == [4, 1]
    tier.close()
    assert store.closed


def test_a_guard_that_cannot_be_closed_does_not_keep_the_store_open(monkeypatch):
    def refuse():
        raise StoreError("not to be closed")

    store, guarded = DictStore(DIMS), DictStore(DIMS)
    guard = TierGuard("tier", guarded, DIMS, GuardOptions(20.0))
    monkeypatch.setattr(guarded, "close", refuse)
    with pytest.raises(StoreError, match="not to be closed"):
        VolatileTier.guarded(store, guard).close()
    assert store.closed
