import math
import os
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from hebe.embeddings.circuit_breaker import BreakerOptions
from hebe.embeddings.store import StoreError, StoreUnavailable
from hebe.embeddings.tiers.tier_client import GuardOptions, TierGuard, TierQuestion
from tests.embeddings.stores.dict_store import DamagedStore, DictStore, OneTableStore

DIMS = {"users": 3, "items": 1}


def asked(guard: TierGuard, keys: list[int], timeout_s: float = 20.0) -> tuple[np.ndarray, list[bool]]:
    """Of table users: the rows, those not found as zeros, and which were found."""
    starts = np.array([0, len(keys)])
    rows, found, _ = guard.query_tables(("users",), np.array(keys), starts, 3 * starts, timeout_s)
    return np.where(found[:, None], rows.reshape(-1, 3), 0), found.tolist()


def test_answers_as_its_store_does() -> None:
    store = DictStore(DIMS)
    store.insert("users", np.array([1, 3]), np.array([[1, 1, 1], [3, 3, 3]], np.float32))
    guard = TierGuard("tier", store, DIMS, GuardOptions(timeout_s=20.0))
    rows, found = asked(guard, [3, 2, 1])
    assert found == [True, False, True]
    assert rows.tolist() == [[3] * 3, [0] * 3, [1] * 3]
    assert asked(guard, [1, 1])[1] == [True, True]
    state = guard.state
    assert (state.name, state.available, state.failures, state.fault) == ("tier", True, 0, None)
    guard.close()
    assert store.closed
    with pytest.raises(StoreError, match="closed"):
        asked(guard, [1])


@pytest.mark.parametrize("one_table", [False, True])
def test_several_tables_are_one_question(one_table: bool) -> None:
    store = DictStore(DIMS)
    store.insert("items", np.array([1, 7]), np.array([[10], [70]], np.float32))
    store.insert("users", np.array([5]), np.full((1, 3), 50, np.float32))
    guard = TierGuard("tier", OneTableStore(store) if one_table else store, DIMS, GuardOptions(timeout_s=20.0))
    starts, bases = np.array([0, 2, 2, 5]), np.array([0, 2, 2, 11])
    keys = np.array([7, 8, 4, 5, 5])
    rows, found, damaged = guard.query_tables(("items", "items", "users"), keys, starts, bases, 20.0)
    assert damaged is None
    assert found.tolist() == [True, False, False, True, True]
    assert (rows[0], rows[5:].tolist()) == (70, [50] * 6)
    guard.close()


def test_no_keys_are_answered_at_once_and_leave_nothing_in_the_line() -> None:
    guard = TierGuard("tier", DictStore(DIMS), DIMS, GuardOptions(20.0, threads=1, questions_per_thread=1))
    for _ in range(3):
        assert asked(guard, [])[1] == []
    guard.close()


def both_asked(guard: TierGuard, timeout_s: float = 20.0) -> None:
    """For a key of either table."""
    guard.query_tables(("items", "users"), np.array([1, 2]), np.array([0, 1, 2]), np.array([0, 1, 4]), timeout_s)


def test_tables_of_a_store_that_answers_for_one_are_asked_for_side_by_side() -> None:
    store, meeting = DictStore(DIMS), threading.Barrier(2, timeout=30.0)
    query = store.query

    def met(*arguments):
        meeting.wait()
        return query(*arguments)

    store.query = met
    guard = TierGuard("tier", OneTableStore(store), DIMS, GuardOptions(timeout_s=60.0, threads=2))
    both_asked(guard, 60.0)
    guard.close()


def test_tables_that_nobody_waits_for_any_more_are_not_asked_for() -> None:
    store = DictStore(DIMS)
    guard = TierGuard("tier", OneTableStore(store), DIMS, GuardOptions(timeout_s=20.0, threads=1))
    store.gate.clear()
    with pytest.raises(StoreUnavailable, match="within 10 ms"):
        both_asked(guard, 0.01)
    store.gate.set()
    assert asked(guard, [3])[1] == [False]
    assert ("users", [2]) not in store.queries
    guard.close()


