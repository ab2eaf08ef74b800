import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from hebe.embeddings.clients.circuit_breaker import BreakerOptions
from hebe.embeddings.clients.tier_client import TierClientOptions
from hebe.embeddings.clients.tier_request import MAX_PIECE_KEYS
from hebe.embeddings.options import LookupOptions
from hebe.embeddings.redis.connection import RedisFull
from hebe.embeddings.store import StoreError
from hebe.embeddings.tiers import volatile_tier
from hebe.embeddings.tiers.batch_lookup import BatchLookup, LookupCounts, RowState
from hebe.embeddings.updates.contract import LogPlace, TopicPartition
from tests.embeddings.stores.dict_store import DamagedStore
from tests.embeddings.stores.dict_tiers import DIMS, HASTY, DictTiers, batch_of, row_of, wait_until


def test_waits_for_missing_rows_below_the_threshold_and_keeps_them(make_tiers) -> None:
    tiers = make_tiers(LookupOptions(hit_rate_threshold=1.0))
    assert tiers.ask([5, 7]) == ([5, 7], None)
    assert tiers.ask([7, 5]) == ([7, 5], None)
    assert len(tiers.persistent.queries) == 1
    counts = tiers.lookup.counts
    assert (counts.cache_hits, counts.cache_misses, counts.persistent_hits) == (2, 2, 2)


def test_answers_defaults_above_the_threshold_and_fetches_in_the_background(make_tiers) -> None:
    tiers = make_tiers(LookupOptions(hit_rate_threshold=0.5, default_values={"users": -1.0}))
    assert tiers.ask([1, 2])[1] is None, "a hit rate of 0 waits"
    assert tiers.ask([1, 2, 3]) == ([1, 2, -1], [RowState.FOUND, RowState.FOUND, RowState.DEFAULTED])
    tiers.background.drain()
    assert tiers.ask([1, 2, 3]) == ([1, 2, 3], None)
    assert tiers.lookup.counts.defaulted == 1


@pytest.mark.parametrize("local", [False, True])
def test_what_is_not_to_be_counted_is_answered_and_leaves_all_tiers_as_they_are(make_tiers, local) -> None:
    tiers = make_tiers(LookupOptions(hit_rate_threshold=0.5), capacity=3, local=local)
    tiers.volatile.insert("users", np.array([1, 5]), np.repeat(np.float32([[11], [15]]), 3, 1))
    tiers.cache.insert("users", np.array([1, 2, 3]), np.repeat(np.float32([[1], [2], [3]]), 3, 1))
    tiers.cache.mark_stale("users", np.array([2]))
    found, stale, defaulted = RowState.FOUND, RowState.STALE, RowState.DEFAULTED
    answers = []
    for keys in ([4, 5, 6], [1, 2, 7]):
        wanted = batch_of(("users", keys))
        wanted.counted = False
        tiers.lookup.look_up_tables(wanted)
        answers.append((wanted.rows[::3].tolist(), None if wanted.states is None else wanted.states.tolist()))
    tiers.background.drain()
    assert answers == [([4, 15, 6], None), ([1, 2, 0], [found, stale, defaulted])]
    assert tiers.lookup.counts == LookupCounts()
    assert tiers.cache.keys_by_use("users").tolist() == [3, 2, 1]
    assert tiers.cache.stale["users"] == {2}, "nor is it renewed"
    assert (sorted(tiers.volatile.tables["users"]), tiers.volatile.touched) == ([1, 5], [])


def test_waits_above_the_threshold_when_told_so(make_tiers) -> None:
    tiers = make_tiers(LookupOptions(hit_rate_threshold=0.0))
    assert tiers.ask([1], wait=True) == ([1], None)
    assert tiers.ask([1, 2]) == ([1, 0], [RowState.FOUND, RowState.DEFAULTED])


