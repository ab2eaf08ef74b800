import numpy as np
import pytest

from hebe.embeddings.batch_lookup import BatchFetch, BatchLookup, RowState
from hebe.embeddings.store import StoreError
from hebe.embeddings.tier_guard import GuardOptions, TierGuard

from .dict_store import DictStore

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
    parts = [(number, places.tolist()) for number, places in wanted.parts_of(np.array([1, 2, 4]))]
    assert parts == [(0, [1]), (1, [0, 2])]
    table, keys = wanted.part(1, np.array([2]))
    assert (table, keys.tolist()) == ("users", [6])
    wanted.set_states(np.array([3]), RowState.UNKNOWN)
    assert wanted.states.tolist() == [0, 0, 0, RowState.UNKNOWN, 0]


def test_one_tier_after_the_other_is_asked_for_what_is_left(wanted):
    near, far = store_of(users=[4]), store_of(users=[6], items=[1, 7])
    fetch = BatchFetch(wanted, np.array([False, True, True, True, True]), 4, [0, 0])
    assert fetch.fill_from(near) == 1
    assert (fetch.left, fetch.state(0), fetch.state(1)) == (3, RowState.UNKNOWN, RowState.UNKNOWN)
    assert [(table, keys.tolist()) for table, keys in fetch.found_parts()] == [("users", [4])]
    guard = TierGuard("far", far, DIMS, GuardOptions(timeout_s=20.0))
    assert fetch.ask(guard, 1e9, lambda: 0.0) == 2
    assert far.queries == [("items", [1]), ("users", [5, 6])]
    assert [(number, places.tolist()) for number, places in fetch.rest()] == [(1, [1])]
    assert wanted.rows_of(0, 1)[1].tolist() == [1]
    assert wanted.rows_of(1, 3)[[0, 2], 0].tolist() == [4, 6]
    guard.close()


def test_a_tier_that_fails_leaves_its_table_unanswered(wanted):
    far = store_of()
    far.fault = StoreError("gone")
    guard = TierGuard("far", far, DIMS, GuardOptions(timeout_s=20.0))
    fetch = BatchFetch(wanted, np.array([False, True, False, False, False]), 1, [0, 0])
    assert fetch.ask(guard, 1e9, lambda: 0.0) == 0
    assert (fetch.left, fetch.state(0)) == (1, RowState.DEFAULTED)
    guard.close()
