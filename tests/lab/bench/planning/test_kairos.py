"""Kairos' figures on few pools and short traces: what holds whatever the numbers are."""

import pytest
from rich.progress import Progress

from hebe.simulation import sweep as sweeping
from hebe.simulation.fleet.capacity import Capacity
from hebe_lab.bench.planning import kairos as planning_kairos
from hebe_lab.bench.planning.kairos import PARTS, Case, Contest, Effort, kairos_figures, reach
from hebe_lab.studies.kairos.contenders import CLOCKWORK, best_contender

EFFORT = Effort(200, 150, 2, 0, ("rm2",), budget_per_hour=1.1)


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    monkeypatch.setattr(sweeping.os, "sched_getaffinity", lambda _: {0})


@pytest.fixture(scope="module")
def parts():
    found = {part: reach(Case("rm2", part, None, EFFORT)) for part in PARTS}
    assert found.pop("best_bound") is None, "it is the pick"
    return found


def test_every_part_reaches_something_within_the_budget(parts):
    prices = Contest("rm2", None, EFFORT).problem.price_per_hour
    for found in parts.values():
        assert found.capacity.qps > 0
        assert sum(found.pool * prices) <= 1.1 * (1 + 1e-9)


def test_a_baseline_runs_on_the_best_for_it_of_all_pools(parts):
    best = best_contender(Contest("rm2", None, EFFORT).setting, CLOCKWORK, EFFORT.planning_queries)
    assert parts["clockwork"].pool == best.pool
    assert parts["drs"].policy.startswith("size threshold")


def test_what_is_measured_was_not_chosen_on(parts):
    contest = Contest("rm2", None, EFFORT)
    chosen_on = [contest.planning, *contest.fresh]
    assert len({trace.luck.tobytes() for trace in [*chosen_on, *contest.measured]}) == len(chosen_on) + 2
    assert len(parts["split"].capacity.by_trace_qps) == 2


def test_figures_are_named_by_model_and_carry_their_spread():
    figures = {figure.name: figure for figure in kairos_figures(None, EFFORT, Progress(disable=True))}
    assert {name.removesuffix(".rm2") for name in figures} == {
        "kairos.over_homogeneous", "kairos.over_ribbon", "kairos.over_drs", "kairos.over_clockwork",
        "kairos.share_of_bound", "split.over_kairos", "split.share_of_fluid_bound", "kairos_plus.evaluated_share",
        "kairos_plus.over_exhaustive",
    }  # fmt: skip
    for name in ("kairos.over_drs.rm2", "split.over_kairos.rm2"):
        assert figures[name].low <= figures[name].value <= figures[name].high
    assert figures["kairos_plus.over_exhaustive"].value <= 1


def test_where_the_pick_passes_over_the_highest_bound_that_pool_is_measured_too():
    effort = Effort(200, 150, 2, 0, ("mtwnd",))
    pick, first = (reach(Case("mtwnd", part, None, effort)) for part in ("kairos", "best_bound"))
    assert first.bound_qps > pick.bound_qps
    assert first.pool != pick.pool
    parts = dict.fromkeys(PARTS, first)
    [figure] = [
        figure for figure in planning_kairos._figures_of("mtwnd", parts) if figure.name.startswith("kairos.best_bound")
    ]
    assert (figure.name, figure.target) == ("kairos.best_bound_over_homogeneous.mtwnd", None)


def test_one_trace_has_no_spread():
    one = planning_kairos.Reached(Capacity.of([3.0]), (1,), "matching", 4.0)
    figure = planning_kairos._share("a.b", one, "> 0", "of it")
    assert (figure.value, figure.low, figure.high) == (0.75, None, None)
