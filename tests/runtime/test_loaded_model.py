"""Loaded models against the plain PyTorch model with the same weights."""

from __future__ import annotations

import gc
import os
import shutil
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import hebe
from hebe.embeddings.config.hierarchy_config import (
    CacheConfig,
    HierarchyConfig,
    VolatileConfig,
    VolatileType,
)
from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.embeddings.memory.table_memory import RowFormat
from hebe.embeddings.store import StoreError
from hebe.embeddings.tiers.batch_lookup import LookupCounts
from hebe.models.architectures.build import build_dense_net
from hebe.models.architectures.ranking_model import RankingModel
from hebe.models.catalog import entry
from hebe.models.repository.repository import ModelRepository, RepositoryError
from hebe.query import Batch, JaggedKeys, SubQuery
from hebe.runtime import loaded_model
from hebe.runtime.executors.dense_graph import GraphMode, on_buffers
from hebe.runtime.loaded_model import LoadedModel, LoadOptions, remove_old_stores, stored_versions
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, OutOfRange, Pooling

NAMES = ["peers-dlrm", "din", "dlrm-rmc1", "wnd"]


def reference_scores(repository, name: str, query) -> np.ndarray:
    stored = ModelRepository(repository).open(name)
    model = RankingModel(stored.spec, seed=0)
    for table in stored.spec.tables:
        with torch.no_grad():
            model.table_weight(table.name).copy_(torch.from_numpy(stored.table(table.name).copy()))
    model.dense_net.load_state_dict(stored.dense_state())
    features = {
        feature: torch.from_numpy(keys)
        if isinstance(keys, np.ndarray)
        else (torch.from_numpy(keys.values), torch.from_numpy(np.diff(keys.offsets)))
        for feature, keys in query.features.items()
    }
    with torch.no_grad():
        return model(None if query.dense is None else torch.from_numpy(query.dense), features).numpy()


def test_what_serving_takes_is_told_of_the_way_in_which_it_is_loaded(tmp_path):
    """Larger than the pieces in which memory is given out; not what the process takes by itself."""
    spec = entry("peers-dlrm", scale=0.1)
    rows = {table.name: np.zeros((table.rows, table.dim), np.float32) for table in spec.tables}
    ModelRepository(tmp_path).write(spec, rows, build_dense_net(spec).state_dict())
    table_bytes = sum(table.size_bytes for table in spec.tables)
    taken = {}
    for row_format in (RowFormat.FP32, RowFormat.FP16):
        loaded = LoadedModel.load(tmp_path, spec.name, options=LoadOptions(row_format=row_format))
        taken[row_format] = loaded.serving_bytes(1, 32, 1)
        assert loaded.serving_bytes(4, 32, 1) > taken[row_format]
        assert loaded.serving_bytes(2, 32, 2) == loaded.serving_bytes(4, 32, 1)
        assert loaded.serving_bytes(1, 64, 1) > taken[row_format]
        loaded.close()
    assert table_bytes < taken[RowFormat.FP32] < 2 * table_bytes
    assert taken[RowFormat.FP32] - taken[RowFormat.FP16] == pytest.approx(table_bytes / 2, rel=0.2)


def test_how_a_model_is_loaded_in_words(tmp_path):
    assert LoadOptions().words() == "scripted, rows fp32"
    less = LoadOptions(GraphMode.COMPILED, 1000, tmp_path, row_format=RowFormat.INT8)
    assert less.words() == "compiled, rows int8, 1000 bytes of tables in memory"
    assert replace(less, persistent_dir=tmp_path / "elsewhere").words() == less.words()
    tiers = LoadOptions(hierarchy=HierarchyConfig())
    assert tiers.words().startswith("scripted, rows fp32, tiers ")
    redis = VolatileConfig(VolatileType.REDIS)
    words = [
        LoadOptions(hierarchy=HierarchyConfig(volatile_db=volatile)).words()
        for volatile in (redis, replace(redis, password="secret"))
    ]
    assert words[0] == words[1], "the same tiers"
    larger = HierarchyConfig(cache=CacheConfig(cache_fraction=0.9))
    assert LoadOptions(hierarchy=larger).words() != tiers.words()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", [GraphMode.EAGER, GraphMode.SCRIPTED])
