"""Hot rows of a model, and copies of them in tables of their own, for another device than that of the whole tables.

    keys --split--> cold keys --EmbeddingHierarchy.lookup--> partial sums --add--> the whole lookup's output
              \\--> numbers of hot rows ------------------------------------/

The host splits and looks up, so the map from key to hot row is in its memory; the device has the rows, and adds:
`HotTables` on a second CPU device, `GpuHotTables` on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hebe.embeddings.batches.lookup_plan import lookup_plan
from hebe.embeddings.memory.table_memory import CHUNK_BYTES, RowFormat, TableMemory
from hebe.embeddings.store import KeyArray, RowArray, StoreError
from hebe.kernels.hot_rows import add_hot_rows, hot_keys
from hebe.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class SplitKeys:
    """Of the keys of a batch, padding left out: how many there are, and how many read a hot row."""

    keys: int
    hot: int


class HotKeys:
    """Which keys of the tables of `spec` are those of the rows `rows`, int64 keys by table.

    The map takes a quarter of a byte for each row of the whole tables. `ordered` are the rows as their copies are to
    lie, by table, those without any left out, and `shapes` what these copies are. Raises ValueError for keys that are
    no rows or come twice, and for tables that `spec` has not.
    """

    def __init__(self, spec: ModelSpec, rows: Mapping[str, KeyArray]) -> None:
        check_tables(spec, rows)
        maps, ordered = [], {}
        for table in spec.tables:
            own = np.sort(rows.get(table.name, np.empty(0, np.int64)))
            try:
                maps.append(hot_keys.map_hot_rows(table.rows, own))
            except ValueError as fault:
                raise ValueError(f"table {table.name}: {fault}; each once") from None
            if own.size:
                ordered[table.name] = own
        self.ordered: Mapping[str, KeyArray] = ordered
        self.shapes = {name: (len(own), spec.table(name).dim) for name, own in ordered.items()}
        self.all_hot = all(len(rows.get(table.name, ())) == table.rows for table in spec.tables) and not any(
            feature.takes_new_keys for feature in spec.features
        )
        """Whether every key that a query may have is a hot row's."""
        self._words = np.concatenate(maps)
        self._split_plan = _split_plan(spec, maps)

    def number(self, keys: KeyArray, hot: KeyArray) -> int:
        """`split` where all are hot: write the key matrix `keys`, int64 `[n, lookups_per_item]`, to `hot[:n]` as what
        `add` reads; returns how many there are, padding left out. Raises ValueError, also for keys out of range.
        """
        found, refused = hot_keys.number_hot_keys(keys, self._split_plan, hot)
        if refused:
            raise ValueError(f"{refused} keys of the batch are out of range: check keys before they are looked up")
        return found

    def split(self, keys: KeyArray, cold: KeyArray, hot: KeyArray) -> SplitKeys:
        """Part the key matrix `keys`, int64 `[n, lookups_per_item]`, of which no copies are still to be made.

        `cold[:n]`, which may be `keys` itself, becomes the keys that the lookup of the whole tables is to read, -1 in
        place of hot ones; those that are summed may change places within their feature. `hot[:n]` becomes what `add`
        reads. Keys without a row stay in `cold`. Raises ValueError.
        """
        return SplitKeys(*hot_keys.split_hot_keys(keys, self._split_plan, self._words, cold, hot))


class HotTables:
    """The rows of `keys`, copied out of `memory`, which must hold all rows of all tables of `spec`.

    Rows are stored as they are there, to the bit. `add` may run in any number of threads; what is written to `memory`
    later does not reach the copies. Raises `StoreError` when memory is not to be had.
    """

    def __init__(self, spec: ModelSpec, memory: TableMemory, keys: HotKeys) -> None:
        self._width = spec.sparse_width
        self._memory = TableMemory(keys.shapes, memory.row_format)
        self._plan = lookup_plan(spec, self._memory)
        try:
            for name, own in keys.ordered.items():
                _copy_rows(memory.stored(name), own, self._memory.stored(name))
        except BaseException:
            self._memory.close()
            raise

    def add(self, hot: KeyArray, out: RowArray) -> int:
        """Complete `out[:n]`, float32 `[>= n, sparse_width]`, the lookup of the cold keys, by the hot rows of `hot`,
        int64 `[n, lookups_per_item]`; returns how many they are. Raises ValueError, `StoreError` once closed.
        """
        flat = self._memory.flat  # held from here on, so that close() leaves what this call reads, if as zeros
        if self._memory.closed:
            raise StoreError("the hot rows are closed")
        if out.shape[1] != self._width:
            raise ValueError(f"out {list(out.shape)}: must be [n, {self._width}]")
        return add_hot_rows.add_hot_rows(flat, hot, self._plan, out, self._memory.row_format)

    def close(self) -> None:
        """Give the memory back. Call it when nobody adds any more."""
        self._memory.close()


def warm_up(row_format: RowFormat) -> None:
    """Compile the kernels, or load them from disk, so that no query waits for it."""
    hot_keys.warm_up()
    add_hot_rows.warm_up(row_format)


def hot_bytes(spec: ModelSpec, rows: Mapping[str, KeyArray], row_format: RowFormat) -> int:
    """What the rows `rows`, keys by table, take by themselves. Raises ValueError for tables that `spec` has not."""
    check_tables(spec, rows)
    return sum(len(own) * row_format.row_bytes(spec.table(name).dim) for name, own in rows.items())


def check_tables(spec: ModelSpec, rows: Mapping[str, KeyArray]) -> None:
    """Raises ValueError for tables that `spec` has not."""
    unknown = set(rows) - {table.name for table in spec.tables}
    if unknown:
        raise ValueError(f"model {spec.name} has no table {', '.join(sorted(unknown))}, of which hot rows are given")


def _copy_rows(stored: npt.NDArray[np.uint8], rows: KeyArray, out: npt.NDArray[np.uint8]) -> None:
    """`out[:] = stored[rows]`, uint8 `[n, row_bytes]`, in pieces, since NumPy makes the right side first."""
    step = max(1, CHUNK_BYTES // stored.shape[1])
    for first in range(0, len(rows), step):
        np.take(stored, rows[first : first + step], axis=0, out=out[first : first + step], mode="clip")


def _split_plan(spec: ModelSpec, maps: list[npt.NDArray[np.uint64]]) -> KeyArray:
    starts = np.cumsum([0, *(len(words) for words in maps)]).tolist()
    start = {table.name: first for table, first in zip(spec.tables, starts, strict=False)}
    plan = np.empty((len(spec.features), hot_keys.PLAN_COLUMNS), np.int64)
    column = 0
    for entry, feature in zip(plan, spec.features, strict=True):
        entry[hot_keys.KEY_COLUMN] = column
        entry[hot_keys.LOOKUPS] = feature.lookups
        entry[hot_keys.ROWS] = spec.table(feature.table).rows
        entry[hot_keys.MAP_START] = start[feature.table]
        entry[hot_keys.IN_ANY_ORDER] = feature.pooling.reduces
        column += feature.lookups
    return plan
