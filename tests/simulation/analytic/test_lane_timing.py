"""One lane of an analytic server: its limits, and the share of late queries beside simulated queues."""

import numpy as np
import pytest

from hebe.simulation.analytic.lane_timing import LaneTiming, Stage
from hebe.simulation.queueing.waiting import FusedService
from hebe.spec import SlaTarget

SIZES = np.array([20.0, 40.0, 60.0, 280.0])


def one_worker(service_s):
    return LaneTiming(SIZES, service_s, (Stage(1, service_s, service_s),), None)


def simulated_share_late(rate_qps, bound_s, service_s, queries=200_000):
    """Of one worker that takes queries as they come, by Lindley's recursion."""
    rng = np.random.default_rng(3)
    gaps = rng.exponential(1 / rate_qps, queries)
    service = rng.choice(service_s, queries)
    step = np.cumsum(service - gaps)
    waits = np.concatenate(([0.0], step[:-1] - np.minimum.accumulate(np.minimum(step, 0.0))[:-1]))
    return float((waits + service > bound_s).mean())


@pytest.mark.parametrize("utilisation", [0.3, 0.6, 0.8])
def test_the_share_late_is_that_of_a_simulated_queue(utilisation):
    service_s = 1e-4 * SIZES
    timing = one_worker(service_s)
    rate_qps = utilisation / float(service_s.mean())
    for bound_s in (0.03, 0.06, 0.12):
        assert timing.share_late(rate_qps, bound_s, 95.0) == pytest.approx(
            simulated_share_late(rate_qps, bound_s, service_s), abs=0.03
        )


def test_it_grows_with_the_rate_up_to_all():
    timing = one_worker(1e-4 * SIZES)
    assert timing.saturation_qps == pytest.approx(100.0)
    shares = [timing.share_late(rate, 0.05, 95.0) for rate in (1.0, 30.0, 60.0, 90.0, 99.0)]
    assert shares == sorted(shares)
    assert timing.share_late(101.0, 0.05, 95.0) == 1.0
    assert timing.share_late(0.01, 0.02, 95.0) == pytest.approx(0.25, abs=1e-3), "the largest takes longer than that"
    assert timing.keeps(SlaTarget(50.0, 95.0), 1.0)
    assert not timing.keeps(SlaTarget(20.0, 95.0), 1.0)


def test_the_slowest_stage_is_the_limit():
    sparse, dense = 1e-4 * SIZES, 3e-4 * SIZES
    timing = LaneTiming(SIZES, sparse + dense, (Stage(1, sparse, sparse), Stage(2, dense, dense)), None)
    assert timing.saturation_qps == pytest.approx(2 / float(dense.mean()))
    assert timing.share_late(1e-3, float((sparse + dense).max()) + 1e-6, 95.0) == pytest.approx(0.0, abs=1e-3)


def test_a_fused_stage_limits_and_delays_too():
    sparse = 1e-5 * SIZES
    fused = FusedService(1, 1000.0, np.array([0.0, 1000.0]), np.array([2e-3, 12e-3]))
    bare = LaneTiming(SIZES, sparse, (Stage(1, sparse, sparse),), None)
    timing = LaneTiming(SIZES, sparse, (Stage(1, sparse, sparse),), fused)
    assert timing.mean_items == 100.0
    assert timing.saturation_qps == pytest.approx(1000 / (fused.service_s(1000) * 100.0))
    assert timing.share_late(50.0, 0.004, 95.0) > bare.share_late(50.0, 0.004, 95.0)
    assert timing.share_late(1.0, 0.001, 95.0) == 1.0, "the fixed cost of a batch alone is more"


def test_queries_at_once_are_as_many_as_their_parts_leave_room_for():
    work = np.array([4.0])
    assert Stage(4, work, work).queries_at_once == 4
    assert Stage(4, work, work / 4).queries_at_once == 1
    assert Stage(1, work, work).queries_at_once == 1
