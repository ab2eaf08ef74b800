"""Who runs with what pool and policy, and the ratios of what they reach."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from rich.progress import Progress

from hebe.scheduling.fleet.distribution import EarliestFinish, FirstComeFirstServed, SizeThreshold
from hebe.scheduling.fleet.matching import CostMatching
from hebe.scheduling.fleet.splitting import PricedSplitting
from hebe.simulation import sweep as sweeping
from hebe.simulation.fleet.capacity import Capacity
from hebe_lab.studies.kairos import bounds as kairos_bounds
from hebe_lab.studies.kairos import contenders as kairos_contenders
from hebe_lab.studies.kairos import robustness as kairos_robustness
from hebe_lab.studies.kairos import shift as kairos_shift
from hebe_lab.studies.kairos.contenders import (
    CHOOSING_SEED,
    CLOCKWORK,
    DRS,
    KAIROS,
    RIBBON,
    SPLITTING,
    Contender,
    best_contender,
    best_oracle_qps,
    homogeneous_contender,
    kairos_contender,
    largest_pools,
    measure,
    ratio,
    splitting_contender,
    splitting_on,
    with_best_threshold,
)
from hebe_lab.studies.kairos.setting import Setting, spread_text

SETTING = Setting("rm2", budget_per_hour=1.1)
"""Few pools, so that all can be tried."""

QUERIES = 300


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    monkeypatch.setattr(sweeping.os, "sched_getaffinity", lambda _: {0})


@pytest.mark.parametrize(
    ("scheme", "kind"),
    [
        (RIBBON, FirstComeFirstServed),
        (DRS, SizeThreshold),
        (CLOCKWORK, EarliestFinish),
        (KAIROS, CostMatching),
        (SPLITTING, PricedSplitting),
    ],
)
def test_every_scheme_has_its_policy(scheme, kind):
    contender = replace(splitting_on(SETTING, (1, 0, 2, 0)), scheme=scheme)
    assert type(contender.make_policy()) is kind
    assert contender.make_policy() is not contender.make_policy()


def test_homogeneous_pool_is_scaled_to_the_budget():
    contender, scale = homogeneous_contender(SETTING)
    assert contender.pool == (2, 0, 0, 0)
    assert scale == pytest.approx(1.1 / (2 * 0.526))


def test_largest_pools_have_no_room_for_another_server():
    problem = SETTING.problem
    pools = largest_pools(problem, SETTING.budget_per_hour)
    cost = problem.cost_per_hour(pools)
    assert (cost <= 1.1 * (1 + 1e-9)).all()
    assert (cost + problem.price_per_hour.min() > 1.1).all()
    most = (1.1 / problem.price_per_hour).astype(int)
    every = np.array(list(itertools.product(*(range(count + 1) for count in most))))
    left = 1.1 - problem.cost_per_hour(every)
    assert len(pools) == int(((left >= 0) & (left < problem.price_per_hour.min())).sum())


@pytest.mark.parametrize("scheme", [RIBBON, KAIROS])
def test_the_best_pool_is_the_best_of_all(scheme):
    best = best_contender(SETTING, scheme, QUERIES)
    reached = best.qps(QUERIES, CHOOSING_SEED)
    for pool in largest_pools(SETTING.problem, SETTING.budget_per_hour).tolist():
        other = Contender(SETTING, scheme, tuple(pool)).qps(QUERIES, CHOOSING_SEED, tolerance=0.02)
        assert other <= reached * 1.05


def test_drs_has_a_threshold_that_suits_its_pool():
    contender, reached = with_best_threshold(SETTING, (1, 0, 3, 0), QUERIES)
    for threshold in (0, 200, 999):
        assert replace(contender, threshold=threshold).qps(QUERIES, CHOOSING_SEED) <= reached * 1.2
    alone, reached_alone = with_best_threshold(SETTING, (2, 0, 0, 0), QUERIES)
    assert reached_alone == pytest.approx(
        Contender(SETTING, RIBBON, (2, 0, 0, 0)).qps(QUERIES, CHOOSING_SEED), rel=0.02
    )
    assert alone.pool == (2, 0, 0, 0)
    best = best_contender(SETTING, DRS, QUERIES)
    assert best.qps(QUERIES, CHOOSING_SEED) >= 0.97 * max(reached, reached_alone)


def test_plans_keep_to_the_budget_and_hebe_does_not_lose_where_it_chose():
    kairos, hebe = kairos_contender(SETTING), splitting_contender(SETTING, QUERIES, 2)
    for contender in (kairos, hebe):
        assert np.dot(contender.pool, SETTING.problem.price_per_hour) <= 1.1 * (1 + 1e-9)
    assert hebe.qps(QUERIES, CHOOSING_SEED) >= 0.99 * kairos.qps(QUERIES, CHOOSING_SEED)


def test_the_oracle_is_ahead_of_first_come_first_served():
    ribbon = best_contender(SETTING, RIBBON, QUERIES)
    assert best_oracle_qps(SETTING, QUERIES, CHOOSING_SEED) > ribbon.qps(QUERIES, CHOOSING_SEED)


def test_contenders_see_the_same_queries_and_are_measured_once():
    progress = Progress(disable=True)
    one = Contender(SETTING, RIBBON, (2, 0, 0, 0))
    found = measure("all", [one, Contender(SETTING, KAIROS, (2, 0, 0, 0)), one], QUERIES, 2, progress)
    assert progress.tasks[0].total == 4
    assert found[0] is found[2]
    assert found[0].by_trace_qps == tuple(one.qps(QUERIES, seed) for seed in (1, 2))


def test_ratios_are_of_traces():
    figure = ratio("a.b", Capacity.of([2.0, 6.0]), Capacity.of([1.0, 2.0]), 0.5, paper="2")
    assert figure.value == pytest.approx(1.25)
    assert figure.low < 1.25 < figure.high
    assert (figure.runs, figure.paper) == (2, "2")
    single = ratio("a.b", Capacity.of([2.0]), Capacity.of([4.0]))
    assert (single.value, single.low, single.high) == (0.5, None, None)


def test_a_usual_run_has_an_interval_for_what_its_figures_are_about():
    assert kairos_robustness.EFFORTS[1].seeds >= 3
    assert kairos_shift.EFFORTS[1].seeds >= 3
    assert kairos_bounds.EFFORTS[1].figure_seeds >= 3
    assert spread_text(1) == "one trace, which has no interval"
    assert spread_text(3).startswith("mean of 3 traces")


def test_hebe_s_plan_is_not_chosen_on_one_trace_only(monkeypatch):
    competed = []

    def recorded(*rest, fresh, **options):
        competed.append({trace.luck.tobytes() for trace in (*fresh, rest[4])})
        return choose(*rest, fresh=fresh, **options)

    choose = kairos_contenders.choose_plan
    monkeypatch.setattr(kairos_contenders, "choose_plan", recorded)
    splitting_contender(SETTING, QUERIES, 0)
    assert len(competed[0]) == 3
    measured_on = {SETTING.trace(QUERIES, seed).luck.tobytes() for seed in range(1, 20)}
    assert not competed[0] & measured_on


def test_ribbon_may_leave_budget_unspent():
    setting = Setting("dien")
    ribbon = best_contender(setting, RIBBON, 600)
    homogeneous, _ = homogeneous_contender(setting)
    assert ribbon.qps(600, CHOOSING_SEED) >= 0.97 * homogeneous.qps(600, CHOOSING_SEED)


def test_known_service_times_serve_more_in_a_short_run():
    pool = (1, 0, 4, 0)
    learning, known = (
        splitting_on(replace(SETTING, known_times=known), pool).qps(QUERIES, 1, tolerance=0.02)
        for known in (False, True)
    )
    assert known > learning
