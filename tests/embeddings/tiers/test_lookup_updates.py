"""Rows that are updated while they are looked up: by this server, and by others that share level 2."""

import math
import threading

import numpy as np
import pytest

from hebe.embeddings.options import LookupOptions
from hebe.embeddings.store import StoreError
from hebe.embeddings.tiers.batch_lookup import RowState
from hebe.embeddings.tiers.lookup import UPDATED_BY_OTHERS_S
from hebe.embeddings.updates.boot_clock import boot_s
from hebe.embeddings.updates.heard_updates import LogPlace
from tests.embeddings.stores.dict_tiers import row_of, wait_until


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
    wait_until(lambda: lookup.volatile.available)
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


def test_level_2_is_given_no_rows_of_a_level_3_that_lacks_updates_where_others_share_it(make_tiers) -> None:
    """They have seen these updates, and would take what it had before for new once that is a minute ago."""
    tiers = make_tiers()
    fills = tiers.lookup.volatile.fills
    fills.level_3_has_s = -math.inf
    tiers.ask([5])
    tiers.background.drain()
    assert 5 not in tiers.volatile.tables["users"]
    fills.level_3_has_s = boot_s()
    tiers.ask([6])
    tiers.background.drain()
    assert 6 in tiers.volatile.tables["users"]


def test_a_level_2_of_this_server_alone_is_given_what_its_level_3_has(make_tiers) -> None:
    tiers = make_tiers(local=True)
    assert tiers.lookup.volatile.fills is None
    tiers.ask([5])
    tiers.background.drain()
    assert 5 in tiers.volatile.tables["users"]
    tiers.lookup.take_back_unsure()
    assert 5 in tiers.volatile.tables["users"]


def test_level_2_gives_back_what_it_was_given_since_level_3_had_all_updates(make_tiers) -> None:
    tiers = make_tiers()
    fills = tiers.lookup.volatile.fills
    fills.level_3_has_s = boot_s()
    tiers.volatile.insert("users", np.array([7]), row_of(7))
    tiers.ask([5])
    tiers.background.drain()
    fills.level_3_has_s = boot_s()
    tiers.ask([6, 7])
    tiers.background.drain()
    tiers.lookup.take_back_unsure()
    assert sorted(tiers.volatile.tables["users"]) == [5, 7], "what others had put there stays"


def test_level_2_keeps_nothing_that_it_was_given_while_level_3_fell_behind(make_tiers) -> None:
    tiers = make_tiers()
    fills, insert = tiers.lookup.volatile.fills, tiers.volatile.insert

    def slow(table, keys, rows):
        fills.level_3_has_s = -math.inf
        tiers.lookup.take_back_unsure()
        insert(table, keys, rows)

    tiers.volatile.insert = slow
    tiers.ask([5])
    tiers.background.drain()
    assert not tiers.volatile.tables["users"]


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


def test_what_may_have_come_over_newer_rows_of_another_server_leaves_level_2(make_tiers) -> None:
    tiers = make_tiers()
    tiers.volatile.insert("users", np.array([6, 7, 8]), np.full((3, 3), 50, np.float32))
    tiers.lookup.overtaken("users", np.array([6]))
    assert sorted(tiers.volatile.tables["users"]) == [7, 8]
    tiers.volatile.fault = StoreError("away")
    tiers.lookup.overtaken("users", np.array([7]))
    tiers.volatile.fault = None
    assert tiers.ask([6, 7])[0] == [6, 7], "level 3 was asked, as long as level 2 could not be told"
    tiers.background.drain()
    assert tiers.volatile.tables["users"].keys() >= {8}
    assert tiers.ask([8])[0] == [50]


def test_what_level_2_is_owed_is_settled_also_where_nobody_asks(make_tiers) -> None:
    tiers = make_tiers()
    tiers.volatile.insert("users", np.array([7, 8]), np.ones((2, 3), np.float32))
    assert tiers.lookup.settle(), "nothing is"
    tiers.lookup._updates["users"].owe(np.array([7]))
    tiers.volatile.fault = StoreError("away")
    assert not tiers.lookup.settle()
    tiers.volatile.fault = None
    assert tiers.lookup.settle()
    assert list(tiers.volatile.tables["users"]) == [8]


def test_one_settles_what_level_2_is_owed_however_many_ask(make_tiers) -> None:
    tiers = make_tiers(LookupOptions(cache_missed_embeddings=False), capacity=1)
    tiers.volatile.insert("users", np.array([7]), np.full((1, 3), 70, np.float32))
    tiers.lookup._updates["users"].owe(np.array([7]))
    hold = threading.Event()
    tiers.background.submit(lambda: hold.wait(30.0))
    submitted, submit = [], tiers.background.submit
    tiers.background.submit = lambda work, *held: submitted.append(work) or submit(work, *held)
    for key in range(100):
        assert tiers.ask([key])[0] == [key]
    assert len(submitted) == 1
    hold.set()
    tiers.background.drain()
    assert not tiers.volatile.tables["users"]
    tiers.lookup._updates["users"].owe(np.array([8]))
    tiers.ask([50])
    assert len(submitted) == 2, "another one may"


