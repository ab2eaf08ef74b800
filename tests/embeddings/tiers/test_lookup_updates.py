"""Rows that are updated while they are looked up: by this server, and by others that share level 2."""

import threading

import numpy as np
import pytest

from hebe.embeddings.options import LookupOptions
from hebe.embeddings.store import UNKNOWN_POSITION, StoreError
from hebe.embeddings.tiers.batch_lookup import RowState
from hebe.embeddings.updates.contract import LogPlace, TopicPartition
from tests.embeddings.stores.dict_tiers import DictTiers, row_of, wait_until

FOUND, STALE, DEFAULTED, UNKNOWN = RowState
FIVE = np.array([5])


def begin(tiers: DictTiers, position: int = -1, partitions: int = 1) -> None:
    """This server follows the log of users, and its stores have all up to `position`."""
    for number in range(partitions):
        tiers.lookup.begin(TopicPartition("model", "users", number), position, "log")


def update(tiers: DictTiers, offset: int, keys: list[int], row: float | None, *stores) -> None:
    """Message `offset` of the log's only partition puts `row` under `keys`, or deletes them: this server follows it,
    and `stores` have it.
    """
    place = LogPlace(0, np.full(len(keys), offset), offset)
    tiers.lookup.writing("users", place)
    for store in stores:
        if row is None:
            store.delete("users", np.array(keys))
        else:
            store.insert("users", np.array(keys), row_of(*[row] * len(keys)))
    tiers.lookup.written("users", np.array(keys), None if row is None else row_of(*[row] * len(keys)), place)


def in_level_2(tiers: DictTiers, position: int, keys: list[int], row: float) -> None:
    """Level 2 has `row` under `keys`, with all updates up to `position`."""
    tiers.volatile.insert("users", np.array(keys), row_of(*[row] * len(keys)))
    tiers.volatile.positions |= dict.fromkeys(keys, position)


def test_level_1_follows_updates_of_the_rows_that_it_has(make_tiers) -> None:
    tiers = make_tiers()
    begin(tiers)
    tiers.ask([1, 2, 3])
    place = LogPlace(0, np.array([0, 1, 1]), 1)
    tiers.lookup.written("users", np.array([2, 2, 4]), row_of(8, 9, 9), place)
    assert tiers.ask([1, 2]) == ([1, 9], None), "the last of repeated keys; nothing is stale"
    tiers.background.drain()
    update(tiers, 2, [3], None, tiers.persistent, tiers.volatile)
    assert tiers.ask([3, 4]) == ([0, 4], [UNKNOWN, FOUND])


@pytest.mark.parametrize("deleted", [False, True])
def test_a_row_of_level_2_that_lacks_an_update_is_not_used(make_tiers, deleted) -> None:
    tiers = make_tiers(LookupOptions(cache_missed_embeddings=False))
    begin(tiers)
    in_level_2(tiers, 2, [5, 6], 50)
    tiers.volatile.insert("items", FIVE, np.full((1, 1), 50, np.float32))
    update(tiers, 3, [5], None if deleted else 9, tiers.persistent)
    expected = ([0, 50], [UNKNOWN, FOUND]) if deleted else ([9, 50], None)
    assert tiers.ask([5, 6]) == expected
    tiers.lookup.renew("users", FIVE)
    assert tiers.ask([5, 6]) == expected, "nor when level 1 is refreshed"
    assert tiers.ask([5], "items") == ([50], None)
    assert tiers.lookup.counts.volatile_hits == 2, "of keys that had no update"
    tiers.cache.delete("users", FIVE)
    in_level_2(tiers, 3, [5], 9)
    assert tiers.ask([5]) == ([9], None)
    assert tiers.lookup.counts.volatile_hits == 3


