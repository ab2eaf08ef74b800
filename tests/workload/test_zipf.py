import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from hebe.workload.key_skew import draw_zipf_ranks


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
