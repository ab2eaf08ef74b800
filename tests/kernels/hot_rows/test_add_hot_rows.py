import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.kernels.hot_rows.add_hot_rows import add_hot_rows, add_hot_rows_reference
from hebe.kernels.hot_rows.hot_keys import COLD
from hebe.kernels.lookup.feature_plan import COPY, POOL_MEAN, POOL_SUM
from hebe.kernels.lookup.row_format import RowFormat

from .hot_rows import HotTables

FEATURES = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 2, 50]),
        st.sampled_from([1, 3, 4, 7, 16, 33, 64, 100]),
        st.sampled_from([1, 2, 20]),
        st.sampled_from([POOL_SUM, POOL_MEAN, COPY]),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60)
@given(FEATURES, st.sampled_from([0, 1, 30]), st.integers(0, 2**32 - 1), st.sampled_from(list(RowFormat)))
def test_agrees_with_the_reference(features, items, seed, row_format):
    hot = HotTables(features, seed, row_format)
    numbers = hot.numbers(items)
    out = hot.rng.standard_normal((items + 1, hot.width)).astype(np.float32)
    expected, before = out.copy(), out.copy()
    added = add_hot_rows(hot.tables, numbers, hot.plan, out, row_format)
    assert added == add_hot_rows_reference(hot.tables, numbers, hot.plan, expected, row_format)
    assert added == (numbers >= 0).sum()
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    assert np.array_equal(out[-1], before[-1]), "rows past the batch are not ours"


@pytest.mark.parametrize("pooling", [POOL_SUM, POOL_MEAN, COPY])
def test_what_has_no_hot_row_stays_to_the_bit(pooling):
    hot = HotTables([(10, 33, 4, pooling)])
    out = hot.rng.standard_normal((3, hot.width)).astype(np.float32)
    before = out.copy()
    assert add_hot_rows(hot.tables, np.full((3, 4), COLD), hot.plan, out) == 0
    assert add_hot_rows(hot.tables, np.full((3, 4), -1), hot.plan, out) == 0
    assert np.array_equal(out, before)


def test_means_are_weighed_by_the_rows_in_them():
    hot = HotTables([(2, 1, 5, POOL_MEAN)])
    rows = hot.tables.view(np.float32)
    out = np.array([[6.0]], np.float32)  # of three cold rows
    add_hot_rows(hot.tables, np.array([[COLD, 1, COLD, -1, COLD]]), hot.plan, out)
    np.testing.assert_allclose(out, [[(18 + rows[1]) / 4]], rtol=1e-6)


def test_wrong_arguments_are_errors():
    hot = HotTables([(10, 7, 3, POOL_SUM)])
    numbers, out = hot.numbers(4), np.zeros((4, 7), np.float32)
    with pytest.raises(ValueError, match="4 items for an output of 2"):
        add_hot_rows(hot.tables, numbers, hot.plan, out[:2])
    for arrays in (
        (hot.tables[1:], numbers, hot.plan, out),
        (hot.tables, numbers[:, 1:].copy(), hot.plan, out),
        (hot.tables, numbers, -hot.plan, out),
        (hot.tables, numbers, hot.plan, out[:, 1:].copy()),
    ):
        with pytest.raises(ValueError, match="the plan reaches past"):
            add_hot_rows(*arrays)
    with pytest.raises(TypeError):
        add_hot_rows(hot.tables, numbers, hot.plan, out.astype(np.float64))