def test_tables_that_fail_together_count_once() -> None:
    store = DictStore(DIMS)
    guard = TierGuard("tier", OneTableStore(store), DIMS, GuardOptions(timeout_s=20.0))
    store.fault = StoreError("gone")
    with pytest.raises(StoreUnavailable, match="gone"):
        both_asked(guard)
    guard.close()
    assert guard.state.failures == 1


def test_an_answer_that_comes_too_late_touches_nothing_of_the_callers() -> None:
    store = DictStore(DIMS)
    store.insert("users", np.array([1]), np.ones((1, 3), np.float32))
    guard = TierGuard("tier", store, DIMS, GuardOptions(timeout_s=20.0))
    store.gate.clear()
    keys, starts, bases = np.array([1]), np.array([0, 1]), np.array([0, 3])
    with pytest.raises(StoreUnavailable, match="within 10 ms"):
        guard.query_tables(("users",), keys, starts, bases, 0.01)
    for given in (keys, starts, bases):
        given[:] = -99  # they are the caller's again, who asks for something else with them
    store.gate.set()
    guard.close()
    assert store.queries == [("users", [1])]


def test_after_failures_callers_are_told_at_once() -> None:
    store = DictStore(DIMS)
    breaker = BreakerOptions(failures=2, pause_s=1000.0, longest_pause_s=1000.0)
    guard = TierGuard("tier", store, DIMS, GuardOptions(timeout_s=20.0, breaker=breaker))
    store.fault = RuntimeError("a driver's own")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="RuntimeError: a driver's own"):
            asked(guard, [1])
    store.fault = None
    with pytest.raises(StoreUnavailable, match="not available: RuntimeError"):
        asked(guard, [1])
    assert store.queries == []
    assert not guard.state.available
    guard.close()


def test_damaged_rows_are_told_once_and_the_tier_is_not_left_alone_for_them(caplog) -> None:
    store = DictStore(DIMS)
    store.insert("users", np.array([1, 3]), np.array([[1, 1, 1], [3, 3, 3]], np.float32))
    guard = TierGuard("tier", DamagedStore(store, 2, 7), DIMS, GuardOptions(timeout_s=20.0))
    starts = np.array([0, 4])
    for _ in range(5):
        _, found, damaged = guard.query_tables(("users",), np.array([1, 2, 3, 4]), starts, 3 * starts, 20.0)
        assert damaged is not None
        assert (found.tolist(), damaged.tolist()) == ([True, False, True, False], [False, True, False, False])
    assert asked(guard, [7])[1] == [False]
    state = guard.state
    assert (state.available, state.failures, state.fault) == (True, 6, "the block of 7 is damaged")
    assert state.damage == "the block of 7 is damaged"
    assert state.damage_age_s == state.fault_age_s
    assert state.damaged_s > state.damage_age_s, "since it was first met"
    assert caplog.messages == [
        f"tier has rows that cannot be read, and queries do without: the block of {key} is damaged" for key in (2, 7)
    ]
    guard.close()


def test_a_tier_of_which_most_is_damaged_is_left_alone_while_it_is() -> None:
    store = DamagedStore(DictStore(DIMS), *range(600))
    guard = TierGuard("tier", store, DIMS, GuardOptions(timeout_s=20.0, breaker=BreakerOptions(3, 0.01, 0.02)))
    keys, starts = np.arange(600), np.array([0, 600])
    for _ in range(3):
        assert guard.available
        guard.query_tables(("users",), keys, starts, 3 * starts, 20.0)
    assert not guard.available, "three in a row"
    assert guard.state.failures == 3
    give_up_s = time.monotonic() + 30.0
    while [len(asked_for) for asked_for in store.asked].count(256) < 3:  # only a probe asks for so many
        assert time.monotonic() < give_up_s
        assert not guard.available, "what the probes ask for is damaged too"
        time.sleep(0.001)
    guard.close()