def test_scores_are_those_of_the_plain_model(repository, name, mode):
    model = LoadedModel.load(repository, name, options=LoadOptions(mode))
    for items in (1, 2, 37):
        query = model.random_query(items, seed=items)
        scores = model.predict(query.features, query.dense)
        assert scores.shape == (items, model.spec.outputs)
        np.testing.assert_allclose(scores, reference_scores(repository, name, query), atol=1e-5)
    model.close()


@pytest.mark.parametrize("name", ["peers-dlrm", "din"])
def test_jagged_keys_are_scored_as_the_plain_model_does(repository, jagged_inputs, name):
    model = hebe.load(repository, name)
    features, dense = jagged_inputs(model.spec, 19, np.random.default_rng(5))
    query = model.query(features, dense)
    np.testing.assert_allclose(model.predict(features, dense), reference_scores(repository, name, query), atol=1e-5)
    model.close()


def test_keys_that_a_feature_brings_into_range_are_scored_as_those_in_range(tmp_path):
    spec = ModelSpec(
        "ruled",
        "dlrm",
        tables=(EmbeddingTableSpec("t", 50, 4),),
        features=(
            FeatureSpec("wrapped", "t", 2, Pooling.SUM, OutOfRange.WRAP),
            FeatureSpec("low", "t", 2, Pooling.SUM, OutOfRange.CLAMP_LOW),
        ),
        dense_dim=2,
        towers={"bottom": (8, 4), "top": (8, 1)},
    )
    tables = {"t": np.random.default_rng(1).standard_normal((50, 4), dtype=np.float32)}
    ModelRepository(tmp_path).write(spec, tables, build_dense_net(spec, seed=1).state_dict())
    model = hebe.load(tmp_path, "ruled")
    dense = np.ones((2, 2), np.float32)
    low = JaggedKeys(np.array([-7, 3, 49]), np.array([0, 2, 3]))
    scores = model.predict({"wrapped": [[-1, 123], [50, 7]], "low": low}, dense)
    in_range = JaggedKeys(np.array([0, 3, 49]), np.array([0, 2, 3]))
    np.testing.assert_array_equal(scores, model.predict({"wrapped": [[49, 23], [0, 7]], "low": in_range}, dense))
    with pytest.raises(ValueError, match=r"feature low: keys must lie in \[0, 50\)"):
        model.predict({"wrapped": [[1, 1]], "low": [[1, 50]]}, dense[:1])
    model.close()


def test_new_keys_score_as_the_default_vector_where_a_feature_takes_them(tmp_path):
    spec = ModelSpec(
        "open",
        "dlrm",
        tables=(EmbeddingTableSpec("t", 50, 4),),
        features=(FeatureSpec("f", "t", 2, Pooling.SUM), FeatureSpec("g", "t", 2, Pooling.SUM, OutOfRange.WRAP)),
        dense_dim=2,
        towers={"bottom": (8, 4), "top": (8, 1)},
    ).taking_new_keys()
    assert [feature.out_of_range for feature in spec.features] == [OutOfRange.UNKNOWN, OutOfRange.WRAP]
    rows = np.random.default_rng(1).standard_normal((50, 4), dtype=np.float32)
    rows[0] = 0
    ModelRepository(tmp_path).write(spec, {"t": rows}, build_dense_net(spec, seed=1).state_dict())
    model = hebe.load(tmp_path, "open")
    dense, g = np.ones((1, 2), np.float32), [[7, 8]]
    expected = model.predict({"f": [[3, 0]], "g": g}, dense)
    np.testing.assert_array_equal(model.predict({"f": [[3, 2**63 - 1]], "g": g}, dense), expected)
    jagged = JaggedKeys(np.array([50, 3]), np.array([0, 2]))
    np.testing.assert_array_equal(model.predict({"f": jagged, "g": g}, dense), expected)
    with pytest.raises(ValueError, match="feature f: keys must lie in"):
        model.predict({"f": [[3, -2]], "g": g}, dense)
    model.close()


