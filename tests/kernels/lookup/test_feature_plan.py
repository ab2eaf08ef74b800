import numba
import numpy as np
import pytest

from hebe.kernels.compiled import BORROWING
from hebe.kernels.lookup.feature_plan import (
    COPY,
    DIM,
    KEY_COLUMN,
    LOOKUPS,
    OUT_COLUMN,
    PLAN_COLUMNS,
    POOL_MEAN,
    POOL_SUM,
    POOLING,
    ROWS,
    TABLE_START,
    plan_fits,
)
from hebe.kernels.lookup.row_format import RowFormat

ITEMS, TABLE_ROWS, KEYS, WIDTH = 3, 10, 2, 4


@numba.njit(**BORROWING)
def fits(code, plan, keys, tables, out):
    return plan_fits(code, plan, keys, tables, out)


def plan_of(row_format: RowFormat, pooling: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Two features, and the smallest arrays that hold what they name."""
    table_bytes = TABLE_ROWS * row_format.row_bytes(WIDTH)
    feature_width = WIDTH * KEYS if pooling == COPY else WIDTH
    plan = np.zeros((2, PLAN_COLUMNS), np.int64)
    plan[:, [LOOKUPS, DIM, ROWS, POOLING]] = KEYS, WIDTH, TABLE_ROWS, pooling
    plan[1, [KEY_COLUMN, TABLE_START, OUT_COLUMN]] = KEYS, table_bytes, feature_width
    keys = np.zeros((ITEMS, 2 * KEYS), np.int64)
    return plan, [keys, np.zeros(2 * table_bytes, np.uint8), np.zeros((ITEMS, 2 * feature_width), np.float32)]


@pytest.mark.parametrize("pooling", [POOL_SUM, POOL_MEAN, COPY])
@pytest.mark.parametrize("row_format", list(RowFormat))
def test_it_fits_what_is_just_large_enough_and_nothing_smaller(row_format, pooling):
    plan, arrays = plan_of(row_format, pooling)
    code = row_format.code
    assert fits(code, plan, *arrays)
    for number in range(len(arrays)):
        smaller = list(arrays)
        smaller[number] = np.ascontiguousarray(arrays[number][..., 1:])
        assert not fits(code, plan, *smaller)


@pytest.mark.parametrize("feature", [0, 1])
@pytest.mark.parametrize("column", range(PLAN_COLUMNS))
def test_nothing_in_it_is_negative(feature, column):
    plan, arrays = plan_of(RowFormat.FP32, POOL_SUM)
    plan[feature, column] = -1
    assert not fits(RowFormat.FP32.code, plan, *arrays)


@pytest.mark.parametrize("column", [KEY_COLUMN, LOOKUPS, TABLE_START, DIM, ROWS, OUT_COLUMN])
def test_the_last_feature_reaches_no_further(column):
    plan, arrays = plan_of(RowFormat.FP32, POOL_SUM)
    plan[-1, column] += 1
    assert not fits(RowFormat.FP32.code, plan, *arrays)
