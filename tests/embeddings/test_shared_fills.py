"""What a server puts into a level 2 that others share."""

import math

import numpy as np

from hebe.embeddings.shared_fills import MOST_BEHIND_S, SharedFills


def test_they_are_allowed_while_level_3_is_known_to_have_what_there_was_of_late() -> None:
    now_s = 1000.0
    fills = SharedFills(lambda: now_s)
    assert fills.allowed, "where no updates come"
    fills.level_3_has_s = -math.inf
    assert not fills.allowed
    fills.level_3_has_s = now_s
    now_s += MOST_BEHIND_S
    assert fills.allowed
    now_s += 1
    assert not fills.allowed, "whoever was to say more is held up too"


def test_those_since_level_3_had_all_are_unsure_until_they_are_taken() -> None:
    now_s = 1000.0
    fills = SharedFills(lambda: now_s)
    fills.note([("users", np.array([1]))])
    fills.level_3_has_s = now_s
    for key in range(2, 6):
        now_s += 1
        fills.note([("users", np.array([key])), ("items", np.array([-key]))])
    fills.level_3_has_s = 1002.5
    taken = [(table, keys.tolist()) for table, keys in fills.take_unsure()]
    assert taken == [(table, [sign * key]) for key in (4, 5) for table, sign in (("users", 1), ("items", -1))]
    assert fills.take_unsure() == []
