import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.kernels.lookup.table_batch import check_table_batch, set_rows, take_rows

SHAPES = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 6)), min_size=1, max_size=5)
"""Of each table the dim and the number of keys."""


def batch_of(shapes, before):
    """`starts` and `bases` of tables that begin at place and number `before`."""
    starts = np.cumsum([before, *(count for _, count in shapes)])
    return starts, np.cumsum([before, *(dim * count for dim, count in shapes)])


def views(shapes, starts, bases, rows):
    """Of each place its row, and the number of its table."""
    return {
        int(starts[number] + key): (number, rows[bases[number] + key * dim : bases[number] + (key + 1) * dim])
        for number, (dim, count) in enumerate(shapes)
        for key in range(count)
    }


@settings(deadline=None)
@given(SHAPES, st.integers(0, 3), st.randoms(use_true_random=False))
def test_rows_go_to_their_places(shapes, before, chance):
    starts, bases = batch_of(shapes, before)
    rows = np.full(bases[-1] + 2, -1, np.float32)
    expected = rows.copy()
    numbered = list(views(shapes, starts, bases, expected).items())
    some = [entry for entry in numbered if chance.random() < 0.7]
    chosen = sorted(some, key=lambda entry: (entry[1][0], chance.random()))
    found = np.array([chance.random() < 0.7 for _ in chosen], np.bool_)
    source = []
    for (_, (_, row)), there in zip(chosen, found.tolist(), strict=True):
        own = np.array([chance.random() for _ in row], np.float32)
        source.append(own)
        if there:
            row[:] = own
    flat = np.frombuffer(np.concatenate([np.empty(0, np.float32), *source]).tobytes(), np.float32)
    take_rows(flat, np.array([place for place, _ in chosen], np.int64), found, starts, bases, rows)
    assert np.array_equal(rows, expected)


@settings(deadline=None)
@given(SHAPES, st.integers(0, 3), st.randoms(use_true_random=False))
def test_chosen_rows_get_the_value_of_their_table(shapes, before, chance):
    starts, bases = batch_of(shapes, before)
    rows = np.full(bases[-1] + 2, -1, np.float32)
    expected = rows.copy()
    values = np.array([chance.random() for _ in shapes], np.float32)
    chosen = np.array([chance.random() < 0.5 for _ in range(starts[-1] + 2)], np.bool_)
    for place, (number, row) in views(shapes, starts, bases, expected).items():
        if chosen[place]:
            row[:] = values[number]
    set_rows(values, chosen, starts, bases, rows)
    assert np.array_equal(rows, expected)


def test_rows_of_another_kind_are_refused():
    starts, places, found = np.array([0, 1]), np.array([0]), np.ones(1, np.bool_)
    with pytest.raises(TypeError):
        take_rows(np.zeros(3), places, found, starts, 3 * starts, np.zeros(3, np.float32))
    with pytest.raises(TypeError):
        set_rows(np.zeros(1, np.float32), found, starts, 3 * starts, np.zeros(3))


def test_batches_whose_arrays_do_not_go_together():
    dims, tables = np.array([3, 1]), np.array([1, 0])
    given_arrays = {
        "tables": tables,
        "keys": np.arange(5),
        "starts": np.array([0, 2, 5]),
        "rows": np.zeros(11, np.float32),
        "bases": np.array([0, 2, 11]),
    }
    check_table_batch(dims, *given_arrays.values(), np.zeros(5, np.bool_))
    for wrong in (
        {"tables": np.array([0, 1])},
        {"tables": np.array([1, 2])},
        {"keys": np.arange(4)},
        {"starts": np.array([0, 5])},
        {"starts": np.array([-1, 1, 4])},
        {"rows": np.zeros(10, np.float32)},
        {"bases": np.array([0, 9, 11])},
    ):
        with pytest.raises(ValueError, match="do not go together"):
            check_table_batch(dims, *(given_arrays | wrong).values(), np.zeros(5, np.bool_))
    with pytest.raises(ValueError, match="do not go together"):
        check_table_batch(dims, *given_arrays.values(), np.zeros(4, np.bool_))
