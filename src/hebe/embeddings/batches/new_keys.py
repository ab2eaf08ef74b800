"""Keys above the last row of a table in memory, of features that take new ones: they read the table's default vector.

Tables that are read through tiers need none of this: a key that no tier has gets the default vector there.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from hebe.embeddings.store import KeyArray, RowArray
from hebe.spec import ModelSpec

CountArray = npt.NDArray[np.int32]


class NewKeys:
    """Of the features of `spec` that take new keys and read a table of `resident`, (rows, dim) by name. Its default
    vector is filled with what `default_values` has for it, 0 unless named.

    `numbers` is how many all default vectors have; 0 where no feature takes new keys of such a table.
    """

    def __init__(
        self, spec: ModelSpec, resident: Mapping[str, tuple[int, int]], default_values: Mapping[str, float]
    ) -> None:
        self._features: list[tuple[int, int, int, int]] = []
        """First key column, lookups, rows of the table, place of its default vector among all."""
        places: dict[str, int] = {}
        vectors: list[RowArray] = []
        column = self.numbers = 0
        for feature in spec.features:
            if feature.takes_new_keys and feature.table in resident:
                rows, dim = resident[feature.table]
                if feature.table not in places:
                    places[feature.table] = self.numbers
                    vectors.append(np.full(dim, default_values.get(feature.table, 0.0), np.float32))
                    self.numbers += dim
                self._features.append((column, feature.lookups, rows, places[feature.table]))
            column += feature.lookups
        self._vectors = np.concatenate(vectors) if vectors else np.empty(0, np.float32)

    def name_defaults(self, keys: KeyArray, fetched: RowArray, base: int) -> CountArray | None:
        """Have new keys of the key matrix `keys`, int64 `[n, lookups_per_item]`, name a default vector, for
        `fused_lookup` to read in `[base, base + numbers)` of the flat float32 `fetched`.

        Returns how many each item has, int32 `[n]`; None if there are none.
        """
        counts: CountArray | None = None
        for first, lookups, rows, place in self._features:
            own = keys[:, first : first + lookups]
            new = own >= rows
            if not new.any():
                continue
            if counts is None:
                counts = np.zeros(len(keys), np.int32)
                fetched[base : base + self.numbers] = self._vectors
            own[new] = -2 - (base + place)
            counts += np.count_nonzero(new, axis=1).astype(np.int32)
        return counts
