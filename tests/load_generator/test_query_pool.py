import numpy as np
import pytest

from hebe.load_generator.model_inputs import ModelInput, ModelInputs
from hebe.load_generator.query_pool import MOST_ITEMS, QueryPool
from hebe.workload.key_skew import UniformKeys, ZipfKeys

MODEL = ModelInputs(
    (
        ModelInput("user", "INT64", (4,), 1000),
        ModelInput("shop", "INT32", (2,), 50),
        ModelInput("dense", "FP32", (3,), None),
    )
)


def test_arrays_are_as_the_model_wants_them():
    pool = QueryPool(MODEL, UniformKeys(), 10, np.random.default_rng(1), pool_bytes=5200)
    assert pool.items == 5200 // (32 + 8 + 12)
    user, shop, dense = pool.arrays
    assert (user.shape, user.dtype) == ((100, 4), np.dtype("<i8"))
    assert (shop.shape, shop.dtype) == ((100, 2), np.dtype("<i4"))
    assert (dense.shape, dense.dtype) == ((100, 3), np.dtype("<f4"))
    assert user.min() >= 0
    assert 900 < user.max() < 1000
    assert 40 < shop.max() < 50


def test_the_largest_query_always_fits():
    pool = QueryPool(MODEL, UniformKeys(), 500, np.random.default_rng(1), pool_bytes=1)
    assert pool.items == 500
    assert QueryPool(MODEL, UniformKeys(), 1, np.random.default_rng(1), pool_bytes=1 << 30).items == MOST_ITEMS


def test_offsets_keep_queries_inside_and_use_the_whole_pool():
    rng = np.random.default_rng(2)
    pool = QueryPool(MODEL, UniformKeys(), 20, rng, pool_bytes=5200)
    sizes = rng.integers(1, 21, 5000)
    offsets = pool.offsets(sizes, rng)
    assert offsets.min() == 0
    assert (offsets + sizes).max() == pool.items


def test_same_seed_same_queries():
    one, other = (QueryPool(MODEL, ZipfKeys(1.2), 20, np.random.default_rng(3), pool_bytes=5200) for _ in range(2))
    for array, again in zip(one.arrays, other.arrays, strict=True):
        np.testing.assert_array_equal(array, again)


def test_every_seed_finds_the_same_rows_hot():
    hottest = []
    for seed in (1, 2):
        pool = QueryPool(MODEL, ZipfKeys(1.5), 20, np.random.default_rng(seed), pool_bytes=520_000)
        hottest.append([np.bincount(array.ravel()).argmax() for array in pool.arrays[:2]])
    assert hottest[0] == hottest[1]
    assert hottest[0][0] != pytest.approx(0)
