import math

import pytest

from hebe.embeddings.cache.cache_table import CacheTable, by_bytes, by_fraction, planned_bytes
from hebe.embeddings.memory.table_memory import HUGE_PAGE_BYTES
from hebe.embeddings.store import StoreError
from hebe.kernels.lookup.row_format import RowFormat

SHAPES = {"users": (1_000_000, 64), "items": (50_000, 16), "days": (7, 4)}


@pytest.mark.parametrize(("row_format", "share"), [(RowFormat.FP16, 0.62), (RowFormat.INT8, 0.45)])
def test_narrower_rows_take_less(row_format, share):
    narrow, wide = (planned_bytes(by_fraction(SHAPES, 0.5, kind)) for kind in (row_format, RowFormat.FP32))
    assert narrow < share * wide


@pytest.mark.parametrize("cache_bytes", [4 << 20, 50 << 20, 100 << 20, 1 << 30])
def test_a_cache_within_bytes_is_as_large_as_fits(cache_bytes):
    tables = by_bytes(SHAPES, cache_bytes)
    assert planned_bytes(tables) <= cache_bytes
    fraction = tables["users"].rows / SHAPES["users"][0]
    assert all(table.rows == max(1, math.ceil(fraction * SHAPES[name][0])) for name, table in tables.items())
    if cache_bytes < 1 << 30:
        assert planned_bytes(tables) + 2 * HUGE_PAGE_BYTES > cache_bytes
    else:
        assert {name: table.rows for name, table in tables.items()} == {
            name: rows for name, (rows, _) in SHAPES.items()
        }


def test_sizes_out_of_range_are_errors():
    with pytest.raises(StoreError, match=r"a cache of 1,000 bytes is too small for 3 tables: .* takes 2,097,152"):
        by_bytes(SHAPES, 1000)
    for fraction in (0.0, -0.5, 1.01, math.nan):
        with pytest.raises(ValueError, match="cache fraction is"):
            by_fraction(SHAPES, fraction)
    for field, arguments in {"dim": (0, 1), "rows": (1, 0), "slabs_per_set": (1, 1, RowFormat.FP32, 0)}.items():
        with pytest.raises(ValueError, match=f"{field} is 0: must lie in"):
            CacheTable(*arguments)