def fail_and_come_back(store: DictStore, guard: TierGuard, meanwhile: Callable[[], None] = lambda: None) -> None:
    """One failure opens the guard's breaker; a probe closes it."""
    store.fault = RuntimeError("it is gone")
    with pytest.raises(StoreUnavailable):
        asked(guard, [1])
    meanwhile()
    store.fault = None
    give_up_s = time.monotonic() + 30.0
    while not guard.state.available:
        assert time.monotonic() < give_up_s
        time.sleep(0.001)


@pytest.mark.parametrize("one_table", [False, True])
def test_a_tier_that_is_partly_gone_is_left_alone_until_that_part_is_back(one_table: bool, caplog) -> None:
    class PartlyGone(DictStore):
        gone = True

        def query(self, table, keys, rows, found):
            count = super().query(table, keys, rows, found)
            if self.gone and table == "items" and (keys > 0).any():
                raise StoreUnavailable("a node is silent")
            return count

    store = PartlyGone(DIMS)
    breaker = BreakerOptions(failures=1, pause_s=0.001, longest_pause_s=0.001)
    guard = TierGuard("tier", OneTableStore(store) if one_table else store, DIMS, GuardOptions(20.0, breaker=breaker))
    starts, bases, keys = np.array([0, 2, 5]), np.array([0, 6, 9]), np.array([0, 4, 0, 7, 8])
    with pytest.raises(StoreUnavailable, match="silent"):
        guard.query_tables(("users", "items"), keys, starts, bases, 20.0)
    give_up_s = time.monotonic() + 30.0
    while store.queries.count(("items", [0, 7, 8])) < 10:  # the question, and probes
        assert time.monotonic() < give_up_s
        time.sleep(0.001)
    state = guard.state
    assert (state.available, state.failures, state.fault) == (False, 1, "a node is silent")
    store.gone = False
    while not guard.available:
        assert time.monotonic() < give_up_s
        time.sleep(0.001)
    guard.close()
    assert caplog.messages == ["tier is left alone until it answers again: a node is silent", "tier answers again"], (
        "once each"
    )


def test_a_probe_that_meets_damage_is_answered() -> None:
    store = DictStore(DIMS)
    breaker = BreakerOptions(failures=1, pause_s=0.01, longest_pause_s=0.01)
    tier = DamagedStore(store)
    guard = TierGuard("tier", tier, DIMS, GuardOptions(20.0, breaker=breaker))
    fail_and_come_back(store, guard, lambda: tier.damaged.add(1))
    guard.close()


@pytest.mark.parametrize(
    "options", [{"timeout_s": 0.0}, {"timeout_s": float("inf")}, {"threads": 0}, {"questions_per_thread": 0}]
)
def test_options_out_of_range(options) -> None:
    with pytest.raises(ValueError, match="must be"):
        GuardOptions(**{"timeout_s": 1.0} | options)


def test_since_when_a_tier_is_left_alone(caplog) -> None:
    store, now_s = DictStore(DIMS), [100.0]
    breaker = BreakerOptions(failures=2, pause_s=1000.0, longest_pause_s=1000.0)
    guard = TierGuard("tier", store, DIMS, GuardOptions(20.0, breaker=breaker), lambda: now_s[0])
    store.fault = RuntimeError("it is gone")
    for failures in range(2):
        assert guard.state.unavailable_s is None
        assert guard.state.failures == failures
        with pytest.raises(StoreUnavailable):
            asked(guard, [1])
    now_s[0] += 90.0
    assert guard.state.unavailable_s == 90.0
    guard.close()
    assert caplog.messages == ["tier is left alone until it answers again: RuntimeError: it is gone"]


def test_a_tier_that_is_back_is_left_alone_no_more(caplog) -> None:
    store = DictStore(DIMS)
    breaker = BreakerOptions(failures=1, pause_s=0.01, longest_pause_s=0.01)
    guard = TierGuard("tier", store, DIMS, GuardOptions(20.0, breaker=breaker))
    fail_and_come_back(store, guard)
    guard.close()  # the probe has ended
    assert guard.state.unavailable_s is None
    assert caplog.messages[-1] == "tier answers again"


