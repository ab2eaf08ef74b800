"""Tables in memory as a store that online updates are written to: keys are row numbers, every row is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from hebe.embeddings.memory.table_memory import TableMemory
from hebe.embeddings.store import (
    FoundMask,
    KeyArray,
    RowArray,
    StoreError,
    check_batch_size,
    check_keys,
    check_query,
    check_rows,
)
from hebe.kernels.lookup.row_format import decode_rows, encode_rows


class ResidentRows:
    """An `EmbeddingStore` over the tables of `memory`. It can hold no other keys than it has, and deletes none: a row
    that is deleted becomes its table's default vector, `default_values` by table, 0 unless named.

    A lookup that reads a row while it is written may see a part of each version. The memory is its owner's to close.
    """

    def __init__(self, memory: TableMemory, default_values: Mapping[str, float] | None = None) -> None:
        self._memory = memory
        self._default_values = dict(default_values or {})
        self._refused = dict.fromkeys(memory.shapes, 0)
        self._unheld = dict.fromkeys(memory.shapes, 0)

    @property
    def refused_keys(self) -> Mapping[str, int]:
        """See `BoundedStore.refused_keys`: keys of rows that are no row's number. Deletes of such keys lack nothing."""
        return dict(self._refused)

    @property
    def why_refused(self) -> str:
        """See `BoundedStore.why_refused`."""
        return "table memory has the rows that the model was loaded with: load a version that has them"

    @property
    def unheld_rows(self) -> Mapping[str, int]:
        """See `NarrowStore.unheld_rows`: as fp16 those with a number beyond 65,504, which a load refuses."""
        return dict(self._unheld)

    def query(self, table: str, keys: KeyArray, rows: RowArray, found: FoundMask) -> int:
        """See `EmbeddingStore.query`."""
        stored = self._memory.stored(table)
        check_query(table, keys, rows, found, self._memory.shapes[table][1])
        found[:] = self._inside(table, keys)
        picked = np.ascontiguousarray(stored[keys[found]])
        got = np.empty((len(picked), self._memory.shapes[table][1]), np.float32)
        decode_rows(self._memory.row_format, picked, got)
        rows[found] = got
        return len(picked)

    def insert(self, table: str, keys: KeyArray, rows: RowArray) -> None:
        """See `EmbeddingStore.insert`; keys that are no row's number are counted and left out."""
        inside = self._inside(table, keys)
        check_rows(table, keys, rows, self._memory.shapes[table][1])
        self.update(table, keys, rows)
        self._refused[table] += int(len(keys) - np.count_nonzero(inside))

    def update(self, table: str, keys: KeyArray, rows: RowArray) -> int:
        """See `EmbeddingStore.update`."""
        stored, inside = self._memory.stored(table), self._inside(table, keys)
        check_rows(table, keys, rows, self._memory.shapes[table][1])
        chosen = np.ascontiguousarray(rows[inside])
        encoded = np.empty((len(chosen), stored.shape[1]), np.uint8)
        unheld = encode_rows(self._memory.row_format, chosen, encoded)
        stored[keys[inside]] = encoded
        self._unheld[table] += unheld
        return int(np.unique(keys[inside]).size)

    def delete(self, table: str, keys: KeyArray) -> int:
        """Put the default vector in place of rows; returns of how many."""
        self._inside(table, keys)  # which refuses what is none
        default = np.float32(self._default_values.get(table, 0.0))
        return self.update(table, keys, np.full((len(keys), self._memory.shapes[table][1]), default, np.float32))

    def dump_keys(self, table: str, batch_size: int) -> Iterator[KeyArray]:
        """See `EmbeddingStore.dump_keys`."""
        rows = len(self._memory.stored(table))
        check_batch_size(batch_size)
        for first in range(0, rows, batch_size):
            yield np.arange(first, min(first + batch_size, rows), dtype=np.int64)

    def size(self, table: str) -> int:
        """See `EmbeddingStore.size`."""
        return len(self._memory.stored(table))

    def close(self) -> None:
        """Nothing to do: the memory is its owner's."""

    def _inside(self, table: str, keys: KeyArray) -> FoundMask:
        if table not in self._memory.shapes:
            raise StoreError(f"no table {table} in memory")
        check_keys(table, keys)
        inside: FoundMask = (keys >= 0) & (keys < self._memory.shapes[table][0])
        return inside
