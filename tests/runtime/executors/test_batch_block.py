from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.kernels.lookup.batch_loop import Word
from hebe.kernels.lookup.fused_lookup import LookupWord
from hebe.query import JaggedKeys, Query, SubQuery
from hebe.runtime.executors.batch_block import BatchBlock, BatchTimes
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling

SPEC = ModelSpec(
    "model",
    "din",
    (EmbeddingTableSpec("item", 30, 4),),
    (FeatureSpec("item", "item", 2, Pooling.SUM), FeatureSpec("history", "item", 3, Pooling.ATTENTION)),
    dense_dim=2,
)
TABLES = {"item": np.arange(120, dtype=np.float32).reshape(30, 4)}
MOST = 6


@pytest.fixture
def hierarchy():
    opened = EmbeddingHierarchy.open(SPEC, TABLES)
    yield opened
    opened.close()


@pytest.fixture
def block(hierarchy):
    keys, dense = np.zeros((MOST, 5), np.int64), np.zeros((MOST, 2), np.float32)
    sparse, lengths = np.zeros((MOST, SPEC.sparse_width), np.float32), np.zeros((MOST, 1), np.int64)
    left = np.zeros(1, np.int64)
    return BatchBlock(
        SPEC, hierarchy, keys, dense, sparse, lengths, inbox=0, others=[4, 5], left=left, release_address=1
    )


def query(items: int, **changed: object) -> Query:
    fixed = np.arange(2 * items).reshape(items, 2)
    history = JaggedKeys(np.arange(items), np.arange(items + 1))
    made = {"features": {"item": fixed, "history": history}, "dense": np.ones((items, 2), np.float32)}
    return Query(0, items, 0.0, **made | changed)


def test_what_a_batch_is_made_of_is_described(block):
    one, other = query(4), query(3, dense=np.ones((2, 3), np.float32).T)
    block.place([SubQuery(one, 1, 4), SubQuery(other, 0, 3)], 6)
    words = block._words
    assert [words[word] for word in (LookupWord.ITEMS, LookupWord.COPY_COUNT, Word.PAD_COUNT)] == [6, 2, 2]
    assert words[Word.MOVE_COUNT] == 1  # the other's numbers are no block of bytes, and copied already
    np.testing.assert_array_equal(block._dense[3:], np.ones((3, 2)))
    assert [words[Word.SEQUENCE_COUNT], words[LookupWord.FEATURES], words[Word.OUTBOX]] == [1, 2, -1]
    block.tell(9, 5)
    block.share_with(1)
    assert [words[Word.OUTBOX], words[Word.NAME], words[Word.OTHER_COUNT]] == [9, 5, 1]


@pytest.mark.parametrize(
    ("part", "fault"),
    [
        (SubQuery(query(7), 0, 7), "batch of 7 items, but this executor holds at most 6"),
        (SubQuery(query(3), 0, 4), r"items \[0, 4\) "),
        (SubQuery(query(3, dense=np.ones((3, 3), np.float32)), 0, 3), "3 numbers an item do not fit 2 columns"),
        (SubQuery(query(3, features={"item": np.ones((3, 2), np.int64)}), 0, 3), "history"),
    ],
)
def test_what_does_not_fit_is_refused(block, part, fault):
    with pytest.raises((ValueError, KeyError), match=fault):
        block.place([part], part.stop - part.start)


def test_what_came_of_it_is_told(block):
    words = block._words
    words[[LookupWord.FOUND, Word.BEGAN_S, Word.BEGAN_NS]] = 7, 10, 900_000_000
    words[[Word.LOOKED_UP_S, Word.LOOKED_UP_NS, Word.ENDED_S, Word.ENDED_NS]] = 11, 0, 12, 300_000_000
    assert block.looked_up() == (7, 0)
    assert block.times() == BatchTimes(pytest.approx(10.9), 11.0, pytest.approx(12.3))
    words[LookupWord.REFUSED] = 2
    assert block.looked_up() == (7, 2)
    words[[LookupWord.FOUND, LookupWord.REFUSED]] = -1, 0
    with pytest.raises(ValueError, match="the plan of its lookups does not fit its tables"):
        block.looked_up()
    assert not block.under_way
    words[Word.UNDER_WAY] = 1
    assert block.under_way


def test_tables_that_are_not_resident_have_none(tmp_path):
    tiers = {"cache": {"cache_fraction": 0.5}, "persistent_db": {"type": "rocks_db", "path": str(tmp_path)}}
    config = HierarchyConfig.from_mapping(tiers)
    with closing(EmbeddingHierarchy.open(SPEC, TABLES, config=config, persistent_dir=tmp_path)) as hierarchy:
        assert not hierarchy.looks_up_alone
        with pytest.raises(ValueError, match="its lookups take more than its tables"):
            hierarchy.lookup_arrays()
