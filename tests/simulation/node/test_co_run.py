from dataclasses import replace

import numpy as np
import pytest

from hebe.models import catalog
from hebe.planning.error import PlanningError
from hebe.simulation.analytic.batch_phases import BatchPhases, SharedServerModel
from hebe.simulation.analytic.server_types import HERA_SOCKET
from hebe.simulation.fleet.fleet_run import QueryTrace
from hebe.simulation.node.co_run import BatchCosts, SharedServerSimulation, TenantLoad
from hebe.spec import SlaTarget
from hebe.workload.query_sizes import FixedSizes, ProductionSizes

SHARED = SharedServerModel(replace(HERA_SOCKET, flops_per_cycle_per_core=64.0), 11)
BANDWIDTH = SHARED.memory.bandwidth_bytes_per_s


class FixedCosts(BatchCosts):
    """Every batch takes the same, whatever its size and its cache."""

    def __init__(self, compute_s, memory_s=0.0, bytes_per_s=0.0):
        super().__init__(BatchPhases(SHARED, catalog.entry("hera-ncf")))
        for name, value in (("compute_s", compute_s), ("memory_s", memory_s), ("demand", bytes_per_s)):
            setattr(self, name, [[value] * (SHARED.batch_size + 1)] * len(self.compute_s))
        self.pressure = bytes_per_s


def tenant(costs, workers=1, ways=None, latency_ms=100.0, sizes=FixedSizes(1), queries=60_000, seed=3):  # noqa: B008
    return TenantLoad(costs, workers, ways, SlaTarget(latency_ms), QueryTrace.draw(queries, sizes, seed))


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_worker_is_an_m_d_1_queue(load):
    latency = SharedServerSimulation([tenant(FixedCosts(1e-3))], 40.0).latencies_s([load * 1e3])[0]
    assert latency.mean() == pytest.approx(1e-3 * (1 + load / (2 * (1 - load))), rel=0.05)
    assert latency.min() == pytest.approx(1e-3)


def test_many_workers_have_erlang_s_wait():
    """M/D/c waits half as long as M/M/c, nearly: Erlang C for four servers at load 0.8 is 0.596."""
    latency = SharedServerSimulation([tenant(FixedCosts(1e-3), workers=4)], 15.0).latencies_s([3200.0])[0]
    exponential = 0.596 * 1e-3 / (4 * 0.2)
    assert latency.mean() - 1e-3 == pytest.approx(0.5 * exponential, rel=0.15)


def test_a_target_holds_where_so_many_are_in_time(monkeypatch):
    """Of ten queries nine, which is p90 by nearest rank; between ranks it would be halfway to the tenth."""
    one = SharedServerSimulation([replace(tenant(FixedCosts(1e-3)), sla=SlaTarget(10.0, 90.0))], 1.0)
    monkeypatch.setattr(one, "latencies_s", lambda _: [np.array([1e-3] * 9 + [1.0])])
    assert one.within_sla([1.0]) == (True,)


def test_parts_of_a_query_run_side_by_side():
    whole = SharedServerSimulation([tenant(FixedCosts(1e-3), 1, sizes=FixedSizes(1024))], 2.0).latencies_s([1.0])[0]
    split = SharedServerSimulation([tenant(FixedCosts(1e-3), 4, sizes=FixedSizes(1024))], 2.0).latencies_s([1.0])[0]
    np.testing.assert_allclose(whole, 4e-3)
    np.testing.assert_allclose(split, 1e-3)


def test_who_waits_for_memory_waits_for_all_others():
    """Sixteen workers that ask for twice the bandwidth serve what it gives; computing ones feel nothing of it."""
    hungry = FixedCosts(0.0, 1e-3, BANDWIDTH / 4)
    busy = SharedServerSimulation([tenant(hungry, 8), tenant(FixedCosts(1e-3), 4, seed=4)], 2.0)
    overloaded, computing = busy.latencies_s([7_000.0, 100.0])
    assert np.median(computing) == pytest.approx(1e-3, rel=0.01)
    # 7,000 a second are 1.75 times what the bandwidth serves: the last of two seconds wait for nearly one and a half
    assert overloaded[-1] == pytest.approx(2.0 * 0.75, rel=0.1)


def test_two_models_slow_each_other_down_through_the_memory():
    half = FixedCosts(0.0, 1e-3, BANDWIDTH / 8)
    alone = SharedServerSimulation([tenant(half, 8)], 4.0).latencies_s([3_000.0])[0]
    together = SharedServerSimulation([tenant(half, 8), tenant(half, 8, seed=4)], 4.0).latencies_s([3_000.0, 3_000.0])
    assert together[0].mean() > 1.1 * alone.mean()


def test_workers_that_are_idle_leave_their_cache_to_the_others():
    """NCF's batches cost less while few workers are busy, which nothing but their number tells."""
    costs = BatchCosts(BatchPhases(SHARED, catalog.entry("hera-ncf")))
    calm = SharedServerSimulation([tenant(costs, 16, 1, sizes=FixedSizes(256))], 1.0).latencies_s([20.0])[0]
    cache = SHARED.core_cache_bytes + SHARED.way_bytes
    times = BatchPhases(SHARED, catalog.entry("hera-ncf")).times([256], cache)
    assert np.median(calm) == pytest.approx(float(times.compute_s[0] + times.memory_s[0]), rel=0.03)


