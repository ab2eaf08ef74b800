import contextlib

import numpy as np

from hebe.embeddings.store import StoreError
from hebe.embeddings.tiers.update_tracking import RecentUpdates


def test_keys_are_overtaken_by_later_updates_alone():
    updates = RecentUpdates()
    updates.add(np.array([1, 2]))
    seen = updates.number
    keys = np.array([1, 2, 3, 4])
    assert not updates.overtaken(keys, seen).any()
    updates.add(np.array([2, 9]))
    updates.add(np.array([4]))
    assert updates.overtaken(keys, seen).tolist() == [False, True, False, True]
    assert updates.overtaken(keys, seen + 1).tolist() == [False, False, False, True]


def test_where_updates_are_forgotten_all_keys_are_overtaken():
    updates = RecentUpdates()
    for number in range(300):
        updates.add(np.array([number]))
    keys = np.array([0, 250, 999])
    assert updates.overtaken(keys, 0).all()
    assert updates.overtaken(keys, 200).tolist() == [False, True, False]


def test_what_was_put_into_level_2_is_remembered_for_as_long_as_it_may_matter():
    now = [10.0]
    updates = RecentUpdates(lambda: now[0])
    assert updates.filled_among(np.array([1])).size == 0
    updates.note_filled(np.array([5, 6]))
    for number in range(1000):
        updates.note_filled(np.array([8, 1000 + number]))
    assert updates.filled_among(np.array([8, 7, 6, 8])).tolist() == [6, 8]
    now[0] += 200.0
    updates.note_filled(np.array([6]))
    now[0] += 200.0
    assert updates.filled_among(np.array([8, 7, 6, 8])).tolist() == [6]
    now[0] += 200.0
    assert updates.filled_among(np.array([8, 7, 6, 8])).size == 0


def test_however_much_was_put_there_none_of_it_is_missed():
    updates, keys = RecentUpdates(), np.arange(0, 3_000_000, 3)
    updates.note_filled(keys)
    asked = keys[-5000:]
    assert np.array_equal(updates.filled_among(asked), asked)


def owed(updates, *, fails=False, meanwhile=()):
    """What is being paid; while it is, more is owed."""
    told = None
    with contextlib.suppress(StoreError), updates.paying() as keys:
        told = None if keys is None else keys.tolist()
        assert updates.owes, "it is not done yet"
        if meanwhile:
            updates.owe(np.array(meanwhile))
        if fails:
            raise StoreError("away")
    return told


def test_what_could_not_be_deleted_is_owed_until_it_is():
    updates = RecentUpdates()
    assert not updates.owes
    updates.owe(np.array([4, 2]))
    assert owed(updates, fails=True, meanwhile=[5, 4]) == [2, 4]
    assert updates.owes
    assert owed(updates, meanwhile=[4]) == [2, 4, 5]
    assert updates.owes, "it is owed anew"
    assert owed(updates) == [4]
    assert not updates.owes


def test_of_a_table_that_owes_too_much_all_is_owed():
    updates = RecentUpdates()
    for first in range(0, 1 << 20, 1 << 18):
        updates.owe(np.arange(first, first + (1 << 18)))
    assert sum(keys.size for keys in updates._owed) <= 1 << 17
    assert owed(updates, fails=True, meanwhile=[1]) is None
    assert owed(updates) is None
    assert not updates.owes


def test_of_keys_that_are_owed_again_and_again_each_is_owed_once():
    updates = RecentUpdates()
    for _ in range(1000):
        updates.owe(np.arange(1000))
    assert sum(keys.size for keys in updates._owed) <= 1 << 17
    assert owed(updates) == list(range(1000))
