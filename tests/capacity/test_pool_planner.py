"""Pools planned from files: what is on offer, what the planners propose, and what the proposals are measured on."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hebe.capacity import pool_planner
from hebe.capacity.errors import ArgumentError, MisfitError, PlanFileError
from hebe.capacity.files.service_times import read_service_times
from hebe.capacity.pool_planner import plan_pool
from hebe.cli.plan.pool_results import plan_file
from hebe.planning.error import PlanningError
from hebe.planning.pool.fluid_bound import fluid_bound
from hebe.planning.pool.fluid_pool import best_pool, cheapest_pool
from hebe.planning.pool.pool import kairos_bounds, pools_within
from hebe.simulation.fleet.policy_choice import PolicyChoice, PolicyKind
from hebe.workload.text_errors import WorkloadError
from tests.examples.pool_files import PRICES, SERVICE_MS, prices_file, times_file

pytestmark = pytest.mark.usefixtures("few_budgets")


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    times_file(tmp_path)
    prices_file(tmp_path)


def planned(**changes):
    """By bounds alone, if not asked otherwise."""
    usual = {
        "service_times": "times.csv", "prices": "prices.csv", "budget_per_hour": 1.2, "sla_ms": 12.0,
        "percentile": 95.0, "sizes": "quantiles:5,10,20,40,100", "ranked": 3, "simulate": False, "queries": 300,
        "seeds": 1,
    }  # fmt: skip
    return plan_pool(**usual | changes)


@pytest.fixture(scope="module")
def by_bounds(tmp_path_factory):
    """The plan of all types."""
    folder = tmp_path_factory.mktemp("pool")
    return planned(service_times=(times_file(folder),), prices=prices_file(folder))


def test_large_pools_are_measured_and_planned_as_they_will_be_dealt(monkeypatch):
    """A budget for more than two hundred servers, of which a search would take long."""
    cases = []

    def measured(_stage, _work, given, *_):
        cases.extend(given)
        return [(1_000.0, None)] * len(given)

    chosen = SimpleNamespace(counts=(20, 200), policy=PolicyChoice(PolicyKind.MATCHING))
    monkeypatch.setattr(pool_planner, "choose_plan", lambda *_args, **_options: chosen)
    monkeypatch.setattr(pool_planner, "on_all_cores", measured)
    made = planned(budget_per_hour=30.0, types=("gpu", "cpu"), simulate=True, queries=5_000)
    assert made.chosen.counts == (20, 200)
    dealt = {(case.workers, case.policy.kind): case.partitions for case in cases}
    assert dealt[(20, 200), PolicyKind.MATCHING] == 2
    assert all(count == policy.partitions(workers) for (workers, policy), count in dealt.items())
    assert plan_file(made).partitions == 2


def test_the_bounds_stand_in_order(by_bounds):
    made = by_bounds
    one, whole, split = (
        made.proposals[name].bound.bound_qps for name in ("one type", "fluid, whole", "fluid, splitting")
    )
    assert one < whole < split
    assert made.proposals["Kairos"].bound.bound_qps <= whole * (1 + 1e-6)
    assert made.chosen is made.proposals["fluid, splitting"]
    assert (made.chosen.policy.kind, made.chosen.share_of_bound) == (PolicyKind.SPLITTING, None)
    assert made.problem.types[0] == "gpu", "the base type, whatever the order of the prices"


@pytest.mark.parametrize(("a", "price_a", "counts"), [(10.0, 0.6, (0, 2)), (5.0, 1.2, (0, 2)), (10.0, 0.5, (2, 0))])
def test_the_best_pool_of_one_type_need_not_be_the_base_types(tmp_path, monkeypatch, a, price_a, counts):
    """By price and time `a` is the better one, but servers are bought whole."""
    for name, ms in (("a", a), ("b", 13.0)):
        monkeypatch.setitem(SERVICE_MS, name, (ms, 0.0))
    times_file(tmp_path, types=("a", "b"))
    prices_file(tmp_path, {"b": 0.5, "a": price_a})
    made = planned(budget_per_hour=1.0, sla_ms=20.0)
    assert made.problem.types == ("a", "b"), "the base first"
    assert made.proposals["one type"].counts == counts


def test_a_pool_of_more_workers_than_are_simulated_is_refused_before_that(monkeypatch):
    monkeypatch.setattr(pool_planner, "MOST_INSTANCES", 5)
    with pytest.raises(MisfitError, match=r"has \d+ workers: at most 5 are simulated") as caught:
        planned(simulate=True)
    assert caught.value.field == "budget_per_hour"
    assert str(caught.value).endswith("bound it by most, or plan with simulate=False")
    assert planned(simulate=False).chosen.counts


def test_the_frontier_never_falls_and_begins_at_the_cheapest_pool(by_bounds):
    made = by_bounds
    for name, (budgets, bounds_qps) in made.frontier.items():
        assert (np.diff(budgets) >= 0).all()
        assert (np.diff(bounds_qps) >= -1e-6).all(), name
    budgets, bounds_qps = made.frontier["fluid bound, splitting"]
    assert bounds_qps[budgets.tolist().index(1.2)] == pytest.approx(made.chosen.bound.bound_qps)
    assert budgets[0] == cheapest_pool(made.problem) @ made.problem.price_per_hour
    assert made.frontier["Kairos' bound"][0][0] == made.frontier["fluid bound, whole queries"][0][0] == 0.5
    assert made.sampled == {"fluid bound, splitting", "fluid bound, whole queries"}, "dozens of prices"


def test_of_few_prices_the_frontier_is_exact_at_every_budget(monkeypatch):
    monkeypatch.setattr(pool_planner, "_FRONTIER_BUDGETS", 20)
    made = planned(budget_per_hour=0.35, types=("gpu", "cpu"))
    pools = pools_within(made.problem, 0.7)
    costs = made.problem.cost_per_hour(pools)
    bounds = {
        name: np.array([fluid_bound(made.problem, pool, most_parts=parts).bound_qps for pool in pools])
        for name, parts in (("fluid bound, splitting", 4), ("fluid bound, whole queries", 1))
    }
    bounds["Kairos' bound"] = kairos_bounds(made.problem, pools)
    assert (made.sampled, set(made.frontier)) == (set(), set(bounds))
    for name, (budgets, bounds_qps) in made.frontier.items():
        for budget in np.arange(0.05, 0.75, 0.05):
            best = bounds[name][costs <= budget + 1e-9].max(initial=0.0)
            drawn = bounds_qps[budgets <= budget + 1e-9][-1:].sum()
            assert drawn == pytest.approx(best, rel=1e-5), (name, budget)


def test_where_a_search_ends_without_proof_the_frontier_has_no_mark(monkeypatch):
    def unproven(problem, budget, **options):
        if 0.4 < budget < 0.45:
            raise PlanningError("the search ended")
        return best_pool(problem, budget, **options)

    monkeypatch.setattr(pool_planner, "_FRONTIER_BUDGETS", 20)
    monkeypatch.setattr(pool_planner, "best_pool", unproven)
    made = planned(budget_per_hour=0.35, types=("cpu",), prices=prices_file(Path(), {"cpu": 0.1}))
    assert made.sampled == set()
    made = planned(budget_per_hour=0.35, types=("cpu",), prices=prices_file(Path(), {"cpu": 0.14}))
    assert made.sampled == {"fluid bound, splitting"}
    np.testing.assert_allclose(made.frontier["fluid bound, splitting"][0], [0.28, 0.56, 0.7])


def test_types_and_most_limit_the_offer():
    made = planned(types=("gpu", "cpu"), most={"cpu": 2})
    assert made.problem.types == ("gpu", "cpu")
    assert all(proposal.counts[1] <= 2 for proposal in made.proposals.values())


def test_types_without_a_limit_have_none_beyond_the_budget():
    """The frontier reaches to twice the budget, with which 24 cpus or 4 gpus are bought."""
    free, limited = (planned(types=("gpu", "cpu"), most=most, sizes="fixed:100").frontier for most in ({}, {"cpu": 24}))
    for name, line in free.items():
        np.testing.assert_allclose(limited[name], line, rtol=1e-5, err_msg=name)


def test_what_has_no_price_is_not_on_offer(tmp_path):
    prices_file(tmp_path, {"gpu": 0.5, "cpu": 0.1})
    made = planned()
    assert (made.problem.types, made.unpriced) == (("gpu", "cpu"), ("small",))


def test_where_only_splitting_is_in_time(tmp_path):
    """No type serves 100 items in 12 ms whole: Kairos has no pool, splitting has one."""
    prices_file(tmp_path, {"cpu": 0.1, "small": 0.05})
    made = planned()
    assert list(made.proposals) == ["fluid, splitting", "chosen"]
    assert made.kairos is None
    assert made.without_kairos.startswith("Only splitting serves every query in time: no server type")


def test_a_budget_for_too_many_pools_to_rank():
    made = planned(budget_per_hour=200.0, queries=50_000)
    assert list(made.proposals) == ["one type", "fluid, whole", "fluid, splitting", "chosen"]
    assert made.kairos is None
    assert (
        "Kairos' ranking is left out: budget_per_hour of 200 buys more than 5,000,000 different pools"
        in made.without_kairos
    )


def test_chosen_on_one_trace_then_on_fresh_ones_and_measured_on_yet_others(monkeypatch):
    chosen_on, measured_on = [], []

    def choosing(*rest, fresh, **options):
        chosen_on.extend([rest[4], *fresh])
        return choose(*rest, fresh=fresh, **options | {"runners_up": 0})

    def measuring(case):
        measured_on.append(case.stream.trace(1.0))
        return measure(case)

    choose, measure = pool_planner.choose_plan, pool_planner.capacity_case
    monkeypatch.setattr(pool_planner, "choose_plan", choosing)
    monkeypatch.setattr(pool_planner, "capacity_case", measuring)
    made = planned(simulate=True, seeds=2, queries=200, sizes="quantiles:10,40", types=("gpu", "cpu"))
    luck = [{trace.luck.tobytes() for trace in traces} for traces in (chosen_on, measured_on)]
    assert [len(drawn) for drawn in luck] == [3, 2]
    assert not luck[0] & luck[1]
    assert all(len(one.measured.capacity.by_trace_qps) == 2 for one in made.proposals.values())
    assert made.chosen.share_of_bound == pytest.approx(made.chosen.measured.capacity.qps / made.chosen.bound.bound_qps)


@pytest.mark.parametrize(
    ("changes", "error", "field"),
    [
        ({"types": ("gpu", "tpu")}, MisfitError, "types"),
        ({"most": {"tpu": 1}}, MisfitError, "most"),
        ({"most": {"gpu": -1}}, ArgumentError, "most"),
        ({"budget_per_hour": 0.0}, ArgumentError, "budget_per_hour"),
        ({"budget_per_hour": 1e308, "most": dict.fromkeys(SERVICE_MS, 3)}, MisfitError, "budget_per_hour"),
        ({"budget_per_hour": 1e307, "most": {"gpu": 3}}, MisfitError, "budget_per_hour"),
        ({"budget_per_hour": 1e306, "most": {"gpu": 3}}, PlanningError, "budget_per_hour"),
        ({"budget_per_hour": 0.09, "types": ("gpu",)}, PlanningError, "budget_per_hour"),
        ({"sla_ms": float("nan")}, ArgumentError, "sla_ms"),
        ({"sla_ms": 0.5}, MisfitError, "sla_ms"),
        ({"sla_ms": 1.2, "types": ("cpu",)}, PlanningError, "sla_ms"),
        ({"percentile": 100}, ArgumentError, "percentile"),
        ({"sizes": "fixed"}, ArgumentError, "sizes"),
        ({"queries": 0}, ArgumentError, "queries"),
        ({"queries": 10}, MisfitError, "queries"),
        ({"seeds": 0}, ArgumentError, "seeds"),
        ({"ranked": 0}, ArgumentError, "ranked"),
        ({"prices": {}}, ArgumentError, "prices"),
        ({"prices": {"gpu": 0.0}}, ArgumentError, "prices"),
    ],
)
def test_what_cannot_be_planned_is_named_by_parameter(changes, error, field):
    with pytest.raises(error) as caught:
        planned(**changes)
    assert (type(caught.value), caught.value.field) == (error, field)


def test_queries_beyond_what_was_measured_are_refused():
    with pytest.raises(WorkloadError, match="queries of 101 items, but service times reach to 100 items"):
        planned(sizes="fixed:101")


def test_data_in_place_of_files_gives_the_same_plan(by_bounds):
    times = read_service_times([Path("times.csv")], None)
    for given in (times, times.table):
        made = planned(service_times=given, prices=PRICES)
        assert made.chosen.counts == by_bounds.chosen.counts
        assert made.chosen.bound.bound_qps == by_bounds.chosen.bound.bound_qps
        assert made.request.prices == Path("<prices>")


def test_what_is_done_is_reported_by_stage():
    steps = []
    planned(simulate=True, seeds=1, queries=200, sizes="quantiles:10,40", types=("cpu",), progress=steps.append)
    last = {step.stage: step for step in steps}
    assert list(last) == ["bounding pools", "choosing pool and policy by simulation", "measuring the proposals"]
    assert all(step.done == step.total for step in last.values())
    assert last["measuring the proposals"].queries > 200


def test_a_priced_type_must_be_measured(tmp_path):
    times_file(tmp_path, types=["gpu", "cpu"])
    with pytest.raises(PlanFileError, match=r"times\.csv: no service times of m on small, which prices\.csv prices"):
        planned()


def test_a_size_that_nobody_sends_may_be_late():
    """Measured between two sizes that are sent, with some noise."""
    lines = ["model,server_type,items," + ",".join(f"ms_{at}" for at in range(4))]
    for kind, times_ms in (("gpu", {1: 4, 70: 12.5, 100: 6}), ("cpu", {1: 1.1, 70: 10, 100: 13})):
        lines += [f"m,{kind},{items},99,{ms},{ms},{ms}" for items, ms in times_ms.items()]
    Path("noisy.csv").write_text("\n".join(lines))
    made = planned(service_times=(Path("noisy.csv"),), sizes="quantiles:10,40,100", types=("gpu", "cpu"))
    assert (made.without_kairos, made.kairos.base_type) == ("", "gpu")
    assert made.proposals["one type"].counts == (2, 0)