def test_questions_after_a_load_run_on_threads_of_their_own() -> None:
    asked_by: list[int] = []

    class Watched(DictStore):
        def query(self, *arguments):
            asked_by.append(threading.get_native_id())
            return super().query(*arguments)

    guard = TierGuard("tier", Watched(DIMS), DIMS, GuardOptions(30.0, threads=1))
    asked(guard, [1])
    asked(guard, [1])
    guard.renew_threads()
    asked(guard, [1])
    assert asked_by[0] == asked_by[1] != asked_by[2]
    guard.close()


def test_threads_after_a_load_are_not_those_of_who_asks_first() -> None:
    """Such as the rehearsal of a version that is loaded beside another, on a thread that gives way for good."""
    niceness: set[int] = set()
    threads: set[int] = set()

    class Watched(DictStore):
        def query(self, *arguments):
            threads.add(threading.get_native_id())
            niceness.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            return super().query(*arguments)

    def ask_gently() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        asked(guard, [1])

    own = os.getpriority(os.PRIO_PROCESS, 0)
    guard = TierGuard("tier", Watched(DIMS), DIMS, GuardOptions(30.0, threads=3))
    guard.renew_threads()
    first = threading.Thread(target=ask_gently)
    first.start()
    first.join()
    for _ in range(20):
        asked(guard, [1])
    guard.close()
    assert niceness == {own}
    assert 1 <= len(threads) <= 3


def test_a_tier_that_no_thread_was_there_to_probe_is_probed_when_there_is(threads_refused, caplog) -> None:
    store, now_s = DictStore(DIMS), [100.0]
    breaker = BreakerOptions(failures=1, pause_s=1.0, longest_pause_s=2.0)
    guard = TierGuard("tier", store, DIMS, GuardOptions(20.0, breaker=breaker), lambda: now_s[0])
    threads_refused.add("hebe-tier-probe")
    store.fault = RuntimeError("it is gone")
    with pytest.raises(StoreUnavailable, match="it is gone"):
        asked(guard, [1])
    store.fault = None
    now_s[0] = 101.5
    assert not guard.available, "there is none when the first probe is due, either"
    threads_refused.clear()
    now_s[0] = 103.0
    assert not guard.available
    assert store.queries == [], "the next one is due two seconds later"
    now_s[0] = 103.5
    with pytest.raises(StoreUnavailable, match="not available"):
        asked(guard, [1])
    give_up_s = time.monotonic() + 30.0
    while not guard.available:
        assert time.monotonic() < give_up_s
        time.sleep(0.001)
    guard.close()
    assert caplog.messages[1:] == ["tier cannot be probed yet: can't start new thread"] * 2 + ["tier answers again"]


def test_a_tier_that_cannot_be_probed_is_closed(threads_refused) -> None:
    store = DictStore(DIMS)
    guard = TierGuard("tier", store, DIMS, GuardOptions(20.0, breaker=BreakerOptions(failures=1)))
    threads_refused.add("hebe-tier-probe")
    store.fault = RuntimeError("it is gone")
    with pytest.raises(StoreUnavailable, match="it is gone"):
        asked(guard, [1])
    guard.close()
    assert store.closed


def test_threads_of_which_one_cannot_be_made_end_with_the_guard(threads_refused, threads_begun) -> None:
    store = DictStore(DIMS)
    guard = TierGuard("tier", store, DIMS, GuardOptions(20.0, threads=3))
    threads_refused.add("hebe-tier_2")
    with pytest.raises(RuntimeError, match="can't start new thread"):
        guard.renew_threads()
    closing = threading.Thread(target=guard.close, daemon=True)
    closing.start()
    closing.join(10.0)
    assert not closing.is_alive()
    assert store.closed
    assert not threads_begun()


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
