"""A batch of keys of several tables, flat: what kernels that take several tables in one call are given."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


def check_table_batch(
    dims: IntArray,
    tables: IntArray,
    keys: IntArray,
    starts: IntArray,
    rows: npt.NDArray[np.float32],
    bases: IntArray,
    *masks: npt.NDArray[np.bool_],
) -> None:
    """Raises ValueError unless `keys[starts[i] : starts[i + 1]]` and `rows[bases[i] : bases[i + 1]]` are keys of table
    number `tables[i]` and as many rows of its dim, within the arrays, and masks have a place for each key.
    """
    sizes = np.diff(starts)
    if (
        starts.shape != (len(tables) + 1,) or bases.shape != starts.shape
        or (tables.size and (tables.min() < 0 or tables.max() >= len(dims)))
        or starts[0] < 0 or bases[0] < 0 or sizes.min(initial=0) < 0
        or starts[-1] > min([keys.size, *(mask.size for mask in masks)]) or bases[-1] > rows.size
        or (np.diff(bases) != sizes * dims[tables]).any()
    ):  # fmt: skip
        raise ValueError("keys, rows and masks of a batch of several tables do not go together")
