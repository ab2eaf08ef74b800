import numpy as np
import pytest

from hebe.scheduling.fleet.partitioning import PartitionedRouter
from hebe.simulation.fleet.fleet_case import (
    FleetCase,
    MeasuredCapacity,
    capacity_case,
    measured_capacity,
    run_case,
    saturation_qps,
)
from hebe.simulation.fleet.policy_choice import PolicyChoice, PolicyKind
from hebe.simulation.fleet.query_stream import QueryStream
from hebe.simulation.measured.service_table import ServiceTable
from hebe.spec import SlaTarget
from hebe.workload.text_errors import WorkloadError

SLA = SlaTarget(20.0, 99.0)
MILLISECOND = ServiceTable.from_samples({"a": {1: [1e-3], 2: [1e-3]}, "b": {1: [5e-3], 2: [5e-3]}})


def case(workers=(1, 0), rate_qps=200.0, sizes="fixed:1", **changes):
    stream = QueryStream("constant", sizes, 500, 0)
    return FleetCase(MILLISECOND, workers, PolicyChoice(PolicyKind.FCFS), SLA, 2, stream, rate_qps, **changes)


def test_saturation_is_what_servers_do_that_never_wait():
    table = ServiceTable.from_samples({"a": {1: [0.01, 0.01], 2: [0.03, 0.03]}, "b": {1: [0.1, 0.1], 2: [0.1, 0.1]}})
    assert saturation_qps(table, [2, 3], np.array([0.5, 0.5])) == pytest.approx(2 / 0.02 + 3 / 0.1)


def test_a_run_tells_how_busy_the_servers_of_each_type_were():
    run = run_case(case(workers=(2, 0)))
    assert run.utilisation == (pytest.approx(200 * 1e-3 / 2, rel=0.01), 0.0)
    assert run.throughput_qps == pytest.approx(200.0, rel=0.01)
    assert run.rate_qps == 200.0


def test_the_same_seed_sends_the_same_queries_and_another_one_others():
    poisson = case(rate_qps=900.0)
    poisson = FleetCase(
        poisson.table, poisson.workers, poisson.policy, SLA, 2, QueryStream("poisson", "fixed:1", 500, 0), 900.0
    )
    assert (run_case(poisson).latency_s == run_case(poisson.with_seed(0)).latency_s).all()
    assert not np.array_equal(run_case(poisson).latency_s, run_case(poisson.with_seed(1)).latency_s)


def test_partitions_serve_as_many_as_one_fleet_where_nothing_waits():
    whole, dealt = (case(workers=(4, 0), partitions=count) for count in (1, 2))
    assert isinstance(dealt._policy(), PartitionedRouter)
    assert not isinstance(whole._policy(), PartitionedRouter)
    assert (run_case(whole).latency_s == run_case(dealt).latency_s).all()


def test_what_no_rate_holds_has_no_run():
    slow = case(workers=(0, 1))
    slow = FleetCase(slow.table, slow.workers, slow.policy, SlaTarget(4.0, 99.0), 2, slow.stream, 100.0)
    assert capacity_case(slow) == (0.0, None)
    measured = measured_capacity([(0.0, None)])
    assert (measured.runs, measured.utilisation) == ((), [])


def test_utilisation_over_seeds_is_the_mean_of_the_runs():
    runs = [run_case(case(rate_qps=rate_qps)) for rate_qps in (100.0, 300.0)]
    measured = measured_capacity([(run.rate_qps, run) for run in runs])
    assert isinstance(measured, MeasuredCapacity)
    assert measured.capacity.qps == 200.0
    assert measured.utilisation == [pytest.approx(0.2, rel=0.02), 0.0]


def test_a_query_larger_than_what_was_measured_is_refused():
    with pytest.raises(WorkloadError, match="has queries of 3 items, but service times reach to 2 items"):
        run_case(case(sizes="fixed:3"))
