import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from hebe.embeddings.background import BackgroundWork
from hebe.embeddings.batch_lookup import BatchLookup, RowState
from hebe.embeddings.circuit_breaker import BreakerOptions
from hebe.embeddings.lookup_counts import LookupCounts
from hebe.embeddings.lookup_options import LookupOptions
from hebe.embeddings.store import StoreError
from hebe.embeddings.tier_guard import GuardOptions, TierGuard
from hebe.embeddings.tiered_lookup import UPDATED_BY_OTHERS_S, TieredLookup
from hebe.embeddings.volatile_tier import VolatileTier

from .dict_store import DictCache, DictStore

DIMS = {"users": 3, "items": 1}
PATIENT = GuardOptions(timeout_s=30.0)
HASTY = GuardOptions(timeout_s=0.05)


class Tiers:
    """A lookup over dicts; level 3 holds keys 0..99, row = key."""

    def __init__(
        self,
        options: LookupOptions | None = None,
        *,
        capacity: int = 50,
        volatile: bool = True,
        local: bool = False,
        persistent: bool = True,
        guard: GuardOptions = PATIENT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.faults: list[Exception] = []
        self.cache = DictCache(DIMS, capacity)
        self.volatile, self.persistent = DictStore(DIMS), DictStore(DIMS)
        for table, dim in DIMS.items():
            self.persistent.insert(table, np.arange(100), np.repeat(np.arange(100.0), dim).reshape(100, dim))
        self.background = BackgroundWork("test", 1, 100, self.faults.append)
        level_2 = VolatileTier.of_process(self.volatile)
        if not local:
            level_2 = VolatileTier.guarded(self.volatile, TierGuard("volatile", self.volatile, DIMS, guard))
        self.lookup = TieredLookup(
            DIMS,
            self.cache,
            level_2 if volatile else None,
            TierGuard("persistent", self.persistent, DIMS, guard) if persistent else None,
            options or LookupOptions(),
            self.background,
            clock,
        )

    def ask(self, keys: list[int], table: str = "users", **bounds) -> tuple[list[float], list[int] | None]:
        """The first number of each row, and the states; checks that all numbers of a row are alike."""
        rows = np.full((len(keys), DIMS[table]), np.nan, np.float32)
        states = self.lookup.look_up(table, np.array(keys), rows, **bounds)
        assert (rows == rows[:, :1]).all()
        return rows[:, 0].tolist(), None if states is None else states.tolist()

    def close(self) -> None:
        self.background.close()
        self.lookup.close()


@pytest.fixture
def make_tiers():
    made: list[Tiers] = []

    def make(*arguments, **options) -> Tiers:
        made.append(Tiers(*arguments, **options))
        return made[-1]

    yield make
    for tiers in made:
        tiers.volatile.gate.set()
        tiers.persistent.gate.set()
        tiers.close()
        assert all(isinstance(fault, StoreError) for fault in tiers.faults), "a tier's own faults, of work on it"


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


def test_what_is_not_to_be_counted_is_not_nor_what_it_has_fetched_in_the_background(make_tiers) -> None:
    tiers = make_tiers(LookupOptions(hit_rate_threshold=0.5))
    for keys in ([1, 2], [1, 2, 3]):
        wanted = batch_of(("users", keys))
        wanted.counted = False
        tiers.lookup.look_up_tables(wanted)
    tiers.background.drain()
    assert tiers.lookup.counts == LookupCounts()
    assert tiers.ask([1, 2, 3]) == ([1, 2, 3], None), "fetched all the same"
    assert tiers.lookup.counts == LookupCounts(cache_hits=3)


def test_waits_above_the_threshold_when_told_so(make_tiers) -> None:
    tiers = make_tiers(LookupOptions(hit_rate_threshold=0.0))
    assert tiers.ask([1], wait=True) == ([1], None)
    assert tiers.ask([1, 2]) == ([1, 0], [RowState.FOUND, RowState.DEFAULTED])


def test_unknown_keys_are_told_from_defaulted_ones(make_tiers) -> None:
    tiers = make_tiers(LookupOptions(default_values={"users": 4.0}))
    assert tiers.ask([1, 1000]) == ([1, 4], [RowState.FOUND, RowState.UNKNOWN])
    assert (tiers.lookup.counts.unknown, tiers.lookup.counts.defaulted) == (1, 0)


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


@pytest.mark.parametrize("threshold", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("persistent", [True, False])
def test_a_level_2_of_this_process_is_asked_as_one_behind_a_guard_is(make_tiers, persistent: bool, threshold) -> None:
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
    assert not tiers.lookup.volatile.guard.available
    assert "gone" in tiers.lookup.volatile.guard.state.fault


def test_a_stalled_level_2_is_left_alone_after_some_time_outs(make_tiers) -> None:
    tiers = make_tiers(guard=HASTY)
    tiers.volatile.gate.clear()
    for key in range(10):
        assert tiers.ask([key]) == ([key], None)
    assert not tiers.lookup.volatile.guard.available
    tiers.volatile.gate.set()
    _wait_until(lambda: tiers.lookup.volatile.guard.available)


def test_with_both_lower_tiers_stalled_keys_are_defaulted_and_heal(make_tiers) -> None:
    tiers = make_tiers(guard=HASTY)
    tiers.volatile.gate.clear()
    tiers.persistent.gate.clear()
    for _ in range(5):
        assert tiers.ask([6]) == ([0], [RowState.DEFAULTED])
    tiers.volatile.gate.set()
    tiers.persistent.gate.set()
    _wait_until(lambda: tiers.lookup.persistent.available and tiers.lookup.volatile.guard.available)
    assert tiers.ask([6]) == ([6], None)


def test_the_callers_time_bounds_the_wait_and_opens_no_breaker(make_tiers) -> None:
    tiers = make_tiers()
    tiers.volatile.gate.clear()
    tiers.persistent.gate.clear()
    started_s = time.monotonic()
    for _ in range(5):
        assert tiers.ask([6], timeout_s=0.02)[1] == [RowState.DEFAULTED]
    assert time.monotonic() - started_s < 10.0
    assert tiers.lookup.volatile.guard.available
    assert tiers.ask([6], timeout_s=0.0)[1] == [RowState.DEFAULTED]


def test_level_1_follows_updates_of_the_rows_that_it_has(make_tiers) -> None:
    tiers = make_tiers()
    tiers.ask([1, 2, 3])
    tiers.background.drain()
    tiers.lookup.updated("users", np.array([2, 2, 4]), np.array([[8], [9], [9]] * np.ones(3), np.float32))
    assert tiers.ask([1, 2]) == ([1, 9], None), "the last of repeated keys; nothing is stale"
    tiers.persistent.delete("users", np.array([3]))
    tiers.volatile.delete("users", np.array([3]))
    tiers.lookup.updated("users", np.array([3]), None)
    assert tiers.ask([3, 4]) == ([0, 4], [RowState.UNKNOWN, RowState.FOUND])


@pytest.mark.parametrize("deleted", [False, True])
def test_level_2_is_not_believed_where_another_server_has_yet_to_write_an_update(make_tiers, deleted) -> None:
    now_s = 0.0
    tiers = make_tiers(capacity=10, clock=lambda: now_s)
    keys, old = np.array([5]), np.full((1, 3), 5, np.float32)
    tiers.volatile.insert("users", keys, old)
    tiers.volatile.insert("items", keys, old[:, :1])
    if deleted:
        tiers.persistent.delete("users", keys)
        tiers.lookup.updated("users", keys, None)
        expected = ([0], [RowState.UNKNOWN])
    else:
        tiers.persistent.insert("users", keys, old + 4)
        tiers.lookup.updated("users", keys, old + 4)
        expected = ([9], None)
    assert tiers.ask([5]) == expected
    tiers.background.drain()
    assert tiers.lookup._updates["users"].filled_among(keys).size == 0, "it is not this server's to take back there"
    tiers.lookup.renew("users", keys)
    assert tiers.ask([5]) == expected, "nor when level 1 is refreshed"
    assert tiers.ask([5], "items") == ([5], None)
    assert tiers.lookup.counts.volatile_hits == 1, "of items alone, which had no update"
    tiers.cache.delete("users", keys)
    tiers.volatile.insert("users", keys, old + 5)  # by the other server, some time
    now_s = UPDATED_BY_OTHERS_S + 1
    assert tiers.ask([5]) == ([10], None)


class Outages:
    """Tiers whose level 2 other servers write to, as who watches it sees it, and their clock."""

    def __init__(self, make_tiers, **options) -> None:
        self.now_s = 1000.0
        self.tiers = make_tiers(clock=lambda: self.now_s, **options)
        self.tiers.lookup.level_2_lag.watch()

    def pass_s(self, seconds: float, *, taking: bool = True) -> None:
        """Time passes, and level 2 takes writes or does not."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += 2.0
            if taking:
                self.tiers.lookup.level_2_lag.taking()


def row_of(value: float) -> np.ndarray:
    return np.full((1, 3), value, np.float32)


def test_what_level_2_lacks_after_an_outage_is_asked_of_level_3_until_others_have_written_it(make_tiers) -> None:
    outages = Outages(make_tiers)
    tiers, lookup, keys = outages.tiers, outages.tiers.lookup, np.array([5])
    tiers.volatile.insert("users", keys, row_of(50))
    tiers.volatile.insert("users", np.array([6]), row_of(60))
    outages.pass_s(100.0)
    outages.pass_s(10.0, taking=False)
    tiers.persistent.insert("users", keys, row_of(55))
    lookup.updated("users", keys, row_of(55))
    outages.pass_s(80.0, taking=False)
    tiers.volatile.fault = StoreError("away")
    for _ in range(3):
        lookup.fetch("users", np.array([7]), 1.0)
    assert tiers.ask([5]) == ([55], None)
    tiers.volatile.fault = None
    _wait_until(lambda: lookup.volatile.available)
    tiers.cache.delete("users", keys)
    outages.pass_s(80.0)
    assert tiers.ask([5]) == ([55], None), "longer ago than an update takes, but for the outage"
    assert tiers.ask([6]) == ([60], None), "it had no update"
    tiers.cache.delete("users", keys)
    tiers.volatile.insert("users", keys, row_of(56))  # by another server, some time
    outages.pass_s(20.0)
    assert tiers.ask([5]) == ([56], None)


def test_what_level_2_lacked_before_the_start_nobody_knows(make_tiers) -> None:
    outages = Outages(make_tiers)
    tiers, keys = outages.tiers, np.array([5])
    tiers.volatile.insert("users", keys, row_of(50))  # of before an update that level 3 was given in the last run
    outages.pass_s(500.0, taking=False)
    assert tiers.ask([5]) == ([5], None)
    assert not tiers.volatile.queries
    tiers.cache.delete("users", keys)
    outages.pass_s(50.0)
    assert tiers.ask([5]) == ([5], None)
    tiers.cache.delete("users", keys)
    tiers.volatile.insert("users", keys, row_of(51))
    outages.pass_s(20.0)
    assert tiers.ask([5]) == ([51], None)


@pytest.mark.parametrize("local", [False, True])
def test_level_2_is_given_no_rows_of_a_level_3_that_lacks_updates_where_others_share_it(make_tiers, local) -> None:
    """They have seen these updates, and would take what it had before for new once that is a minute ago."""
    tiers = make_tiers(local=local)
    tiers.lookup.level_3_is_current = False
    tiers.ask([5])
    tiers.background.drain()
    assert (5 in tiers.volatile.tables["users"]) == local
    tiers.lookup.level_3_is_current = True
    tiers.ask([6])
    tiers.background.drain()
    assert 6 in tiers.volatile.tables["users"]


def test_level_2_is_filled_with_what_it_lacks(make_tiers) -> None:
    tiers = make_tiers()
    tiers.volatile.insert("users", np.array([4]), row_of(44))
    tiers.lookup.fill_level_2("users", np.array([3, 4, 1000]))
    assert {key: row[0] for key, row in tiers.volatile.tables["users"].items()} == {3: 3, 4: 44}
    tiers.lookup.updated("users", np.array([3]), row_of(33))
    assert 3 not in tiers.volatile.tables["users"], "it was noted, and taken back"


@pytest.mark.parametrize("local", [False, True])
def test_what_level_2_is_told_is_in_no_querys_way(make_tiers, monkeypatch, local) -> None:
    tiers, on, calls = make_tiers(local=local), threading.Event(), []
    for name in ("touch", "insert_tables"):
        act = getattr(tiers.volatile, name)

        def when_let(*arguments, name=name, act=act):
            assert on.wait(30.0)
            calls.append(name)
            return act(*arguments)

        monkeypatch.setattr(tiers.volatile, name, when_let)
    assert tiers.ask([5]) == ([5], None)
    assert calls == [], "it was not waited for"
    on.set()
    tiers.background.drain()
    assert calls == ["insert_tables"]
    on.clear()
    tiers.cache.delete("users", np.array([5]))
    assert tiers.ask([5]) == ([5], None)
    assert tiers.lookup.counts.volatile_hits == 1
    assert calls == ["insert_tables"]
    on.set()
    tiers.background.drain()
    assert calls == ["insert_tables", "touch"]


def test_level_2_is_used_when_level_3_cannot_be_asked_and_said_to_be_stale_where_it_may_be(make_tiers) -> None:
    tiers = make_tiers()
    tiers.volatile.insert("users", np.array([5]), np.full((1, 3), 8, np.float32))
    tiers.lookup.updated("users", np.array([5]), np.full((1, 3), 9, np.float32))
    tiers.persistent.fault = StoreError("gone")
    for _ in range(3):
        tiers.ask([6])
    assert not tiers.lookup.persistent.available
    tiers.volatile.insert("users", np.array([7]), np.full((1, 3), 7, np.float32))
    for asked in range(2):
        assert tiers.ask([5, 7]) == ([8, 7], [RowState.STALE, RowState.FOUND])
        assert list(tiers.cache.tables["users"]) == [7], "only what is not older than what level 3 may have is kept"
        assert tiers.lookup.counts.stale == asked + 1
    assert tiers.ask([5, 7, 6])[1] == [RowState.STALE, RowState.FOUND, RowState.DEFAULTED]
    assert tiers.ask([7]) == ([7], None)
    tiers.lookup.cache.insert("users", np.array([5]), np.full((1, 3), 9, np.float32))
    assert tiers.lookup.renew("users", np.array([5, 7])) == (1, 0, 1)
    assert tiers.ask([5]) == ([9], None)


def test_a_stalled_level_2_leaves_level_3_a_part_of_the_callers_time(make_tiers) -> None:
    tiers = make_tiers()
    tiers.volatile.gate.clear()
    assert tiers.ask([6], timeout_s=1.0) == ([6], None)


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("moment", ["before it is put there", "while it is put there"])
def test_level_2_keeps_no_row_that_an_update_overtook(make_tiers, moment, deleted) -> None:
    tiers = make_tiers()
    new = None if deleted else np.full((1, 3), 9, np.float32)

    def update() -> None:
        for store in (tiers.persistent, tiers.volatile):
            store.delete("users", np.array([5])) if new is None else store.insert("users", np.array([5]), new)

    if moment == "before it is put there":
        hold = threading.Event()
        tiers.background.submit(lambda: hold.wait(30.0))
        tiers.ask([5, 6])
        update()
        tiers.lookup.updated("users", np.array([5]), new)
        hold.set()
    else:
        insert = tiers.volatile.insert

        def overtaken(table, keys, rows):
            tiers.volatile.insert = insert
            update()
            insert(table, keys, rows)

        tiers.volatile.insert = overtaken
        tiers.ask([5, 6])
        tiers.background.drain()
        tiers.lookup.updated("users", np.array([5]), new)
    tiers.background.drain()
    assert tiers.volatile.tables["users"].get(5, [9])[0] == 9
    assert 6 in tiers.volatile.tables["users"]
    tiers.cache.delete("users", np.array([5]))
    assert tiers.ask([5])[0] == [0 if deleted else 9]


def test_level_2_is_not_asked_while_it_has_an_old_row_that_it_could_not_be_told_to_delete(make_tiers) -> None:
    """As when Redis was away while the update came: others would be given the old row, and keep it."""
    now_s = 0.0
    tiers = make_tiers(capacity=1, clock=lambda: now_s)
    assert tiers.ask([7])[0] == [7]
    for other in range(400):  # however much was put there since
        tiers.ask([other % 50 + 20])
    tiers.background.drain()
    assert tiers.volatile.tables["users"][7][0] == 7
    tiers.volatile.fault = StoreError("away")
    tiers.persistent.insert("users", np.array([7]), np.full((1, 3), 77, np.float32))
    tiers.lookup.updated("users", np.array([7]), np.full((1, 3), 77, np.float32))
    tiers.volatile.fault = None
    tiers.cache.delete("users", np.array([7]))
    assert tiers.volatile.tables["users"][7][0] == 7
    assert tiers.ask([7])[0] == [77], "level 3 was asked"
    now_s = UPDATED_BY_OTHERS_S + 1
    tiers.background.drain()
    tiers.cache.delete("users", np.array([7]))
    assert tiers.ask([7])[0] == [77], "level 2 was told to delete it, is asked again, and given the new row"
    tiers.background.drain()
    tiers.cache.delete("users", np.array([7]))
    asked = len(tiers.persistent.queries)
    assert tiers.ask([7])[0] == [77]
    assert len(tiers.persistent.queries) == asked, "level 2 was asked again, and has the new row"


def test_one_settles_what_level_2_is_owed_however_many_ask(make_tiers) -> None:
    tiers = make_tiers(LookupOptions(cache_missed_embeddings=False), capacity=1)
    tiers.volatile.insert("users", np.array([7]), np.full((1, 3), 70, np.float32))
    tiers.lookup._updates["users"].owe(np.array([7]))
    hold = threading.Event()
    tiers.background.submit(lambda: hold.wait(30.0))
    submitted, submit = [], tiers.background.submit
    tiers.background.submit = lambda work: submitted.append(work) or submit(work)
    for key in range(100):
        assert tiers.ask([key])[0] == [key]
    assert len(submitted) == 1
    hold.set()
    tiers.background.drain()
    assert not tiers.volatile.tables["users"]
    tiers.lookup._updates["users"].owe(np.array([8]))
    tiers.ask([50])
    assert len(submitted) == 2, "another one may"


def test_outdated_rows_are_stale_until_their_use_has_renewed_them(make_tiers) -> None:
    tiers = make_tiers(volatile=False)
    tiers.ask([1, 2, 3])
    tiers.persistent.insert("users", np.array([2]), np.full((1, 3), 22, np.float32))
    tiers.persistent.delete("users", np.array([3]))
    tiers.lookup.outdated("users", np.array([2, 3, 4]), None)
    assert tiers.ask([1, 2, 3]) == ([1, 2, 3], [RowState.FOUND, RowState.STALE, RowState.STALE])
    tiers.background.drain()
    assert tiers.ask([1, 2]) == ([1, 22], None)
    assert tiers.ask([3])[1] == [RowState.UNKNOWN]
    assert tiers.lookup.counts.stale == 2


def test_rows_stay_stale_while_no_tier_can_renew_them(make_tiers) -> None:
    tiers = make_tiers(volatile=False)
    tiers.ask([1])
    tiers.lookup.outdated("users", np.array([1]), None)
    tiers.persistent.fault = StoreError("gone")
    for _ in range(2):
        assert tiers.ask([1]) == ([1], [RowState.STALE])
        tiers.background.drain()
    tiers.persistent.fault = None
    assert tiers.lookup.renew("users", np.array([1])) == (1, 0, 0)
    assert tiers.ask([1]) == ([1], None)


def test_rows_that_are_doubted_and_cannot_be_renewed_are_stale(make_tiers) -> None:
    tiers = make_tiers(volatile=False)
    tiers.ask([1, 2])
    tiers.persistent.fault = StoreError("gone")
    assert tiers.lookup.renew("users", np.array([1]), doubted=True) == (0, 0, 1)
    assert tiers.lookup.renew("users", np.array([2])) == (0, 0, 1)
    assert tiers.ask([1, 2]) == ([1, 2], [RowState.STALE, RowState.FOUND])


def test_an_update_that_overtakes_a_fetch_is_not_hidden(make_tiers) -> None:
    tiers = make_tiers(persistent=False)
    tiers.volatile.insert("users", np.array([1, 2]), np.ones((2, 3), np.float32))
    seen = tiers.lookup.updates_seen("users")
    rows, _ = tiers.lookup.fetch("users", np.array([1, 2]), 1.0)
    tiers.lookup.updated("users", np.array([2]), np.full((1, 3), 5, np.float32))
    tiers.lookup.put("users", np.array([1, 2]), rows, seen)
    tiers.volatile.fault = StoreError("gone")  # nothing can renew it
    assert tiers.ask([1, 2])[1] == [RowState.FOUND, RowState.STALE]
    for key in range(300):
        tiers.lookup.outdated("users", np.array([50 + key]), None)
    tiers.lookup.put("users", np.array([9]), rows[:1], seen)
    assert tiers.ask([9])[1] == [RowState.STALE], "more updates than are remembered: taken for stale"


def test_a_refresh_never_puts_an_older_row_over_a_newer_one(make_tiers) -> None:
    tiers = make_tiers(persistent=False)
    tiers.volatile.insert("users", np.array([1, 2]), np.ones((2, 3), np.float32))
    assert tiers.ask([1, 2])[0] == [1, 1]
    seen = tiers.lookup.updates_seen("users")
    tiers.lookup.updated("users", np.array([2]), np.full((1, 3), 5, np.float32))
    tiers.lookup.put("users", np.array([1, 2]), np.full((2, 3), 3, np.float32), seen, present_only=True)
    assert tiers.ask([1, 2]) == ([3, 5], None)
    for key in range(300):
        tiers.lookup.outdated("users", np.array([50 + key]), None)
    tiers.lookup.put("users", np.array([1]), np.full((1, 3), 2, np.float32), seen, present_only=True)
    assert tiers.ask([1])[0] == [3], "more updates than are remembered: it may be the older one"


def test_rows_that_came_with_an_update_stay_fresh_whatever_else_is_fetched_meanwhile(make_tiers) -> None:
    tiers = make_tiers(persistent=False)
    tiers.volatile.insert("users", np.array([1, 2]), np.ones((2, 3), np.float32))
    tiers.ask([2])
    seen = tiers.lookup.updates_seen("users")
    rows, _ = tiers.lookup.fetch("users", np.array([1]), 1.0)
    tiers.lookup.updated("users", np.array([2]), np.full((1, 3), 5, np.float32))
    tiers.lookup.put("users", np.array([1]), rows, seen)
    assert tiers.ask([1, 2]) == ([1, 5], None)


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
    tiers = make_tiers(volatile=False, guard=GuardOptions(timeout_s=1.0, breaker=BreakerOptions(failures=100)))
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
    tiers.lookup.outdated("users", np.array([2]), None)
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


def batch_of(*parts: tuple[str, list[int]]) -> BatchLookup:
    """A lookup of these keys of these tables, into rows of NaN."""
    starts = np.cumsum([0, *(len(keys) for _, keys in parts)])
    bases = np.cumsum([0, *(len(keys) * DIMS[table] for table, keys in parts)])
    keys = np.array([key for _, keys in parts for key in keys], np.int64)
    return BatchLookup([table for table, _ in parts], keys, starts, np.full(bases[-1], np.nan, np.float32), bases)


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


def _wait_until(holds, patience_s: float = 20.0) -> None:
    give_up_s = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)
