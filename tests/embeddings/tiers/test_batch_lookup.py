from dataclasses import astuple, fields

import numpy as np
import pytest

from hebe.embeddings.tiers.batch_lookup import BatchFetch, BatchLookup, LookupCounts, RowState
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


def test_a_tier_is_asked_for_what_is_left_and_its_rows_go_to_their_places(wanted):
    missing = np.array([False, True, True, True, True])
    fetch = BatchFetch(wanted, missing, 4, np.array([0, 1, 2, 3, 4]), changes=0)
    assert fetch.fill_from(store_of(users=[4])) == 1
    assert (fetch.left, fetch.rest.tolist()) == (3, [False, True, False, True, True])
    places, found = np.array([1, 3, 4]), np.array([True, False, True])
    starts, bases = wanted.spans(places)
    rows = np.full(bases[-1], np.nan, np.float32)
    store_of(users=[6], items=[1, 7]).fill_tables(
        wanted.tables, wanted.keys[places], starts, rows, bases, np.ones(3, np.bool_), np.empty(3, np.bool_)
    )
    fetch.take(places, rows, found)
    assert (fetch.left, fetch.rest.tolist()) == (1, [False, False, False, True, False])
    assert wanted.rows_of(0, 1)[1].tolist() == [1]
    assert wanted.rows_of(1, 3)[[0, 2], 0].tolist() == [4, 6]
    fetch.place(places, found, positions=np.array([9, 9, 4]), row_positions=np.array([2, 9, 4]))
    assert fetch.positions.tolist() == [0, 9, 2, 3, 4]
    assert fetch.to_keep.tolist() == [False, False, True, False, True], "the first one is ahead of this server"


def test_every_count_is_added():
    count = len(fields(LookupCounts))
    total = LookupCounts(*range(count))
    total.add(LookupCounts(*range(10, 10 + count)))
    assert astuple(total) == tuple(range(10, 10 + 2 * count, 2))
