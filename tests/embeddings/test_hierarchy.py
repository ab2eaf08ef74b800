import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.embeddings import hierarchy
from hebe.embeddings.config.hierarchy_config import CacheConfig, ConfigError, HierarchyConfig
from hebe.embeddings.hierarchy import EmbeddingHierarchy, LookupReport, resident_shapes
from hebe.embeddings.memory import table_memory
from hebe.embeddings.memory.table_memory import HUGE_PAGE_BYTES
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import StoreError
from hebe.query import KeyCounts
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling

SPEC = ModelSpec(
    "model",
    "din",
    (
        EmbeddingTableSpec("item", 30_000, 64),
        EmbeddingTableSpec("user", 20_000, 33),
        EmbeddingTableSpec("category", 50, 7),
    ),
    (
        FeatureSpec("user", "user", 3, Pooling.MEAN),
        FeatureSpec("item", "item", 1, Pooling.SUM),
        FeatureSpec("history", "item", 5, Pooling.ATTENTION),
        FeatureSpec("category", "category", 4, Pooling.SUM),
        FeatureSpec("friends", "user", 2, Pooling.CONCAT),
    ),
)
TABLE_BYTES = SPEC.table_bytes
RESIDENT = 3 * HUGE_PAGE_BYTES
"""Memory for the smaller tables, and a cache of about half of the largest."""


@pytest.fixture(scope="module")
def tables():
    rng = np.random.default_rng(0)
    return {table.name: rng.standard_normal((table.rows, table.dim)).astype(np.float32) for table in SPEC.tables}


def keys_for(items: int, seed: int, padding: bool = True) -> np.ndarray:
    rng = np.random.default_rng(seed)
    columns = [
        rng.integers(-1 if padding else 0, SPEC.table(feature.table).rows, (items, feature.lookups))
        for feature in SPEC.features
    ]
    return np.concatenate(columns, axis=1)


def expected(tables, keys: np.ndarray) -> np.ndarray:
    """The SparseNet's output by the contract, one item and feature at a time."""
    out, column = np.zeros((len(keys), SPEC.sparse_width), np.float32), 0
    for slot in SPEC.slots:
        mine = keys[:, column : column + slot.feature.lookups]
        column += slot.feature.lookups
        for item, item_keys in enumerate(mine):
            rows = np.where(item_keys[:, None] >= 0, tables[slot.feature.table][item_keys], 0)
            if slot.feature.pooling.reduces:
                count = max(1, (item_keys >= 0).sum()) if slot.feature.pooling is Pooling.MEAN else 1
                rows = rows.sum(axis=0) / count
            out[item, slot.column : slot.column + slot.width] = rows.reshape(-1)
    return out


def look_up(opened: EmbeddingHierarchy, keys: np.ndarray) -> tuple[np.ndarray, LookupReport]:
    out = np.full((len(keys), SPEC.sparse_width), np.nan, np.float32)
    return out, opened.lookup(keys, out, opened.new_scratch(len(keys)))


def partly_resident(tables, path: Path) -> EmbeddingHierarchy:
    opened = EmbeddingHierarchy.open(SPEC, tables, table_memory_bytes=RESIDENT, persistent_dir=path, identity="one")
    assert opened.memory_bytes <= EmbeddingHierarchy.planned_bytes(SPEC, RESIDENT) <= RESIDENT
    assert opened.tiers is not None
    return opened


def all_tiers(place: Path, **cache) -> HierarchyConfig:
    return HierarchyConfig.from_mapping(
        {
            "cache": {"cache_fraction": 0.1, **cache},
            "volatile_db": {"type": "parallel_hash_map", "num_partitions": 3, "overflow_margin": 2000},
            "persistent_db": {"type": "rocks_db", "path": str(place), "timeout_ms": 60_000},
        }
    )


@pytest.fixture(scope="module", params=["all in memory", "partly resident", "all tiers"])
def opened(request, tables, tmp_path_factory):
    if request.param == "all in memory":
        yield (made := EmbeddingHierarchy.open(SPEC, tables))
    elif request.param == "partly resident":
        yield (made := partly_resident(tables, tmp_path_factory.mktemp("rows") / "1"))
    else:
        place = tmp_path_factory.mktemp("rows") / "1"
        yield (made := EmbeddingHierarchy.open(SPEC, tables, persistent_dir=place, config=all_tiers(place)))
    made.close()


@pytest.mark.parametrize("items", [0, 1, 3, 64])
def test_looks_up_what_the_contract_says(opened, tables, items):
    keys = keys_for(items, seed=items)
    out, report = look_up(opened, keys)
    np.testing.assert_allclose(out, expected(tables, keys), rtol=1e-5, atol=1e-6)
    assert report == LookupReport(KeyCounts(int((keys >= 0).sum())))


def test_repeated_keys_and_a_used_scratch(opened, tables):
    scratch = opened.new_scratch(64)
    for seed in range(3):
        keys = keys_for(64, seed)
        keys[32:] = keys[:32]
        before = keys.copy()
        out = np.empty((64, SPEC.sparse_width), np.float32)
        opened.lookup(keys, out, scratch)
        assert np.array_equal(keys, before)
        np.testing.assert_allclose(out, expected(tables, keys), rtol=1e-5, atol=1e-6)


