import numpy as np
import pytest

from hebe.load_generator.error import LoadError
from hebe.load_generator.queries.model_inputs import ModelInput, ModelInputs
from hebe.load_generator.queries.query_pool import LEAST_ITEMS, POOL_BYTES, QueryPool
from hebe.workload.key_skew import ReuseKeys, UniformKeys, ZipfKeys, spread_seed_of

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
    assert QueryPool(MODEL, UniformKeys(), 1, np.random.default_rng(1), pool_bytes=1 << 30).items == LEAST_ITEMS


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


def one_feature(rows, lookups=1):
    return ModelInputs((ModelInput("user", "INT64", (lookups,), rows),))


def test_the_pool_grows_with_the_rows_as_far_as_its_bytes_go():
    pool = QueryPool(one_feature(1_000_000), UniformKeys(), 10, np.random.default_rng(1))
    assert len(np.unique(pool.arrays[0])) > 0.9 * 1_000_000
    assert pool.size_bytes == pool.arrays[0].nbytes < POOL_BYTES
    assert QueryPool(one_feature(10**9), UniformKeys(), 10, np.random.default_rng(1), 8 << 20).items == 1 << 20
    # Eighty lookups an item name as many rows with fewer items.
    assert QueryPool(one_feature(1_000_000, 80), UniformKeys(), 10, np.random.default_rng(1)).items == LEAST_ITEMS


@pytest.mark.parametrize("keys", [UniformKeys(), ZipfKeys(1.2), ReuseKeys()])
def test_drawn_in_parts_keys_are_as_skewed_as_at_once(keys):
    rows = 2000
    pool = QueryPool(one_feature(rows, 20), keys, 10, np.random.default_rng(4))
    got = np.bincount(pool.arrays[0].ravel(), minlength=rows) / pool.arrays[0].size
    expected = keys.shares(rows, spread_seed_of("user"))
    # A row's share among a million keys strays by its root.
    assert np.abs(got - expected).max() < 6 * np.sqrt(expected.max() / pool.arrays[0].size)


def test_too_few_different_keys_are_told():
    pool = QueryPool(one_feature(40_000_000), UniformKeys(), 10, np.random.default_rng(1), 1 << 20)
    assert pool.items == 1 << 17
    assert pool.key_shortages(100_000) == []
    (short,) = pool.key_shortages(2_000_000)
    assert short.name == "user"
    assert short.drawn == pytest.approx(131_000, rel=0.01)
    assert short.wanted == pytest.approx(1_950_000, rel=0.01)
    # The queries really have no more.
    assert len(np.unique(pool.arrays[0])) == pytest.approx(short.drawn, rel=0.01)


def test_few_keys_are_enough_where_few_are_hot():
    steep = QueryPool(one_feature(40_000_000), ZipfKeys(3.0), 10, np.random.default_rng(1), 1 << 20)
    assert steep.key_shortages(300_000) == []
    small = QueryPool(one_feature(1000), UniformKeys(), 10, np.random.default_rng(1))
    assert small.key_shortages(10**9) == []


def test_a_query_larger_than_any_request_is_refused_before_it_is_drawn():
    with pytest.raises(LoadError, match=r"reach 99,999,999,999 items, which take 745\.1 GiB.* at most 2 GiB"):
        QueryPool(one_feature(10), UniformKeys(), 99_999_999_999, np.random.default_rng(1))
