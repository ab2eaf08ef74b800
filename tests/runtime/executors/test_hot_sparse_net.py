"""Models with hot rows on an accelerator against the same models without."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import hebe
from hebe.embeddings.batches.key_matrix import fill_lengths
from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.embeddings.memory.table_memory import RowFormat
from hebe.embeddings.store import StoreError
from hebe.machine.gpu import CPU
from hebe.models.hot_rows import HotRows, choose_hot_rows
from hebe.models.repository.repository import ModelRepository
from hebe.query import Batch, SubQuery
from hebe.runtime.accelerator_memory import AcceleratorMemory
from hebe.runtime.executors import hot_sparse_net
from hebe.runtime.executors.hot_sparse_net import HotLookups, HotSparseNet
from hebe.runtime.loaded_model import LoadedModel, LoadOptions
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, OutOfRange, Pooling


def hottest(model, share, row_format=RowFormat.FP32) -> HotRows:
    """So much of the model's rows, as if some were looked up often."""
    rng = np.random.default_rng(1)
    frequencies = {table.name: rng.pareto(1.0, table.rows) for table in model.spec.tables}
    rows_bytes = sum(table.rows * row_format.row_bytes(table.dim) for table in model.spec.tables)
    return choose_hot_rows(model.spec, frequencies, round(share * rows_bytes), row_format)


def placed(model, share=0.3, capacity_bytes=1 << 30) -> HotSparseNet:
    hot = hottest(model, share, model.hierarchy.memory.row_format)
    return HotSparseNet(model.spec, model.hierarchy, hot, AcceleratorMemory(capacity_bytes), online_updates=False)


def keys_of(spec, items, seed) -> np.ndarray:
    """Items of fewer keys than there is room for end in padding."""
    rng = np.random.default_rng(seed)
    columns = []
    for feature in spec.features:
        own = rng.integers(0, spec.table(feature.table).rows, (items, feature.lookups))
        lengths = rng.integers(1, feature.lookups + 1, (items, 1))
        own[np.arange(feature.lookups) >= lengths] = -1
        columns.append(own)
    return np.concatenate(columns, axis=1)


def scores_of(model, dense_net, keys, hot: HotSparseNet | None) -> np.ndarray:
    """Scores by the model's tables and its DenseNet, through `hot` if there is one."""
    spec, items = model.spec, len(keys)
    dense = np.random.default_rng(items).random((items, spec.dense_dim), dtype=np.float32)
    sparse, lengths = np.empty((items, spec.sparse_width), np.float32), np.empty((items, len(spec.sequences)), np.int64)
    fill_lengths(lengths, keys, spec)
    scratch, hot_keys = model.hierarchy.new_scratch(items), np.empty_like(keys)
    if hot is None:
        model.hierarchy.lookup(keys, sparse, scratch)
    else:
        whole = (keys != -1).sum()
        found = hot.split(keys, hot_keys)
        assert model.hierarchy.lookup(keys, sparse, scratch).keys.total == whole - found
        hot.add(hot_keys, sparse)
    with torch.inference_mode():
        return dense_net(*map(torch.from_numpy, (dense, sparse, lengths))).numpy()


@pytest.mark.parametrize("name", ["peers-dlrm", "din", "dlrm-rmc1", "wnd"])
def test_scores_are_those_of_the_whole_tables(repository, name):
    model, dense_net = hebe.load(repository, name), ModelRepository(repository).open(name).dense_net().eval()
    hot = placed(model)
    for items in (1, 37):
        keys = keys_of(model.spec, items, seed=items)
        np.testing.assert_allclose(
            scores_of(model, dense_net, keys.copy(), hot), scores_of(model, dense_net, keys, None), atol=1e-5
        )
    assert 0 < hot.hits.hot < hot.hits.lookups
    hot.close()
    model.close()


def test_a_new_key_counts_in_a_mean_as_it_does_in_the_whole_table():
    spec = ModelSpec(
        "m",
        "mlp",
        (EmbeddingTableSpec("t", 4, 1),),
        (FeatureSpec("f", "t", 3, Pooling.MEAN, OutOfRange.UNKNOWN),),
    )
    hierarchy = EmbeddingHierarchy.open(spec, {"t": np.array([[10], [20], [30], [40]], np.float32)})
    one, memory = HotRows({"t": np.array([0])}, 0.0, 0), AcceleratorMemory(1 << 20)
    hot = HotSparseNet(spec, hierarchy, one, memory, online_updates=False)
    keys = np.array([[0, 3, 9], [0, 9, 9], [9, -1, 3], [0, 3, -1], [0, -1, -1]])
    whole, parts = np.empty((2, 5, 1), np.float32)
    hierarchy.lookup(keys, whole, hierarchy.new_scratch(5))
    hot_keys = np.empty_like(keys)
    hot.split(keys, hot_keys)
    hierarchy.lookup(keys, parts, hierarchy.new_scratch(5))
    hot.add(hot_keys, parts)
    np.testing.assert_allclose(parts, whole)
    np.testing.assert_allclose(whole[:, 0], [50 / 3, 10 / 3, 20, 25, 10], rtol=1e-6)
    hot.close()
    hierarchy.close()