def test_unknown_keys_are_told_from_defaulted_ones(make_tiers) -> None:
    tiers = make_tiers(LookupOptions(default_values={"users": 4.0}))
    assert tiers.ask([1, 1000]) == ([1, 4], [RowState.FOUND, RowState.UNKNOWN])
    assert (tiers.lookup.counts.unknown, tiers.lookup.counts.defaulted) == (1, 0)


def test_damaged_rows_are_defaulted_and_those_asked_for_with_them_are_not(make_tiers) -> None:
    tiers = make_tiers(LookupOptions(default_values={"users": 4.0}))
    tiers.lookup.persistent.store = DamagedStore(tiers.persistent, 6, 7)
    found, defaulted, unknown = RowState.FOUND, RowState.DEFAULTED, RowState.UNKNOWN
    for _ in range(4):
        rows, states = tiers.ask([5, 6, 7, 8, 1000])
        assert (rows, states) == ([5, 4, 4, 8, 4], [found, defaulted, defaulted, found, unknown])
    assert (tiers.lookup.counts.unknown, tiers.lookup.counts.defaulted) == (4, 8)
    tiers.cache.insert("users", np.array([6, 9, 1000]), np.full((3, 3), 1, np.float32))
    assert tiers.lookup.renew("users", np.array([6, 9, 1000])) == (1, 1, 1)
    assert tiers.ask([6, 9, 1000]) == ([1, 9, 4], [found, found, unknown]), "no damage drops a row of level 1"


def test_level_2_is_asked_first_told_of_use_and_given_what_it_lacked(make_tiers) -> None:
    tiers = make_tiers(capacity=1)
    tiers.volatile.insert("users", np.array([1]), np.full((1, 3), 11, np.float32))
    assert tiers.ask([1, 2])[0] == [11, 2]
    tiers.background.drain()
    assert tiers.volatile.touched == [1]
    assert sorted(tiers.volatile.tables["users"]) == [1, 2]
    tiers.volatile.insert("users", np.array([3]), np.full((1, 3), 13, np.float32))
    assert tiers.ask([2, 3])[0] == [2, 13], "2 from level 1 or 2, not asked of level 3 again"
    assert tiers.persistent.queries == [("users", [2])]


def test_a_level_2_without_memory_is_not_given_rows_with_each_query(make_tiers, monkeypatch) -> None:
    tiers, now_s, tried = make_tiers(capacity=1), 100.0, []

    def refuse(*_arguments) -> None:
        tried.append(now_s)
        raise RedisFull("no memory left")

    monkeypatch.setattr(tiers.volatile, "insert_tables", refuse)
    monkeypatch.setattr(volatile_tier, "time", SimpleNamespace(monotonic=lambda: now_s))
    for key in range(12):
        assert tiers.ask([key]) == ([key], None)
        tiers.background.drain()
        now_s += 1.0
    assert tried == [100.0, 105.0, 110.0]
    assert len(tiers.faults) == 3


