import numpy as np
import pytest

from hebe.planning.error import PlanningError
from hebe.planning.pool.query_size_monitor import size_weights
from hebe.simulation.fleet import query_stream
from hebe.simulation.fleet.query_stream import LOOK, QueryStream, check_largest, largest_drawn, sending_s, size_shift
from hebe.workload.query_sizes import NormalSizes, ProductionSizes
from hebe.workload.text_errors import WorkloadError


@pytest.mark.parametrize("arrivals", ["poisson", "constant", "burst:4:1:4"])
def test_a_stream_has_mean_rate_and_the_same_chance_at_every_rate(arrivals):
    stream = QueryStream(arrivals, "production", 20_000, 7)
    slow, fast = stream.trace(100.0), stream.trace(1000.0)
    for trace in (slow, fast):
        assert len(trace) == pytest.approx(20_000, rel=0.05)
        assert trace.gaps.mean() == pytest.approx(1.0, rel=0.05)
        assert len(trace.sizes) == len(trace.luck) == len(trace)
    same = min(len(slow), len(fast))
    assert (slow.sizes[:same] == fast.sizes[:same]).all()
    assert (slow.luck[:same] == fast.luck[:same]).all()
    assert (stream.trace(100.0).gaps == slow.gaps).all()


def test_a_burst_lasts_as_long_at_any_rate():
    """Six times the calm rate in every fourth second."""
    for rate_qps in (200.0, 2000.0):
        trace = QueryStream("burst:6:1:4", "fixed:1", int(40 * rate_qps), 0).trace(rate_qps)
        second = (np.cumsum(trace.gaps) / rate_qps).astype(int)
        in_bursts = (second % 4 == 3).mean()
        assert in_bursts == pytest.approx(6 / 9, abs=0.02)


@pytest.mark.parametrize(("rate_qps", "queries"), [(1000.0, 5_500), (1000.0, 9_000), (150.07, 1_501), (5000.0, 10_000)])
def test_bursts_are_sent_in_whole_periods_so_that_their_mean_is_the_rate(rate_qps, queries):
    """A run begins with the calm part, which has 0.72 of the load in 0.9 of the time."""
    trace = QueryStream("burst:3.5:1:10", "production", queries, 0).trace(rate_qps)
    assert len(trace) == pytest.approx(10 * rate_qps, rel=0.04)
    assert trace.gaps.mean() == pytest.approx(1.0, rel=0.04)
    assert len(trace.sizes) == len(trace.luck) == len(trace)


def test_a_recording_that_is_played_at_a_speed_is_played_whole(tmp_path):
    (tmp_path / "load.csv").write_text("time_s,rate_qps\n0,10\n60,50\n120,10\n")
    sent = [len(QueryStream(f"trace:{tmp_path / 'load.csv'}{speed}", "fixed:1", 900, 0).trace(50.0))
            for speed in (":4", ":2", "")]  # fmt: skip
    assert sent == pytest.approx([2250, 4500, 900], rel=0.1)


def test_queries_of_arrivals_without_a_period_come_for_as_long_as_they_take():
    assert sending_s("poisson", 500, 100.0) == 5.0
    assert sending_s("burst:6:1:4", 500, 100.0) == 8.0


def test_shares_of_sizes_are_those_drawn_and_end_with_the_largest():
    weights, largest = largest_drawn("quantiles:10,20,40", 3, 40)
    assert largest == weights.size <= 40
    assert weights[-1] > 0
    assert weights.sum() == pytest.approx(1.0)
    assert weights[:9].sum() == 0.0
    assert (largest_drawn("quantiles:10,20,40", 3, 50)[0] == weights).all()
    sent = QueryStream("poisson", "quantiles:10,20,40", 20_000, 1).trace(1.0).sizes
    assert weights @ np.arange(1, largest + 1) == pytest.approx(sent.mean(), rel=0.02)


def test_sizes_beyond_what_was_measured_are_refused():
    check_largest(100, 100, "fixed:100")
    with pytest.raises(WorkloadError, match="fixed:101: has queries of 101 items, but service times reach to 100"):
        check_largest(101, 100, "fixed:101")


def test_sizes_far_beyond_what_was_measured_take_no_memory(monkeypatch):
    monkeypatch.setattr(query_stream, "size_weights", None)
    with pytest.raises(WorkloadError, match="has queries of 2000000000 items, but service times reach to 100"):
        largest_drawn("fixed:2000000000", 3, 100)


PLANNED_FROM = 100_000


@pytest.fixture(scope="module")
def planned():
    return size_weights(ProductionSizes().draw(PLANNED_FROM, np.random.default_rng(0)), 999)


@pytest.mark.parametrize("seed", range(3))
def test_the_sizes_that_were_planned_for_are_not_a_shift(planned, seed):
    sizes = ProductionSizes().draw(20_000, np.random.default_rng(seed + 1))
    assert size_shift(sizes, planned, planned_from=PLANNED_FROM) is None


def test_other_sizes_are_noticed_as_soon_as_enough_were_seen(planned):
    shift = size_shift(NormalSizes(500, 150, 999).draw(5_000, np.random.default_rng(1)), planned)
    assert shift is not None
    assert shift.queries == 1_000
    assert shift.distance > 0.3


def test_a_change_within_the_run_is_noticed_after_it(planned):
    rng = np.random.default_rng(2)
    sizes = np.concatenate((ProductionSizes().draw(6_000, rng), NormalSizes(500, 150, 999).draw(6_000, rng)))
    shift = size_shift(sizes, planned)
    assert shift is not None
    assert 6_000 < shift.queries < 8_000
    assert shift.queries % LOOK == 0


def test_a_run_too_short_to_tell_says_nothing(planned):
    assert size_shift([900] * 999, planned) is None
    assert size_shift([900] * 1_000, planned) is not None


def test_bad_sizes_and_plans_are_refused(planned):
    with pytest.raises(PlanningError, match="query size is 0"):
        size_shift([0], planned)
    with pytest.raises(PlanningError, match="planned sums to"):
        size_shift([1], np.array([0.5]))
