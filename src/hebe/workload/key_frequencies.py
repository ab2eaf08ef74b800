"""How often a load looks up each row of a model's tables: what the choice of hot rows is made by."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hebe.spec import ModelSpec
from hebe.workload.key_skew import KeySkew, spread_seed_of


def key_frequencies(spec: ModelSpec, keys: KeySkew) -> dict[str, npt.NDArray[np.float64]]:
    """Expected lookups of each row by one item, float64 `[rows]` by table, if the load generator draws `keys`.

    Features that share a table have hot rows of their own in it, as they have there.
    """
    frequencies = {table.name: np.zeros(table.rows) for table in spec.tables}
    for feature in spec.features:
        rows = spec.table(feature.table).rows
        frequencies[feature.table] += feature.lookups * keys.shares(rows, spread_seed_of(feature.name))
    return frequencies