@pytest.mark.parametrize("threshold", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("persistent", [True, False])
def test_a_level_2_of_this_process_is_asked_as_one_behind_a_client_is(make_tiers, persistent: bool, threshold) -> None:
    options = LookupOptions(hit_rate_threshold=threshold, default_values={"users": -1.0})
    pair = [make_tiers(options, capacity=15, local=local, persistent=persistent) for local in (True, False)]
    rng = np.random.default_rng(3)
    for tiers in pair:
        for table, dim in DIMS.items():
            tiers.volatile.insert(table, np.arange(30), np.repeat(np.arange(30.0), dim).reshape(30, dim) + 200)
    for _ in range(40):
        parts = [(table, np.unique(rng.integers(0, 120, rng.integers(1, 12)))) for table in ("items", "users")]
        one, other = (BatchLookup.of(parts, DIMS) for _ in pair)
        for tiers, wanted in zip(pair, (one, other), strict=True):
            tiers.lookup.look_up_tables(wanted)
            tiers.background.drain()
        assert np.array_equal(one.rows, other.rows)
        assert (one.states is None) == (other.states is None)
        assert one.states is None or np.array_equal(one.states, other.states)
    assert pair[0].lookup.counts == pair[1].lookup.counts
    assert pair[0].volatile.touched == pair[1].volatile.touched
    assert pair[0].cache.tables.keys() == pair[1].cache.tables.keys()


def test_without_level_3_what_level_2_lacks_is_unknown(make_tiers) -> None:
    tiers = make_tiers(persistent=False)
    tiers.volatile.insert("users", np.array([1]), np.ones((1, 3), np.float32))
    assert tiers.ask([1, 2]) == ([1, 0], [RowState.FOUND, RowState.UNKNOWN])
    tiers.volatile.fault = StoreError("gone")
    assert tiers.ask([4])[1] == [RowState.DEFAULTED]


def test_a_failing_level_2_costs_nothing_but_time(make_tiers) -> None:
    tiers = make_tiers()
    tiers.volatile.fault = StoreError("gone")
    for key in range(10):
        assert tiers.ask([key]) == ([key], None)
    assert not tiers.lookup.volatile.client.available
    assert "gone" in tiers.lookup.volatile.client.state.fault


def test_a_stalled_level_2_is_left_alone_after_some_time_outs(make_tiers) -> None:
    tiers = make_tiers(volatile_options=HASTY)
    tiers.volatile.gate.clear()
    for key in range(10):
        assert tiers.ask([key]) == ([key], None)
    assert not tiers.lookup.volatile.client.available
    tiers.volatile.gate.set()
    wait_until(lambda: tiers.lookup.volatile.client.available)


def test_what_was_waited_for_a_tier_that_did_not_answer_is_told_and_for_a_slow_one_is_not(make_tiers) -> None:
    tiers = make_tiers(capacity=1, volatile_options=HASTY)
    tiers.volatile.gate.clear()
    stalled = batch_of(("users", [1, 2]))
    tiers.lookup.look_up_tables(stalled)
    assert stalled.states is None, "level 3 has answered"
    assert 0.05 <= stalled.in_vain_s < 5
    tiers.volatile.gate.set()
    slow = make_tiers(capacity=1)
    slow.persistent.gate.clear()
    threading.Timer(0.05, slow.persistent.gate.set).start()
    answered = batch_of(("users", [1, 2]))
    slow.lookup.look_up_tables(answered)
    assert (answered.states, answered.in_vain_s) == (None, 0.0)


def test_with_both_lower_tiers_stalled_keys_are_defaulted_and_heal(make_tiers) -> None:
    tiers = make_tiers(options_of_tiers=HASTY)
    tiers.volatile.gate.clear()
    tiers.persistent.gate.clear()
    for _ in range(5):
        assert tiers.ask([6]) == ([0], [RowState.DEFAULTED])
    tiers.volatile.gate.set()
    tiers.persistent.gate.set()
    wait_until(lambda: tiers.lookup.persistent.available and tiers.lookup.volatile.client.available)
    assert tiers.ask([6]) == ([6], None)


def test_the_callers_time_bounds_the_wait_and_opens_no_breaker(make_tiers) -> None:
    tiers = make_tiers()
    tiers.volatile.gate.clear()
    tiers.persistent.gate.clear()
    started_s = time.monotonic()
    for _ in range(5):
        assert tiers.ask([6], timeout_s=0.02)[1] == [RowState.DEFAULTED]
    assert time.monotonic() - started_s < 10.0
    assert tiers.lookup.volatile.client.available
    assert tiers.ask([6], timeout_s=0.0)[1] == [RowState.DEFAULTED]


def test_rows_that_come_after_the_deadline_are_kept_for_later_batches(make_tiers) -> None:
    tiers = make_tiers(volatile=False)
    tiers.persistent.gate.clear()
    assert tiers.ask([5, 6], timeout_s=0.05)[1] == [RowState.DEFAULTED] * 2
    assert tiers.lookup.counts.cut == 2
    tiers.persistent.gate.set()
    wait_until(lambda: tiers.cache.size("users") == 2)
    assert tiers.ask([5, 6]) == ([5, 6], None)
    assert len(tiers.persistent.queries) == 1


def test_a_stalled_level_2_leaves_level_3_a_part_of_the_callers_time(make_tiers) -> None:
    tiers = make_tiers()
    tiers.volatile.gate.clear()
    assert tiers.ask([6], timeout_s=1.0) == ([6], None)


def test_what_comes_after_the_deadline_is_there_for_the_next_batch(make_tiers) -> None:
    tiers = make_tiers(volatile=False)
    tiers.lookup.begin(TopicPartition("m", "users", 0), -1, "log")
    tiers.persistent.gate.clear()
    cut = batch_of(("users", [5, 6, 7]))
    tiers.lookup.look_up_tables(cut, 0.02)
    assert (cut.states.tolist(), cut.cut) == ([RowState.DEFAULTED] * 3, 3)
    assert (tiers.lookup.counts.defaulted, tiers.lookup.counts.cut) == (3, 3)
    overtaking = LogPlace(0, np.array([0]), 0)
    tiers.lookup.written("users", np.array([6]), row_of(66), overtaking)  # while the row before is on its way
    tiers.persistent.gate.set()
    wait_until(lambda: len(tiers.cache.tables["users"]) == 3)
    tiers.background.drain()
    tiers.persistent.queries.clear()
    assert tiers.ask([5, 7]) == ([5, 7], None)
    assert tiers.persistent.queries == []
    assert tiers.ask([6])[1] == [RowState.STALE]


def test_a_tier_that_fails_cuts_nothing_off(make_tiers) -> None:
    tiers = make_tiers(volatile=False)
    tiers.persistent.fault = StoreError("gone")
    failed = batch_of(("users", [5]))
    tiers.lookup.look_up_tables(failed, 20.0)
    assert (failed.states.tolist(), failed.cut, tiers.lookup.counts.cut) == ([RowState.DEFAULTED], 0, 0)


@pytest.mark.parametrize(("threshold", "bounds"), [(1.0, {}), (0.0, {"wait": True})])
def test_a_batch_of_any_size_is_waited_for_while_a_tier_answers(make_tiers, threshold, bounds) -> None:
    tiers = make_tiers(
        LookupOptions(hit_rate_threshold=threshold),
        volatile=False,
        options_of_tiers=TierClientOptions(timeout_s=0.3, threads=1),
    )
    query = tiers.persistent.query

    def slowly(*arguments) -> int:
        time.sleep(0.1)
        return query(*arguments)

    tiers.persistent.query = slowly
    keys = np.arange(8 * MAX_PIECE_KEYS)
    rows = np.empty((keys.size, 3), np.float32)
    states = tiers.lookup.look_up("users", keys, rows, **bounds)
    assert (states[:100] == RowState.FOUND).all()
    assert (states[100:] == RowState.UNKNOWN).all()
    assert tiers.lookup.persistent.state.failures == 0


def test_all_tables_are_asked_for_at_once(make_tiers) -> None:
    tiers = make_tiers(volatile=False)
    fill_tables, calls = tiers.persistent.fill_tables, []

    def counted(tables, *arrays):
        calls.append(tables)
        return fill_tables(tables, *arrays)

    tiers.persistent.fill_tables = counted
    wanted = batch_of(("users", [5, 500]), ("items", [7]))
    tiers.lookup.look_up_tables(wanted)
    assert calls == [("users", "items")]
    assert wanted.rows_of(0, 3).tolist() == [[5, 5, 5], [0, 0, 0]]
    assert wanted.rows_of(1, 1).tolist() == [[7]]
    assert wanted.states.tolist() == [RowState.FOUND, RowState.UNKNOWN, RowState.FOUND]
    counts = tiers.lookup.counts
    assert (counts.cache_misses, counts.persistent_hits, counts.unknown) == (3, 2, 1)


def test_a_stall_costs_several_tables_one_time_out(make_tiers) -> None:
    tiers = make_tiers(
        volatile=False, options_of_tiers=TierClientOptions(timeout_s=1.0, breaker=BreakerOptions(failures=100))
    )
    tiers.persistent.gate.clear()
    wanted = batch_of(*(("users", [key]) for key in range(20)))
    started_s = time.monotonic()
    tiers.lookup.look_up_tables(wanted)
    assert time.monotonic() - started_s < 10.0, "20 of them would take 20 s"
    assert wanted.states.tolist() == [RowState.DEFAULTED] * 20


def test_each_table_waits_or_not_by_its_own_hit_rate(make_tiers) -> None:
    tiers = make_tiers(LookupOptions(hit_rate_threshold=0.5, default_values={"items": -1.0}))
    tiers.ask([1, 2, 3])
    tiers.ask([1, 2], "items")
    tiers.cache.mark_stale("users", np.array([2]))
    wanted = batch_of(("items", [2, 1, 9]), ("users", [2]), ("users", [50, 1, 60, 70]), ("items", []))
    tiers.lookup.look_up_tables(wanted)
    assert [wanted.rows_of(number, dim)[:, 0].tolist() for number, dim in enumerate((1, 3, 3, 1))] == [
        [2, 1, -1],
        [2],
        [50, 1, 60, 70],
        [],
    ]
    found, stale, defaulted = RowState.FOUND, RowState.STALE, RowState.DEFAULTED
    assert wanted.states.tolist() == [found, found, defaulted, stale, found, found, found, found]
    tiers.background.drain()
    again = batch_of(("items", [9]), ("users", [2]))
    tiers.lookup.look_up_tables(again)
    assert (again.rows.tolist(), again.states) == ([9, 2, 2, 2], None)


def test_prefetched_keys_are_hits(make_tiers) -> None:
    tiers = make_tiers(LookupOptions(hit_rate_threshold=0.0))
    assert tiers.lookup.prefetch("users", np.array([9, 9, 8]))
    tiers.background.drain()
    assert tiers.ask([8, 9]) == ([8, 9], None)


def test_many_threads_get_their_own_rows(make_tiers) -> None:
    tiers = make_tiers(capacity=10)
    wrong: list[object] = []

    def ask(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(50):
            keys = rng.permutation(100)[:7].tolist()
            rows, _states = tiers.ask(keys)
            if rows != keys:
                wrong.append((rows, keys))

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_level_that_cannot_be_closed_does_not_keep_the_others_open(monkeypatch) -> None:
    def refuse() -> None:
        raise StoreError("not to be closed")

    tiers = DictTiers()
    tiers.background.close()
    monkeypatch.setattr(tiers.volatile, "close", refuse)
    with pytest.raises(StoreError, match="not to be closed"):
        tiers.lookup.close()
    assert (tiers.cache.closed, tiers.persistent.closed) == (True, True)


def test_what_is_left_to_the_background_tells_how_much_memory_it_holds(make_tiers) -> None:
    tiers = make_tiers(LookupOptions(hit_rate_threshold=0.0))
    told: list[int] = []
    submit = tiers.background.submit
    tiers.background.submit = lambda work, *held: told.extend(held) or submit(work, *held)
    tiers.ask([1, 2], wait=True)
    assert told == [2 * (8 + 3 * 4 + 1)], "rows on their way to level 2"
    tiers.background.drain()
    tiers.ask([3, 4, 5])
    tiers.background.drain()
    assert told[1] == 3 * 8, "keys on theirs to level 1"
    tiers.cache.mark_stale("users", np.array([1, 2]))
    tiers.ask([1, 2])
    tiers.background.drain()
    assert told[3] == 2 * 8, "those to be renewed"
