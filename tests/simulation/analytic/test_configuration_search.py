from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from hebe.models import catalog
from hebe.planning.server_split.search import gradient_search
from hebe.planning.server_split.space import ParallelismSpace
from hebe.server_configuration import Lane, Placement
from hebe.simulation.analytic.analytic_server import AnalyticServer
from hebe.simulation.analytic.configuration_search import (
    COARSE,
    SearchGrid,
    baseline_configuration,
    best_configuration,
    best_one_stage,
    efficiency_tuple,
    evaluation_on,
)
from hebe.simulation.analytic.server_types import HERCULES
from hebe.spec import SlaTarget
from hebe.workload.query_sizes import ProductionSizes
from hebe.workload.reuse_profile import PRODUCTION_2021

SIZES = ProductionSizes().draw(5000, np.random.default_rng(0))
TINY = SearchGrid((1, 2), (64, 512), (1, 2), (8192,))


def server_of(server_type, model):
    return AnalyticServer(HERCULES[server_type], catalog.entry(model), SIZES, PRODUCTION_2021)


@pytest.mark.parametrize("server_type", ["T1", "T3", "T7"])
@pytest.mark.parametrize("model", ["dlrm-rmc1", "dlrm-rmc3", "dien"])
def test_the_whole_space_holds_no_less_than_the_baseline(server_type, model):
    server = server_of(server_type, model)
    sla = server.model.sla
    best, baseline = best_configuration(server, sla, TINY), baseline_configuration(server, sla, TINY)
    assert best.qps >= 0.998 * baseline.qps > 0
    assert server.evaluate(best.lanes, sla) == best
    assert sum(lane.cores for lane in best.lanes) <= server.server.cores


def test_the_baseline_is_the_best_of_its_few_lanes():
    server, sla = server_of("T2", "dlrm-rmc1"), SlaTarget(20.0)
    lanes = [Lane(Placement.MODEL_ON_HOST, 20, 1, size) for size in COARSE.batch_sizes]
    baseline = baseline_configuration(server, sla, COARSE)
    assert baseline.qps == max(server.evaluate([lane], sla).qps for lane in lanes)


def test_a_finer_grid_finds_no_less():
    server, sla = server_of("T2", "dlrm-rmc1"), SlaTarget(20.0)
    assert best_configuration(server, sla).qps >= 0.998 * best_configuration(server, sla, COARSE).qps


def test_cores_that_an_accelerator_leaves_over_serve_too():
    best = best_configuration(server_of("T7", "dlrm-rmc1"), SlaTarget(20.0), TINY)
    assert [lane.placement.on_accelerator for lane in best.lanes] == [True, False]


def test_a_target_out_of_reach_leaves_an_empty_tuple():
    server = server_of("T7", "dlrm-rmc1")
    best = best_configuration(server, SlaTarget(0.001), TINY)
    found = efficiency_tuple(server, best)
    assert (found.model, found.server_type, found.qps, dict(found.configuration)) == ("dlrm-rmc1", "T7", 0.0, {})


def test_a_tuple_says_how_it_was_reached():
    server = server_of("T2", "dlrm-rmc1")
    best = best_configuration(server, SlaTarget(20.0), TINY)
    found = efficiency_tuple(server, best)
    assert (found.qps, found.power_watts, found.estimated) == (best.qps, best.power_watts, True)
    settings = dict(found.configuration)
    assert Lane(**settings) == best.lanes[0]
    beside = efficiency_tuple(
        server_of("T7", "dlrm-rmc1"), best_configuration(server_of("T7", "dlrm-rmc1"), SlaTarget(20.0), TINY)
    )
    assert beside.configuration["beside_placement"] == "model-on-host"


@pytest.mark.parametrize("model", ["dlrm-rmc1", "mt-wnd"])
def test_hercules_search_finds_what_the_grid_does_in_far_fewer_evaluations(model):
    server = server_of("T2", model)
    sla, grid = server.model.sla, SearchGrid()
    found = gradient_search(ParallelismSpace(20, grid.batch_sizes), evaluation_on(server, sla))
    assert found.best is not None
    assert found.reached.qps >= 0.998 * best_configuration(server, sla, grid).qps
    assert found.evaluations < 400
    assert server.evaluate(found.best, sla).qps == found.reached.qps


def test_what_keeps_no_target_is_told_by_its_latency_when_idle():
    server = server_of("T2", "dien")
    few, many = ((Lane(Placement.MODEL_ON_HOST, workers, 1, 8),) for workers in (1, 4))
    slow, less_slow = (evaluation_on(server, SlaTarget(20.0))(each) for each in (few, many))
    assert slow.qps == less_slow.qps == 0
    assert slow.tail_latency_ms > 2 * less_slow.tail_latency_ms > 40
    assert slow.tail_latency_ms == 1e3 * server.tail_latency_s(few[0], 0.0, 95.0)


def test_a_server_of_many_cores_is_searched_in_steps_that_grow(monkeypatch):
    """In steps of two, a thousand cores took minutes."""
    asked = []
    monkeypatch.setattr(AnalyticServer, "reaches", lambda _self, lane, *_: bool(asked.append(lane.workers)))
    many = AnalyticServer(replace(HERCULES["T2"], cores=1000), catalog.entry("dlrm-rmc1"), SIZES, PRODUCTION_2021)
    best_one_stage(many, SlaTarget(20.0), SearchGrid((1,), (64,)))
    assert len(asked) < 100
    assert asked[-1] == 1000
    assert all(after <= max(before + 2, 1.07 * before) for before, after in pairwise(asked))
