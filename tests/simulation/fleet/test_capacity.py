import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.scheduling.fleet.distribution import FirstComeFirstServed
from hebe.simulation.fleet.capacity import Capacity, fleet_capacity, largest_rate_qps, narrowed_rate_qps
from hebe.simulation.fleet.fleet_run import QueryTrace, TableServers, run_fleet
from hebe.simulation.measured.service_table import ServiceTable
from hebe.spec import SlaTarget
from hebe.workload.query_sizes import FixedSizes


@given(limit=st.floats(1e-2, 1e5), guess=st.floats(1e-2, 1e5))
def test_the_largest_rate_is_found_from_any_guess(limit: float, guess: float) -> None:
    found = largest_rate_qps(lambda rate: rate <= limit, guess, tolerance=0.001)
    assert found <= limit <= found * 1.0011


@given(limit=st.floats(1e-2, 1e5), guess=st.floats(1e-2, 1e5))
def test_step_by_step_no_bound_is_below_the_rate_and_each_is_below_the_one_before(limit: float, guess: float) -> None:
    asked: list[float] = []

    def meets(rate_qps: float) -> bool:
        asked.append(rate_qps)
        return rate_qps <= limit

    bounds = list(narrowed_rate_qps(meets, guess))
    assert sorted(bounds, reverse=True) == bounds
    assert min(bounds) >= limit
    assert len(bounds) in (len(asked), len(asked) - 1)


def test_a_target_that_is_never_met_gives_zero_and_one_always_met_is_an_error() -> None:
    assert largest_rate_qps(lambda _: False, 100.0) == 0.0
    with pytest.raises(ValueError, match="does not bound the rate"):
        largest_rate_qps(lambda _: True, 100.0)
    with pytest.raises(ValueError, match="guess_qps"):
        largest_rate_qps(lambda _: True, 0.0)


def test_the_interval_is_student_s() -> None:
    capacity = Capacity.of([10.0, 11.0, 12.0])
    assert capacity.qps == pytest.approx(11.0)
    assert capacity.high is not None
    assert capacity.high - capacity.qps == pytest.approx(4.303 * 1 / np.sqrt(3), rel=1e-3)
    assert capacity.low == pytest.approx(2 * capacity.qps - capacity.high)


def test_the_interval_ends_at_0_as_rates_do() -> None:
    capacity = Capacity.of([100.0, 150.0])
    assert (capacity.qps, capacity.low) == (125.0, 0.0)
    assert capacity.high == pytest.approx(125 + 12.706 * 25, rel=1e-3)


def test_one_trace_has_no_interval() -> None:
    assert Capacity.of([5.0]) == Capacity(5.0, None, None, (5.0,))


def test_the_target_holds_at_the_capacity_and_not_above() -> None:
    servers = TableServers(ServiceTable.from_samples({"cpu": {10: [9e-3, 10e-3, 11e-3]}}))
    sla = SlaTarget(50.0, 95.0)
    traces = [QueryTrace.draw(4000, FixedSizes(10), seed) for seed in (1, 2)]
    capacity = fleet_capacity(traces, (4,), servers, FirstComeFirstServed, sla)
    assert 250 < capacity.qps < 400, "four servers of 10 ms"
    for trace, qps in zip(traces, capacity.by_trace_qps, strict=True):
        assert run_fleet(trace, qps, (4,), servers, FirstComeFirstServed(), 0.05).percentile_s(95) <= 0.05
        assert run_fleet(trace, 1.02 * qps, (4,), servers, FirstComeFirstServed(), 0.05).percentile_s(95) > 0.05


def test_twice_the_servers_take_at_least_twice_the_rate() -> None:
    servers = TableServers(ServiceTable.from_samples({"cpu": {10: [9e-3, 10e-3, 11e-3]}}))
    traces = [QueryTrace.draw(4000, FixedSizes(10), 1)]
    few, many = (
        fleet_capacity(traces, (count,), servers, FirstComeFirstServed, SlaTarget(30.0, 95.0)).qps for count in (2, 4)
    )
    assert many >= 2 * few


def test_no_trace_is_an_error() -> None:
    servers = TableServers(ServiceTable.from_samples({"cpu": {10: [1e-2]}}))
    with pytest.raises(ValueError, match="no trace"):
        fleet_capacity([], (1,), servers, FirstComeFirstServed, SlaTarget(30.0))