def test_what_level_3_had_before_the_start_level_2_may_lack(make_tiers) -> None:
    """No key is known to have had an update then: all of them may have."""
    tiers = make_tiers(LookupOptions(cache_missed_embeddings=False))
    begin(tiers, 7)
    in_level_2(tiers, 6, [5], 50)
    in_level_2(tiers, 7, [6], 60)
    assert tiers.ask([5, 6]) == ([5, 60], None)
    begin(tiers, 5)  # the log went back, and is read again
    tiers.cache.delete("users", FIVE)
    assert tiers.ask([5]) == ([50], None)


def test_without_level_3_what_lacks_an_update_is_stale_and_level_1_does_not_keep_it(make_tiers) -> None:
    tiers = make_tiers()
    begin(tiers)
    in_level_2(tiers, 2, [5], 8)
    in_level_2(tiers, 2, [7], 7)
    update(tiers, 3, [5], 9, tiers.persistent)
    tiers.persistent.fault = StoreError("gone")
    for _ in range(3):
        tiers.ask([6])
    assert not tiers.lookup.persistent.available
    for asked in range(2):
        assert tiers.ask([5, 7]) == ([8, 7], [STALE, FOUND])
        assert list(tiers.cache.tables["users"]) == [7]
        assert tiers.lookup.counts.stale == asked + 1
    assert tiers.ask([5, 7, 6])[1] == [STALE, FOUND, DEFAULTED]
    tiers.lookup.cache.insert("users", FIVE, row_of(9))
    assert tiers.lookup.renew("users", np.array([5, 7])) == (1, 0, 1)
    assert tiers.ask([5]) == ([9], None), "a refresh puts nothing older over it"


def test_rows_of_level_2_alone_are_stale_until_it_has_the_updates(make_tiers) -> None:
    tiers = make_tiers(persistent=False)
    begin(tiers)
    in_level_2(tiers, 2, [1, 2, 3], 1)
    assert tiers.ask([1, 2]) == ([1, 1], None)
    update(tiers, 3, [1], None)
    update(tiers, 4, [2], 5)
    assert tiers.ask([1, 2, 3, 4]) == ([1, 5, 1, 0], [STALE, FOUND, FOUND, UNKNOWN])
    assert list(tiers.cache.tables["users"]) == [2, 3]
    tiers.volatile.delete("users", np.array([1]))
    in_level_2(tiers, 4, [2], 5)
    assert tiers.ask([1, 2]) == ([0, 5], [UNKNOWN, FOUND])
    assert tiers.lookup.renew("users", np.array([2])) == (1, 0, 0)


@pytest.mark.parametrize("follows", [False, True])
def test_rows_whose_age_nobody_knows_are_stale(make_tiers, follows) -> None:
    """As where the log that they had updates of was lost, or a replica took over."""
    tiers = make_tiers(persistent=False)
    if follows:
        begin(tiers)
    in_level_2(tiers, UNKNOWN_POSITION, [5], 50)
    in_level_2(tiers, -1, [6], 60)
    for _ in range(2):
        assert tiers.ask([5, 6]) == ([50, 60], [STALE, FOUND])
    assert list(tiers.cache.tables["users"]) == [6]


@pytest.mark.parametrize("persistent", [False, True])
def test_level_1_keeps_no_row_that_is_ahead_of_its_own_log(make_tiers, persistent) -> None:
    """It would take the updates between for newer ones."""
    tiers = make_tiers(persistent=persistent)
    begin(tiers, 5)
    in_level_2(tiers, 7, [1, 2], 20)
    tiers.volatile.row_positions = {1: 7, 2: 5}
    for _ in range(2):
        assert tiers.ask([1, 2]) == ([20, 20], None)
        assert list(tiers.cache.tables["users"]) == [2]
    tiers.lookup.put("users", *fetched(tiers, [1]), present_only=False)
    assert list(tiers.cache.tables["users"]) == [2]
    update(tiers, 7, [9], 90)
    assert tiers.ask([1, 2]) == ([20, 20], None)
    assert sorted(tiers.cache.tables["users"]) == [1, 2]


def fetched(tiers: DictTiers, keys: list[int]):
    """Those of `keys` that level 1 may have, their rows and positions: what is put into it."""
    rows, states, positions = tiers.lookup.fetch("users", np.array(keys), 20.0)
    kept = states == FOUND
    return np.array(keys)[kept], rows[kept], positions[kept]