@pytest.fixture
def maximum(tmp_path):
    """A loaded model whose feature `f` has 3 keys, of which the DenseNet could take the maximum, and `g` any key."""
    spec = ModelSpec(
        "maximum",
        "dlrm",
        tables=(EmbeddingTableSpec("t", 50, 4),),
        features=(
            FeatureSpec("f", "t", 3, Pooling.SUM, whole=True),
            FeatureSpec("g", "t", 2, Pooling.SUM, OutOfRange.WRAP),
        ),
        dense_dim=2,
        towers={"bottom": (8, 4), "top": (8, 1)},
    )
    tables = {"t": np.random.default_rng(1).standard_normal((50, 4), dtype=np.float32)}
    ModelRepository(tmp_path).write(spec, tables, build_dense_net(spec, seed=1).state_dict())
    model = hebe.load(tmp_path, "maximum")
    yield model
    model.close()


DENSE = np.ones((2, 2), np.float32)
WHOLE = [[1, 2, 3], [4, 5, 6]]
JAGGED = JaggedKeys(np.array([7, 8, 9]), np.array([0, 2, 3]))


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.uint64, ">i8", None])
def test_keys_of_any_whole_dtype_are_taken_in_either_form(maximum, dtype):
    expected = maximum.predict({"f": np.array(WHOLE), "g": JAGGED}, DENSE)
    values, offsets = (np.array(each, dtype) if dtype else each for each in ([7, 8, 9], [0, 2, 3]))
    strided = np.repeat(np.array(values), 2)[::2]
    for given in (values, strided):
        jagged = hebe.JaggedKeys(given, offsets)
        fixed = np.array(WHOLE, dtype) if dtype else WHOLE
        np.testing.assert_array_equal(maximum.predict({"f": fixed, "g": jagged}, DENSE.tolist()), expected)
    none = hebe.JaggedKeys([], [0, 0, 0])
    padded = JaggedKeys(np.zeros(0, np.int64), np.zeros(3, np.int64))
    np.testing.assert_array_equal(
        maximum.predict({"f": WHOLE, "g": none}, DENSE), maximum.predict({"f": WHOLE, "g": padded}, DENSE)
    )


@pytest.mark.parametrize(
    ("features", "dense", "named"),
    [
        (
            {"f": JaggedKeys([1, 2, 3, 4], [0, 3, 4])},
            DENSE,
            "feature f: length 1 of item 1 is too short: the model takes",
        ),
        ({"f": JaggedKeys(np.arange(7), [0, 3, 7])}, DENSE, r"f: length 4 of item 1: lengths must lie in \[0, 3\]"),
        ({"g": np.array([[2**64 - 5, 1]] * 2, np.uint64)}, DENSE, "g: keys: 18446744073709551611 does not fit int64"),
        ({"g": JaggedKeys(np.array([2**63, 1], np.uint64), [0, 1, 2])}, DENSE, "feature g: values: 92.* fit int64"),
        ({"g": JaggedKeys([1, 2], np.array([0, 1, 2**63], np.uint64))}, DENSE, "feature g: offsets: 92.* fit int64"),
        ({"g": [[1, 2], [1]]}, DENSE, r"feature g: keys are no array; .*JaggedKeys\(values, offsets\)"),
        ({}, [[1.0], [1.0, 2.0]], "dense: .*: must be float32"),
        ({}, [[10**400] * 2] * 2, "dense: .*: must be float32"),
        ({"g": [[2**70, 1]] * 2}, DENSE, "feature g: keys are object: must be whole numbers that int64 holds"),
        ({"g": JaggedKeys([1.0, 2.0], [0, 1, 2])}, DENSE, "feature g: values are float64: must be whole numbers"),
        (
            {"g": JaggedKeys([[1, 2]], [0, 1, 2])},
            DENSE,
            r"g: values have shape \[1, 2\], offsets \[3\]: must be \[keys\]",
        ),
        ({"g": JaggedKeys([], [])}, DENSE, r"feature g: values have shape \[0\], offsets \[0\]: must be \[keys\] and"),
        ({}, np.array([[1, 2], [3, np.nan]]), "dense: value nan of item 1, column 1: every value must be finite"),
        ({}, np.array([[1, -1e300], [3, 4]]), r"dense: value -1e\+300 of item 0, column 1: .* finite in float32"),
        ({}, [[1, 2], [float("inf"), 2]], "dense: value inf of item 1, column 0"),
        ({"dense": DENSE}, DENSE, r"unknown feature\(s\): dense"),
        ({"h": WHOLE}, DENSE, r"unknown feature\(s\): h"),
    ],
)
def test_keys_and_numbers_that_a_server_refuses_are_refused_here(maximum, features, dense, named):
    with pytest.raises(ValueError, match=named):
        maximum.predict({"f": WHOLE, "g": JAGGED, **features}, dense)


