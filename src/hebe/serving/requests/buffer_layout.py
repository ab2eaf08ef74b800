"""Queries that lie in one received buffer as others before: where which keys are is known, and that they fit the spec,
so that only the keys themselves are looked at, all in one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from hebe.embeddings.batches.key_matrix import describe_keys, find_keys
from hebe.query import FloatArray, KeyArray
from hebe.spec import ModelSpec


class FoundQuery(NamedTuple):
    """Keys of each feature, int64 `[items, lookups]`, and `dense`, float32 `[items, dense_dim]` or None, views of the
    buffer; `described` as in `Query`.
    """

    features: Mapping[str, KeyArray]
    dense: FloatArray | None
    described: KeyArray


class BufferLayout:
    """Of queries of so many `items` with a fixed number of keys for each feature: the keys of feature NAME start
    `keys_at[NAME]` bytes behind the start of the buffer, the numbers, where the model has any, `dense_at` bytes.
    """

    def __init__(self, spec: ModelSpec, items: int, keys_at: Mapping[str, int], dense_at: int = 0) -> None:
        self.items = items
        self._described = describe_keys(spec, items, keys_at)
        self._rows = np.array([spec.table(feature.table).rows for feature in spec.features], np.int64)
        self._features = [(each.name, (items, each.lookups), keys_at[each.name]) for each in spec.features]
        self._dense_shape, self._dense_at = (items, spec.dense_dim), dense_at

    def find(self, buffer: memoryview) -> FoundQuery | None:
        """The query in `buffer`; None if it has a key outside of its table, or a number that is not finite.

        Raises ValueError where the buffer is too small.
        """
        described = self._described.copy()
        dense_items, dense_dim = self._dense_shape
        if not find_keys(buffer, described, self._rows, self._dense_at, dense_items * dense_dim):
            return None
        features = {name: np.ndarray(shape, np.int64, buffer, at) for name, shape, at in self._features}
        dense = np.ndarray(self._dense_shape, np.float32, buffer, self._dense_at) if dense_dim else None
        return FoundQuery(features, dense, described)
