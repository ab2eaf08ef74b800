"""Which compiled lookup a model's features take."""

from __future__ import annotations

import numpy as np

from hebe.embeddings.memory.table_memory import TableLayout
from hebe.embeddings.store import KeyArray
from hebe.kernels.lookup import feature_plan
from hebe.spec import ModelSpec, Pooling

_POOLING_CODES = {
    Pooling.SUM: feature_plan.POOL_SUM,
    Pooling.MEAN: feature_plan.POOL_MEAN,
    Pooling.CONCAT: feature_plan.COPY,
    Pooling.ATTENTION: feature_plan.COPY,
}


def lookup_plan(spec: ModelSpec, memory: TableLayout) -> KeyArray:
    """How `fused_lookup` finds the keys, the tables within `memory`, and the output of each feature of `spec`."""
    plan = np.empty((len(spec.features), feature_plan.PLAN_COLUMNS), np.int64)
    key_column = 0
    for entry, slot in zip(plan, spec.slots, strict=True):
        table = slot.feature.table
        entry[feature_plan.KEY_COLUMN] = key_column
        entry[feature_plan.LOOKUPS] = slot.feature.lookups
        entry[feature_plan.TABLE_START] = memory.start.get(table, 0)
        entry[feature_plan.DIM] = slot.dim
        entry[feature_plan.ROWS] = memory.shapes[table][0] if table in memory.shapes else 0
        entry[feature_plan.OUT_COLUMN] = slot.column
        entry[feature_plan.POOLING] = _POOLING_CODES[slot.feature.pooling]
        key_column += slot.feature.lookups
    return plan
