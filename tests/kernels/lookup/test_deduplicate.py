import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hebe.kernels.lookup.deduplicate import (
    ANY_KEY,
    Deduplicator,
    KeyPlan,
    KeyTable,
    count_states,
    deduplicate_reference,
)

KEYS = st.integers(-2, 5) | st.sampled_from((-(2**63), 2**63 - 1, 2**32, -(2**32)))
BLOCKS = ((0, 2), (2, 1), (3, 0), (3, 2), (5, 3))
"""Of a matrix of 8 columns, each in one block."""


@st.composite
def plans(draw) -> KeyPlan:
    """Each block in one of a few tables, or in none."""
    owners = draw(st.lists(st.integers(-1, 2), min_size=len(BLOCKS), max_size=len(BLOCKS)))
    tables = [
        KeyTable([block for block, owner in zip(BLOCKS, owners, strict=True) if owner == table], dim)
        for table, dim in enumerate(draw(st.lists(st.integers(1, 8), min_size=3, max_size=3)))
    ]
    return KeyPlan(tables)


@settings(max_examples=200, deadline=None)
@given(arrays(np.int64, st.tuples(st.integers(0, 9), st.just(8)), elements=KEYS), plans())
def test_agrees_with_the_reference(keys: np.ndarray, plan: KeyPlan) -> None:
    deduplicator = Deduplicator()
    expected_matrix = keys.copy()
    expected = deduplicate_reference(expected_matrix, plan)
    for _ in range(2):
        matrix = keys.copy()
        ours = deduplicator.run(matrix, plan)
        assert (ours.keys.tolist(), ours.starts.tolist(), ours.bases.tolist()) == expected
        assert np.array_equal(matrix, expected_matrix)


def test_buffers_serve_large_and_small_batches_of_many_and_few_tables() -> None:
    rng = np.random.default_rng(0)
    deduplicator = Deduplicator()
    for items, tables in ((3, 2), (5000, 3), (7, 1), (2, 50)):
        keys = rng.integers(-1, 3 * items, (items, 4 * tables))
        plan = KeyPlan([KeyTable([(4 * table + 1, 2)], table + 1, 3 * items) for table in range(tables)])
        matrix = keys.copy()
        distinct = deduplicator.run(matrix, plan)
        for table in range(tables):
            mine = slice(4 * table + 1, 4 * table + 3)
            used, places = keys[:, mine], matrix[:, mine]
            numbers = (-2 - places[used != -1] - distinct.bases[table]) // (table + 1)
            own = distinct.keys[distinct.starts[table] : distinct.starts[table + 1]]
            assert np.array_equal(own[numbers], used[used != -1])
            assert len(np.unique(own)) == len(own)
        assert np.array_equal(matrix[:, ::4], keys[:, ::4])


def test_keys_that_share_their_low_bits_stay_apart() -> None:
    keys = (np.arange(4096, dtype=np.int64) << 40).reshape(-1, 1)
    distinct = Deduplicator().run(keys.copy(), KeyPlan([KeyTable([(0, 1)], 1)]))
    assert np.array_equal(distinct.keys, keys[:, 0])


@pytest.mark.parametrize("key", [-2, 10, 2**63 - 1, -(2**63)])
def test_keys_out_of_a_tables_range_are_an_error_that_names_it(key: int) -> None:
    plan = KeyPlan([KeyTable([(0, 1)], 1, ANY_KEY), KeyTable([(1, 1)], 1, 9)])
    assert Deduplicator().run(np.array([[key, 9], [0, -1]]), plan).keys.tolist() == [key, 0, 9]
    with pytest.raises(IndexError) as raised:
        Deduplicator().run(np.array([[0, 9], [0, key]]), plan)
    assert raised.value.args == (1,)


def test_columns_beyond_the_matrix_are_an_error() -> None:
    with pytest.raises(ValueError, match="key matrix"):
        Deduplicator().run(np.zeros((2, 3), np.int64), KeyPlan([KeyTable([(2, 2)], 1)]))
    with pytest.raises(ValueError, match="key matrix"):
        KeyPlan([KeyTable([(-1, 2)], 1)])


def test_no_tables_have_no_keys() -> None:
    distinct = Deduplicator().run(np.zeros((2, 3), np.int64), KeyPlan([]))
    assert (distinct.keys.size, distinct.starts.tolist(), distinct.bases.tolist()) == (0, [0], [0])


@settings(max_examples=100, deadline=None)
@given(arrays(np.int64, st.tuples(st.integers(0, 9), st.just(8)), elements=KEYS), plans(), st.randoms())
def test_states_are_counted_by_item(keys: np.ndarray, plan: KeyPlan, chance) -> None:
    names = keys.copy()
    distinct = Deduplicator().run(names, plan)
    states = np.array([chance.randrange(4) for _ in distinct.keys], np.uint8)
    expected = np.zeros((len(keys), 4), np.int32)
    for number, table in enumerate(plan.tables):
        mine = slice(distinct.starts[number], distinct.starts[number + 1])
        state_of = dict(zip(distinct.keys[mine].tolist(), states[mine].tolist(), strict=True))
        for first, columns in table.blocks:
            for item, column in np.ndindex(len(keys), columns):
                if (key := int(keys[item, first + column])) != -1:
                    expected[item, state_of[key]] += 1
    counts = count_states(names, plan, distinct.starts, distinct.bases, states, 4)
    assert np.array_equal(counts, expected)
    with pytest.raises(ValueError, match="states"):
        count_states(names, plan, distinct.starts, distinct.bases, np.append(states, np.uint8(0)), 4)
    if states.size:
        with pytest.raises(ValueError, match="kinds"):
            count_states(names, plan, distinct.starts, distinct.bases, states, int(states.max()))