def load_tiered(repository, directory, **cache):
    tiers = {"cache": cache, "persistent_db": {"type": "rocks_db", "path": str(directory)}}
    options = LoadOptions(hierarchy=HierarchyConfig.from_mapping(tiers), persistent_dir=directory)
    return LoadedModel.load(repository, "din", options=options)


@pytest.mark.parametrize("op_workers", [1, 2])
def test_warm_ups_leave_the_tiers_and_their_statistics_as_they_are(repository, tmp_path, op_workers):
    model = load_tiered(repository, tmp_path, cache_fraction=0.2, hit_rate_threshold=0.5)
    tables = [table.name for table in model.spec.tables]
    held = [model.hierarchy.tiers.cache.keys_by_use(table).tolist() for table in tables]
    evictions = model.tiers_state.cache_evictions
    pipeline = model.new_pipeline(64, 64, op_workers=op_workers)
    for run in (model.new_executor(64, op_workers=op_workers).rehearse, pipeline.sparse().rehearse):
        model.warm_up(run, 64)
    model.hierarchy.tiers.background.drain()
    assert model.tiers_state.counts == LookupCounts()
    assert model.tiers_state.cache_evictions == evictions
    assert [model.hierarchy.tiers.cache.keys_by_use(table).tolist() for table in tables] == held
    query = model.random_query(16, seed=1)
    model.predict(query.features, query.dense)
    model.hierarchy.tiers.background.drain()
    counts = model.tiers_state.counts
    distinct = {table.name: set() for table in model.spec.tables}
    for feature in model.spec.features:
        distinct[feature.table].update(query.features[feature.name].flatten().tolist())
    assert counts.cache_hits + counts.cache_misses == sum(map(len, distinct.values()))
    model.close()


def test_random_keys_are_mostly_such_as_level_1_holds(repository, tmp_path):
    """It may hold others than a query may have."""
    model = load_tiered(repository, tmp_path, cache_fraction=0.05, init_ec=False)
    tiers, features = model.hierarchy.tiers, model.spec.features
    apart = [model.random_query(200, seed).features for seed in (1, 1, 2)]
    for feature in features:
        same, again, other = (each[feature.name] for each in apart)
        assert np.array_equal(same, again)
        assert not np.array_equal(same, other)
    held = np.array([-4, 3, 17, 1 << 40])
    for table in model.spec.tables:
        tiers.cache.insert(table.name, held, np.zeros((held.size, table.dim), np.float32))
    query = model.random_query(200, seed=1)
    for feature in features:
        keys = query.features[feature.name]
        assert 0.9 < np.isin(keys, [3, 17]).mean() < 1
        assert 0 <= keys.min() <= keys.max() < model.spec.table(feature.table).rows
    model.close()


def test_numbers_may_stand_among_the_features_as_in_a_request(maximum):
    given = {"f": WHOLE, "g": JAGGED, "dense": DENSE.tolist()}
    np.testing.assert_array_equal(maximum.predict(given), maximum.predict({"f": WHOLE, "g": JAGGED}, DENSE))
    assert "dense" in given, "the caller's stay as they are"
    with pytest.raises(ValueError, match=r"model maximum: missing feature\(s\): g$"):
        maximum.predict({"f": WHOLE, "h": JAGGED}, DENSE)


def test_numbers_and_uneven_behaviours_of_a_model_that_has_them_not_are_refused(repository):
    model = hebe.load(repository, "din")
    query = model.random_query(3)
    uneven = {"item_history": JaggedKeys(np.ones(3, np.int64), np.array([0, 1, 2, 3]))}
    with pytest.raises(ValueError, match=r"item 0 has 1 key\(s\) of 'item_history' and \d+ of 'category_history'"):
        model.predict({**query.features, **uneven})
    with pytest.raises(ValueError, match="dense: model din has no dense input"):
        model.predict(query.features, np.ones((3, 13), np.float32))
    np.testing.assert_array_equal(
        model.predict(query.features, np.ones((3, 0), np.float32)), model.predict(query.features)
    )
    model.close()


