"""An `EmbeddingStore` in table memory for dense keys: the key is the row's place, a mark says whether it is present."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from hebe.embeddings.store import FoundMask, KeyArray, RowArray, StoreError
from hebe.embeddings.table_memory import Progress, TableMemory, TableSource


class MemoryStore:
    """Tables of a fixed capacity on huge pages; keys lie in `[0, capacity)`.

    `shapes` gives (capacity, embedding dim) by table name. Raises `StoreError` when the memory cannot be had.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, int]]) -> None:
        self._memory = TableMemory(shapes)
        self._present = {name: np.zeros(rows, np.bool_) for name, (rows, _) in shapes.items()}

    def load(self, sources: Mapping[str, TableSource], progress: Progress | None = None) -> None:
        """Fill every table; all its keys are then present."""
        self._memory.fill(sources, progress)
        for present in self._present.values():
            present[:] = True

    def query(self, table: str, keys: KeyArray, rows: RowArray, found: FoundMask) -> int:
        """See `EmbeddingStore.query`. Keys beyond the capacity are not found."""
        stored, present = self._memory.rows(table), self._present[table]
        np.less(keys.view(np.uint64), len(present), out=found)
        if found.all():
            np.take(present, keys, out=found)
        else:
            found[found] = present[keys[found]]
        count = int(np.count_nonzero(found))
        if count == len(keys):
            np.take(stored, keys, axis=0, out=rows, mode="clip")  # "raise" would take into a buffer first
        elif count:
            rows[found] = stored[keys[found]]
        return count

    def insert(self, table: str, keys: KeyArray, rows: RowArray) -> None:
        """See `EmbeddingStore.insert`. Raises `StoreError` for a key beyond the capacity."""
        stored, present = self._memory.rows(table), self._present[table]
        outside = keys[(keys < 0) | (keys >= len(present))]
        if outside.size:
            raise StoreError(f"key {outside[0]} of table {table}: must be at least 0 and below {len(present)}")
        stored[keys] = rows
        present[keys] = True

    def update(self, table: str, keys: KeyArray, rows: RowArray) -> int:
        """See `EmbeddingStore.update`."""
        chosen = self._chosen(table, keys)
        self._memory.rows(table)[keys[chosen]] = rows[chosen]
        return int(np.unique(keys[chosen]).size)

    def delete(self, table: str, keys: KeyArray) -> int:
        """See `EmbeddingStore.delete`."""
        distinct = np.unique(keys[self._chosen(table, keys)])
        self._present[table][distinct] = False
        return int(distinct.size)

    def dump_keys(self, table: str, batch_size: int) -> Iterator[KeyArray]:
        """See `EmbeddingStore.dump_keys`."""
        self._memory.rows(table)
        keys = np.flatnonzero(self._present[table])
        for first in range(0, keys.size, batch_size):
            yield keys[first : first + batch_size]

    def size(self, table: str) -> int:
        """See `EmbeddingStore.size`."""
        self._memory.rows(table)
        return int(np.count_nonzero(self._present[table]))

    def close(self) -> None:
        """See `EmbeddingStore.close`."""
        self._memory.close()
        self._present = {}

    def _chosen(self, table: str, keys: KeyArray) -> FoundMask:
        """Which of `keys` are present."""
        self._memory.rows(table)
        present = self._present[table]
        inside: FoundMask = (keys >= 0) & (keys < len(present))
        inside[inside] = present[keys[inside]]
        return inside
