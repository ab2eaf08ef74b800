import math
import threading

import numpy as np
import pytest
from tests.embeddings.stores.dict_store import DamagedStore, DictStore, OneTableStore

from hebe.embeddings.store import StoreError
from hebe.embeddings.tiers.tier_client import TierQuestion

DIMS = {"users": 3, "items": 1}
TABLES = ("items", "users", "items")
KEYS, STARTS, BASES = np.array([7, 8, 4, 5, 5]), np.array([0, 2, 5, 5]), np.array([0, 2, 11, 11])


@pytest.fixture
def store():
    store = DictStore(DIMS)
    store.insert("items", np.array([1, 7]), np.array([[10], [70]], np.float32))
    store.insert("users", np.array([5]), np.full((1, 3), 50, np.float32))
    return store


def asked_of(store):
    return TierQuestion(store, TABLES, KEYS, STARTS, BASES)


def test_a_store_that_answers_for_several_tables_is_asked_once(store):
    question = asked_of(store)
    assert question.pieces == 1
    assert question.work()
    assert question.found.tolist() == [True, False, False, True, True]
    assert (question.rows[0], question.rows[5:].tolist()) == (70, [50] * 6)
    assert [table for table, _ in store.queries] == list(TABLES)


def test_another_is_asked_for_one_table_after_the_other(store):
    question = asked_of(OneTableStore(store))
    assert question.pieces == 2
    assert question.work()
    assert store.queries == [("items", [7, 8]), ("users", [4, 5, 5])]
    assert question.found.tolist() == [True, False, False, True, True]
    assert (question.rows[0], question.rows[5:].tolist()) == (70, [50] * 6)


def test_threads_that_work_share_the_tables(store):
    meeting, query = threading.Barrier(2, timeout=30.0), store.query

    def met(*arguments):
        meeting.wait()
        return query(*arguments)

    store.query = met
    question, answered = asked_of(OneTableStore(store)), []
    thread = threading.Thread(target=lambda: answered.append(question.work()))
    thread.start()
    answered.append(question.work())
    thread.join()
    assert any(answered)
    assert not question.work(), "who comes too late has nothing to tell"
    assert question.found.tolist() == [True, False, False, True, True]


def test_nobody_waits_any_more(store):
    question = asked_of(OneTableStore(store))
    assert not question.wait(0.001)
    assert not question.begin(1.0)
    assert question.rows.size == 0, "its memory is given back, however long it is in the line yet"
    assert not question.work()
    assert store.queries == []


def test_it_started_when_the_first_thread_began(store):
    question = asked_of(OneTableStore(store))
    assert question.started_s == math.inf
    assert question.begin(2.0)
    assert question.begin(3.0), "another thread helps"
    question.work()
    assert not question.begin(1.0), "nothing is left to do"
    assert question.started_s == 2.0


def test_nobody_waits_any_more_while_a_thread_works(store):
    query = store.query

    def given_up(*arguments):
        assert not question.wait(0.0)
        return query(*arguments)

    store.query = given_up
    question = asked_of(OneTableStore(store))
    assert not question.work()
    assert store.queries == [("items", [7, 8])]
    assert question.rows[0] == 70, "the store has its buffers"


def test_it_is_over_when_it_is_ended(store):
    question = asked_of(store)
    question.work()
    question.end()
    assert question.wait(0.0)
    assert question.fault is None


def test_a_fault_ends_it(store):
    question = asked_of(OneTableStore(store))
    store.fault = StoreError("gone")
    with pytest.raises(StoreError, match="gone"):
        question.work()
    question.end(StoreError("gone"))
    question.end(StoreError("gone again"))
    store.fault = None
    assert not question.work(), "the other table is not asked for"
    assert question.wait(0.0)
    assert str(question.fault) == "gone"


def test_what_lies_beside_damage_is_found(store):
    store.insert("users", np.arange(40), np.repeat(np.arange(40.0), 3).reshape(40, 3))
    keys, damaged_store = np.random.default_rng(1).permutation(100), DamagedStore(store, 3, *range(17, 37), 60)
    question = TierQuestion(damaged_store, ("users",), keys, np.array([0, 100]), np.array([0, 300]))
    assert question.work()
    assert sorted(keys[question.damaged].tolist()) == [3, *range(17, 37), 60]
    assert sorted(keys[question.found].tolist()) == [0, 1, 2, *range(4, 17), 37, 38, 39]
    there = question.rows.reshape(100, 3)[question.found]
    assert np.array_equal(there[:, 2], keys[question.found])
    assert str(question.damage) == "the block of 60 is damaged"
    assert len(damaged_store.asked) < 100
    assert question.fault is None


def test_a_table_that_is_damaged_all_over_is_not_asked_for_key_by_key(store):
    keys = np.arange(10_000)
    damaged_store = DamagedStore(store, *range(9_990))
    question = TierQuestion(damaged_store, ("users",), keys, np.array([0, 10_000]), np.array([0, 30_000]))
    assert question.work()
    assert question.damaged[:9_990].all()
    assert not question.found.any()
    assert len(damaged_store.asked) < 300


def test_no_keys_are_no_question(store):
    question = TierQuestion(store, TABLES, KEYS[:0], np.zeros(4, np.int64), np.zeros(4, np.int64))
    assert question.pieces == 0
    assert question.wait(0.0)


@pytest.mark.parametrize("wrapped", [DictStore, lambda dims: OneTableStore(DictStore(dims))])
def test_a_sample_has_keys_from_all_over_each_table(wrapped):
    store = wrapped(DIMS)
    keys, starts, bases = np.arange(100, 210), np.array([0, 9, 9, 110]), np.array([0, 9, 9, 9 + 3 * 101])
    question = TierQuestion(store, ("items", "items", "users"), keys, starts, bases)
    tables, some, starts, bases = question.sample(DIMS, 8)
    assert tables == ("items", "items", "users")
    assert some.tolist() == [100, 102, 105, 108, 109, 142, 175, 209]
    assert (starts.tolist(), bases.tolist()) == ([0, 4, 4, 8], [0, 4, 4, 16])
    assert TierQuestion(store, tables, some, starts, bases).work()
    assert len(question.sample(DIMS, 1)[1]) == 2, "one of each table at least"
    assert question.sample(DIMS, 1000)[1].tolist() == keys.tolist()


def test_a_sample_of_what_nobody_waits_for_is_of_any_keys(store):
    question = asked_of(store)
    assert not question.wait(0.0)
    tables, some, *_ = question.sample(DIMS, 4)
    assert (tables, some.tolist()) == (TABLES, [0] * 4)