def test_a_batch_of_parts_gives_each_query_its_own_scores(repository):
    model = hebe.load(repository, "peers-dlrm")
    queries = [model.random_query(items, seed=items) for items in (30, 7, 50)]
    whole = [model.predict(query.features, query.dense) for query in queries]
    parts = (SubQuery(queries[0], 10, 30), SubQuery(queries[1], 0, 7), SubQuery(queries[2], 25, 33))
    executor = model.new_executor(64)
    executor.run(Batch(0, (SubQuery(queries[2], 0, 50),), 50))  # leaves its keys in the buffers
    outcome = executor.run(Batch(1, parts, 35))
    expected = np.concatenate([whole[0][10:30], whole[1], whole[2][25:33]])
    np.testing.assert_allclose(outcome.scores, expected, atol=1e-6)
    assert outcome.lookup.keys.total == 35 * model.spec.lookups_per_item
    assert outcome.lookup.keys.defaulted == 0
    assert outcome.service_s == outcome.sparse_s + outcome.dense_s > 0
    model.close()


@pytest.fixture
def executors_made(monkeypatch):
    """How many items each executor was made for."""
    made = []

    class Counted(loaded_model.ModelExecutor):
        def __init__(self, spec, hierarchy, dense, max_items, *others, **settings):
            made.append(max_items)
            super().__init__(spec, hierarchy, dense, max_items, *others, **settings)

    monkeypatch.setattr(loaded_model, "ModelExecutor", Counted)
    return made


def test_predicting_again_makes_no_executor_again(repository, executors_made, monkeypatch):
    monkeypatch.setattr(loaded_model, "_KEPT_ITEMS", 64)
    model = hebe.load(repository, "din")
    queries = {items: model.random_query(items, seed=items) for items in (33, 1, 64, 7, 65)}
    kept = {}
    for items in (33, 1, 64, 7, 33):
        kept[items] = model.predict(queries[items].features, queries[items].dense)
    assert executors_made == [64]
    with pytest.raises(ValueError, match="at least one item"):
        model.predict({name: keys[:0] for name, keys in queries[1].features.items()})
    for _ in range(2):
        model.predict(queries[65].features, queries[65].dense)
        model.predict(queries[7].features, queries[7].dense)
    assert executors_made[1:] == [65, 65], "what is too large is not kept"
    for items, scores in kept.items():
        np.testing.assert_allclose(scores, reference_scores(repository, "din", queries[items]), atol=1e-5)
    model.close()


def test_threads_that_predict_at_once_each_get_their_own_scores(repository, executors_made):
    model = hebe.load(repository, "peers-dlrm")
    queries = [model.random_query(items, seed=items) for items in (150, 90, 40)]
    wanted = [reference_scores(repository, "peers-dlrm", query) for query in queries]
    start = threading.Barrier(len(queries))

    def predict(number):
        start.wait(60)
        for turn in range(30):
            which = (number + turn) % len(queries)
            scores = model.predict(queries[which].features, queries[which].dense)
            np.testing.assert_allclose(scores, wanted[which], atol=1e-5)

    with ThreadPoolExecutor(len(queries)) as pool:
        list(pool.map(predict, range(len(queries))))
    assert len(executors_made) < 30, "they are kept, if not for each size"
    model.close()


def test_a_kept_executor_does_not_change_scores_given_before(repository, monkeypatch):
    """Of a DenseNet that answers with its own input."""
    model = hebe.load(repository, "wnd")
    executor = model.new_executor(8)
    monkeypatch.setattr(executor._dense, "_run_dense", on_buffers(lambda _dense, sparse, *_: sparse[:, :1]))
    monkeypatch.setattr(model, "new_executor", lambda _items: executor)
    first, second = model.random_query(8, seed=1), model.random_query(8, seed=2)
    scores = model.predict(first.features, first.dense)
    before = scores.copy()
    assert not np.array_equal(model.predict(second.features, second.dense), before)
    np.testing.assert_array_equal(scores, before)
    model.close()


