"""What a lookup reads and writes: a plan, int64 `[features, PLAN_COLUMNS]`, says for each feature where its keys, its
table and its output stand. Kernels check no index; what keeps them within their arrays is that the plan fits these.
"""

from __future__ import annotations

import numba

from hebe.kernels.compiled import BORROWING
from hebe.kernels.lookup.row_format import row_bytes

KEY_COLUMN, LOOKUPS, TABLE_START, DIM, ROWS, OUT_COLUMN, POOLING = range(7)
PLAN_COLUMNS = 7
"""Columns of a plan: first key column, keys per item, first byte of the table in the flat array, embedding dim,
rows of the table, first output column, and one of the codes below."""

POOL_SUM, POOL_MEAN, COPY = range(3)
"""Sum of the rows of an item, mean over those that are there (none: zeros), or all of them side by side."""

_inlined = numba.njit(forceinline=True, **BORROWING)


@_inlined
def keys_fit(plan, feature, columns, keys):  # type: ignore[no-untyped-def]
    """Whether a feature's keys lie within `keys` `[n, lookups_per_item]`, and nothing said of it is negative: in any
    plan of so many columns that begins with KEY_COLUMN and LOOKUPS.
    """
    least = plan[feature, 0]
    for column in range(1, columns):
        least = min(least, plan[feature, column])
    return least >= 0 and plan[feature, KEY_COLUMN] + plan[feature, LOOKUPS] <= keys.shape[1]


@_inlined
def plan_fits(code, plan, keys, tables, out):  # type: ignore[no-untyped-def]
    """Whether all that a plan names lies within the key matrix, the tables, whose rows are in format `code`, and the
    columns of the output.
    """
    for feature in range(plan.shape[0]):
        dim = plan[feature, DIM]
        width = dim * plan[feature, LOOKUPS] if plan[feature, POOLING] == COPY else dim
        if (
            not keys_fit(plan, feature, PLAN_COLUMNS, keys)
            or plan[feature, TABLE_START] + plan[feature, ROWS] * row_bytes(code, dim) > tables.size
            or plan[feature, OUT_COLUMN] + width > out.shape[1]
        ):
            return False
    return True
