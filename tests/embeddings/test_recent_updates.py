import numpy as np

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


def test_what_was_put_into_level_2_is_remembered():
    updates = RecentUpdates()
    assert updates.filled_among(np.array([1])).size == 0
    updates.note_filled(np.array([5, 6]))
    updates.note_filled(np.array([8]))
    assert updates.filled_among(np.array([8, 7, 6])).tolist() == [6, 8]