def test_closing_lets_go_of_the_kept_executor_and_the_densenet(repository, executors_made):
    model = hebe.load(repository, "wnd")
    query = model.random_query(4)
    model.predict(query.features, query.dense)
    kept, dense = weakref.ref(model._idle[0]), weakref.ref(model._idle[0]._dense._run_dense)
    assert len(executors_made) == 1
    model.close()
    gc.collect()  # TorchScript's modules are cycles
    assert (kept(), dense()) == (None, None)
    with pytest.raises(StoreError, match="closed"):
        model.predict(query.features, query.dense)


def test_a_batch_beyond_the_executors_buffers_is_refused(repository):
    model = hebe.load(repository, "peers-dlrm")
    query = model.random_query(9)
    with pytest.raises(ValueError, match="at most 8"):
        model.new_executor(8).run(Batch(0, (SubQuery(query, 0, 9),), 9))
    model.close()


def test_bounded_table_memory_gives_the_same_scores(repository, tmp_path):
    whole = hebe.load(repository, "peers-dlrm")
    options = LoadOptions(table_memory_bytes=4 << 20, persistent_dir=tmp_path)
    model = LoadedModel.load(repository, "peers-dlrm", options=options)
    assert model.hierarchy.memory_bytes <= 4 << 20 < whole.hierarchy.memory_bytes
    query = whole.random_query(40, seed=8)
    np.testing.assert_allclose(
        model.predict(query.features, query.dense), whole.predict(query.features, query.dense), atol=1e-6
    )
    model.close()
    whole.close()


def test_stores_of_versions_that_the_repository_has_no_more_are_removed(repository, tmp_path):
    options = LoadOptions(table_memory_bytes=4 << 20, persistent_dir=tmp_path / "rows")
    home, name = tmp_path / "rows" / "peers-dlrm", "peers-dlrm"
    models = shutil.copytree(repository, tmp_path / "models")
    for version in ("2", "3", "5"):
        shutil.copytree(models / name / "1", models / name / version)
    for version in (1, 2, 3):
        LoadedModel.load(models, name, version, options).close()
    serving = LoadedModel.load(models, name, 5, options)
    for other in ("4", "6", "07"):
        shutil.copytree(home / "3", home / other)
    (home / "4" / "thesis.txt").write_text("years of work")
    assert remove_old_stores(models, name, 5, options) == {home / "4": kept(home / "4", "thesis.txt")}
    shutil.rmtree(models / name / "1")
    shutil.rmtree(models / name / "3")
    user = LoadedModel.load(models, name, 2, options)
    shutil.rmtree(models / name / "2")
    assert remove_old_stores(models, name, 5, LoadOptions()) == {}
    outcomes = remove_old_stores(models, name, 5, options)
    assert outcomes.pop(home / "2").startswith(f"persistent store {home / '2'}: is in use by another process or model")
    assert outcomes == {home / "1": "", home / "3": "", home / "4": kept(home / "4", "thesis.txt")}
    assert sorted(path.name for path in home.iterdir()) == ["07", "2", "4", "5", "6"]
    query = user.random_query(9)
    np.testing.assert_array_equal(
        user.predict(query.features, query.dense), serving.predict(query.features, query.dense)
    )
    user.close()
    serving.close()
    shutil.rmtree(models / name)
    assert remove_old_stores(models, name, 5, options) == {}, "a repository that lost the model is not to be trusted"


def kept(path, stranger):
    return f"persistent store {path}: holds {stranger}, which is not the store's: move it away"


def damage_row(models):
    """One bit of the last row of a table is another one; returns its file. Done again, it is as it was."""
    path = models / "peers-dlrm" / "1" / "tables" / "table1.safetensors"
    with path.open("r+b") as file:
        file.seek(-5, os.SEEK_END)
        (byte,) = file.read(1)
        file.seek(-5, os.SEEK_END)
        file.write(bytes([byte ^ 1]))
    return path


HASH_MAP = HierarchyConfig.from_mapping({"volatile_db": {"type": "parallel_hash_map", "num_partitions": 3}})