@pytest.mark.parametrize("call", ["look_up", "fetch"])
def test_an_update_that_overtakes_a_fetch_is_not_hidden(make_tiers, call) -> None:
    tiers = make_tiers(persistent=False)
    begin(tiers)
    in_level_2(tiers, 0, [1, 2, 3], 1)
    tiers.ask([3])
    if call == "look_up":
        replace_tables = tiers.cache.replace_tables

        def overtaken(*arrays) -> None:
            update(tiers, 1, [2, 3], 5)
            replace_tables(*arrays)

        tiers.cache.replace_tables = overtaken
        assert tiers.ask([1, 2]) == ([1, 1], None), "it has come since"
    else:
        found = fetched(tiers, [1, 2])
        update(tiers, 1, [2, 3], 5)
        tiers.lookup.put("users", *found)
    tiers.volatile.fault = StoreError("gone")  # nothing can renew it
    assert tiers.ask([1, 2, 3]) == ([1, 1, 5], [FOUND, STALE, FOUND])


def test_a_refresh_never_puts_an_older_row_over_a_newer_one(make_tiers) -> None:
    tiers = make_tiers(persistent=False)
    begin(tiers)
    in_level_2(tiers, 0, [1, 2], 1)
    assert tiers.ask([1, 2])[0] == [1, 1]
    in_level_2(tiers, 0, [1, 2], 3)
    keys, rows, positions = fetched(tiers, [1, 2])
    update(tiers, 1, [2], 5)
    tiers.lookup.put("users", keys, rows, positions, present_only=True)
    assert tiers.ask([1, 2]) == ([3, 5], None)


def test_a_late_row_that_an_update_has_overtaken_is_stale(make_tiers) -> None:
    tiers = make_tiers(volatile=False)
    begin(tiers)
    hold = threading.Event()
    tiers.background.submit(lambda: hold.wait(30.0))
    tiers.persistent.gate.clear()
    assert tiers.ask([5, 6], timeout_s=0.05)[1] == [DEFAULTED] * 2
    tiers.persistent.gate.set()
    wait_until(lambda: tiers.background.waiting > 0)
    update(tiers, 0, [5], 55)
    hold.set()
    tiers.background.drain()
    tiers.persistent.fault = StoreError("gone")
    assert tiers.ask([5, 6]) == ([5, 6], [STALE, FOUND])


def test_a_key_that_is_updated_again_and_again_comes_to_level_1_where_nobody_waits_for_it(make_tiers) -> None:
    tiers = make_tiers(LookupOptions(hit_rate_threshold=0.0), persistent=False)
    begin(tiers)
    in_level_2(tiers, -1, [1], 1)
    update(tiers, 0, [1], 2)
    assert tiers.ask([1])[1] == [DEFAULTED]
    tiers.background.drain()
    assert tiers.ask([1]) == ([1], [STALE])
    update(tiers, 1, [1], 3)
    assert tiers.ask([1]) == ([3], None), "it was there to be updated"


def test_stale_rows_are_renewed_by_their_use(make_tiers) -> None:
    tiers = make_tiers(volatile=False)
    tiers.ask([1, 2, 3])
    tiers.persistent.insert("users", np.array([2]), row_of(22))
    tiers.persistent.delete("users", np.array([3]))
    tiers.cache.mark_stale("users", np.array([2, 3, 4]))
    tiers.persistent.fault = StoreError("gone")
    for _ in range(2):
        assert tiers.ask([1, 2, 3]) == ([1, 2, 3], [FOUND, STALE, STALE])
        tiers.background.drain()
    tiers.persistent.fault = None
    tiers.ask([2, 3])
    tiers.background.drain()
    assert tiers.ask([1, 2, 3]) == ([1, 22, 0], [FOUND, FOUND, UNKNOWN])
    assert tiers.lookup.counts.stale == 6


