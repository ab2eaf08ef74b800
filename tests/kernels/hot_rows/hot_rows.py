"""Tables of hot rows for the kernels that add them, and numbers of these."""

import numpy as np

from hebe.kernels.hot_rows.hot_keys import COLD
from hebe.kernels.lookup.feature_plan import COPY, PLAN_COLUMNS
from hebe.kernels.lookup.row_format import RowFormat, encode_rows


class HotTables:
    """Flat tables of hot rows and a plan, for `features`: (hot rows, dim, lookups, pooling)."""

    def __init__(self, features, seed=0, row_format=RowFormat.FP32):
        self.rng, self.row_format, self.features = np.random.default_rng(seed), row_format, features
        self.plan = np.zeros((len(features), PLAN_COLUMNS), np.int64)
        self.columns = self.width = start = 0
        tables = []
        for entry, (rows, dim, lookups, pooling) in zip(self.plan, features, strict=True):
            entry[:] = (self.columns, lookups, start, dim, rows, self.width, pooling)
            self.columns += lookups
            self.width += dim * lookups if pooling == COPY else dim
            table = np.empty((rows, row_format.row_bytes(dim)), np.uint8)
            encode_rows(row_format, self.rng.standard_normal((rows, dim)).astype(np.float32), table)
            tables.append(table.reshape(-1))
            start += table.size
        self.tables = np.concatenate(tables)

    def numbers(self, items):
        columns = [self.rng.integers(COLD, rows, (items, lookups)) for rows, _, lookups, _ in self.features]
        return np.concatenate(columns, axis=1)