@pytest.mark.parametrize("name", ["peers-dlrm", "din", "dlrm-rmc1", "wnd"])
def test_an_executor_scores_jagged_queries_as_without(repository, jagged_inputs, name):
    model = hebe.load(repository, name)
    features, dense = jagged_inputs(model.spec, 19, np.random.default_rng(7))
    queries = [model.query(features, dense), model.random_query(30)]
    batch = Batch(0, (SubQuery(queries[0], 2, 19), SubQuery(queries[1], 0, 30)), 47)
    whole, hot = model.new_executor(64).run(batch), placed(model)
    outcome = model.new_executor(64, hot, device=CPU).run(batch)
    np.testing.assert_allclose(outcome.scores, whole.scores, atol=1e-5)
    assert hot.hits.lookups == whole.lookup.keys.total == outcome.lookup.keys.total
    assert 0 < hot.hits.hot < hot.hits.lookups
    hot.close()
    model.close()


def test_rows_in_halves_are_copied_as_they_are(repository):
    model = LoadedModel.load(repository, "din", options=LoadOptions(row_format=RowFormat.FP16))
    dense_net = ModelRepository(repository).open("din").dense_net().eval()
    hot = placed(model)
    assert hot.size_bytes == pytest.approx(0.3 * model.spec.table_bytes / 2, rel=0.02)
    keys = keys_of(model.spec, 20, seed=3)
    np.testing.assert_allclose(
        scores_of(model, dense_net, keys.copy(), hot), scores_of(model, dense_net, keys, None), atol=1e-6
    )
    hot.close()
    model.close()


def test_keys_that_are_read_elsewhere_stay_as_they_are(repository):
    model = hebe.load(repository, "din")
    hot = placed(model)
    keys = keys_of(model.spec, 20, seed=5)
    before, in_place = keys.copy(), keys.copy()
    cold, hot_keys, again = np.empty((3, *keys.shape), np.int64)
    assert hot.split(keys, hot_keys, cold) == hot.split(in_place, again) == (hot_keys >= 0).sum()
    assert np.array_equal(keys, before)
    assert np.array_equal(cold, in_place)
    assert np.array_equal(hot_keys, again)
    assert np.array_equal(cold == -1, (before == -1) | (hot_keys >= 0))
    hot.close()
    model.close()


def test_hits_count_keys_of_all_threads_without_padding(repository):
    model = hebe.load(repository, "dlrm-rmc1")
    hot = placed(model)
    assert (hot.hits, hot.hits.share) == (HotLookups(0, 0), 0.0)
    batches = [keys_of(model.spec, 9, seed) for seed in range(40)]
    lookups = sum(int((keys != -1).sum()) for keys in batches)

    def split(keys):
        return hot.split(keys, np.empty_like(keys))

    with ThreadPoolExecutor(4) as threads:
        found = sum(threads.map(split, batches))
    assert hot.hits == HotLookups(lookups, found)
    assert hot.hits.share == found / lookups == pytest.approx(0.3, abs=0.05), "of uniform keys the share of the rows"
    hot.close()
    model.close()


def test_memory_is_reserved_until_it_is_closed(repository, monkeypatch):
    model = hebe.load(repository, "dlrm-rmc1")
    rows, memory = hottest(model, 0.5), AcceleratorMemory(model.spec.table_bytes * 3 // 4)
    hot = HotSparseNet(model.spec, model.hierarchy, rows, memory, online_updates=False)
    assert memory.reserved_bytes == hot.size_bytes == rows.size_bytes
    with pytest.raises(
        StoreError, match=r"hot rows of model dlrm-rmc1 need .* are free beside .* of hot rows of model"
    ):
        HotSparseNet(model.spec, model.hierarchy, rows, memory, online_updates=False)
    hot.close()
    hot.close()
    assert memory.reserved_bytes == 0
    with pytest.raises(StoreError, match="closed"):
        hot.add(
            np.zeros((1, model.spec.lookups_per_item), np.int64), np.zeros((1, model.spec.sparse_width), np.float32)
        )
    monkeypatch.setattr(hot_sparse_net, "HotTables", lambda *_: [][0])
    with pytest.raises(IndexError):
        HotSparseNet(model.spec, model.hierarchy, rows, memory, online_updates=False)
    assert memory.reserved_bytes == 0, "after a failure too"
    model.close()


def test_tables_that_may_change_are_refused(repository, tmp_path):
    options = LoadOptions(table_memory_bytes=4 << 20, persistent_dir=tmp_path)
    tiered, resident = LoadedModel.load(repository, "peers-dlrm", options=options), hebe.load(repository, "wnd")
    memory = AcceleratorMemory(1 << 30)
    with pytest.raises(StoreError, match=r"model peers-dlrm: .* some are read through tiers: allow more table memory"):
        HotSparseNet(tiered.spec, tiered.hierarchy, hottest(tiered, 0.1), memory, online_updates=False)
    with pytest.raises(StoreError, match=r"model wnd: .* online updates come: choose another placement"):
        HotSparseNet(resident.spec, resident.hierarchy, hottest(resident, 0.1), memory, online_updates=True)
    with pytest.raises(ValueError, match="model wnd has no table other"):
        HotSparseNet(
            resident.spec, resident.hierarchy, HotRows({"other": np.arange(3)}, 1.0, 12), memory, online_updates=False
        )
    assert memory.reserved_bytes == 0
    tiered.close()
    resident.close()