def test_workers_share_it(opened, tables):
    def work(seed):
        scratch, out = opened.new_scratch(32), np.empty((32, SPEC.sparse_width), np.float32)
        for turn in range(3):
            keys = keys_for(32, 10 * seed + turn)
            opened.lookup(keys, out, scratch)
            np.testing.assert_allclose(out, expected(tables, keys), rtol=1e-5, atol=1e-6)
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(8)))


@pytest.mark.parametrize("key", [20_000, 2**62, -2, -(2**63)])
def test_keys_out_of_range_are_errors(opened, key):
    keys = keys_for(4, 0)
    keys[2, 1] = key
    with pytest.raises(ValueError, match="out of range"):
        look_up(opened, keys)


def test_wrong_shapes_are_errors(opened):
    keys = keys_for(4, 0)
    with pytest.raises(ValueError, match=r"keys \[4, 14\], out \[4, 3\]: must be \[n, 15\]"):
        opened.lookup(keys[:, 1:], np.zeros((4, 3), np.float32), opened.new_scratch(4))
    with pytest.raises(ValueError, match=r"into an output of 2|scratch for 2"):
        opened.lookup(keys, np.zeros((2, SPEC.sparse_width), np.float32), opened.new_scratch(2))


def test_keys_that_no_tier_has_are_counted_by_item(tables, tmp_path):
    partly_resident(tables, tmp_path / "1").close()
    store = RocksDbStore(tmp_path / "1")
    gone = np.arange(25_000, 30_000)
    assert store.delete("item", gone) == 5000
    store.close()
    opened = partly_resident(tables, tmp_path / "1")
    keys = keys_for(64, seed=1)
    out, report = look_up(opened, keys)
    without = {**tables, "item": tables["item"].copy()}
    without["item"][gone] = 0
    np.testing.assert_allclose(out, expected(without, keys), rtol=1e-5, atol=1e-6)
    unknown = (keys[:, 3:9] >= 25_000).sum(axis=1)
    assert report.keys == KeyCounts(int((keys >= 0).sum()), 0, 0, int(unknown.sum()))
    assert report.keys.unknown > 0
    assert np.array_equal(
        report.by_item, np.stack([(keys >= 0).sum(axis=1), 0 * unknown, 0 * unknown, unknown], axis=1)
    )
    opened.close()


def test_rows_are_written_to_disk_once(tables, tmp_path):
    calls = []
    for _ in range(2):
        calls.append([])
        EmbeddingHierarchy.open(
            SPEC,
            tables,
            table_memory_bytes=RESIDENT,
            persistent_dir=tmp_path / "1",
            progress=lambda done, total: calls[-1].append((done, total)),
        ).close()
    shapes = resident_shapes(SPEC, RESIDENT)
    resident = sum(4 * rows * dim for rows, dim in shapes.values())
    assert calls[0][-1] == (TABLE_BYTES,) * 2
    assert calls[1][-1] == (resident,) * 2
    for told in calls:
        assert [done for done, _ in told] == sorted(done for done, _ in told)
    changed = {**tables, "category": tables["category"] + 1}
    opened = EmbeddingHierarchy.open(SPEC, changed, table_memory_bytes=RESIDENT, persistent_dir=tmp_path / "1")
    keys = keys_for(8, 0)
    np.testing.assert_allclose(look_up(opened, keys)[0], expected(changed, keys), rtol=1e-5, atol=1e-5)
    opened.close()


def test_a_failing_store_costs_rows_that_are_counted_and_the_next_lookup_is_unharmed(tables, tmp_path, monkeypatch):
    opened = partly_resident(tables, tmp_path / "1")
    keys = keys_for(8, 0)
    with monkeypatch.context() as broken:

        def fail(*_):
            raise StoreError("disk on fire")

        broken.setattr(RocksDbStore, "query", fail)
        report = look_up(opened, keys)[1]
        assert report.keys.defaulted > 0
        assert report.keys.unknown == 0
        assert "disk on fire" in opened.tiers.state.levels[0].fault
    np.testing.assert_allclose(look_up(opened, keys)[0], expected(tables, keys), rtol=1e-5, atol=1e-6)
    opened.close()


def test_closing_gives_memory_and_files_back(tables, tmp_path):
    for opened in (EmbeddingHierarchy.open(SPEC, tables), partly_resident(tables, tmp_path / "1")):
        opened.close()
        opened.close()
        with pytest.raises(StoreError, match="model model: its tables are closed"):
            look_up(opened, keys_for(1, 0))
    RocksDbStore(tmp_path / "1").close()  # a writer may have it now


