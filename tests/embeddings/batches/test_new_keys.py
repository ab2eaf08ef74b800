from dataclasses import replace

import numpy as np
import pytest

from hebe.embeddings.batches.new_keys import NewKeys
from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.embeddings.memory.table_memory import HUGE_PAGE_BYTES
from hebe.embeddings.updates.contract import LogPlace, TopicPartition
from hebe.query import KeyCounts
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, OutOfRange, Pooling

SPEC = ModelSpec(
    "model",
    "din",
    (EmbeddingTableSpec("item", 30_000, 64), EmbeddingTableSpec("user", 20_000, 3)),
    (
        FeatureSpec("user", "user", 3, Pooling.MEAN, OutOfRange.UNKNOWN),
        FeatureSpec("item", "item", 1, Pooling.SUM),
        FeatureSpec("history", "item", 2, Pooling.ATTENTION, OutOfRange.UNKNOWN),
    ),
)
DEFAULTS = {"item": -1.0, "user": 0.5}
GREATEST = 2**63 - 1
CACHE = {"default_value_for_each_table": DEFAULTS}
KEYS = np.array([[1, 2, -1, 3, 4, 5], [20_000, 2, -1, 3, 4, GREATEST], [GREATEST, 20_001, 20_000, 7, 30_000, -1]])


@pytest.fixture(scope="module")
def tables():
    rng = np.random.default_rng(0)
    return {table.name: rng.standard_normal((table.rows, table.dim)).astype(np.float32) for table in SPEC.tables}


@pytest.fixture(params=["resident", "partly resident", "tiered"])
def opened(request, tables, tmp_path):
    place, described = tmp_path / "1", {"cache": CACHE}
    rest = {"persistent_dir": place, "identity": "one"}
    if request.param == "partly resident":
        rest["table_memory_bytes"] = 3 * HUGE_PAGE_BYTES
    if request.param == "tiered":
        described["volatile_db"] = {"type": "parallel_hash_map", "num_partitions": 2}
    made = EmbeddingHierarchy.open(SPEC, tables, config=HierarchyConfig.from_mapping(described), **rest)
    assert (made.tiers is None) == (request.param == "resident")
    yield made
    made.close()


def looked_up(opened, keys):
    out = np.full((len(keys), SPEC.sparse_width), np.nan, np.float32)
    return out, opened.lookup(keys, out, opened.new_scratch(len(keys)))


def test_they_read_the_default_vector_wherever_the_table_is(opened, tables):
    out, report = looked_up(opened, KEYS)
    user, item = tables["user"], tables["item"]
    np.testing.assert_allclose(out[:, :3], [(user[1] + user[2]) / 2, (user[2] + 0.5) / 2, [0.5] * 3], rtol=1e-5)
    np.testing.assert_array_equal(out[:, 3:67], item[[3, 3, 7]])
    np.testing.assert_array_equal(out[:, 67:131], [item[4], item[4], [-1.0] * 64])
    np.testing.assert_array_equal(out[:, 131:], [item[5], [-1.0] * 64, [0.0] * 64])
    assert report.keys == KeyCounts(15, unknown=6)
    assert report.by_item.tolist() == [[5, 0, 0, 0], [5, 0, 0, 2], [5, 0, 0, 4]]
    assert KEYS.max() == GREATEST, "what was asked stays as it is"
    assert looked_up(opened, KEYS[:1])[1].by_item is None


@pytest.mark.parametrize("opened", ["tiered"], indirect=True)
def test_rows_that_an_update_has_added_are_answered(opened):
    row = np.arange(64, dtype=np.float32)[None]
    for store in opened.tiers.stores_of_this_process().values():
        store.insert("item", np.array([GREATEST]), row)
    opened.tiers.lookup.begin(TopicPartition("new", "item", 0), -1, "log")
    opened.tiers.lookup.written("item", np.array([GREATEST]), row, LogPlace(0, np.array([0]), 0))
    out, report = looked_up(opened, KEYS[1:2])
    np.testing.assert_array_equal(out[:, 131:], row)
    assert report.keys.unknown == 1, "the user's"


@pytest.mark.parametrize(("column", "key"), [(0, -2), (4, -2), (5, -(2**63))])
def test_negative_keys_are_errors_all_the_same(opened, column, key):
    keys = KEYS.copy()
    keys[0, column] = key
    with pytest.raises(ValueError, match="out of range"):
        looked_up(opened, keys)


def test_default_vectors_lie_behind_the_rows_that_were_fetched():
    new = NewKeys(SPEC, {"user": (20_000, 3)}, DEFAULTS)
    assert new.numbers == 3
    keys, fetched = KEYS.copy(), np.full(13, 9, np.float32)
    assert new.name_defaults(keys, fetched, 10).tolist() == [0, 1, 3]
    assert keys[:, :3].tolist() == [[1, 2, -1], [-12, 2, -1], [-12, -12, -12]]
    assert (keys[:, 3:] == KEYS[:, 3:]).all()
    assert fetched.tolist() == [9] * 10 + [0.5] * 3
    assert new.name_defaults(KEYS[:1].copy(), np.empty(0, np.float32), 0) is None


def test_the_copy_of_the_keys_is_planned_for(tables):
    made = EmbeddingHierarchy.open(SPEC, tables)
    assert EmbeddingHierarchy.planned_scratch_bytes(SPEC, 100) == made.new_scratch(100).keys.nbytes == 100 * 6 * 8
    made.close()


def test_nothing_is_to_be_done_where_no_resident_table_takes_them():
    refusing = replace(SPEC, features=tuple(replace(each, out_of_range="refuse") for each in SPEC.features))
    shapes = {"user": (20_000, 3), "item": (30_000, 64)}
    assert [NewKeys(*each, {}).numbers for each in ((refusing, shapes), (SPEC, {}), (SPEC, shapes))] == [0, 0, 67]