def test_rows_that_are_doubted_and_cannot_be_renewed_are_stale(make_tiers) -> None:
    tiers = make_tiers(volatile=False)
    tiers.ask([1, 2])
    tiers.persistent.fault = StoreError("gone")
    assert tiers.lookup.renew("users", np.array([1]), doubted=True) == (0, 0, 1)
    assert tiers.lookup.renew("users", np.array([2])) == (0, 0, 1)
    assert tiers.ask([1, 2]) == ([1, 2], [STALE, FOUND])


@pytest.mark.parametrize("local", [False, True])
def test_what_level_2_is_given_is_in_no_querys_way(make_tiers, monkeypatch, local) -> None:
    tiers, on, calls = make_tiers(local=local), threading.Event(), []
    for name in ("touch", "insert_tables"):
        act = getattr(tiers.volatile, name)

        def when_let(*arguments, name=name, act=act):
            assert on.wait(30.0)
            calls.append(name)
            return act(*arguments)

        monkeypatch.setattr(tiers.volatile, name, when_let)
    for asked, expected in enumerate(["insert_tables", "touch"]):
        assert tiers.ask([5]) == ([5], None)
        assert tiers.lookup.counts.volatile_hits == asked
        assert len(calls) == asked, "it was not waited for"
        on.set()
        tiers.background.drain()
        assert calls[asked:] == [expected]
        on.clear()
        tiers.cache.delete("users", FIVE)


def test_level_2_is_filled_with_what_it_lacks(make_tiers) -> None:
    tiers = make_tiers(local=True)
    tiers.volatile.insert("users", np.array([4]), row_of(44))
    assert tiers.lookup.fill_level_2("users", np.array([3, 4, 1000])) == 0
    assert {key: row[0] for key, row in tiers.volatile.tables["users"].items()} == {3: 3, 4: 44}


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("moment", ["before it is put there", "while it is put there", "while level 3 is asked"])
def test_level_2_in_this_process_keeps_no_row_that_an_update_overtook(make_tiers, moment, deleted) -> None:
    tiers, hold = make_tiers(local=True), threading.Event()
    begin(tiers)
    changed = tiers.volatile if moment == "while it is put there" else tiers.persistent
    call = "insert_tables" if changed is tiers.volatile else "fill_tables"
    act = getattr(changed, call)

    def update_now() -> None:
        update(tiers, 0, [5], None if deleted else 9, tiers.persistent, tiers.volatile)

    def overtaken(*arguments):
        setattr(changed, call, act)
        done = None if changed is tiers.volatile else act(*arguments)  # read before the update, or put after it
        update_now()
        return act(*arguments) if changed is tiers.volatile else done

    if moment == "before it is put there":
        tiers.background.submit(lambda: hold.wait(30.0))
    else:
        setattr(changed, call, overtaken)
    tiers.ask([5, 6])
    if moment == "before it is put there":
        update_now()
    hold.set()
    tiers.background.drain()
    assert tiers.volatile.tables["users"].get(5, [9])[0] == 9
    assert not deleted or 5 not in tiers.volatile.tables["users"]
    tiers.cache.delete("users", FIVE)
    assert tiers.ask([5])[0] == [0 if deleted else 9]


def test_level_2_is_filled_only_at_positions_that_are_settled(make_tiers) -> None:
    """While stores are given an update, what they answer may have it, or not."""
    tiers = make_tiers(local=True)
    begin(tiers, partitions=2)
    in_first = [key for key in range(50) if tiers.lookup.updates.partitions_of("users", np.array([key]))[0] == 0]
    tiers.lookup.writing("users", LogPlace(0, np.array([3]), None))
    tiers.ask(list(range(50)))
    tiers.background.drain()
    assert sorted(tiers.volatile.tables["users"]) == sorted({*range(50)} - {*in_first})
    tiers.lookup.written("users", np.array(in_first[:1]), None, LogPlace(0, np.array([3]), 3))
    tiers.lookup.fill_level_2("users", np.arange(50))
    assert sorted(tiers.volatile.tables["users"]) == [*range(50)]
