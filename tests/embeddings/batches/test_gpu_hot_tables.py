"""Hot rows on a GPU against the whole lookup; where there is no GPU, Triton interprets, in a process of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hebe.embeddings.batches.gpu_hot_tables import GpuHotTables
from hebe.embeddings.batches.hot_tables import HotKeys
from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.embeddings.memory.table_memory import RowFormat
from hebe.embeddings.store import StoreError
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling
from tests.servers.triton_process import triton_process

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
SPEC = ModelSpec(
    "m",
    "dlrm",
    (EmbeddingTableSpec("a", 100, 8), EmbeddingTableSpec("b", 10, 4)),
    (
        FeatureSpec("f", "a", 3, Pooling.SUM),
        FeatureSpec("g", "b", 1, Pooling.SUM),
        FeatureSpec("h", "a", 6, Pooling.MEAN),
        FeatureSpec("i", "b", 2, Pooling.CONCAT),
    ),
)


@pytest.fixture(scope="module")
def there():
    """Where the kernel can run: `there(function, *arguments)` returns what the function does."""
    with triton_process() as call:
        yield call


def whole_and_parts(row_format: RowFormat, share: float) -> tuple[np.ndarray, np.ndarray, int]:
    """The lookup of all keys; that of the cold ones with the hot rows added; how many those are."""
    rng = np.random.default_rng(5)
    tables = {table.name: rng.standard_normal((table.rows, table.dim)).astype(np.float32) for table in SPEC.tables}
    hierarchy = EmbeddingHierarchy.open(SPEC, tables, row_format=row_format)
    rows = {t.name: rng.permutation(np.flatnonzero(rng.random(t.rows) < share)) for t in SPEC.tables}
    hot_keys = HotKeys(SPEC, rows)
    hot_tables = GpuHotTables(SPEC, hierarchy.memory, hot_keys, DEVICE)
    limits = [SPEC.table(feature.table).rows for feature in SPEC.features for _ in range(feature.lookups)]
    keys = rng.integers(-1, limits, (9, SPEC.lookups_per_item))
    whole, parts = np.zeros((2, 9, SPEC.sparse_width), np.float32)
    scratch = hierarchy.new_scratch(9)
    hierarchy.lookup(keys, whole, scratch)
    cold, hot = np.empty((2, *keys.shape), np.int64)
    found = hot_keys.split(keys, cold, hot).hot
    hierarchy.lookup(cold, parts, scratch)
    out = torch.from_numpy(parts).to(DEVICE)
    hot_tables.add(torch.from_numpy(hot).to(DEVICE), out)
    return whole, out.cpu().numpy(), found


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("row_format", list(RowFormat))
def test_the_lookup_of_cold_keys_and_the_hot_rows_are_the_whole_lookup(there, row_format, share):
    whole, parts, found = there(whole_and_parts, row_format, share)
    assert (found > 0) is (share > 0)
    np.testing.assert_allclose(parts, whole, rtol=1e-5, atol=1e-5)


def refused_once_closed() -> str:
    hierarchy = EmbeddingHierarchy.open(SPEC, {t.name: np.zeros((t.rows, t.dim), np.float32) for t in SPEC.tables})
    tables = GpuHotTables(SPEC, hierarchy.memory, HotKeys(SPEC, {"a": np.arange(5)}), DEVICE)
    tables.close()
    numbers = torch.full((1, SPEC.lookups_per_item), -1, device=DEVICE)
    try:
        tables.add(numbers, torch.zeros((1, SPEC.sparse_width), device=DEVICE))
    except StoreError as fault:
        return str(fault)
    return ""


def test_after_closing_nothing_is_added(there):
    assert "closed" in there(refused_once_closed)
