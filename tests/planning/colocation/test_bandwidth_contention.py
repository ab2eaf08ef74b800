import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.planning.colocation.shared_server import BandwidthContention

from .scalability import BANDWIDTH_BOUND, CACHE_BOUND, COMPUTE_BOUND, small_fleets, tables

COUNTS = np.arange(17.0)
BANDWIDTH = 100.0


def slowed(traffic):
    """A memory that takes twice as long at its full bandwidth, and half of that rise at 0.84 of it."""
    return 1 + (traffic / BANDWIDTH) ** 4


def alone(a_worker, workers, share=1.0):
    """Traffic of so many workers that would each move `a_worker`, were memory unloaded."""
    traffic = 0.0
    for _ in range(500):
        factor = 1 + share * (slowed(traffic) - 1)
        traffic = 0.7 * traffic + 0.3 * min(a_worker * workers / factor, BANDWIDTH)
    return traffic


HUNGRY = np.array([alone(8.0, count) for count in COUNTS])
MODEST = np.array([alone(2.0, count, share=0.25) for count in COUNTS])
CONTENTION = BandwidthContention.of(
    np.stack([HUNGRY, MODEST]), np.stack([HUNGRY, MODEST]), np.stack([COUNTS, COUNTS]), BANDWIDTH
)


def kept(*members):
    at = ([model for model, _ in members], [count for _, count in members])
    return CONTENTION.kept(*(part[at][None, :] for part in (CONTENTION.demand, CONTENTION.share, CONTENTION.alone)))[0]


def test_the_memory_s_slowdown_is_read_off_the_hungriest_model():
    moved = CONTENTION.demands / CONTENTION.slowdowns
    measured = (moved > 40) & (moved < HUNGRY[-1] + 1e-6)
    np.testing.assert_allclose(CONTENTION.slowdowns[measured], slowed(moved[measured]), rtol=0.05)


def test_a_model_beside_itself_does_as_on_all_cores():
    together = kept((0, 8), (0, 8))
    np.testing.assert_allclose(together, HUNGRY[16] / 2 / HUNGRY[8], rtol=0.01)


def test_two_models_slow_each_other_down_as_the_memory_does():
    """Against the fixed point of the memory that both share, which planning never saw."""
    traffic = np.array([60.0, 10.0])
    for _ in range(2000):
        factor = 1 + np.array([1.0, 0.25]) * (slowed(traffic.sum()) - 1)
        traffic = 0.9 * traffic + 0.1 * np.array([8.0 * 8, 2.0 * 8]) / factor
    truth = traffic / [HUNGRY[8], MODEST[8]]
    np.testing.assert_allclose(kept((0, 8), (1, 8)), truth, rtol=0.03)


def test_nobody_is_slowed_down_while_there_is_little_traffic():
    np.testing.assert_allclose(kept((1, 8), (1, 8)), 1.0, rtol=0.01)
    assert CONTENTION.quiet_bytes_per_s > 0


def test_a_single_model_keeps_everything():
    for model in (0, 1):
        for count in (1, 8, 16):
            assert kept((model, count))[0] == pytest.approx(1.0)


def test_a_model_with_little_traffic_a_core_keeps_everything_near_the_full_bandwidth_too():
    """Between the curve's knots its factor comes out below that measured alone: 98 GB/s would be 101."""
    traffic = np.array([[0.0, 70.0, 99.0], [0.0, 24.5, 98.0]])
    busy = np.array([[0.0, 1.0, 2.0], [0.0, 4.0, 8.0]])
    made = BandwidthContention.of(traffic, traffic, busy, BANDWIDTH)
    assert made.kept(*(part[[1], [2]][None] for part in (made.demand, made.share, made.alone))) == pytest.approx(1.0)


@given(small_fleets(), st.data())
def test_any_single_model_keeps_everything(made, data):
    contention = made.contention
    at = ([data.draw(st.integers(0, len(made.models) - 1))], [data.draw(st.integers(0, made.server.cores))])
    shares = contention.kept(contention.demand[at][None], contention.share[at][None], contention.alone[at][None])
    assert shares == pytest.approx(1.0)


@given(small_fleets(least=2), st.data())
def test_all_together_move_no_more_than_there_is(made, data):
    contention = made.contention
    members = [data.draw(st.integers(0, len(made.models) - 1)) for _ in range(3)]
    counts = [data.draw(st.integers(0, made.server.cores)) for _ in members]
    at = (members, counts)
    shares = contention.kept(contention.demand[at][None], contention.share[at][None], contention.alone[at][None])[0]
    assert (shares > 0).all()
    assert (shares <= 1).all()
    traffic = contention.demand[at] / contention.alone[at]
    assert (shares * traffic).sum() <= contention.bandwidth_bytes_per_s * (1 + 1e-9)


def test_a_profile_that_is_cut_off_at_the_full_bandwidth_knows_no_slowdown_before():
    """Ten workers move 95 of 100 GB/s, more workers no more: nothing but the end of the bandwidth is seen."""
    made = tables(BANDWIDTH_BOUND, COMPUTE_BOUND, CACHE_BOUND).contention
    assert made.quiet_bytes_per_s == pytest.approx(100e9)
    at = ([0, 1], [10, 6])
    np.testing.assert_allclose(made.kept(made.demand[at][None], made.share[at][None], made.alone[at][None]), 1.0)


def test_models_that_move_nothing_have_no_contention():
    none = np.zeros((2, 17))
    idle = BandwidthContention.of(np.ones((2, 17)), none, np.stack([COUNTS, COUNTS]), BANDWIDTH)
    np.testing.assert_array_equal(idle.kept(none[:, :2], none[:, :2], none[:, :2] + 1), 1.0)
