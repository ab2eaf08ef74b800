"""How large the tables of a level-1 cache are, before there is one: by rows, by a share of the table, or by bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hebe.embeddings.memory.table_memory import HUGE_PAGE_BYTES
from hebe.embeddings.store import StoreError
from hebe.kernels.hash_tables.slab_geometry import MOST_SETS, SLOTS_PER_SLAB, SlabGeometry
from hebe.kernels.lookup.row_format import RowFormat

SLABS_PER_SET = 2
"""The paper's choice (HPS 4.1). More make room for rows more evenly, and probing longer."""

MOST_ROWS = MOST_SETS * SLOTS_PER_SLAB
_HALVINGS = 50


@dataclass(frozen=True, slots=True)
class CacheTable:
    """One table of a cache: room for at least `rows` rows of `dim` numbers, stored as `row_format` has them.

    A slabset is full by itself, so that a cache with as many rows as its table still evicts about one in twenty.
    Raises ValueError naming a field that is out of range.
    """

    dim: int
    rows: int
    row_format: RowFormat = RowFormat.FP32
    slabs_per_set: int = SLABS_PER_SET

    def __post_init__(self) -> None:
        if not 1 <= self.rows <= MOST_ROWS:
            raise ValueError(f"rows is {self.rows}: must lie in [1, {MOST_ROWS}]")
        SlabGeometry(1, self.slabs_per_set, self.dim, self.row_format)  # raises for the other fields

    @property
    def geometry(self) -> SlabGeometry:
        """As many whole slabsets as `rows` need."""
        sets = -(-self.rows // (SLOTS_PER_SLAB * self.slabs_per_set))
        return SlabGeometry(sets, self.slabs_per_set, self.dim, self.row_format)

    @property
    def capacity(self) -> int:
        """The most rows that it holds: `rows`, to the next whole slabset."""
        return self.geometry.slots


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """What has become of a table's cache since it was made.

    `queries` calls, which asked for `hits` + `misses` keys; `size` rows are present, `evictions` have given way to
    others; `unheld` rows were written that the row format could not hold other than by rounding (`row_format`).
    """

    queries: int
    hits: int
    misses: int
    size: int
    evictions: int
    unheld: int


def planned_bytes(tables: Mapping[str, CacheTable]) -> int:
    """The memory that a cache of these tables will take, known before it is made: whole huge pages."""
    size_bytes = sum(table.geometry.memory_bytes for table in tables.values())
    return max(1, -(-size_bytes // HUGE_PAGE_BYTES)) * HUGE_PAGE_BYTES


def by_fraction(
    shapes: Mapping[str, tuple[int, int]],
    fraction: float,
    row_format: RowFormat = RowFormat.FP32,
    slabs_per_set: int = SLABS_PER_SET,
) -> dict[str, CacheTable]:
    """Tables for `fraction` of the rows of each of `shapes`, (rows, dim) by name. Raises ValueError outside (0, 1]."""
    if not 0 < fraction <= 1:
        raise ValueError(f"cache fraction is {fraction}: must be above 0 and at most 1")
    return {
        name: CacheTable(dim, max(1, math.ceil(fraction * rows)), row_format, slabs_per_set)
        for name, (rows, dim) in shapes.items()
    }


def by_bytes(
    shapes: Mapping[str, tuple[int, int]],
    cache_bytes: int,
    row_format: RowFormat = RowFormat.FP32,
    slabs_per_set: int = SLABS_PER_SET,
) -> dict[str, CacheTable]:
    """The same fraction of each table, as large as fits into `cache_bytes` (at most all rows).

    Raises `StoreError` if not even one slabset of each does.
    """
    least = {name: CacheTable(dim, 1, row_format, slabs_per_set) for name, (_, dim) in shapes.items()}
    if planned_bytes(least) > cache_bytes:
        raise StoreError(
            f"a cache of {cache_bytes:,} bytes is too small for {len(least)} tables: "
            f"one slabset of each takes {planned_bytes(least):,}"
        )
    tables, low, high = least, 0.0, 1.0
    for fraction in [1.0] + _HALVINGS * [math.nan]:
        middle = (low + high) / 2 if math.isnan(fraction) else fraction
        tried = by_fraction(shapes, middle, row_format, slabs_per_set) if middle > 0 else least
        if planned_bytes(tried) <= cache_bytes:
            tables, low = tried, middle
        else:
            high = middle
    return tables