def test_a_stream_of_rows_displaces_what_others_keep_unless_the_cache_is_partitioned():
    costs = {name: BatchCosts(BatchPhases(SHARED, catalog.entry(f"hera-{name}"))) for name in ("ncf", "dlrm-a")}

    def ncf_latency(ways):
        tenants = [
            tenant(costs["ncf"], 8, ways[0], sizes=FixedSizes(256)),
            tenant(costs["dlrm-a"], 8, ways[1], sizes=FixedSizes(256), seed=4),
        ]
        return SharedServerSimulation(tenants, 1.0).latencies_s([2_000.0, 600.0])[0].mean()

    assert ncf_latency((10, 1)) < ncf_latency((None, None))


def test_what_is_sustained_is_on_the_edge_of_the_targets():
    costs = FixedCosts(2e-3)
    simulation = SharedServerSimulation(
        [tenant(costs, 2, latency_ms=6.0), tenant(costs, 1, latency_ms=6.0, seed=4)], 10.0
    )
    found = simulation.sustained([200.0, 100.0])
    assert all(simulation.within_sla(found.qps))
    assert found.qps == pytest.approx([share * rate for share, rate in zip(found.shares, (200.0, 100.0), strict=True)])
    for place in range(2):
        more = list(found.qps)
        more[place] *= 1.06
        assert not all(simulation.within_sla(more))


def test_what_one_cannot_use_the_others_get():
    costs = FixedCosts(1e-3)
    found = SharedServerSimulation([tenant(costs, 1), tenant(costs, 8, seed=4)], 2.0).sustained([500.0, 500.0])
    assert 1.7 < found.shares[0] < 2.2
    assert 12 < found.shares[1] < 17


def test_no_rate_is_tried_that_the_traces_do_not_last_for():
    tenants = [tenant(FixedCosts(1e-3), 1), tenant(FixedCosts(1e-3), 8, seed=4, queries=4_000)]
    found = SharedServerSimulation(tenants, 4.0).sustained([500.0, 500.0])
    assert found.qps[1] <= 4_000 / 4.0 * 1.05


def test_a_target_out_of_reach_sustains_nothing():
    found = SharedServerSimulation([tenant(FixedCosts(0.2), latency_ms=100.0)], 10.0).sustained([10.0])
    assert found.qps == (0.0,)


def test_a_tenant_that_nobody_asks_has_no_latencies():
    latencies = SharedServerSimulation([tenant(FixedCosts(1e-3)), tenant(FixedCosts(1e-3))], 1.0).latencies_s(
        [100.0, 0.0]
    )
    assert len(latencies[0]) > 50
    assert len(latencies[1]) == 0


def test_a_run_can_be_repeated_to_the_bit():
    costs = BatchCosts(BatchPhases(SHARED, catalog.entry("hera-dlrm-d")))
    runs = [
        SharedServerSimulation([tenant(costs, 8, 5, sizes=ProductionSizes())], 2.0).latencies_s([300.0])[0]
        for _ in range(2)
    ]
    np.testing.assert_array_equal(*runs)


COSTS = FixedCosts(1e-3)
OTHER = BatchCosts(BatchPhases(replace(SHARED, cache_ways=10), catalog.entry("hera-ncf")))


@pytest.mark.parametrize(
    ("tenants", "message"),
    [
        ([], "there are no tenants"),
        ([tenant(COSTS, 9), tenant(COSTS, 8)], "workers are 17 in all: it has 16 cores"),
        ([tenant(COSTS, 8, 6), tenant(COSTS, 8, 6)], "cache_ways are 12 in all: it has 11"),
        ([tenant(COSTS, 8, 6), tenant(COSTS, 8)], "cache_ways: give them to every tenant or to none"),
        ([tenant(COSTS), tenant(OTHER)], "those of another server"),
    ],
)
def test_tenants_that_do_not_fit_are_refused(tenants, message):
    with pytest.raises(PlanningError, match=message):
        SharedServerSimulation(tenants, 1.0)


@pytest.mark.parametrize(
    ("workers", "ways", "message"), [(0, None, "workers is 0"), (1, 0, "cache_ways is 0"), (1.5, 1, "1.5")]
)
def test_a_tenant_that_is_none_is_refused(workers, ways, message):
    with pytest.raises(PlanningError, match=f"tenant ncf: .*{message}"):
        tenant(COSTS, workers, ways)


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ([1.0], "give one for each tenant"),
        ([1.0, -1.0], "none negative"),
        ([1.0, float("nan")], "none negative"),
        ([0.0, 0.0], "all 0"),
    ],
)
def test_rates_that_are_none_are_refused(rates, message):
    with pytest.raises(PlanningError, match=f"rates_qps.*{message}"):
        SharedServerSimulation([tenant(COSTS), tenant(COSTS)], 1.0).sustained(rates)


def test_a_trace_that_ends_too_soon_is_refused():
    with pytest.raises(PlanningError, match="tenant ncf: its trace has 100 queries, too few for 10 s at 50 queries/s"):
        SharedServerSimulation([tenant(COSTS, queries=100)], 10.0).latencies_s([50.0])


@pytest.mark.parametrize("duration_s", [0.0, float("inf"), float("nan")])
def test_a_duration_that_is_none_is_refused(duration_s):
    with pytest.raises(PlanningError, match="duration_s"):
        SharedServerSimulation([tenant(COSTS)], duration_s)
