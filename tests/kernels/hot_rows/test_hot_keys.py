import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.kernels.hot_rows.hot_keys import (
    COLD,
    map_hot_rows,
    map_words,
    number_hot_keys,
    split_hot_keys,
    split_hot_keys_reference,
)

FEATURES = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5), st.booleans()), min_size=1, max_size=5)
"""Of each feature the number of its table, keys per item, and whether these may change places."""

ROWS = st.lists(st.sampled_from([1, 2, 63, 64, 65, 200, 1000]), min_size=3, max_size=3)


def plan_of(features, rows) -> np.ndarray:
    starts = np.cumsum([0, *map(map_words, rows)])
    plan, column = [], 0
    for table, lookups, in_any_order in features:
        plan.append((column, lookups, rows[table], starts[table], in_any_order))
        column += lookups
    return np.array(plan, np.int64)


@settings(max_examples=100)
@given(FEATURES, ROWS, st.sampled_from([0.0, 0.1, 0.5, 1.0]), st.integers(0, 40), st.integers(0, 2**32))
def test_agrees_with_the_reference(features, rows, share, items, seed):
    rng = np.random.default_rng(seed)
    hot_rows = [np.flatnonzero(rng.random(count) < share) for count in rows]
    words = np.concatenate([map_hot_rows(count, hot) for count, hot in zip(rows, hot_rows, strict=True)])
    plan = plan_of(features, rows)
    keys = np.concatenate([rng.integers(-1, rows[table], (items, lookups)) for table, lookups, _ in features], axis=1)
    strange = rng.random(keys.shape) < 0.05
    keys[strange] = rng.choice([-2, -(2**63), 2**63 - 1, 1000, 1024], strange.sum())
    before = keys.copy()
    cold, hot, wanted_cold, wanted_hot = np.full((4, *keys.shape), 77)
    counts = split_hot_keys(keys, plan, words, cold, hot)
    own = [hot_rows[table] for table, _, _ in features]
    assert counts == split_hot_keys_reference(keys, plan, own, wanted_cold, wanted_hot)
    np.testing.assert_array_equal(cold, wanted_cold)
    np.testing.assert_array_equal(hot, wanted_hot)
    np.testing.assert_array_equal(keys, before)
    assert split_hot_keys(keys, plan, words, keys, hot) == counts, "in place"
    np.testing.assert_array_equal(keys, cold)
    np.testing.assert_array_equal(hot, wanted_hot)


@settings(max_examples=50)
@given(FEATURES, ROWS, st.booleans(), st.integers(0, 20), st.integers(0, 2**32))
def test_where_all_are_hot_a_key_is_its_rows_number(features, rows, strange, items, seed):
    rng = np.random.default_rng(seed)
    plan = plan_of(features, rows)
    keys = np.concatenate([rng.integers(-1, rows[table], (items, lookups)) for table, lookups, _ in features], axis=1)
    if strange:
        odd = rng.random(keys.shape) < 0.2
        keys[odd] = rng.choice([-2, -(2**63), 2**63 - 1, 1000], odd.sum())
    limits = np.concatenate([[rows[table]] * lookups for table, lookups, _ in features])
    present = (keys >= 0) & (keys < limits)
    hot = np.full((items + 1, keys.shape[1]), 77)
    counts = number_hot_keys(keys, plan, hot)
    assert counts == (present.sum(), (~present & (keys != -1)).sum())
    np.testing.assert_array_equal(hot[:items], keys)
    assert (hot[items:] == 77).all()
    with pytest.raises(ValueError, match="must have the same columns and rows"):
        number_hot_keys(keys, plan, hot[:, :-1].copy())


def test_a_map_numbers_hot_rows_in_order_of_key():
    hot = np.array([0, 3, 63, 64, 130])
    plan, words = plan_of([(0, 1, True)], [131]), map_hot_rows(131, hot)
    keys = np.arange(131)[:, None].copy()
    cold, numbers = np.empty((2, 131, 1), np.int64)
    assert split_hot_keys(keys, plan, words, cold, numbers) == (131, 5)
    assert numbers[hot, 0].tolist() == [0, 1, 2, 3, 4]
    assert (cold[hot] == -1).all()
    assert (np.delete(numbers, hot) == COLD).all()
    assert words.nbytes == 48


@pytest.mark.parametrize("hot", [[3, 3], [4, 3], [-1], [10]])
def test_keys_that_are_no_rows_or_out_of_order_are_refused(hot):
    with pytest.raises(ValueError, match=r"ascending and lie in \[0, 10\)"):
        map_hot_rows(10, np.array(hot))


def test_wrong_arguments_are_errors():
    plan, words = plan_of([(0, 3, False)], [100]), map_hot_rows(100, np.array([1, 7]))
    keys, out = np.zeros((4, 3), np.int64), np.zeros((4, 3), np.int64)
    for cold, hot in ((out[:2], out), (out, out[:2]), (out, out[:, 1:].copy())):
        with pytest.raises(ValueError, match="the same columns"):
            split_hot_keys(keys, plan, words, cold, hot)
    for wrong_plan, wrong_words in ((-plan, words), (np.add(plan, [1, 0, 0, 0, 0]), words), (plan, words[1:])):
        with pytest.raises(ValueError, match="the plan reaches past"):
            split_hot_keys(keys, wrong_plan, wrong_words, out, out.copy())
    with pytest.raises(TypeError):
        split_hot_keys(keys.astype(np.int32), plan, words, out, out.copy())
