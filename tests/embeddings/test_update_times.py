import numpy as np
import pytest

from hebe.embeddings.update_times import UpdateTimes


class Asked:
    """Times of two tables, and a clock to set."""

    def __init__(self, **options) -> None:
        self.now_s = 1e6
        self.times = UpdateTimes(["users", "items"], lambda: self.now_s, **options)

    def within(self, last_s: float, users: list[int], items: list[int]) -> list[bool] | None:
        starts = np.array([0, len(users), len(users) + len(items)])
        found = self.times.within(last_s, ["users", "items"], np.array([*users, *items], np.int64), starts)
        return None if found is None else found.tolist()


def test_what_was_updated_of_late_is_told_by_table_until_it_is_long_ago() -> None:
    asked = Asked()
    assert asked.within(60.0, [1], [1]) is None
    asked.times.note("users", np.array([1, -(2**63), 2**63 - 1]))
    asked.now_s += 40
    asked.times.note("items", np.array([1]))
    assert asked.within(60.0, [1, 2, -(2**63), 2**63 - 1], [1, 2]) == [True, False, True, True, True, False]
    asked.now_s += 40
    assert asked.within(60.0, [1, 2], [1, 2]) == [False, False, True, False]
    asked.times.note("users", np.array([1]))
    assert asked.within(60.0, [1], [1]) == [True, True]
    asked.now_s += 61
    assert asked.within(60.0, [1], [1]) is None
    assert asked.within(60.0, [], []) is None


@pytest.mark.parametrize("slots", [1, 2, 64, 1 << 21])
def test_keys_may_be_taken_for_others_but_no_update_is_missed(slots) -> None:
    asked, random = Asked(slots=slots), np.random.default_rng(slots)
    keys = random.integers(-(2**63), 2**63 - 1, 2000)
    asked.times.note("users", keys[:1000])
    found = asked.within(1.0, keys.tolist(), [])
    assert found is not None
    assert all(found[:1000])
    if slots > 1000:
        assert sum(found[1000:]) < 10
