import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.embeddings.clients.tier_request import TierRequest
from hebe.embeddings.store import StoreError
from tests.embeddings.stores.dict_store import DamagedStore, DictStore, OneTableStore

DIMS = {"users": 3, "items": 1}
TABLES = ("items", "users", "items")
KEYS, STARTS, BASES = np.array([7, 8, 4, 5, 5]), np.array([0, 2, 5, 5]), np.array([0, 2, 11, 11])


@pytest.fixture
def store():
    store = DictStore(DIMS)
    store.insert("items", np.array([1, 7]), np.array([[10], [70]], np.float32))
    store.insert("users", np.array([5]), np.full((1, 3), 50, np.float32))
    return store


def asked_of(store, **options):
    return TierRequest(store, TABLES, KEYS, STARTS, BASES, **options)


def work(request, now_s=1.0):
    """Put all pieces that are left to the store, as one thread."""
    while (piece := request.begin(now_s)) is not None:
        request.put(piece)
        if request.done(piece, now_s):
            request.end(now_s)


def test_a_store_that_answers_for_several_tables_is_asked_once(store):
    request = asked_of(store)
    assert request.pieces == 1
    work(request)
    assert request.ended
    assert request.found.tolist() == [True, False, False, True, True]
    assert (request.rows[0], request.rows[5:].tolist()) == (70, [50] * 6)
    assert [table for table, _ in store.queries] == ["items", "users"]


def test_another_is_asked_for_one_table_after_the_other(store):
    request = asked_of(OneTableStore(store))
    assert request.pieces == 2
    work(request)
    assert store.queries == [("items", [7, 8]), ("users", [4, 5, 5])]
    assert request.found.tolist() == [True, False, False, True, True]
    assert (request.rows[0], request.rows[5:].tolist()) == (70, [50] * 6)


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    piece_keys=st.integers(1, 12),
    one_table=st.booleans(),
)
def test_pieces_of_any_size_bring_what_one_brings(sizes, piece_keys, one_table):
    store = DictStore(DIMS)
    for table, dim in DIMS.items():
        store.insert(table, np.arange(0, 60, 2), np.repeat(np.arange(0.0, 60, 2), dim).reshape(-1, dim))
    tables = ["users" if number % 2 else "items" for number in range(len(sizes))]
    starts = np.cumsum([0, *sizes])
    bases = np.cumsum([0, *(size * DIMS[table] for size, table in zip(sizes, tables, strict=True))])
    keys = np.arange(starts[-1])
    request = TierRequest(
        OneTableStore(store) if one_table else store, tables, keys, starts, bases, piece_keys=piece_keys
    )
    work(request)
    assert request.ended or not keys.size
    assert request.answered.all()
    assert np.array_equal(request.found, keys % 2 == 0)
    expected = np.repeat(keys, np.repeat([DIMS[table] for table in tables], sizes))
    assert np.array_equal(request.rows[expected % 2 == 0], expected[expected % 2 == 0])
    assert max((len(own) for _, own in store.queries), default=0) <= piece_keys


def test_what_is_answered_when_its_caller_leaves_is_kept_and_the_rest_dropped_or_late(store):
    ended = []
    request = asked_of(store, piece_keys=2, on_end=ended.append)
    first, second = request.begin(1.0), request.begin(1.0)
    request.put(first)
    assert not request.done(first, 2.0)
    assert request.leave().tolist() == [True, False, False, False, False]
    assert not request.waits, "the third piece is dropped"
    request.put(second)
    assert request.done(second, 3.0)
    request.end(3.0)
    assert ended == [request]
    assert request.late.tolist() == [False, True, True, False, False]


def test_a_request_that_nobody_has_begun_is_over_when_its_caller_leaves(store):
    request = asked_of(OneTableStore(store))
    assert not request.leave().any()
    assert request.ended
    assert request.begin(1.0) is None
    assert request.rows.size == 0, "its memory is given back, however long it is in the line yet"


def test_an_error_ends_it_and_keeps_what_is_answered(store):
    request = asked_of(OneTableStore(store))
    first = request.begin(1.0)
    request.put(first)
    assert not request.done(first, 1.0)
    second = request.begin(1.0)
    store.fault = StoreError("gone")
    with pytest.raises(StoreError, match="gone") as gone:
        request.put(second)
    assert request.done(second, 1.0, gone.value)
    assert request.error is gone.value
    assert request.answered.tolist() == [True, True, False, False, False]
    assert request.found.tolist() == [True, False, False, False, False]


def test_several_threads_put_pieces_of_it_side_by_side(store):
    meeting, query = threading.Barrier(2, timeout=30.0), store.query

    def met(*arguments):
        meeting.wait()
        return query(*arguments)

    store.query = met
    request = asked_of(OneTableStore(store))
    thread = threading.Thread(target=work, args=(request,))
    thread.start()
    work(request)
    thread.join()
    assert request.wait(30.0)
    assert request.found.tolist() == [True, False, False, True, True]


def test_what_lies_beside_damage_is_found(store):
    store.insert("users", np.arange(40), np.repeat(np.arange(40.0), 3).reshape(40, 3))
    keys, damaged_store = np.random.default_rng(1).permutation(100), DamagedStore(store, 3, *range(17, 37), 60)
    request = TierRequest(damaged_store, ("users",), keys, np.array([0, 100]), np.array([0, 300]))
    work(request)
    assert sorted(keys[request.damaged].tolist()) == [3, *range(17, 37), 60]
    assert sorted(keys[request.found].tolist()) == [0, 1, 2, *range(4, 17), 37, 38, 39]
    there = request.rows.reshape(100, 3)[request.found]
    assert np.array_equal(there[:, 2], keys[request.found])
    assert len(damaged_store.asked) < 100
    assert (request.error, str(request.damage)) == (None, "the block of 60 is damaged")


def test_a_table_that_is_damaged_all_over_is_not_asked_for_key_by_key(store):
    damaged_store = DamagedStore(store, *range(1990))
    request = TierRequest(damaged_store, ("users",), np.arange(2000), np.array([0, 2000]), np.array([0, 6000]))
    work(request)
    assert request.damaged[:1990].all()
    assert not request.found.any()
    assert len(damaged_store.asked) < 600


@pytest.mark.parametrize("wrapped", [DictStore, lambda dims: OneTableStore(DictStore(dims))])
def test_a_sample_has_keys_from_all_over_each_table(wrapped):
    store = wrapped(DIMS)
    keys, starts, bases = np.arange(100, 210), np.array([0, 9, 9, 110]), np.array([0, 9, 9, 9 + 3 * 101])
    request = TierRequest(store, ("items", "items", "users"), keys, starts, bases)
    tables, some, starts, bases = request.sample(DIMS, 8)
    assert tables == ("items", "items", "users")
    assert some.tolist() == [100, 102, 105, 108, 109, 142, 175, 209]
    assert (starts.tolist(), bases.tolist()) == ([0, 4, 4, 8], [0, 4, 4, 16])
    work(TierRequest(store, tables, some, starts, bases))
    assert len(request.sample(DIMS, 1)[1]) == 2, "one of each table at least"
    assert request.sample(DIMS, 1000)[1].tolist() == keys.tolist()
