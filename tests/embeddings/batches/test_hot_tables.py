import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.embeddings.batches import hot_tables
from hebe.embeddings.batches.hot_tables import HotKeys, HotTables, hot_bytes
from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.embeddings.memory.table_memory import RowFormat
from hebe.embeddings.store import StoreError
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling


@st.composite
def specs(draw) -> ModelSpec:
    """Up to three tables, each read by one feature or several."""
    tables = [
        EmbeddingTableSpec(f"t{i}", draw(st.sampled_from([1, 63, 64, 200])), draw(st.sampled_from([1, 5, 64, 70])))
        for i in range(draw(st.integers(1, 3)))
    ]
    readers = [*range(len(tables)), *draw(st.lists(st.integers(0, len(tables) - 1), max_size=3))]
    features = [
        FeatureSpec(f"f{i}", f"t{table}", draw(st.sampled_from([1, 2, 9])), draw(st.sampled_from(Pooling)))
        for i, table in enumerate(readers)
    ]
    return ModelSpec("m", "dlrm", tuple(tables), tuple(features))


def opened(spec, row_format=RowFormat.FP32, seed=0) -> EmbeddingHierarchy:
    rng = np.random.default_rng(seed)
    tables = {table.name: rng.standard_normal((table.rows, table.dim)).astype(np.float32) for table in spec.tables}
    return EmbeddingHierarchy.open(spec, tables, row_format=row_format)


def keys_of(spec, items, rng) -> np.ndarray:
    """Among them padding."""
    rows = [spec.table(feature.table).rows for feature in spec.features]
    return np.concatenate(
        [rng.integers(-1, count, (items, f.lookups)) for count, f in zip(rows, spec.features, strict=True)], axis=1
    )


@settings(max_examples=80)
@given(specs(), st.sampled_from([0.0, 0.2, 0.7, 1.0]), st.integers(0, 2**32), st.sampled_from(list(RowFormat)))
def test_the_lookup_of_cold_keys_and_the_hot_rows_are_the_whole_lookup(spec, share, seed, row_format):
    rng = np.random.default_rng(seed)
    hierarchy = opened(spec, row_format, seed)
    rows = {t.name: rng.permutation(np.flatnonzero(rng.random(t.rows) < share)) for t in spec.tables}
    hot_keys = HotKeys(spec, rows)
    tables = HotTables(spec, hierarchy.memory, hot_keys)
    keys = keys_of(spec, 20, rng)
    whole, parts = np.full((2, 21, spec.sparse_width), np.nan, np.float32)
    scratch = hierarchy.new_scratch(20)
    report = hierarchy.lookup(keys, whole, scratch)
    cold, hot = np.empty((2, *keys.shape), np.int64)
    split = hot_keys.split(keys, cold, hot)
    assert (split.keys, split.hot) == (report.keys.total, report.keys.total - (cold != -1).sum())
    assert hierarchy.lookup(cold, parts, scratch).keys.total == split.keys - split.hot
    assert tables.add(hot, parts) == split.hot
    np.testing.assert_allclose(parts, whole, rtol=1e-5, atol=1e-5)
    for slot in spec.slots:
        if not slot.feature.pooling.reduces or slot.feature.lookups == 1:
            columns = slice(slot.column, slot.column + slot.width)
            assert np.array_equal(parts[:20, columns], whole[:20, columns]), "copied rows are the same to the bit"
    copied = sum(count * row_format.row_bytes(dim) for count, dim in hot_keys.shapes.values())
    assert copied == hot_bytes(spec, rows, row_format)
    tables.close()
    hierarchy.close()


SPEC = ModelSpec(
    "m",
    "dlrm",
    (EmbeddingTableSpec("a", 100, 8), EmbeddingTableSpec("b", 10, 4)),
    (FeatureSpec("f", "a", 3, Pooling.SUM), FeatureSpec("g", "b", 1, Pooling.SUM)),
)


@pytest.mark.parametrize("table", ["a", "b"])
def test_keys_out_of_range_are_left_to_be_refused(table):
    hierarchy = opened(SPEC)
    hot_keys = HotKeys(SPEC, {"a": np.arange(100), "b": np.arange(10)})
    keys = np.array([[1, 2, 3, 4]])
    keys[0, 0 if table == "a" else 3] = 100
    cold, hot = np.empty((2, *keys.shape), np.int64)
    assert hot_keys.split(keys, cold, hot).hot == 3
    with pytest.raises(ValueError, match="1 keys of the batch are out of range"):
        hierarchy.lookup(cold, np.empty((1, SPEC.sparse_width), np.float32), hierarchy.new_scratch(1))
    hierarchy.close()


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"a": [1, 1]}, "table a: hot rows must be ascending .*; each once"),
        ({"b": [10]}, r"table b: hot rows must .* lie in \[0, 10\)"),
        ({"c": [1]}, "model m has no table c"),
    ],
)
def test_rows_that_are_none_are_named(rows, said):
    with pytest.raises(ValueError, match=said):
        HotKeys(SPEC, {name: np.array(own) for name, own in rows.items()})


def test_rows_are_copied_in_pieces(monkeypatch):
    monkeypatch.setattr(hot_tables, "CHUNK_BYTES", 100)
    hierarchy = opened(SPEC)
    tables = HotTables(SPEC, hierarchy.memory, HotKeys(SPEC, {"a": np.arange(99, 0, -2)}))
    out = np.zeros((50, SPEC.sparse_width), np.float32)
    hot = np.full((50, 4), -1)
    hot[:, 0] = np.arange(50)
    assert tables.add(hot, out) == 50
    assert np.array_equal(out[:, :8], hierarchy.rows("a")[1::2])
    hierarchy.close()


def test_after_closing_nothing_is_added():
    hierarchy = opened(SPEC)
    tables = HotTables(SPEC, hierarchy.memory, HotKeys(SPEC, {"a": np.arange(5)}))
    with pytest.raises(ValueError, match=r"must be \[n, 12\]"):
        tables.add(np.zeros((1, 4), np.int64), np.zeros((1, 13), np.float32))
    tables.close()
    with pytest.raises(StoreError, match="closed"):
        tables.add(np.zeros((1, 4), np.int64), np.zeros((1, 12), np.float32))
    hierarchy.close()
