from dataclasses import astuple, fields

import numpy as np
import pytest

from hebe.embeddings.store import StoreError
from hebe.embeddings.tiers.batch_lookup import BatchFetch, BatchLookup, LookupCounts, RowState
from hebe.embeddings.tiers.tier_client import GuardOptions, TierGuard
from tests.embeddings.stores.dict_store import DictStore

DIMS = {"users": 3, "items": 1}


@pytest.fixture
def wanted():
    return BatchLookup.of([("items", np.array([7, 1])), ("users", np.array([4, 5, 6]))], DIMS)


def store_of(**keys):
    store = DictStore(DIMS)
    for table, own in keys.items():
        store.insert(table, np.array(own), np.repeat(np.array(own, np.float32), DIMS[table]).reshape(-1, DIMS[table]))
    return store


def test_tables_lie_one_after_the_other(wanted):
    assert (wanted.tables, wanted.keys.tolist()) == (["items", "users"], [7, 1, 4, 5, 6])
    assert (wanted.starts.tolist(), wanted.bases.tolist()) == ([0, 2, 5], [0, 2, 11])
    assert wanted.rows_of(1, 3).shape == (3, 3)
    parts = [(table, keys.tolist()) for table, keys in wanted.parts(np.array([1, 2, 4]))]
    assert parts == [("items", [1]), ("users", [4, 6])]
    assert [array.tolist() for array in wanted.spans(np.array([1, 2, 4]))] == [[0, 1, 3], [0, 1, 7]]
    assert [array.tolist() for array in wanted.spans(np.array([3]))] == [[0, 0, 1], [0, 0, 3]]
    wanted.set_states(np.array([3]), RowState.UNKNOWN)
    assert wanted.states.tolist() == [0, 0, 0, RowState.UNKNOWN, 0]


def test_one_tier_after_the_other_is_asked_for_what_is_left(wanted):
    near, far = store_of(users=[4]), store_of(users=[6], items=[1, 7])
    fetch = BatchFetch(wanted, np.array([False, True, True, True, True]), 4, [0, 0])
    assert fetch.fill_from(near) == 1
    assert (fetch.left, fetch.state) == (3, RowState.UNKNOWN)
    assert [(table, keys.tolist()) for table, keys in fetch.found_parts()] == [("users", [4])]
    guard = TierGuard("far", far, DIMS, GuardOptions(timeout_s=20.0))
    answer = fetch.ask(guard, 1e9)
    assert far.queries == [("items", [1]), ("users", [5, 6])]
    assert (answer.batch.keys.tolist(), answer.found.tolist()) == ([1, 5, 6], [True, False, True])
    assert (answer.batch.rows_of(0, 1).tolist(), answer.batch.rows_of(1, 3)[1].tolist()) == ([[1]], [6] * 3)
    assert (fetch.rest.tolist(), fetch.left, fetch.state) == ([False, False, False, True, False], 1, RowState.UNKNOWN)
    assert fetch.ask(guard, 1e9) is None, "it has nothing of what is left"
    assert wanted.rows_of(0, 1)[1].tolist() == [1]
    assert wanted.rows_of(1, 3)[[0, 2], 0].tolist() == [4, 6]
    guard.close()


def test_a_tier_that_fails_leaves_its_keys_unanswered(wanted):
    far = store_of()
    far.fault = StoreError("gone")
    guard = TierGuard("far", far, DIMS, GuardOptions(timeout_s=20.0))
    fetch = BatchFetch(wanted, np.array([False, True, False, False, False]), 1, [0, 0])
    assert fetch.ask(guard, 1e9) is None
    assert (fetch.left, fetch.state) == (1, RowState.DEFAULTED)
    guard.close()


def test_every_count_is_added():
    count = len(fields(LookupCounts))
    total = LookupCounts(*range(count))
    total.add(LookupCounts(*range(10, 10 + count)))
    assert astuple(total) == tuple(range(10, 10 + 2 * count, 2))
