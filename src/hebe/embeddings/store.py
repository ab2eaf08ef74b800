"""The contract every tier keeps: rows of float32 by int64 key, in batches, into the caller's buffer.

Level 1 is a cache, level 2 a volatile store, level 3 a persistent store (HPS 3.1). One conformance suite
(`tests/embeddings/stores/store_conformance.py`) is passed by each implementation. Any int64 is a key. Calls may come
from several threads at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

KeyArray = npt.NDArray[np.int64]
RowArray = npt.NDArray[np.float32]
FoundMask = npt.NDArray[np.bool_]

UNKNOWN_POSITION = -2
"""In place of a position: what the row has of the update log is not known, and it may be older than it was."""


def last_of_each(keys: KeyArray) -> npt.NDArray[np.intp]:
    """Where the last of each distinct key stands, in ascending order of the keys: of repeated ones the last wins."""
    _, from_the_end = np.unique(keys[::-1], return_index=True)
    last: npt.NDArray[np.intp] = len(keys) - 1 - from_the_end
    return last


class StoreError(RuntimeError):
    """A tier that cannot answer: missing table, broken file, full disk. Says what was wrong and what to do.

    `client_message` is what those may read who only send queries: it names no path of this machine's disk.
    """

    def __init__(self, message: str, client_message: str = "the tables of embedding rows cannot be read") -> None:
        super().__init__(message)
        self.client_message = client_message


class StoreUnavailable(StoreError):
    """A tier that cannot be reached, or has not answered in time. What it holds is as it was; it may heal by itself."""


class TableFault(StoreError):
    """Of one table alone: the tier may be asked about others."""


class StoreDamaged(StoreError):
    """Some of what was asked for is damaged where it lies. What lies elsewhere is as it was, and may be asked for."""


def in_words(fault: BaseException) -> str:
    """What a fault says, or what it is where it says nothing, as a MemoryError."""
    return str(fault) or type(fault).__name__


def check_keys(table: str, keys: KeyArray) -> None:
    """Raises `StoreError` unless `keys` are int64 `[n]`, C-contiguous: their memory is what kernels and stores read."""
    if keys.dtype != np.int64 or keys.ndim != 1 or not keys.flags.c_contiguous:
        raise StoreError(f"keys of table {table} are {_kind(keys)}: must be int64 [n], C-contiguous")


def check_rows(table: str, keys: KeyArray, rows: RowArray, dim: int) -> None:
    """Raises `StoreError` unless `rows` are float32 `[n, dim]`, C-contiguous, for `keys` int64 `[n]`."""
    check_keys(table, keys)
    if rows.dtype != np.float32 or rows.shape != (keys.size, dim) or not rows.flags.c_contiguous:
        raise StoreError(
            f"rows {_kind(rows)} for {keys.size} keys of table {table}: "
            f"must be float32 {[keys.size, dim]}, C-contiguous, since its dim is {dim}"
        )


def check_query(table: str, keys: KeyArray, rows: RowArray, found: FoundMask, dim: int) -> None:
    """As `check_rows`; raises `StoreError`, too, unless `rows` and the mask `found`, bool `[n]`, can be written to."""
    check_rows(table, keys, rows, dim)
    check_mask("found", found, keys)
    if not rows.flags.writeable:
        raise StoreError(f"rows for table {table} are read-only: the rows found are written there")


def check_mask(name: str, mask: FoundMask, keys: KeyArray) -> None:
    """Raises `StoreError` unless `mask` is bool, has a place for each of `keys` and can be written to."""
    if mask.dtype != np.bool_ or mask.shape != keys.shape or not mask.flags.c_contiguous or not mask.flags.writeable:
        raise StoreError(f"mask {name} is {_kind(mask)}: must be bool [{keys.size}], C-contiguous and writeable")


def check_flat(
    tables: Sequence[str],
    keys: KeyArray,
    starts: KeyArray,
    rows: RowArray,
    bases: KeyArray,
    *masks: FoundMask,
    fills: bool,
) -> None:
    """Raises `StoreError` unless the arrays of a call for several tables are flat, C-contiguous and of their dtypes.
    `fills`: `rows` and the last of the masks are written to.

    Whether they go together is for `kernels.table_batch.check_table_batch`.
    """
    expected: list[tuple[str, npt.NDArray[Any], str]] = [
        ("keys", keys, "int64"), ("starts", starts, "int64"), ("rows", rows, "float32"), ("bases", bases, "int64"),
        *(("a mask", mask, "bool") for mask in masks),
    ]  # fmt: skip
    for name, array, dtype in expected:
        if array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous:
            raise StoreError(f"{name} of {', '.join(tables)}: {_kind(array)}: must be {dtype} [n], C-contiguous")
    if fills and not (rows.flags.writeable and masks[-1].flags.writeable):
        raise StoreError(f"rows or mask of {', '.join(tables)} are read-only: what is found is written there")


def check_batch_size(batch_size: int) -> None:
    """Raises `StoreError` unless it is at least 1."""
    if batch_size < 1:
        raise StoreError(f"batch_size is {batch_size}: must be at least 1")


def _kind(array: npt.NDArray[Any]) -> str:
    return f"{array.dtype} {list(array.shape)}" + ("" if array.flags.c_contiguous else ", not C-contiguous")


class EmbeddingStore(Protocol):
    """One tier. Keys of a call may repeat; arrays are C-contiguous.

    Each call raises `StoreError` for an unknown table, after `close`, and when the tier fails; and, before anything is
    done, for arrays of another dtype or shape than the call says: `check_keys`, `check_rows`, `check_query`.
    """

    def query(self, table: str, keys: KeyArray, rows: RowArray, found: FoundMask) -> int:
        """Copy the row of each key into `rows` `[n, dim]` and set `found` `[n]`; returns how many were found.

        Rows of keys not found are left untouched.
        """
        ...

    def insert(self, table: str, keys: KeyArray, rows: RowArray) -> None:
        """Store rows under keys, replacing what was there. The last of repeated keys wins."""
        ...

    def update(self, table: str, keys: KeyArray, rows: RowArray) -> int:
        """Replace the rows of those keys that are present; returns how many distinct ones were. The last wins."""
        ...

    def delete(self, table: str, keys: KeyArray) -> int:
        """Remove keys; returns how many distinct ones were present."""
        ...

    def dump_keys(self, table: str, batch_size: int) -> Iterator[KeyArray]:
        """All present keys in batches of at most `batch_size`, each once, in no particular order.

        Raises `StoreError` for a `batch_size` below 1.
        """
        ...

    def size(self, table: str) -> int:
        """Number of keys present."""
        ...

    def close(self) -> None:
        """Release memory and files. Closing twice is harmless."""
        ...


@runtime_checkable
class TablesStore(Protocol):
    """A tier that answers for several tables in one call, as one that is far away had better do."""

    def fill_tables(
        self,
        tables: Sequence[str],
        keys: KeyArray,
        starts: KeyArray,
        rows: RowArray,
        bases: KeyArray,
        wanted: FoundMask,
        found: FoundMask,
        positions: KeyArray | None = None,
        row_positions: KeyArray | None = None,
    ) -> int:
        """`EmbeddingStore.query` of those keys of several tables that are `wanted`; arrays as those of
        `EmbeddingCache.query_tables`. Other keys' rows and places in `found` are left untouched.

        A store that knows how old its rows are sets `positions`, int64 `[n]`: the position in the key's partition of
        the update log up to which the row has all updates, or `UNKNOWN_POSITION`; and `row_positions`: that of the
        last update of the row itself, or of what it was filled with. Others leave them untouched.

        Raises `StoreError` for arrays that are not such (`check_flat`), before anything is done.
        """
        ...


class VolatileStore(EmbeddingStore, TablesStore, Protocol):
    """Level 2: an asynchronous cache in partitions, shared by workers, models or servers (HPS 5).

    The partition of a key is fixed: XXH64 of its eight little-endian bytes (seed 0) modulo the number of partitions.
    A partition that an insertion brings above its overflow margin is pruned to `overflow_resolution_target` of it.
    """

    def insert_tables(
        self,
        tables: Sequence[str],
        keys: KeyArray,
        starts: KeyArray,
        rows: RowArray,
        bases: KeyArray,
        chosen: FoundMask,
    ) -> None:
        """`insert` of those keys of several tables that are `chosen`, in one call; arrays as those of `fill_tables`."""
        ...

    def touch(self, parts: Sequence[tuple[str, KeyArray]]) -> None:
        """Refresh the time of last access of those keys that are present, tables each with some of its keys.

        Called after an answer, never within one.
        """
        ...


class EmbeddingCache(EmbeddingStore, Protocol):
    """Level 1: holds what fits, shared by all workers of a model (HPS 4). A row leaves when another needs its slot.

    `insert` and `update` are the newest word on a row: they take its stale mark away.
    """

    def query(
        self, table: str, keys: KeyArray, rows: RowArray, found: FoundMask, stale: FoundMask | None = None
    ) -> int:
        """As every tier's; `stale` `[n]` is set to which of the found rows are marked (Algorithm 2)."""
        ...

    def query_tables(
        self,
        tables: Sequence[str],
        keys: KeyArray,
        starts: KeyArray,
        rows: RowArray,
        bases: KeyArray,
        missing: FoundMask,
        stale: FoundMask,
        *,
        use: bool = True,
    ) -> KeyArray:
        """`query` of several tables in one call: `keys[starts[i] : starts[i + 1]]` are those of `tables[i]`, whose rows
        go to `[bases[i], bases[i + 1])` of the flat `rows`, one after the other; `missing` is set to which were not
        found. `starts` and `bases` int64 `[k + 1]`, masks as `keys`. Returns how many were found of each table, and how
        many of these are stale, int64 `[2, k]`. Without `use` no row counts as used, and no key as asked for.
        """
        ...

    def replace_tables(
        self,
        tables: Sequence[str],
        keys: KeyArray,
        starts: KeyArray,
        rows: RowArray,
        bases: KeyArray,
        chosen: FoundMask,
    ) -> None:
        """`replace` of the keys of several tables that are `chosen`, in one call; arrays as those of `query_tables`."""
        ...

    def replace(self, table: str, keys: KeyArray, rows: RowArray) -> None:
        """Take rows in, in place of the least recently used; those of keys that are present stay (Algorithm 3)."""
        ...

    def keys_by_use(self, table: str) -> KeyArray:
        """All keys of a table, the most recently used first, while nobody closes the cache."""
        ...

    def mark_stale(self, table: str, keys: KeyArray) -> int:
        """Mark the rows of those keys that are present: a lower tier has newer ones. Returns how many there were."""
        ...
