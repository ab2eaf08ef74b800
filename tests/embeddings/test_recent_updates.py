import numpy as np

from hebe.embeddings import recent_updates
from hebe.embeddings.recent_updates import RecentUpdates


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


def test_what_was_put_into_level_2_is_remembered_until_it_is_deleted():
    updates = RecentUpdates()
    assert updates.filled_among(np.array([1])).size == 0
    updates.note_filled(np.array([5, 6]))
    for number in range(1000):
        updates.note_filled(np.array([8, 1000 + number]))
    asked = np.array([8, 7, 6, 8])
    assert updates.filled_among(asked).tolist() == [6, 8]
    serial = updates.serial
    updates.note_filled(np.array([8]))  # while the tier is being told to delete them
    updates.deleted(np.array([6, 7, 8]), serial)
    assert updates.filled_among(asked).tolist() == [8]
    updates.deleted(np.array([8]), updates.serial)
    assert updates.filled_among(asked).size == 0


def test_where_too_much_was_put_there_all_that_is_updated_counts_for_as_long_as_it_may_matter(monkeypatch):
    monkeypatch.setattr(recent_updates, "_MOST_FILLED", 3)
    now = [10.0]
    updates = RecentUpdates(lambda: now[0])
    updates.note_filled(np.array([1, 2, 3]))
    assert updates.filled_among(np.array([9, 1])).tolist() == [1]
    updates.note_filled(np.array([4]))  # the oldest one is forgotten
    assert updates.filled_among(np.array([9, 1, 4, 9])).tolist() == [1, 4, 9]
    now[0] += 300.0
    assert updates.filled_among(np.array([9, 1, 4])).tolist() == [4]


def test_what_could_not_be_deleted_is_owed():
    updates = RecentUpdates()
    assert not updates.owes
    updates.owe(np.array([4, 2]))
    assert updates.owes
    serial = updates.serial
    updates.owe(np.array([4]))
    updates.deleted(np.array([2, 4]), serial)
    assert updates.owed().tolist() == [4], "it is owed anew"
    updates.deleted(np.array([4]), updates.serial)
    assert not updates.owes
