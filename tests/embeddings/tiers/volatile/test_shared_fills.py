"""What a server puts into a level 2 that others share."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from hebe.embeddings.tiers.shared_fills import MOST_BEHIND_S, SharedFills


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


def test_a_level_2_without_memory_is_full_for_some_seconds() -> None:
    now_s = 1000.0
    fills = SharedFills(lambda: now_s)
    assert not fills.full
    fills.found_full()
    assert fills.full
    assert fills.allowed, "what was put there before need not be taken back"
    now_s += 4.9
    assert fills.full
    now_s += 0.1
    assert not fills.full


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


def test_they_are_noted_for_others_before_they_are_made() -> None:
    now_s, noted = 1000.0, []
    fills = SharedFills(lambda: now_s)
    fills.notes = SimpleNamespace(note=lambda parts, now_s: noted.append((now_s, parts)))
    fills.level_3_has_s = now_s
    parts = [("users", np.array([1]))]
    fills.note(parts)
    fills.note([])
    assert noted == [(now_s, parts)]
    fills.notes = SimpleNamespace(note=lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fills.note(parts)
    assert len(fills.take_unsure()) == 1, "what could not be noted was not made"