def test_what_level_2_alone_has_is_doubted_until_the_log_says_that_it_has_all_updates(make_tiers) -> None:
    now_s = 1000.0
    tiers = make_tiers(persistent=False, clock=lambda: now_s)
    lookup, keys = tiers.lookup, np.array([1, 2])
    tiers.volatile.insert("users", np.array([1, 2, 3]), np.ones((3, 3), np.float32))
    assert tiers.ask([1, 2]) == ([1, 1], None)
    lookup.level_2_lag.written(now_s)
    now_s += 1
    lookup.updated("users", keys[:1], None)
    lookup.updated("users", keys[1:], row_of(5))
    for _ in range(2):
        assert tiers.ask([1, 2, 3]) == ([1, 5, 1], None)
        assert list(tiers.cache.tables["users"]) == [2, 3]
    assert lookup.renew("users", keys) == (0, 0, 2), "a refresh puts nothing older over what was heard"
    assert tiers.ask([2]) == ([5], None)
    tiers.volatile.delete("users", keys[:1])
    tiers.volatile.insert("users", keys[1:], row_of(5))
    lookup.outdated("users", keys, None)
    assert tiers.ask([1, 2])[1] == [RowState.UNKNOWN, RowState.FOUND], "it is what was heard"
    now_s += 1
    lookup.level_2_lag.written(now_s)
    assert lookup.renew("users", keys[1:]) == (1, 0, 0)
    lookup.outdated("users", keys[1:], row_of(6))
    assert tiers.ask([2]) == ([5], [RowState.STALE]), "an update that this server has not heard of"


def test_what_level_2_alone_has_is_stale_where_it_may_have_been_lacking_updates_for_long(make_tiers) -> None:
    now_s = 1000.0
    tiers = make_tiers(persistent=False, clock=lambda: now_s)
    lag = tiers.lookup.level_2_lag
    tiers.volatile.insert("users", np.array([1, 2]), np.ones((2, 3), np.float32))
    lag.written(-math.inf)
    assert tiers.ask([1, 2, 3]) == ([1, 1, 0], [RowState.STALE, RowState.STALE, RowState.UNKNOWN])
    assert tiers.lookup.counts.stale == 2
    assert not tiers.cache.tables["users"]
    lag.written(now_s)
    tiers.lookup.updated("users", np.array([1]), row_of(5))
    now_s += UPDATED_BY_OTHERS_S
    assert tiers.ask([1]) == ([1], None), "it is on its way there"
    now_s += 1
    assert tiers.ask([1, 2]) == ([1, 1], [RowState.STALE, RowState.FOUND]), "who is to write it is stuck"
    lag.written(now_s)
    tiers.volatile.insert("users", np.array([1]), row_of(5))
    assert tiers.ask([1, 2]) == ([5, 1], None)


def test_a_key_that_is_updated_again_and_again_comes_to_level_1_where_nobody_waits_for_it(make_tiers) -> None:
    now_s = 1000.0
    tiers = make_tiers(LookupOptions(hit_rate_threshold=0.0), persistent=False, clock=lambda: now_s)
    tiers.volatile.insert("users", np.array([1]), row_of(1))
    tiers.lookup.level_2_lag.written(now_s)
    tiers.lookup.updated("users", np.array([1]), row_of(2))
    assert tiers.ask([1])[1] == [RowState.DEFAULTED]
    tiers.background.drain()
    assert tiers.ask([1]) == ([1], [RowState.STALE])
    tiers.lookup.updated("users", np.array([1]), row_of(3))
    assert tiers.ask([1]) == ([3], None), "it was there to be updated"


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


def test_what_level_1_has_of_an_update_is_not_stale_when_level_2_has_it_too(make_tiers) -> None:
    now_s = 1000.0
    tiers = make_tiers(clock=lambda: now_s)
    lookup, keys = tiers.lookup, np.array([1, 2])

    def at(offset):
        return LogPlace(0, np.full(2, offset), offset)

    tiers.ask([1, 2])
    lookup.outdated("users", keys, row_of(4, 4), at(4))
    assert tiers.ask([1, 2])[1] == [RowState.STALE] * 2, "level 3 has yet to be told"
    lookup.updated("users", keys, row_of(5, 5), at(5))
    lookup.outdated("users", keys, row_of(5, 5), at(5))
    assert tiers.ask([1, 2]) == ([5, 5], None)
    lookup.updated("users", keys, row_of(7, 7), at(7))
    lookup.outdated("users", keys, row_of(6, 6), at(6))
    assert tiers.ask([1, 2]) == ([7, 7], None), "it is older than what level 1 has"
    lookup.outdated("users", keys, row_of(7, 8), LogPlace(0, np.array([7, 8]), 8))
    assert tiers.ask([1, 2]) == ([7, 7], [RowState.FOUND, RowState.STALE])
    lookup.updated("users", keys, row_of(9, 9), at(9))
    now_s += UPDATED_BY_OTHERS_S + 1
    lookup.outdated("users", keys, row_of(9, 9), at(9))
    assert tiers.ask([1, 2])[1] == [RowState.STALE] * 2, "level 2 was believed meanwhile, and had older ones"


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