def test_a_bound_without_a_place_for_the_rest_is_an_error(tables):
    with pytest.raises(StoreError, match="and the table memory is 6,291,456: allow more, or give a persistent dir"):
        EmbeddingHierarchy.open(SPEC, tables, table_memory_bytes=RESIDENT)
    with pytest.raises(StoreError, match="must be at least 4,194,304"):
        EmbeddingHierarchy.open(SPEC, tables, table_memory_bytes=1000)
    pieces = {name: [rows] for name, rows in tables.items()}
    with pytest.raises(StoreError, match="comes in pieces: give an identity"):
        EmbeddingHierarchy.open(SPEC, pieces, table_memory_bytes=RESIDENT, persistent_dir=Path("/nonexistent"))


def test_a_failed_load_leaves_nothing(tables, tmp_path, monkeypatch):
    made = []

    class Watched(table_memory.TableMemory):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(hierarchy, "TableMemory", Watched)
    with pytest.raises(StoreError, match="table user has 10 rows: must have 20000"):
        EmbeddingHierarchy.open(SPEC, {**tables, "user": tables["user"][:10]})
    wrong = {**tables, "category": tables["category"][:10]}
    with pytest.raises(StoreError, match="table category has 10 rows"):
        EmbeddingHierarchy.open(SPEC, wrong, table_memory_bytes=RESIDENT, persistent_dir=tmp_path / "1")
    assert [memory.closed for memory in made] == [True, True]
    partly_resident(tables, tmp_path / "1").close()


@pytest.mark.parametrize("tiered", [True, False])
def test_a_default_value_for_a_table_that_the_model_has_not_is_an_error(tables, tmp_path, tiered):
    """Before anything is read or written."""
    own = {SPEC.name: CacheConfig(default_value_for_each_table={"user": 0.5, "catgory": 1.0})}
    config = replace(all_tiers(tmp_path) if tiered else HierarchyConfig(), models=own)
    said = r"has table catgory, and model .* has none of that name \(did you mean category\?\); there are "
    with pytest.raises(ConfigError, match=said):
        EmbeddingHierarchy.open(SPEC, tables, config=config, persistent_dir=tmp_path / "1")
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=50)
@given(st.integers(2 * HUGE_PAGE_BYTES, 2 * TABLE_BYTES))
def test_resident_rows_stay_within_the_bound(bound):
    shapes = resident_shapes(SPEC, bound)
    assert table_memory.planned_bytes(shapes) <= bound or shapes == hierarchy.all_shapes(SPEC)
    assert EmbeddingHierarchy.planned_bytes(SPEC, bound) <= bound
    assert shapes["category"] == (50, 7)  # the smallest comes first
    assert shapes.items() <= hierarchy.all_shapes(SPEC).items()
    if bound >= TABLE_BYTES + HUGE_PAGE_BYTES:
        assert shapes == hierarchy.all_shapes(SPEC)


def test_everything_in_memory_needs_no_directory(tables):
    with tempfile.TemporaryDirectory() as place:
        opened = EmbeddingHierarchy.open(SPEC, tables, table_memory_bytes=1 << 30, persistent_dir=Path(place) / "no")
        assert not (Path(place) / "no").exists()
        opened.warm_up()
        opened.close()


def scratch_bytes(opened: EmbeddingHierarchy, items: int) -> int:
    """What one lookup of uniform keys has made a thread's scratch take."""
    scratch, keys = opened.new_scratch(items), keys_for(items, 11, padding=False)
    opened.lookup(keys, np.empty((items, SPEC.sparse_width), np.float32), scratch)
    distinct = scratch.deduplicator.run(keys, opened._tiered)
    return scratch.keys.nbytes + scratch.fetched.nbytes + scratch.deduplicator._scratch.nbytes + distinct.keys.nbytes


def test_what_lookups_in_tiers_take_is_known_before(tables, tmp_path):
    """Beside what a tier hands over: half of the largest table's rows, which are about half of all."""
    items = 2000
    assert EmbeddingHierarchy.planned_scratch_bytes(SPEC, items) == 0
    config = HierarchyConfig.from_mapping({"volatile_db": {"type": "parallel_hash_map"}})
    opened = EmbeddingHierarchy.open(SPEC, tables, config=config)
    planned = EmbeddingHierarchy.planned_scratch_bytes(SPEC, items, config=config)
    assert scratch_bytes(opened, items) == pytest.approx(planned, rel=0.01)
    opened.close()
    opened = partly_resident(tables, tmp_path / "1")
    planned = EmbeddingHierarchy.planned_scratch_bytes(SPEC, items, RESIDENT)
    assert 1.2 * scratch_bytes(opened, items) < planned < 1.6 * scratch_bytes(opened, items)
    opened.close()


def test_kernels_are_there_before_tables_take_the_memory(tables, monkeypatch):
    order = []
    monkeypatch.setattr(hierarchy.kernel, "warm_up", lambda _row_format: order.append("kernels"))

    def refuse(*_arguments):
        order.append("tables")
        raise StoreError("no memory")

    monkeypatch.setattr(hierarchy, "TableMemory", refuse)
    with pytest.raises(StoreError, match="no memory"):
        EmbeddingHierarchy.open(SPEC, tables)
    assert order == ["kernels", "tables"]
