import itertools

import numpy as np
import pytest

from hebe.planning.pool.fluid_bound import fluid_bound
from hebe.planning.pool.pool_problem import PoolProblem
from hebe.planning.pool.query_size_monitor import size_weights
from hebe.scheduling.fleet.distribution import FirstComeFirstServed
from hebe.simulation.fleet.capacity import fleet_capacity
from hebe.simulation.fleet.fleet_run import QueryTrace, TableServers
from hebe.simulation.measured.service_table import ServiceTable
from hebe.spec import SlaTarget
from hebe_lab.baselines.oracle import oracle_qps

SLA = SlaTarget(100.0, 99.0)


def servers(*per_item_ms, largest=20):
    """Types whose service time is so many milliseconds an item, without spread."""
    table = {f"t{at}": {n: [cost * n / 1e3] for n in range(1, largest + 1)} for at, cost in enumerate(per_item_ms)}
    return TableServers(ServiceTable.from_samples(table))


def trace(*sizes):
    return QueryTrace(np.ones(len(sizes)), np.array(sizes), np.full(len(sizes), 0.5))


def test_one_server_is_always_busy():
    assert oracle_qps(trace(3, 1, 2), [2, 0], servers(1, 2), SLA) == pytest.approx(3 / 0.003)
    assert oracle_qps(trace(3, 1, 2), [1, 0], servers(1, 2), SLA) == pytest.approx(3 / 0.006)
    assert oracle_qps(trace(3, 1, 2), [0, 1], servers(1, 2), SLA) == pytest.approx(3 / 0.012)


def test_base_takes_the_largest_and_the_others_the_smallest():
    # 20 and 10 (30 ms) on the base; 1, 2, 3 (30 ms) on the other, which is five times as slow.
    assert oracle_qps(trace(1, 20, 3, 10, 2), [1, 1], servers(1, 5), SLA) == pytest.approx(5 / 0.030)


def test_no_query_goes_where_it_would_be_late():
    # Sizes above 10 are late on the slow type, so the base serves them all.
    assert oracle_qps(trace(11, 12, 13, 14), [1, 9], servers(1, 10), SLA) == pytest.approx(4 / 0.050)
    assert oracle_qps(trace(11, 12, 13, 14), [0, 9], servers(1, 10), SLA) == 0


def test_as_many_may_be_late_as_the_percentile_lets():
    hopeless = trace(*[1] * 99, 20)
    assert oracle_qps(hopeless, [1, 0], servers(10, 1), SLA) == pytest.approx(99 / 0.99)
    assert oracle_qps(hopeless, [1, 0], servers(10, 1), SlaTarget(100.0, 99.5)) == 0


def test_the_other_base_type():
    pool, model = [1, 1], servers(5, 1)
    assert oracle_qps(trace(1, 20, 3, 10, 2), pool, model, SLA, base=1) == pytest.approx(5 / 0.030)


def test_reaches_more_than_first_come_first_served_and_no_more_than_the_fluid_bound():
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 21, 1_500)
    queries = QueryTrace(rng.exponential(size=sizes.size), sizes, rng.random(sizes.size))
    model = servers(2, 7)
    problem = PoolProblem(model.types, np.ones(2), model.table.mean_s, size_weights(sizes, 20), SLA.latency_s, xi=1.0)
    for pool in itertools.product(range(4), repeat=2):
        if not pool[0]:
            continue
        reached = oracle_qps(queries, pool, model, SLA)
        assert reached <= fluid_bound(problem, pool).bound_qps * 1.001
        fcfs = fleet_capacity([queries], pool, model, FirstComeFirstServed, SLA, tolerance=0.01)
        assert reached >= fcfs.qps


def test_refuses_what_is_no_pool_and_no_trace():
    for pool in ([0, 0], [1], [2, -1]):
        with pytest.raises(ValueError, match="t0, t1"):
            oracle_qps(trace(1), pool, servers(1, 2), SLA)
    with pytest.raises(ValueError, match="no queries"):
        oracle_qps(QueryTrace(np.empty(0), np.empty(0, np.int64), np.empty(0)), [1, 0], servers(1, 2), SLA)
