import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from hebe.workload.key_skew import ReuseKeys, UniformKeys, ZipfKeys, draw_zipf_ranks, spread_ranks
from hebe.workload.text_errors import WorkloadError

SKEWS = [UniformKeys(), ZipfKeys(0.8), ZipfKeys(1.2), ReuseKeys()]


def test_uniform_covers_the_table_evenly():
    keys = UniformKeys().draw(10, 100_000, np.random.default_rng(1))
    assert np.bincount(keys) == pytest.approx(np.full(10, 10_000), rel=0.05)


def test_hot_rows_stay_hot_over_draws_and_move_with_the_spread_seed():
    rng = np.random.default_rng(2)
    hottest = [np.bincount(ZipfKeys(1.2).draw(5000, 20_000, rng, spread_seed=7)).argmax() for _ in range(3)]
    assert len(set(hottest)) == 1
    other = np.bincount(ZipfKeys(1.2).draw(5000, 20_000, rng, spread_seed=8)).argmax()
    assert other != hottest[0]


def test_reuse_is_skewed_as_production_tables_are():
    rows = 1_000_000
    keys = ReuseKeys().draw(rows, 400_000, np.random.default_rng(3), spread_seed=4)
    # Of the default profile: the hottest 0.1% of rows get 32.9% of the lookups, the coldest 71.9% get 6.5%.
    by_rank = spread_ranks(np.arange(rows), rows, 4)
    assert np.isin(keys, by_rank[:1000]).mean() == pytest.approx(0.329, abs=0.005)
    assert np.isin(keys, by_rank[-719_000:]).mean() == pytest.approx(0.065, abs=0.003)


@settings(deadline=None, max_examples=80)
@given(
    st.sampled_from(SKEWS),
    st.integers(1, 10**9),
    st.integers(0, 200),
    st.integers(0, 2**32),
    st.integers(0, 2**32),
)
def test_keys_are_in_range_and_repeatable(skew, rows, count, seed, spread_seed):
    keys = skew.draw(rows, count, np.random.default_rng(seed), spread_seed)
    assert keys.dtype == np.int64
    assert keys.shape == (count,)
    assert ((keys >= 0) & (keys < rows)).all()
    np.testing.assert_array_equal(keys, skew.draw(rows, count, np.random.default_rng(seed), spread_seed))


@pytest.mark.parametrize("skew", SKEWS)
@pytest.mark.parametrize("rows", [1, 2, 137])
def test_shares_are_what_is_drawn(skew, rows):
    shares, count = skew.shares(rows, spread_seed=5), 100_000
    assert shares.sum() == pytest.approx(1)
    expected = count * shares
    drawn = np.bincount(skew.draw(rows, count, np.random.default_rng(6), spread_seed=5), minlength=rows)
    assert (np.abs(drawn - expected) <= 5 * np.sqrt(expected) + 1e-6).all()


def test_rejects_impossible_skew():
    for alpha in (0.0, -1.0, np.nan, 21.0):
        with pytest.raises(WorkloadError, match="alpha"):
            ZipfKeys(alpha)
    for skew in SKEWS:
        with pytest.raises(WorkloadError, match="rows is 0"):
            skew.draw(0, 1, np.random.default_rng(0))
        with pytest.raises(WorkloadError, match="rows is 0"):
            skew.shares(0)


@pytest.mark.parametrize("skew", [*SKEWS, ZipfKeys(2.5)])
@pytest.mark.parametrize(("rows", "lookups"), [(1, 5), (2, 1), (1000, 500), (200_000, 300_000)])
def test_rows_touched_are_those_that_draws_touch(skew, rows, lookups):
    touched = [len(np.unique(skew.draw(rows, lookups, np.random.default_rng(seed)))) for seed in range(8)]
    assert skew.rows_touched(rows, lookups) == pytest.approx(np.mean(touched), rel=0.05, abs=1.0)


@pytest.mark.parametrize("skew", SKEWS)
def test_rows_touched_has_its_limits(skew):
    assert skew.rows_touched(500, 0) == 0
    assert skew.rows_touched(500, 1e12) == pytest.approx(500, rel=1e-3)
    # A billion rows take no memory.
    assert 0 < skew.rows_touched(10**9, 1e6) <= 1e6
    with pytest.raises(WorkloadError, match="rows"):
        skew.rows_touched(0, 1)


@pytest.mark.parametrize("alpha", [0.3, 0.9, 1.0, 1.0000001, 1.2, 2.5])
@pytest.mark.parametrize("rows", [2, 7, 1000])
def test_frequencies_are_zipf(alpha, rows):
    count = 200_000
    ranks = draw_zipf_ranks(alpha, rows, count, np.random.default_rng(int(alpha * 1000) + rows))
    expected = np.arange(1, rows + 1) ** -alpha
    expected *= count / expected.sum()
    seen = np.bincount(ranks, minlength=rows).astype(float)
    # Cold ranks are pooled, as the chi-square test wants at least a few expected in each cell.
    cut = int((expected >= 10).sum())
    if cut < rows:
        seen = np.append(seen[:cut], seen[cut:].sum())
        expected = np.append(expected[:cut], expected[cut:].sum())
    assert chisquare(seen, expected).pvalue > 1e-3


def test_a_billion_rows():
    ranks = draw_zipf_ranks(1.2, 10**9, 200_000, np.random.default_rng(5))
    total = 5.5915824  # sum of k**-1.2 up to infinity; the rest beyond 1e9 is 5 * 1e9**-0.2 = 0.079
    share = 1 / (total - 5 * (1e9) ** -0.2)
    assert (ranks == 0).mean() == pytest.approx(share, rel=0.02)
    assert ranks.max() > 10**8


@settings(deadline=None, max_examples=60)
@given(st.floats(1e-3, 20), st.integers(1, 10**9), st.integers(0, 200), st.integers(0, 2**32))
def test_ranks_are_in_range_and_repeatable(alpha, rows, count, seed):
    ranks = draw_zipf_ranks(alpha, rows, count, np.random.default_rng(seed))
    assert ranks.dtype == np.int64
    assert ranks.shape == (count,)
    assert ((ranks >= 0) & (ranks < rows)).all()
    np.testing.assert_array_equal(ranks, draw_zipf_ranks(alpha, rows, count, np.random.default_rng(seed)))


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 3000), st.integers(0, 2**40))
def test_it_is_a_permutation(rows, seed):
    spread = spread_ranks(np.arange(rows), rows, seed)
    np.testing.assert_array_equal(np.sort(spread), np.arange(rows))


def test_hot_rows_lie_all_over_a_large_table():
    rows = 1_000_000_000
    hot = spread_ranks(np.arange(10_000), rows, 3)
    assert len(np.unique(hot)) == 10_000
    assert hot.min() >= 0
    assert hot.max() < rows
    per_tenth = np.bincount(hot * 10 // rows, minlength=10)
    assert per_tenth == pytest.approx(np.full(10, 1000), abs=150)


def test_neighbours_in_popularity_are_not_neighbours_in_the_table():
    spread = spread_ranks(np.arange(50_000), 1_000_000, 1)
    assert (np.abs(np.diff(spread)) < 1000).mean() < 0.01


def test_seeds_differ_and_shapes_are_kept():
    ranks = np.arange(600).reshape(20, 30)
    one, other = spread_ranks(ranks, 600, 1), spread_ranks(ranks, 600, 2)
    assert one.shape == (20, 30)
    assert (one != other).mean() > 0.9
