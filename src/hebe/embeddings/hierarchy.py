"""The embedding hierarchy of one model: what the runtime calls to turn a key matrix into the SparseNet's output.

Tables that fit lie in table memory, all their rows. The others are read through the tiers (`tiers`): distinct keys of a
batch are looked up in the cache, missing rows in the stores below it, and the fused lookup pools them together with the
resident ones.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hebe.embeddings.batches.lookup_plan import lookup_plan
from hebe.embeddings.batches.new_keys import CountArray, NewKeys
from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.embeddings.memory.model_rows import ModelRows
from hebe.embeddings.memory.table_memory import (
    ALIGNMENT_BYTES,
    Progress,
    RowFormat,
    TableMemory,
    TableSource,
    chunks_of,
    planned_bytes,
)
from hebe.embeddings.store import KeyArray, RowArray, StoreError
from hebe.embeddings.tiers.batch_lookup import BatchLookup, RowState
from hebe.embeddings.tiers.memory import (
    bounded_config,
    planned_background_bytes,
    planned_lookup_bytes,
    planned_tier_bytes,
)
from hebe.embeddings.tiers.tiers import Tiers
from hebe.kernels.lookup import deduplicate, find_keys, padding
from hebe.kernels.lookup import fused_lookup as kernel
from hebe.kernels.lookup.deduplicate import Deduplicator, KeyPlan, KeyTable, count_states
from hebe.query import KeyCounts
from hebe.spec import EmbeddingTableSpec, ModelSpec

_REPORTED = [int(state) for state in (RowState.DEFAULTED, RowState.STALE, RowState.UNKNOWN)]
_GREATEST_KEY = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True)
class LookupReport:
    """What one lookup came to, in keys asked for (padding left out).

    `by_item` int32 `[n, 4]` has the keys of each item, and how many of them are defaulted, stale and unknown; None if
    none are. `in_vain_s`: seconds for which it waited for tiers that did not answer.
    """

    keys: KeyCounts
    by_item: npt.NDArray[np.int32] | None = None
    in_vain_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LookupArrays:
    """What `fused_lookup` takes beside keys and output, where all rows are resident."""

    tables: npt.NDArray[np.uint8]
    plan: KeyArray
    row_format: RowFormat


class LookupScratch:
    """What one worker needs beside the tables; never shared between threads. Made by `EmbeddingHierarchy.new_scratch`.

    `keys` int64 `[max_items, lookups_per_item]` is the batch's key matrix with fetched rows named in it; `fetched` is
    the flat float32 buffer of those rows, which grows to the largest batch seen. Neither is needed where all rows that
    may be asked for are resident.
    """

    def __init__(self, max_items: int, lookups_per_item: int) -> None:
        self.keys: KeyArray = np.empty((max_items, lookups_per_item), np.int64)
        self.fetched: RowArray = np.empty(0, np.float32)
        self.deduplicator = Deduplicator()

    def copied(self, keys: KeyArray) -> KeyArray:
        """A copy of a key matrix, in `keys`. Raises ValueError for more items than it was made for."""
        if len(keys) > len(self.keys):
            raise ValueError(f"lookup of {len(keys)} items with scratch for {len(self.keys)}")
        np.copyto(self.keys[: len(keys)], keys)
        return self.keys[: len(keys)]

    def reserve(self, numbers: int) -> RowArray:
        """`fetched` with room for so many numbers; what stood in it is lost."""
        if numbers > self.fetched.size:
            self.fetched = np.empty(max(numbers, 2 * self.fetched.size), np.float32)
        return self.fetched


class EmbeddingHierarchy:
    """All tables of one model, shared by its workers. Made by `open`; `lookup` may run in any number of threads."""

    def __init__(
        self, spec: ModelSpec, memory: TableMemory, tiers: Tiers | None, default_values: Mapping[str, float]
    ) -> None:
        self.spec = spec
        self.tiers = tiers
        self.memory = memory
        self._plan = lookup_plan(spec, memory)
        self._key_columns, self._width = spec.lookups_per_item, spec.sparse_width
        tiered = _key_tables(spec, memory)
        self._tiered_names, self._tiered = tuple(tiered), KeyPlan(list(tiered.values()))
        self._new_keys = NewKeys(spec, memory.shapes, default_values)
        self._names_rows = bool(tiered) or self._new_keys.numbers > 0
        """Whether keys are replaced, in a copy of the key matrix, by where their rows are."""

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
        config: HierarchyConfig | None = None,
        version: int = 1,
        progress: Progress | None = None,
        verify: bool = False,
        rows_as_of_s: float | None = None,
    ) -> EmbeddingHierarchy:
        """Load `tables`, float32 `[rows, dim]` by table name, as the spec has them; in memory as `row_format` has them.

        At most `table_memory_bytes` of table memory are taken (None: what it needs). If that is not enough for all
        rows, `persistent_dir` must be given: the rows of the larger tables are put into a RocksDB there, or those found
        there are used if they were written under the same `identity` (tables that it lacks are added), a string that
        changes with their content (None: a checksum of the tables, which reads them once more; a source of pieces needs
        an identity, and is read twice). Those tables are read through a cache, which has the memory that the others
        leave. RocksDB's index comes on top.

        Where `config` describes tiers, all tables are read through them, in which they are those of `version`, and have
        the updates sent before `rows_as_of_s` (Unix seconds).
        `progress(bytes done, bytes in all)` is called while loading. `verify`: read every row that a RocksDB has
        already, and refuse it if one is damaged. Raises `StoreError` when memory, files or tables are not as needed,
        `ConfigError` when `config` has a default value for a table of this model that it does not have; nothing is left
        allocated then.
        """
        config = config or HierarchyConfig()
        config.check_tables(spec.name, [table.name for table in spec.tables])
        if config.is_tiered and table_memory_bytes is not None:
            raise StoreError("tiers and a bound of the table memory are both configured: keep one")
        resident = {} if config.is_tiered else resident_shapes(spec, table_memory_bytes, row_format)
        tiered = [table for table in spec.tables if table.name not in resident]
        if tiered and not config.is_tiered:
            if persistent_dir is None:
                raise StoreError(
                    f"model {spec.name}: tables need {planned_bytes(all_shapes(spec), row_format):,} bytes "
                    f"and the table memory is {table_memory_bytes:,}: "
                    "allow more, or give a persistent directory for the rest"
                )
            left_bytes = (table_memory_bytes or 0) - planned_bytes(resident, row_format)
            config = bounded_config(config, left_bytes, row_format, persistent_dir)
        # Before the tables take what memory there is: libraries that lack it as they are loaded crash, or never return.
        kernel.warm_up(row_format)
        memory = TableMemory(resident, row_format)
        tiers: Tiers | None = None
        try:
            if tiered:
                content = identity or _checksum(spec, tables)
                writing = _LoadProgress(progress, after=memory.rows_bytes)
                rows = ModelRows(spec.name, version, tiered, tables, content, rows_as_of_s)
                tiers = Tiers.open(rows, config, persistent_dir, writing, verify=verify)
                progress = _LoadProgress(progress, before=writing.done)
            memory.fill({name: tables[name] for name in resident if name in tables}, progress)
            return cls(spec, memory, tiers, config.cache_of(spec.name).default_value_for_each_table)
        except BaseException:
            memory.close()
            if tiers is not None:
                tiers.close()
            raise

    @staticmethod
    def planned_bytes(
        spec: ModelSpec,
        table_memory_bytes: int | None = None,
        row_format: RowFormat = RowFormat.FP32,
        config: HierarchyConfig | None = None,
    ) -> int:
        """The table memory that `open` would take at most, before it is taken. Raises `StoreError` as it would."""
        if config is not None and config.is_tiered:
            return planned_tier_bytes(spec.name, spec.tables, config)
        needed = planned_bytes(all_shapes(spec), row_format)
        return needed if table_memory_bytes is None else min(needed, table_memory_bytes)

    @staticmethod
    def planned_scratch_bytes(
        spec: ModelSpec,
        max_items: int,
        table_memory_bytes: int | None = None,
        row_format: RowFormat = RowFormat.FP32,
        config: HierarchyConfig | None = None,
    ) -> int:
        """What each thread takes for the lookups of up to `max_items` items in tiers, or of keys that no resident table
        has; else nothing where all tables are resident. Raises `StoreError` as `open` would.
        """
        tiered, config = _planned_tiers(spec, table_memory_bytes, row_format, config)
        key_bytes = 8 * max_items * spec.lookups_per_item
        if not tiered:
            return key_bytes if spec.takes_new_keys else 0
        return key_bytes + planned_lookup_bytes(spec.name, tiered, _lookups_of(spec), max_items, config)

    @staticmethod
    def planned_background_bytes(
        spec: ModelSpec,
        max_items: int,
        table_memory_bytes: int | None = None,
        row_format: RowFormat = RowFormat.FP32,
        config: HierarchyConfig | None = None,
    ) -> int:
        """What the work that lookups of up to `max_items` items leave to the background holds at most; nothing where
        all tables are resident. Raises `StoreError` as `open` would.
        """
        tiered, config = _planned_tiers(spec, table_memory_bytes, row_format, config)
        return planned_background_bytes(spec.name, tiered, _lookups_of(spec), max_items, config)

    @property
    def memory_bytes(self) -> int:
        """Table memory taken, the cache's and the hash map's included."""
        return self.memory.memory_bytes + (self.tiers.memory_bytes if self.tiers is not None else 0)

    def rows(self, table: str) -> RowArray:
        """The rows of resident `table`, float32 `[rows, dim]`: the memory itself.

        Raises `StoreError`, also where rows are stored in a narrower format.
        """
        return self.memory.rows(table)

    def new_scratch(self, max_items: int) -> LookupScratch:
        """Scratch for one worker whose batches have at most `max_items` items."""
        return LookupScratch(max_items if self._names_rows else 0, self.spec.lookups_per_item)

    @property
    def looks_up_alone(self) -> bool:
        """Whether a lookup is `fused_lookup` and nothing else: all rows are resident, and no keys are named anew."""
        return not self._names_rows

    def lookup_arrays(self) -> LookupArrays:
        """For who calls that itself, between `check_open` and `check_refused`. Raises ValueError unless it
        `looks_up_alone`.
        """
        if self._names_rows:
            raise ValueError(f"model {self.spec.name}: its lookups take more than its tables")
        return LookupArrays(self.memory.flat, self._plan, self.memory.row_format)

    def warm_up(self) -> None:
        """Compile the kernels that opening has not, or load them from disk, so that no query waits for it."""
        padding.warm_up()
        find_keys.warm_up()
        if self._tiered_names:
            deduplicate.warm_up()

    def lookup(
        self,
        keys: KeyArray,
        out: RowArray,
        scratch: LookupScratch,
        copies: KeyArray = padding.NO_COPIES,
        timeout_s: float = math.inf,
        *,
        wait: bool = False,
        counted: bool = True,
    ) -> LookupReport:
        """Fill `out[:n]`, float32 `[>= n, spec.sparse_width]`, for the key matrix `keys` int64 `[n, lookups_per_item]`.

        `copies`, of `key_matrix.place_keys` for these `keys`, are made first. The layout is that of `spec.slots`; -1 is
        no row. Lower tiers are waited for, for at most about `timeout_s`, where the hit rate of level 1 is below its
        threshold, or if told to `wait`. `counted` as in `BatchLookup`. Raises ValueError for keys out of range, unless
        their feature takes new keys and they are not negative, or arrays of the wrong shape, `StoreError` when level 1
        fails or the hierarchy is closed.
        """
        flat = self.memory.flat  # held from here on, so that a lookup which close() overtakes reads memory, if zeros
        self.check_open()
        if keys.shape[1] != self._key_columns or out.shape[1] != self._width:
            raise ValueError(
                f"keys {list(keys.shape)}, out {list(out.shape)}: "
                f"must be [n, {self._key_columns}] and [n, {self._width}]"
            )
        fetched: BatchLookup | None = None
        new: CountArray | None = None
        if self._names_rows:
            padding.copy_fixed(copies, keys)
            copies = padding.NO_COPIES
            if self._new_keys.numbers and keys.min(initial=-1) < -1:  # it would be read as naming a default vector
                raise ValueError("keys of the batch are out of range: none may be negative")
            given, keys = keys, scratch.copied(keys)
            if self._tiered_names:
                fetched = self._fetch(given, keys, scratch, timeout_s, wait, counted)
            base = 0 if fetched is None else int(fetched.bases[-1])
            rows = scratch.fetched if self._tiered_names else scratch.reserve(self._new_keys.numbers)
            new = self._new_keys.name_defaults(keys, rows, base)
        row_format = self.memory.row_format
        found, refused = kernel.fused_lookup(flat, scratch.fetched, keys, self._plan, out, copies, row_format)
        self.check_refused(refused)
        return _report(found, keys, self._tiered, fetched, new)

    def check_open(self) -> None:
        """Raise `StoreError` if it is closed."""
        if self.memory.closed:
            raise StoreError(f"model {self.spec.name}: its tables are closed")

    def check_refused(self, refused: int) -> None:
        """Raise ValueError if a lookup refused keys."""
        if refused:
            raise ValueError(f"{refused} keys of the batch are out of range: check keys before they are looked up")

    def _fetch(
        self, given: KeyArray, keys: KeyArray, scratch: LookupScratch, timeout_s: float, wait: bool, counted: bool
    ) -> BatchLookup:
        """Rows of the tables that are not resident into `scratch.fetched`, and into `keys`, a copy of the key matrix
        `given`, their places in place of their keys; returns how they were answered. There is room for the default
        vectors behind these rows.
        """
        if self.tiers is None:
            raise StoreError(f"model {self.spec.name}: its tables are closed")
        try:
            distinct = scratch.deduplicator.run(keys, self._tiered)
        except IndexError as wrong:
            raise self._out_of_range(given, wrong.args[0]) from None
        rows = scratch.reserve(int(distinct.bases[-1]) + self._new_keys.numbers)
        wanted = BatchLookup(self._tiered_names, distinct.keys, distinct.starts, rows, distinct.bases, counted=counted)
        self.tiers.lookup.look_up_tables(wanted, timeout_s, wait=wait)
        return wanted

    def _out_of_range(self, keys: KeyArray, number: int) -> ValueError:
        """What is wrong with the keys of table `number` of those that are not resident."""
        of_table = self._tiered.tables[number]
        read = np.concatenate([keys[:, first : first + columns].reshape(-1) for first, columns in of_table.blocks])
        used = read[read != -1]
        return ValueError(
            f"keys of table {self._tiered_names[number]} are out of range: they lie in [{used.min()}, {used.max()}], "
            f"it has {self.spec.table(self._tiered_names[number]).rows} rows"
        )

    def close(self) -> None:
        """Give the memory back and close the files. Call it when no lookup runs any more; a later one is an error."""
        self.memory.close()
        if self.tiers is not None:
            self.tiers.close()
            self.tiers = None


def _report(
    found: int, renamed: KeyArray, plan: KeyPlan, fetched: BatchLookup | None, new: CountArray | None
) -> LookupReport:
    """`new`: how many keys of each item no resident table has."""
    in_vain_s = 0.0 if fetched is None else fetched.in_vain_s
    if new is None and (fetched is None or fetched.states is None):
        return LookupReport(KeyCounts(found), in_vain_s=in_vain_s)
    by_item = np.zeros((len(renamed), 1 + len(_REPORTED)), np.int32)
    by_item[:, 0] = present_by_item(renamed)
    if fetched is not None and fetched.states is not None:
        kinds = count_states(renamed, plan, fetched.starts, fetched.bases, fetched.states, len(RowState))
        by_item[:, 1:] = kinds[:, _REPORTED]
    if new is not None:
        by_item[:, 1 + _REPORTED.index(RowState.UNKNOWN)] += new
    counts = KeyCounts(found, *by_item[:, 1:].sum(axis=0).tolist())
    if fetched is not None and fetched.states is not None and fetched.cut:
        counts.cut = round(counts.defaulted * fetched.cut / np.count_nonzero(fetched.states == RowState.DEFAULTED))
    return LookupReport(counts, by_item, in_vain_s)


def present_by_item(keys: KeyArray) -> npt.NDArray[np.int32]:
    """How many keys each row of a key matrix has, padding left out."""
    present: npt.NDArray[np.int32] = np.count_nonzero(keys != -1, axis=1).astype(np.int32)
    return present


class _LoadProgress:
    """One of two stages of a load, told as a part of the whole."""

    def __init__(self, progress: Progress | None, before: int = 0, after: int = 0) -> None:
        self._progress, self._before, self._after = progress, before, after
        self.done = 0

    def __call__(self, done: int, total: int) -> None:
        self.done = done
        if self._progress is not None:
            self._progress(self._before + done, self._before + total + self._after)


def _planned_tiers(
    spec: ModelSpec, table_memory_bytes: int | None, row_format: RowFormat, config: HierarchyConfig | None
) -> tuple[list[EmbeddingTableSpec], HierarchyConfig]:
    """The tables that `open` would read through tiers, and how these are configured then."""
    config = config or HierarchyConfig()
    resident = {} if config.is_tiered else resident_shapes(spec, table_memory_bytes, row_format)
    tiered = [table for table in spec.tables if table.name not in resident]
    if tiered and not config.is_tiered:
        left_bytes = (table_memory_bytes or 0) - planned_bytes(resident, row_format)
        config = bounded_config(config, left_bytes, row_format, Path())
    return tiered, config


def _lookups_of(spec: ModelSpec) -> dict[str, int]:
    """Of an item, by table."""
    lookups = dict.fromkeys((table.name for table in spec.tables), 0)
    for feature in spec.features:
        lookups[feature.table] += feature.lookups
    return lookups


def all_shapes(spec: ModelSpec) -> dict[str, tuple[int, int]]:
    """(rows, dim) of every table."""
    return {table.name: (table.rows, table.dim) for table in spec.tables}


def resident_shapes(
    spec: ModelSpec, table_memory_bytes: int | None, row_format: RowFormat = RowFormat.FP32
) -> dict[str, tuple[int, int]]:
    """(rows, dim) of the tables that are resident within the bound: those that need no more than an equal share of it.

    What they leave is the cache's. Raises `StoreError` for a bound that is below the least.
    """
    shapes = all_shapes(spec)
    if table_memory_bytes is None or planned_bytes(shapes, row_format) <= table_memory_bytes:
        return shapes
    least = planned_bytes({})
    if table_memory_bytes < 2 * least:
        raise StoreError(f"table memory of {table_memory_bytes:,} bytes: must be at least {2 * least:,}")
    left = table_memory_bytes - least - ALIGNMENT_BYTES * len(shapes)
    by_size = sorted((rows * row_format.row_bytes(dim), name) for name, (rows, dim) in shapes.items())
    resident = {}
    for place, (size_bytes, name) in enumerate(by_size):
        if size_bytes > left // (len(by_size) - place):
            break
        resident[name] = shapes[name]
        left -= size_bytes
    return resident


def _key_tables(spec: ModelSpec, memory: TableMemory) -> dict[str, KeyTable]:
    """Tables that are not resident, and the columns of keys that read them. Where one of their features takes new keys,
    it is for who checks keys before to refuse those of the others.
    """
    blocks: dict[str, list[tuple[int, int]]] = {}
    most = {table.name: table.rows - 1 for table in spec.tables}
    column = 0
    for feature in spec.features:
        blocks.setdefault(feature.table, []).append((column, feature.lookups))
        column += feature.lookups
        if feature.takes_new_keys:
            most[feature.table] = _GREATEST_KEY
    return {
        table.name: KeyTable(blocks.get(table.name, ()), table.dim, most[table.name])
        for table in spec.tables
        if table.name not in memory.shapes
    }


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
