import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.workload.query_sizes import (
    LARGEST_SIZE,
    FixedSizes,
    LogNormalSizes,
    NormalSizes,
    ProductionSizes,
    QuantileSizes,
    at_most,
)
from hebe.workload.text_errors import WorkloadError


def test_production_has_the_published_moments():
    sizes = ProductionSizes().draw(400_000, np.random.default_rng(1))
    assert sizes.mean() == pytest.approx(238, abs=1.5)
    assert np.percentile(sizes, 50) == pytest.approx(177, abs=2)
    assert np.percentile(sizes, 95) == pytest.approx(604, abs=6)
    assert np.percentile(sizes, 99) == pytest.approx(920, abs=6)
    assert sizes.min() == 1
    assert sizes.max() == 999


def test_production_mixes_its_parts_as_published():
    sizes = ProductionSizes().draw(400_000, np.random.default_rng(2))
    assert (sizes < 100).mean() == pytest.approx(8 / 99, abs=0.002)
    assert ((sizes > 200) & (sizes < 600)).mean() == pytest.approx(22 / 99 * 399 / 400, abs=0.003)
    assert (sizes >= 600).mean() == pytest.approx(5 / 99, abs=0.002)


def test_lognormal_median():
    sizes = LogNormalSizes().draw(100_000, np.random.default_rng(3))
    assert np.median(sizes) == pytest.approx(np.exp(5.1), rel=0.01)


def test_normal_moments_and_clamp():
    sizes = NormalSizes(165, 16).draw(100_000, np.random.default_rng(4))
    assert sizes.mean() == pytest.approx(165, abs=0.3)
    assert sizes.std() == pytest.approx(16, abs=0.3)
    clamped = NormalSizes(1000, 500).draw(10_000, np.random.default_rng(5))
    assert clamped.min() == 1
    assert clamped.max() == 1024


def test_what_a_user_asks_for_is_not_clamped_to_what_deeprecsys_had():
    for sizes, mean in ((NormalSizes.unbounded(2000, 10), 2000), (LogNormalSizes.unbounded(8.0, 0.1), np.exp(8.005))):
        drawn = sizes.draw(100_000, np.random.default_rng(7))
        assert drawn.mean() == pytest.approx(mean, rel=0.001)
        assert drawn.max() < sizes.largest < 3 * mean
    assert LogNormalSizes().largest == NormalSizes(165, 16).largest == 1024


@pytest.mark.parametrize("mean", [-5, 0.5, 2000, np.inf])
def test_a_mean_that_no_query_can_have_is_refused(mean):
    with pytest.raises(WorkloadError, match=r"must lie in \[1, 1,024\]|finite"):
        NormalSizes(mean, 3)
    if mean < 1:
        with pytest.raises(WorkloadError, match="the mean is"):
            NormalSizes.unbounded(mean, 3)


@pytest.mark.parametrize("arguments", [(-5, 0.1), (1000, 1), (5, 1e200), (1e200, 0)])
def test_lognormal_sizes_beyond_all_queries_are_refused(arguments):
    with pytest.raises(WorkloadError, match="the mean is"):
        LogNormalSizes.unbounded(*arguments)


def test_sizes_for_a_server_that_takes_no_larger_ones():
    assert at_most(ProductionSizes(), 999) == ProductionSizes()
    bounded = at_most(NormalSizes.unbounded(1400, 200), 1500)
    drawn = bounded.draw(10_000, np.random.default_rng(8))
    assert drawn.max() == bounded.largest == 1500
    assert drawn.mean() == pytest.approx(1380, rel=0.02)
    assert at_most(LogNormalSizes.unbounded(5, 1), 8192).largest == 8192
    with pytest.raises(WorkloadError, match=r"the mean is 2000 items: must lie in \[1, 1,500\]"):
        at_most(NormalSizes.unbounded(2000, 10), 1500)
    for sizes in (ProductionSizes(), FixedSizes(501), QuantileSizes((1, 700))):
        with pytest.raises(WorkloadError, match="must be at most 500"):
            at_most(sizes, 500)


def test_mlperf_quantiles():
    sizes = QuantileSizes().draw(100_000, np.random.default_rng(6))
    assert sizes.mean() == pytest.approx(270, abs=2)
    assert set(np.unique(sizes)) == {100, 200, 300, 400, 500, 600, 700}


@settings(deadline=None, max_examples=60)
@given(
    st.one_of(
        st.builds(FixedSizes, st.integers(1, 10_000)),
        st.builds(NormalSizes, st.floats(1, 1024), st.floats(0, 1e6)),
        st.builds(NormalSizes.unbounded, st.floats(1, 1e6), st.floats(0, 1e12)),
        st.builds(LogNormalSizes, st.floats(0, 5), st.floats(0, 1.9)),
        st.builds(LogNormalSizes.unbounded, st.floats(0, 5), st.floats(0, 5)),
        st.builds(QuantileSizes, st.lists(st.integers(1, 2000), min_size=1).map(tuple)),
        st.just(ProductionSizes()),
    ),
    st.integers(0, 300),
    st.integers(0, 2**32),
)
def test_sizes_are_whole_and_bounded(sizes, count, seed):
    drawn = sizes.draw(count, np.random.default_rng(seed))
    assert drawn.dtype == np.int64
    assert drawn.shape == (count,)
    if count:
        assert drawn.min() >= 1
        assert drawn.max() <= sizes.largest
    np.testing.assert_array_equal(drawn, sizes.draw(count, np.random.default_rng(seed)))


@pytest.mark.parametrize(
    "build",
    [
        lambda: FixedSizes(0),
        lambda: NormalSizes(10, -1),
        lambda: LogNormalSizes(np.nan, 1),
        lambda: NormalSizes(10, 1, 0),
        lambda: QuantileSizes(()),
        lambda: QuantileSizes((5, 0)),
        lambda: FixedSizes(LARGEST_SIZE + 1),
        lambda: QuantileSizes((5, 10**30)),
        lambda: NormalSizes(10, 1, 10**30),
        lambda: NormalSizes.unbounded(np.nan, 1),
        lambda: NormalSizes.unbounded(10, np.nan),
        lambda: LogNormalSizes.unbounded(5, np.inf),
    ],
)
def test_rejects_impossible_sizes(build):
    with pytest.raises(WorkloadError):
        build()
