"""Which messages of a log have been followed."""

import numpy as np

from hebe.embeddings.updates.heard_updates import HeardUpdates, LogPlace


def place(offsets, position=None, partition=0):
    return LogPlace(partition, np.array(offsets, np.int64), position)


def heard(updates, offsets, partition=0):
    return updates.has(place(offsets, partition=partition)).tolist()


def test_from_the_first_message_to_where_nothing_is_outstanding():
    updates = HeardUpdates()
    assert heard(updates, [0, 1]) == [False, False]
    updates.note(place([5, 7, 6], 7))
    assert heard(updates, [4, 5, 6, 7, 8]) == [False, True, True, True, False]
    assert heard(updates, [5], partition=1) == [False], "of another partition nothing is known"
    updates.note(place([9], 8))  # the message at 8 was none of this model's, and that at 9 is not whole
    assert heard(updates, [5, 8, 9]) == [True, True, False]
    updates.note(place([], 20))
    assert heard(updates, [20]) == [False], "nothing is told by that"


def test_a_message_that_comes_in_pieces_counts_with_its_last_one():
    updates = HeardUpdates()
    updates.note(place([3, 3]))
    assert heard(updates, [3]) == [False]
    updates.note(place([3], 3))
    assert heard(updates, [2, 3, 4]) == [False, True, False]


def test_a_log_that_goes_back_begins_anew():
    updates = HeardUpdates()
    updates.note(place([100, 101], 101))
    updates.note(place([2], 2))
    assert heard(updates, [1, 2, 3, 100, 101]) == [False, True, False, False, False]


def test_what_comes_late_and_out_of_turn_is_no_log_that_goes_back():
    updates = HeardUpdates()
    updates.note(place([4, 6], 4))
    updates.note(place([5], 6))  # which 6 had overtaken
    assert heard(updates, [3, 4, 5, 6, 7]) == [False, True, True, True, False]
