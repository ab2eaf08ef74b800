"""From Criteo rows to a model's inputs: log-transform of the integers, hashing of the categorical values.

The same `CriteoTransform` serves training, offline evaluation and clients that send queries to a server, so all
three see the same inputs bit for bit. It is fixed by the model's table sizes alone:

    dense column  log1p(max(x, 0)), 0 where missing
    key of C_j    0 where missing, else 1 + h mod (rows_j - 1)       (0 for a table of one row)
    h             mix(fnv1a(bytes of the field) + j * 0x9E3779B97F4A7C15), j = 1..26, all modulo 2^64

`fnv1a` is 64-bit FNV-1a, `mix` the finaliser of splitmix64 (Steele et al., "Fast splittable pseudorandom number
generators", OOPSLA 2014). Features take the columns in order, whatever their names.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hebe.models.training.criteo import CATEGORICAL_COLUMNS, INTEGER_COLUMNS, CriteoRows
from hebe.spec import ModelSpec, SpecError

HASH_NAME = "fnv1a-splitmix64"
"""What provenance calls the key function above; a change of the function needs another name."""

_FNV_OFFSET = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class CriteoTransform:
    """The transform for one model: `names` of its 26 features in order, `rows` of the table that each reads."""

    names: tuple[str, ...]
    rows: tuple[int, ...]

    @classmethod
    def for_model(cls, spec: ModelSpec) -> CriteoTransform:
        """The transform for `spec`. Raises `SpecError` if the model's inputs are not of Criteo's shape."""
        wanted = "training on Criteo data needs dense_dim 13 and 26 features of one lookup"
        if spec.dense_dim != len(INTEGER_COLUMNS):
            raise SpecError(f"model {spec.name}: dense_dim is {spec.dense_dim}: {wanted}")
        if len(spec.features) != len(CATEGORICAL_COLUMNS):
            raise SpecError(f"model {spec.name}: has {len(spec.features)} features: {wanted}")
        for feature in spec.features:
            if feature.lookups != 1:
                raise SpecError(f"model {spec.name}: feature {feature.name} has {feature.lookups} lookups: {wanted}")
        return cls(
            tuple(feature.name for feature in spec.features),
            tuple(spec.table(feature.table).rows for feature in spec.features),
        )

    def keys(self, categories: npt.NDArray[np.bytes_]) -> npt.NDArray[np.int64]:
        """Row keys int64 `[n, 26]` of categorical values bytes (`S`) `[n, 26]`."""
        salts = np.arange(1, len(self.rows) + 1, dtype=np.uint64) * _GOLDEN
        hashed = _mix(_fnv1a(categories) + salts)
        spread = np.maximum(np.array(self.rows, dtype=np.uint64) - np.uint64(1), np.uint64(1))
        keys = np.minimum(hashed % spread + np.uint64(1), np.array(self.rows, dtype=np.uint64) - np.uint64(1))
        return np.where(categories == b"", 0, keys.astype(np.int64))

    def dense(self, integers: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
        """Dense input float32 `[n, 13]` of integer columns float64 `[n, 13]`, NaN where missing."""
        present = np.nan_to_num(integers, nan=0.0)
        return np.log1p(np.maximum(present, 0.0)).astype(np.float32)

    def inputs(self, rows: CriteoRows) -> dict[str, npt.NDArray[np.float32] | npt.NDArray[np.int64]]:
        """The model's inputs by name, as a client sends them: `dense` `[n, 13]`, each feature int64 `[n, 1]`."""
        keys = self.keys(rows.categories)
        named: dict[str, npt.NDArray[np.float32] | npt.NDArray[np.int64]] = {"dense": self.dense(rows.integers)}
        for column, name in enumerate(self.names):
            named[name] = np.ascontiguousarray(keys[:, column : column + 1])
        return named


def _fnv1a(values: npt.NDArray[np.bytes_]) -> npt.NDArray[np.uint64]:
    """64-bit FNV-1a of each value, column of bytes by column of bytes; the padding NULs of numpy's `S` are left out."""
    width = values.dtype.itemsize
    octets = np.ascontiguousarray(values).view(np.uint8).reshape(*values.shape, width)
    hashed = np.full(values.shape, _FNV_OFFSET)
    for position in range(width):
        octet = octets[..., position]
        hashed = np.where(octet != 0, (hashed ^ octet) * _FNV_PRIME, hashed)
    return hashed


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
