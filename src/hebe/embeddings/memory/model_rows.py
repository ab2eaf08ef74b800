"""The rows of one model, as files have them that were made by its training, and how a store is filled with them.

A store takes the rows of a table in order of row number, or each with a key of its own (`KeyedRows`). A model of ours
has keys 0 to rows - 1. Tables of other makers, HugeCTR's (`hugectr_files`), have any int64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from hebe.embeddings.memory.table_memory import TableSource, chunks_of
from hebe.embeddings.store import KeyArray, RowArray, StoreError
from hebe.spec import EmbeddingTableSpec

_IDENTITY_DIGITS = 12
"""So much of a content's identity is in names that servers share."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelRows:
    """Those of `tables` of version `version` of `model`, in `sources` by table; they have the updates that were sent
    before `as_of_s` (Unix seconds), which is None where that is not known.

    `identity` tells these rows from others (`RocksDbStore.load`). A source may be lacking where a persistent store has
    the rows already, under the same identity.
    """

    model: str
    version: int
    tables: Sequence[EmbeddingTableSpec]
    sources: Mapping[str, KeyedSource]
    identity: str
    as_of_s: float | None = None

    @property
    def dims(self) -> dict[str, int]:
        """Embedding dim by table."""
        return {table.name: table.dim for table in self.tables}

    @property
    def content(self) -> str:
        """Names the rows, as servers that share a Redis have to: rows of other files are others, also when they are of
        a version of the same number.
        """
        return ".".join([self.model, str(self.version), *filter(None, [self.identity[:_IDENTITY_DIGITS]])])


@runtime_checkable
class KeyedRows(Protocol):
    """Rows of one table with their keys, which are distinct."""

    @property
    def rows(self) -> int:
        """How many there are."""
        ...

    @property
    def place(self) -> str:
        """Where they lie, for whoever is told of a fault in them."""
        ...

    def chunks(self) -> Iterator[tuple[KeyArray, RowArray]]:
        """All rows in ascending order of key: keys int64 `[n]`, rows float32 `[n, dim]`, a few MB at a time."""
        ...

    def first_keys(self, count: int) -> KeyArray:
        """The `count` keys that are most worth having in a cache, distinct; all of them if there are fewer."""
        ...


KeyedSource = TableSource | KeyedRows
"""A table as a store is loaded from it."""


def keyed_chunks(table: EmbeddingTableSpec, source: KeyedSource, rows: int) -> Iterator[tuple[KeyArray, RowArray]]:
    """The first `rows` rows of `source` in ascending order of key, C-contiguous; what has no keys has row numbers.

    Raises `StoreError` for a source that has fewer rows, or other ones than float32 `[n, table.dim]`, and for rows of
    other makers that are not finite, as updates are refused too: each score that they had a part in would be NaN.
    """
    if not isinstance(source, KeyedRows):
        first = 0
        for chunk in chunks_of(table.name, source, rows, table.dim):
            yield np.arange(first, first + len(chunk), dtype=np.int64), np.ascontiguousarray(chunk)
            first += len(chunk)
        return
    left = rows
    for keys, chunk in source.chunks():
        if chunk.dtype != np.float32 or chunk.shape != (len(keys), table.dim):
            raise StoreError(
                f"table {table.name} is {chunk.dtype} {list(chunk.shape)}: must be float32 [n, {table.dim}]"
            )
        keys, chunk = keys[:left], chunk[:left]
        if not keys.size:
            return
        if not np.isfinite(chunk).all():
            raise _not_finite(table.name, source)
        yield keys, np.ascontiguousarray(chunk)
        left -= keys.size
    if left:
        raise StoreError(f"table {table.name} has {rows - left} rows: must have {rows}")


def _not_finite(table: str, source: KeyedRows) -> StoreError:
    """The fault that counts all rows of `source` that are not."""
    bad = np.concatenate([keys[~np.isfinite(rows).all(axis=1)] for keys, rows in source.chunks()])
    what = f"{bad.size:,} of {source.rows:,} rows are not finite (inf or nan), the first that of key {bad[0]}"
    return StoreError(
        f"{source.place} of table {table}: {what}: training has diverged; write the file anew from a checkpoint before",
        f"table {table}: {what}",
    )


def first_keys(table: EmbeddingTableSpec, source: KeyedSource | None, count: int) -> KeyArray:
    """At most `count` keys of a table to begin a cache with: those that its source names, else row numbers."""
    if isinstance(source, KeyedRows):
        return source.first_keys(count)
    return np.arange(min(count, table.rows), dtype=np.int64)


def dense_rows(table: EmbeddingTableSpec, source: KeyedSource) -> int:
    """Up to which number all keys from 0 are those of a row, as is known without looking at them."""
    return 0 if isinstance(source, KeyedRows) else table.rows
