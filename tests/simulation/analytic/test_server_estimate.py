from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from hebe.models import catalog
from hebe.planning.colocation.shared_server import check_memory
from hebe.planning.error import PlanningError
from hebe.server_configuration import Lane, Placement, from_dict
from hebe.simulation.analytic.analytic_server import AnalyticServer
from hebe.simulation.analytic.calibration import HEBE
from hebe.simulation.analytic.configuration_search import best_one_stage, least_latency_s
from hebe.simulation.analytic.server_estimate import EstimateCase, Strategy, estimate
from hebe.simulation.analytic.server_types import EC2, HERCULES
from hebe.spec import SlaTarget
from hebe.workload.query_sizes import FixedSizes, ProductionSizes
from hebe.workload.reuse_profile import PRODUCTION_2021

SIZES = ProductionSizes()
DRAWN = SIZES.draw(20_000, np.random.default_rng(0))
HOST, ACCELERATED = EC2["c5n.2xlarge"], EC2["g4dn.xlarge"]


def case_of(server=HOST, model="dlrm-rmc1", **changes):
    spec = catalog.entry(model)
    return EstimateCase(server, spec, changes.pop("sla", spec.sla), SIZES, **changes)


def analytic(case):
    return AnalyticServer(case.server, case.model, DRAWN, case.reuse, HEBE)


@pytest.mark.parametrize("strategy", list(Strategy))
@pytest.mark.parametrize("server", [HOST, ACCELERATED, EC2["r5n.large"]])
def test_what_is_told_is_what_the_configuration_reaches(server, strategy):
    case = case_of(server, strategy=strategy)
    found = estimate(case)
    told = found.efficiency
    assert told.estimated
    assert (told.model, told.server_type, found.reason) == ("dlrm-rmc1", server.name, "")
    assert from_dict(told.configuration) == found.lanes
    reached = analytic(case).evaluate(found.lanes, case.sla)
    assert (told.qps, told.power_watts) == (reached.qps, reached.power_watts)
    assert told.qps > 0


def test_the_grid_finds_no_less_than_the_others():
    qps = {strategy: estimate(case_of(ACCELERATED, strategy=strategy)).efficiency.qps for strategy in Strategy}
    assert qps[Strategy.GRID] >= 0.998 * max(qps.values())
    assert qps[Strategy.ONE_STAGE] < qps[Strategy.GRID]


def test_keys_that_are_skewed_are_served_by_caches():
    assert estimate(case_of(reuse=PRODUCTION_2021)).efficiency.qps > estimate(case_of()).efficiency.qps


@pytest.mark.parametrize("server", [HERCULES["T2"], HERCULES["T7"], EC2["r5n.large"]])
def test_service_times_carry_as_much_as_the_lane_when_saturated(server):
    case = case_of(server, strategy=Strategy.ONE_STAGE)
    times = estimate(case).times
    stage = analytic(case).query_stage(times.lane)
    mean_s = np.mean([times.service.service_time_s(int(items)) for items in DRAWN])
    assert times.workers / mean_s == pytest.approx(stage.workers / stage.work_s.mean(), rel=0.03)
    assert times.service.batch_sizes[-1] == SIZES.largest
    assert all(after >= before for before, after in pairwise(times.service.service_s))
    assert times.qps < times.workers / mean_s


def test_where_a_query_has_several_stages_the_best_of_one_stage_tells_its_times():
    found = estimate(case_of(ACCELERATED))
    assert len(found.lanes) > 1 or found.lanes[0].fused_items
    assert (found.times.lane.workers, found.times.lane.fused_items) == (0, 0)
    assert found.times.qps < found.efficiency.qps
    alone = estimate(case_of(ACCELERATED, strategy=Strategy.ONE_STAGE))
    assert alone.times.qps == alone.efficiency.qps


def test_queries_of_one_stage_only_have_one_time():
    server = analytic(case_of(ACCELERATED))
    for lane in (
        Lane(Placement.PIPELINE_ON_HOST, 1, 1, 64, 1),
        Lane(Placement.SPARSE_ON_HOST, 1, 1, 64, 1),
        Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, 0, dense_workers=1, fused_items=1024),
    ):
        with pytest.raises(PlanningError, match="not one number by its size"):
            server.query_stage(lane)
    stage = server.query_stage(Lane(Placement.MODEL_ON_HOST, 2, 1, 64), [1, 64, 65, 128, 129, 192, 193, 256])
    item_s, batch_s = stage.own_s[:2]
    assert item_s < 0.2 * batch_s
    np.testing.assert_allclose(
        stage.work_s[2:], np.repeat([1, 2, 3, 4], [1, 2, 2, 1]) * batch_s + item_s * np.array([1, 0, 1, 0, 1, 0])
    )
    # Of two workers one has the last item while the other has a batch, or both have had as many.
    np.testing.assert_allclose(
        stage.own_s[2:], [batch_s, batch_s, batch_s + item_s, 2 * batch_s, 2 * batch_s, 2 * batch_s]
    )


