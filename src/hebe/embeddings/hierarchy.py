"""The embedding hierarchy of one model: what the runtime calls to turn a key matrix into the SparseNet's output.

Rows live in table memory. Where that is bounded and the tables are larger, the smallest tables and the first rows of
the others stay resident, and every row is also in a persistent store, from which missing rows are fetched, batched
and without repeats, before the fused lookup pools them together with the resident ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hebe.embeddings.rocksdb_store import RocksDbStore
from hebe.embeddings.store import EmbeddingStore, KeyArray, RowArray, StoreError
from hebe.embeddings.table_memory import (
    ALIGNMENT_BYTES,
    HUGE_PAGE_BYTES,
    Progress,
    RowFormat,
    TableMemory,
    TableSource,
    chunks_of,
    planned_bytes,
)
from hebe.kernels import fused_lookup as kernel
from hebe.kernels import padding
from hebe.spec import EmbeddingTableSpec, ModelSpec, Pooling

_POOLING_CODES = {
    Pooling.SUM: kernel.POOL_SUM,
    Pooling.MEAN: kernel.POOL_MEAN,
    Pooling.CONCAT: kernel.COPY,
    Pooling.ATTENTION: kernel.COPY,
}


@dataclass(frozen=True, slots=True)
class LookupReport:
    """What one lookup found: keys asked for (padding left out), and those answered with a zero vector."""

    total_keys: int
    defaulted_keys: int


class LookupScratch:
    """What one worker needs beside the tables; never shared between threads. Made by `EmbeddingHierarchy.new_scratch`.

    `keys` int64 `[max_items, lookups_per_item]` is the batch's key matrix with fetched rows named in it; `fetched` is
    the flat float32 buffer of those rows, which grows to the largest batch seen.
    """

    def __init__(self, max_items: int, lookups_per_item: int) -> None:
        self.keys: KeyArray = np.empty((max_items, lookups_per_item), np.int64)
        self.fetched: RowArray = np.empty(0, np.float32)

    def reserve(self, used: int, more: int) -> RowArray:
        """`fetched[used : used + more]`, with what stands before it kept."""
        if used + more > self.fetched.size:
            grown = np.empty(max(used + more, 2 * self.fetched.size), np.float32)
            grown[:used] = self.fetched[:used]
            self.fetched = grown
        return self.fetched[used : used + more]


class EmbeddingHierarchy:
    """All tables of one model, shared by its workers. Made by `open`; `lookup` may run in any number of threads."""

    def __init__(self, spec: ModelSpec, memory: TableMemory, persistent: EmbeddingStore | None) -> None:
        self.spec = spec
        self._memory = memory
        self._persistent = persistent
        self._plan = _plan(spec, memory)
        self._key_columns, self._width = spec.lookups_per_item, spec.sparse_width
        self._partial = _partly_resident(spec, memory)

    @classmethod
    def open(
        cls,
        spec: ModelSpec,
        tables: Mapping[str, TableSource],
        *,
        table_memory_bytes: int | None = None,
        row_format: RowFormat = RowFormat.FP32,
        persistent_dir: Path | None = None,
        identity: str | None = None,
        progress: Progress | None = None,
    ) -> EmbeddingHierarchy:
        """Load `tables`, float32 `[rows, dim]` by table name, as the spec has them; in memory as `row_format` has them.

        At most `table_memory_bytes` of table memory are taken (None: what it needs). If that is not enough for all
        rows, `persistent_dir` must be given: all rows are put into a RocksDB there, or those found there are used if
        they were written for the same tables under the same `identity`, a string that changes with their content
        (None: a checksum of the tables, which reads them once more; a source of pieces needs an identity, and is read
        twice). The RocksDB's cache, 64 MiB, and its index come on top. `progress(bytes done, bytes in all)` is called
        while loading.

        Raises `StoreError` when memory, files or tables are not as needed; nothing is left allocated then.
        """
        shapes = resident_shapes(spec, table_memory_bytes, row_format)
        all_resident = shapes == all_shapes(spec)
        if not all_resident and persistent_dir is None:
            raise StoreError(
                f"model {spec.name}: tables need {planned_bytes(all_shapes(spec), row_format):,} bytes "
                f"and the table memory is {table_memory_bytes:,}: "
                "allow more, or give a persistent directory for the rest"
            )
        memory = TableMemory(shapes, row_format)
        persistent: EmbeddingStore | None = None
        try:
            if not all_resident and persistent_dir is not None:
                writing = _LoadProgress(progress, after=memory.rows_bytes)
                content = identity or _checksum(spec, tables)
                persistent = RocksDbStore.load(persistent_dir, spec.tables, tables, content, writing)
                progress = _LoadProgress(progress, before=writing.done)
            memory.fill(tables, progress)
            return cls(spec, memory, persistent)
        except BaseException:
            memory.close()
            if persistent is not None:
                persistent.close()
            raise

    @staticmethod
    def planned_bytes(
        spec: ModelSpec, table_memory_bytes: int | None = None, row_format: RowFormat = RowFormat.FP32
    ) -> int:
        """The table memory that `open` would take, before it is taken."""
        return planned_bytes(resident_shapes(spec, table_memory_bytes, row_format), row_format)

    @property
    def memory_bytes(self) -> int:
        """Table memory taken."""
        return self._memory.memory_bytes

    def rows(self, table: str) -> RowArray:
        """The resident rows of `table`, float32 `[resident rows, dim]`: the memory itself.

        Raises `StoreError`, also where rows are stored in a narrower format.
        """
        return self._memory.rows(table)

    def new_scratch(self, max_items: int) -> LookupScratch:
        """Scratch for one worker whose batches have at most `max_items` items."""
        return LookupScratch(max_items if self._partial else 0, self.spec.lookups_per_item)

    def warm_up(self) -> None:
        """Compile the kernels, or load them from disk, so that no query waits for it."""
        kernel.warm_up(self._memory.row_format)
        padding.warm_up()

    def lookup(
        self, keys: KeyArray, out: RowArray, scratch: LookupScratch, copies: KeyArray = padding.NO_COPIES
    ) -> LookupReport:
        """Fill `out[:n]`, float32 `[>= n, spec.sparse_width]`, for the key matrix `keys` int64 `[n, lookups_per_item]`.

        `copies`, of `key_matrix.place_keys` for these `keys`, are made first. The layout is that of `spec.slots`; -1 is
        no row. A key whose row no tier has gives a zero vector and is counted as defaulted. Raises ValueError for keys
        out of range or arrays of the wrong shape, `StoreError` when a tier fails or the hierarchy is closed.
        """
        flat = self._memory.flat  # held from here on, so that a lookup which close() overtakes reads memory, if zeros
        if self._memory.closed:
            raise StoreError(f"model {self.spec.name}: its tables are closed")
        if keys.shape[1] != self._key_columns or out.shape[1] != self._width:
            raise ValueError(
                f"keys {list(keys.shape)}, out {list(out.shape)}: "
                f"must be [n, {self._key_columns}] and [n, {self._width}]"
            )
        defaulted = 0
        if self._partial:
            padding.copy_fixed(copies, keys)
            copies = padding.NO_COPIES
            keys, defaulted = self._fetch(keys, scratch)
        row_format = self._memory.row_format
        found, refused = kernel.fused_lookup(flat, scratch.fetched, keys, self._plan, out, copies, row_format)
        if refused:
            raise ValueError(f"{refused} keys of the batch are out of range: check keys before they are looked up")
        return LookupReport(found, defaulted)

    def _fetch(self, keys: KeyArray, scratch: LookupScratch) -> tuple[KeyArray, int]:
        """The walk down the tiers: rows that are not resident into `scratch.fetched`, and their keys renamed.

        Per table: find the missing keys, drop repeats, ask the next tier once. Returns the renamed key matrix
        and how many keys were defaulted.
        """
        persistent = self._persistent
        if persistent is None:
            raise StoreError(f"model {self.spec.name}: its tables are closed")
        if len(keys) > len(scratch.keys):
            raise ValueError(f"lookup of {len(keys)} items with scratch for {len(scratch.keys)}")
        if keys.size and keys.min() < -1:
            raise ValueError("keys of the batch are out of range: below -1")
        renamed = scratch.keys[: len(keys)]
        np.copyto(renamed, keys)
        used = defaulted = 0
        for table, resident, blocks in self._partial:
            views = [renamed[:, columns] for columns in blocks]
            masks = [view >= resident for view in views]
            missing, inverse = np.unique(
                np.concatenate([view[mask] for view, mask in zip(views, masks, strict=True)]), return_inverse=True
            )
            if not missing.size:
                continue
            if missing[-1] >= table.rows:
                raise ValueError(f"key {missing[-1]} of table {table.name} is out of range: it has {table.rows} rows")
            rows = scratch.reserve(used, missing.size * table.dim).reshape(-1, table.dim)
            found = np.zeros(missing.size, np.bool_)
            if persistent.query(table.name, missing, rows, found) < missing.size:
                rows[~found] = 0.0
                defaulted += int((~found)[inverse].sum())
            names = -2 - (used + inverse * table.dim)
            used += rows.size
            for view, mask in zip(views, masks, strict=True):
                count = int(mask.sum())
                view[mask], names = names[:count], names[count:]
        return renamed, defaulted

    def close(self) -> None:
        """Give the memory back and close the files. Call it when no lookup runs any more; a later one is an error."""
        self._memory.close()
        if self._persistent is not None:
            self._persistent.close()
            self._persistent = None


class _LoadProgress:
    """One of two stages of a load, told as a part of the whole."""

    def __init__(self, progress: Progress | None, before: int = 0, after: int = 0) -> None:
        self._progress, self._before, self._after = progress, before, after
        self.done = 0

    def __call__(self, done: int, total: int) -> None:
        self.done = done
        if self._progress is not None:
            self._progress(self._before + done, self._before + total + self._after)


def all_shapes(spec: ModelSpec) -> dict[str, tuple[int, int]]:
    """(rows, dim) of every table."""
    return {table.name: (table.rows, table.dim) for table in spec.tables}


def resident_shapes(
    spec: ModelSpec, table_memory_bytes: int | None, row_format: RowFormat = RowFormat.FP32
) -> dict[str, tuple[int, int]]:
    """(resident rows, dim) of every table within the bound: all rows of the smallest, an equal share of the rest."""
    shapes = all_shapes(spec)
    if table_memory_bytes is None or planned_bytes(shapes, row_format) <= table_memory_bytes:
        return shapes
    if table_memory_bytes < planned_bytes({}):
        raise StoreError(f"table memory of {table_memory_bytes:,} bytes: must be at least {planned_bytes({}):,}")
    left = table_memory_bytes // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES - ALIGNMENT_BYTES * len(shapes)
    sizes = {table.name: table.rows * row_format.row_bytes(table.dim) for table in spec.tables}
    by_size = sorted(spec.tables, key=lambda table: sizes[table.name])
    while by_size and sizes[by_size[0].name] <= left:
        left -= sizes[by_size.pop(0).name]
    for table in by_size:
        share = left * sizes[table.name] // sum(sizes[rest.name] for rest in by_size)
        shapes[table.name] = (share // row_format.row_bytes(table.dim), table.dim)
    return shapes


def _plan(spec: ModelSpec, memory: TableMemory) -> KeyArray:
    plan = np.empty((len(spec.features), kernel.PLAN_COLUMNS), np.int64)
    key_column = 0
    for entry, slot in zip(plan, spec.slots, strict=True):
        table = slot.feature.table
        entry[kernel.KEY_COLUMN] = key_column
        entry[kernel.LOOKUPS] = slot.feature.lookups
        entry[kernel.TABLE_START] = memory.start[table]
        entry[kernel.DIM] = slot.dim
        entry[kernel.ROWS] = memory.shapes[table][0]
        entry[kernel.OUT_COLUMN] = slot.column
        entry[kernel.POOLING] = _POOLING_CODES[slot.feature.pooling]
        key_column += slot.feature.lookups
    return plan


def _partly_resident(spec: ModelSpec, memory: TableMemory) -> list[tuple[EmbeddingTableSpec, int, list[slice]]]:
    """Tables with rows outside the memory: their resident rows and the key columns that read them."""
    columns: dict[str, list[slice]] = {}
    column = 0
    for feature in spec.features:
        columns.setdefault(feature.table, []).append(slice(column, column + feature.lookups))
        column += feature.lookups
    resident = {table.name: memory.shapes[table.name][0] for table in spec.tables}
    return [(t, resident[t.name], columns[t.name]) for t in spec.tables if resident[t.name] < t.rows]


def _checksum(spec: ModelSpec, tables: Mapping[str, TableSource]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for table in spec.tables:
        if table.name not in tables:
            raise StoreError(f"table {table.name} is missing")
        if not isinstance(tables[table.name], np.ndarray):
            raise StoreError(
                f"table {table.name} comes in pieces: give an identity for what the persistent store holds"
            )
        for chunk in chunks_of(table.name, tables[table.name], table.rows, table.dim):
            digest.update(np.ascontiguousarray(chunk).view(np.uint8).data)
    return digest.hexdigest()
