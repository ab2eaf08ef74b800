import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.kernels.hash_tables.hash_map_partition import EVICT_LEAST_USED, EVICT_OLDEST, EVICT_RANDOM, NO_LIMIT

from .hash_map_reference import HashMapReference

KEYS = st.lists(st.integers(0, 20) | st.sampled_from((-(2**63), 2**63 - 1)), max_size=8)
STEPS = st.lists(st.tuples(st.sampled_from(["insert", "update", "delete", "touch"]), KEYS), max_size=12)


def rows_of(count: int, stamp: float = 0.0) -> np.ndarray:
    return np.full((count, 2), stamp, np.float32)


@given(STEPS, st.integers(1, 4))
def test_without_a_margin_it_is_a_dict(steps, partitions):
    ours, expected = HashMapReference(range(partitions), NO_LIMIT, NO_LIMIT, EVICT_RANDOM), {}
    for stamp, (step, keys) in enumerate(steps):
        there = set(keys) & expected.keys()
        if step == "insert":
            ours.insert(keys, rows_of(len(keys), stamp))
            expected.update(dict.fromkeys(keys, stamp))
        elif step == "update":
            assert ours.update(keys, rows_of(len(keys), stamp)) == len(there)
            expected.update(dict.fromkeys(there, stamp))
        elif step == "delete":
            assert ours.delete(keys) == len(there)
            expected = {key: row for key, row in expected.items() if key not in there}
        else:
            ours.touch(keys)
    assert ours.keys() == sorted(expected)
    for key, stamp in expected.items():
        assert ours.get(key).tolist() == [stamp, stamp]
    assert ours.get(99) is None


@pytest.mark.parametrize(("policy", "left"), [(EVICT_OLDEST, [0, 5, 6, 7]), (EVICT_LEAST_USED, [0, 1, 5, 6])])
def test_above_the_margin_those_go_that_the_policy_names_down_to_the_target(policy, left):
    ours = HashMapReference([0], 7, 4, policy)
    ours.insert(range(7), rows_of(7))
    ours.touch([1, 1, 0, 5, 6, 0])
    assert ours.keys() == list(range(7)), "at the margin all may stay"
    ours.insert([7], rows_of(1))
    assert ours.keys() == left


def test_chance_is_of_the_seed():
    def left(seed: int) -> list[int]:
        ours = HashMapReference([seed], 50, 25, EVICT_RANDOM)
        ours.insert(range(51), rows_of(51))
        return ours.keys()

    assert left(1) == left(1) != left(2)
    assert len(left(1)) == 25
