from dataclasses import replace

import numpy as np
import pytest

import hebe.simulation.fleet.plan_choice
from hebe.planning.error import PlanningError
from hebe.planning.pool.pool import plan_pool
from hebe.scheduling.fleet.matching import CostMatching
from hebe.scheduling.fleet.splitting import PricedSplitting
from hebe.simulation.fleet.capacity import fleet_capacity
from hebe.simulation.fleet.capacity_race import CapacityRace
from hebe.simulation.fleet.fleet_run import QueryTrace, TableServers
from hebe.simulation.fleet.plan_choice import FINALISTS, choose_plan
from hebe.simulation.fleet.policy_choice import PolicyKind
from hebe.simulation.measured.service_table import ServiceTableError
from hebe.spec import SlaTarget
from tests.examples.pool_service import LARGEST, SLA_MS, EvenSizes, problem, table

BUDGET = 3.0
SLA = SlaTarget(SLA_MS, 95.0)
TRACE = QueryTrace.draw(500, EvenSizes(), 3)


def test_the_choice_never_loses_to_kairos_on_the_trace_it_was_made_on():
    kairos = plan_pool(problem(), BUDGET).pick
    plan = choose_plan(problem(), table(), BUDGET, SLA, TRACE, runners_up=2)
    alone = fleet_capacity(
        [TRACE], kairos.counts, TableServers(table()), lambda: CostMatching(SLA.latency_s, LARGEST), SLA
    )
    assert plan.predicted_qps >= 0.98 * alone.qps
    assert plan.cost_per_hour <= BUDGET
    assert plan.cost_per_hour == pytest.approx(np.dot(plan.counts, (1.0, 0.2)))


def test_where_no_type_serves_the_largest_query_whole_the_choice_splits():
    slow = table(item_ms=(1.0, 1.0))
    plan = choose_plan(problem(slow), slow, BUDGET, SLA, TRACE, runners_up=0)
    assert plan.policy.kind is PolicyKind.SPLITTING
    assert plan.predicted_qps > 0
    assert all(
        (price > 0) == (count > 0) for price, count in zip(plan.policy.prices_qps.values(), plan.counts, strict=True)
    )


def test_large_pools_are_tried_as_they_will_be_dealt(monkeypatch):
    dealt = {}

    def entered(_race, workers, make):
        routers = getattr(make(), "routers", [None])
        dealt[tuple(workers)] = len(routers)
        return 1.0

    monkeypatch.setattr(CapacityRace, "enter", entered)
    choose_plan(problem(), table(), 100 * BUDGET, SLA, TRACE, runners_up=0)
    assert any(count > 1 for count in dealt.values())
    assert all(count == PolicyKind.MATCHING.partitions(workers) for workers, count in dealt.items())


def test_the_same_inputs_make_the_same_choice_and_report_every_step():
    steps = []
    plan = choose_plan(problem(), table(), BUDGET, SLA, TRACE, runners_up=1, on_tried=lambda *step: steps.append(step))
    assert steps == [(done, plan.tried) for done in range(1, plan.tried + 1)]
    assert choose_plan(problem(), table(), BUDGET, SLA, TRACE, runners_up=1) == plan


FRESH = [QueryTrace.draw(300, EvenSizes(), seed) for seed in (4, 5)]


def test_the_finalists_compete_on_fresh_traces_and_the_best_of_them_there_is_taken(monkeypatch):
    measured = []

    def recorded(traces, pool, servers, make, *rest, **options):
        found = fleet_capacity(traces, pool, servers, make, *rest, **options)
        measured.append((found.qps, tuple(pool), type(make())))
        assert traces is FRESH
        return found

    monkeypatch.setattr(hebe.simulation.fleet.plan_choice, "fleet_capacity", recorded)
    steps = []
    plan = choose_plan(
        problem(), table(), BUDGET, SLA, TRACE, fresh=FRESH, runners_up=2, on_tried=lambda *s: steps.append(s)
    )
    assert len(measured) == FINALISTS == len(set(measured))
    assert (plan_pool(problem(), BUDGET).pick.counts, CostMatching) in [entry[1:] for entry in measured]
    assert plan.predicted_qps == max(measured)[0]
    policy = CostMatching if plan.policy.kind is PolicyKind.MATCHING else PricedSplitting
    assert (plan.predicted_qps, plan.counts, policy) in measured
    assert steps == [(done, plan.tried + FINALISTS) for done in range(1, plan.tried + FINALISTS + 1)]


def test_kairos_way_competes_on_the_fresh_traces_whatever_it_did_before(monkeypatch):
    """Here it looks worst where the finalists are chosen, and is the only one that is worth anything later."""
    kairos = plan_pool(problem(), BUDGET).pick.counts
    enter = CapacityRace.enter

    def unlucky(race, pool, make):
        return 0.0 if tuple(pool) == kairos else enter(race, pool, make)

    def lucky(traces, pool, servers, make, *rest, **options):
        found = fleet_capacity(traces, pool, servers, make, *rest, **options)
        return found if tuple(pool) == kairos and isinstance(make(), CostMatching) else replace(found, qps=0.0)

    monkeypatch.setattr(CapacityRace, "enter", unlucky)
    monkeypatch.setattr(CapacityRace, "attainment", lambda _race, _qps, pool, *_, **__: tuple(pool) != kairos)
    monkeypatch.setattr(hebe.simulation.fleet.plan_choice, "fleet_capacity", lucky)
    plan = choose_plan(problem(), table(), BUDGET, SLA, TRACE, fresh=FRESH, runners_up=2)
    alone = fleet_capacity(FRESH, kairos, TableServers(table()), lambda: CostMatching(SLA.latency_s, LARGEST), SLA)
    assert (plan.counts, plan.policy.kind) == (kairos, PolicyKind.MATCHING)
    assert plan.predicted_qps == pytest.approx(alone.qps, rel=0.01)


def test_without_kairos_pick_the_rest_compete():
    slow = table(item_ms=(1.0, 1.0))
    plan = choose_plan(problem(slow), slow, BUDGET, SLA, TRACE, fresh=FRESH, runners_up=1)
    assert plan.policy.kind is PolicyKind.SPLITTING
    assert plan.predicted_qps > 0


def test_what_cannot_be_planned_is_named():
    with pytest.raises(PlanningError, match="runners_up is -1"):
        choose_plan(problem(), table(), BUDGET, SLA, TRACE, runners_up=-1)
    with pytest.raises(PlanningError, match="budget_per_hour"):
        choose_plan(problem(), table(), 0.1, SLA, TRACE)
    with pytest.raises(ServiceTableError, match="cheap"):
        choose_plan(problem(), table().of_types(("fast",)), BUDGET, SLA, TRACE)


def test_servers_of_several_workers_do_what_so_many_servers_do():
    """Two workers each at twice the price: half as many servers do the same."""
    one = problem()
    two = replace(one, price_per_hour=2 * one.price_per_hour, workers=(2,) * len(one.types))
    plan = choose_plan(two, table(), 2 * BUDGET, SLA, TRACE, runners_up=0)
    pool = [2 * count for count in plan.counts]
    alone = fleet_capacity(
        [TRACE], pool, TableServers(table()),
        lambda: plan.policy.make(plan.types, SLA.latency_s, LARGEST), SLA,
    )  # fmt: skip
    assert plan.predicted_qps == pytest.approx(alone.qps, rel=0.02)