@pytest.mark.parametrize("batch_size", [1, 50, 64, 256])
def test_a_single_worker_takes_as_long_for_a_query_as_its_batches_one_after_the_other(batch_size):
    stage = analytic(case_of()).query_stage(Lane(Placement.MODEL_ON_HOST, 1, 1, batch_size), np.arange(1, 301))
    np.testing.assert_allclose(stage.own_s, stage.work_s)


def test_tables_that_do_not_fit_cannot_be_served():
    found = estimate(case_of(model="dlrm-rmc2", server=replace(HOST, memory_bytes=10**8)))
    assert found.efficiency.qps == 0.0
    assert "its tables take" in found.reason
    assert (found.times, found.shared, found.lanes) == (None, None, ())


def test_an_sla_out_of_reach_says_what_would_be_reached():
    case = case_of(sla=SlaTarget(0.001, 95.0))
    found = estimate(case)
    least_ms = 1e3 * least_latency_s(analytic(case), 95.0)
    assert found.efficiency.qps == 0.0
    assert f"p95 is {least_ms:,.4g} ms at best" in found.reason
    assert found.times is None
    within = case_of(sla=SlaTarget(1.05 * least_ms, 95.0))
    assert estimate(within).efficiency.qps > 0


def test_an_unknown_architecture_is_an_error():
    case = case_of()
    with pytest.raises(PlanningError, match="cannot be estimated"):
        estimate(replace(case, model=replace(case.model, architecture="imported")))


def test_scalability_is_of_workers_that_share_the_tables():
    case = case_of(HERCULES["T2"])
    shared = estimate(case).shared
    profile = shared.scalability
    assert profile.estimated
    assert profile.workers == tuple(range(1, 21))
    assert set(profile.memory_bytes) == {min(profile.memory_bytes)}
    assert case.model.table_bytes < profile.memory_bytes[0] < 1.1 * case.model.table_bytes
    check_memory(profile)
    assert (shared.resources.cores, shared.resources.cache_ways) == (20, 11)
    assert shared.resources.memory_bytes == case.server.memory_bytes
    assert profile.qps[-1] > 10 * profile.qps[0]


@pytest.mark.parametrize(
    ("server", "why"),
    [(replace(HOST, llc_bytes=0), "llc_bytes is not stated"), (HERCULES["T3"], "near-memory ranks")],
)
def test_where_scalability_is_not_modelled_it_says_so(server, why):
    found = estimate(case_of(server, strategy=Strategy.DEEPRECSYS))
    assert found.shared is None
    assert why in found.not_shared


def test_batches_of_many_rounds_are_told_at_few_sizes():
    case = EstimateCase(EC2["r5n.large"], catalog.entry("kairos-ncf"), SlaTarget(5000.0, 95.0), FixedSizes(60_000))
    times = estimate(replace(case, strategy=Strategy.DEEPRECSYS)).times
    assert len(times.service.batch_sizes) < 200


def test_the_best_of_one_stage_is_one_of_the_grid():
    case = case_of(ACCELERATED)
    found = best_one_stage(analytic(case), case.sla)
    assert len(found.lanes) == 1
    assert analytic(case).evaluate(found.lanes, case.sla).qps == found.qps


def test_one_core_beside_an_accelerator_will_do_for_every_strategy():
    server = replace(ACCELERATED, cores=1)
    assert all(estimate(case_of(server, "mt-wnd", strategy=strategy)).efficiency.qps > 0 for strategy in Strategy)


def test_what_only_this_strategy_does_not_find_is_told_so():
    small = FixedSizes(16)  # one batch: workers on all cores only disturb each other
    case = replace(case_of(HERCULES["T2"], strategy=Strategy.DEEPRECSYS), sizes=small)
    server = AnalyticServer(case.server, case.model, np.array([16]), None, HEBE)
    sla = SlaTarget(1.2e3 * least_latency_s(server, 95.0), 95.0)
    found = estimate(replace(case, sla=sla))
    assert found.efficiency.qps == 0.0
    assert "strategy deeprecsys" in found.reason
    assert estimate(replace(case, sla=sla, strategy=Strategy.GRID)).efficiency.qps > 0