@pytest.mark.parametrize(
    "options",
    [{}, {"row_format": RowFormat.INT8}, {"table_memory_bytes": 4 << 20}, {"hierarchy": HASH_MAP}],
    ids=["resident", "int8", "RocksDB", "hash map"],
)
def test_a_damaged_row_that_is_copied_is_found_and_nothing_of_it_is_served(repository, tmp_path, options):
    """Wherever rows are copied to."""
    models, directory = shutil.copytree(repository, tmp_path / "models"), tmp_path / "rows"
    loading = LoadOptions(**options, persistent_dir=directory if "table_memory_bytes" in options else None)
    path = damage_row(models)
    for _ in range(2):  # what the first attempt has left is not taken for whole by the next
        with pytest.raises(RepositoryError, match=f"^{path}: checksum differs: .*: restore it from a backup"):
            LoadedModel.load(models, "peers-dlrm", options=loading)
    damage_row(models)
    model = LoadedModel.load(models, "peers-dlrm", options=loading)
    query = model.random_query(20, seed=2)
    if "hierarchy" not in options:  # whose cache answers with default vectors at first
        scores, wanted = model.predict(query.features, query.dense), reference_scores(repository, "peers-dlrm", query)
        np.testing.assert_allclose(scores, wanted, atol=0.05 if "row_format" in options else 1e-5)
    model.close()


def test_with_verify_a_damaged_row_is_found_before_anything_is_loaded(repository, tmp_path, monkeypatch):
    models, progress = shutil.copytree(repository, tmp_path / "models"), []
    options = LoadOptions(verify=True)
    LoadedModel.load(models, "peers-dlrm", options=options, progress=lambda *done: progress.append(done)).close()
    everything = sum(ModelRepository(models).open("peers-dlrm").file_bytes.values())
    assert (everything, everything) in progress
    path = damage_row(models)
    LoadedModel.load(models, "peers-dlrm", options=LoadOptions(check_rows=False)).close()
    monkeypatch.setattr(EmbeddingHierarchy, "open", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(RepositoryError, match=f"{path}: checksum differs"):
        LoadedModel.load(models, "peers-dlrm", options=options)


def test_wrong_inputs_are_named(repository):
    model = hebe.load(repository, "peers-dlrm")
    good = model.random_query(3)
    cases = [
        ({**good.features, "extra": good.features["feature0"]}, good.dense, "extra"),
        ({**good.features, "feature0": good.features["feature0"][:, :5]}, good.dense, "feature0: has shape .3, 5."),
        ({**good.features, "feature1": good.features["feature1"][:2]}, good.dense, "feature1: has 2 items"),
        ({**good.features, "feature2": good.features["feature2"] - 10**9}, good.dense, "feature2: keys must lie"),
        ({name: keys[:0] for name, keys in good.features.items()}, good.dense, "at least one item"),
        (good.features, None, "dense"),
        ({**good.features, "feature3": JaggedKeys(np.arange(90), np.array([0, 81, 85, 90]))}, good.dense, "lengths"),
        ({**good.features, "feature3": JaggedKeys(np.arange(90), np.array([0, 5, 9, 80]))}, good.dense, "offsets"),
    ]
    for features, dense, named in cases:
        with pytest.raises(ValueError, match=named):
            model.predict(features, dense)
    model.close()


def test_warm_up_measures_rising_sizes_and_refuses_models_that_score_nonsense(repository):
    model = hebe.load(repository, "wnd")
    executor = model.new_executor(64)
    sizes = [items for items, _ in model.warm_up(executor.run, 64, repeats=1)]
    assert sizes == [1, 4, 16, 64]

    class Broken:
        def run(self, batch):
            outcome = executor.run(batch)
            outcome.scores[0] = np.nan
            return outcome

    with pytest.raises(ValueError, match="not finite"):
        model.warm_up(Broken().run, 64)
    model.close()


def test_unknown_models_and_directories_are_named(repository, tmp_path):
    with pytest.raises(RepositoryError, match="nothing-of-that-name"):
        hebe.load(repository, "nothing-of-that-name")
    with pytest.raises(RepositoryError, match="not a model repository"):
        stored_versions(tmp_path / "missing")
    assert stored_versions(repository)["din"] == (1,)


def test_updates_that_cannot_be_closed_do_not_keep_the_tables_in_memory():
    closed = []

    class Updates:
        def close(self):
            raise StoreError("not to be closed")

    class Tables:
        def close(self):
            closed.append(0)

    model = LoadedModel(SimpleNamespace(spec=entry("wnd"), version=1, identity="ab"), Tables(), dense=None)
    model.updates = Updates()
    with pytest.raises(StoreError, match="not to be closed"):
        model.close()
    assert closed == [0]
