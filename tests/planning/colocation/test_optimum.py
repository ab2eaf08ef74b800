import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, milp

from hebe.planning.colocation import optimum as colocation_optimum
from hebe.planning.colocation.colocation import hera, hera_random, one_model_a_server, random_pairs
from hebe.planning.colocation.optimum import optimal_colocation
from hebe.planning.colocation.shared_server import ScalabilityTables, ServerResources, all_sets, all_splits, rates_of
from hebe.planning.error import PlanningError
from hebe.profile import ScalabilityProfile

from .scalability import CACHE_BOUND, DEMAND, demanded_fleets, profile, tables


@settings(max_examples=40)
@given(demanded_fleets(least=2))
def test_nobody_needs_fewer_servers(fleet):
    made, demand = fleet
    best = optimal_colocation(made, demand)
    others = [
        one_model_a_server(made, demand),
        hera(made, demand),
        *(random_pairs(made, demand, np.random.default_rng(seed)) for seed in range(3)),
        hera_random(made, demand, np.random.default_rng(0)),
    ]
    assert best.least_servers <= best.servers <= min(plan.servers for plan in others)
    for model, qps in best.capacity_qps.items():
        assert qps >= demand[model] * (1 - 1e-6)
    for group in best.groups:
        assert len(group.tenants) <= 2
        assert sum(tenant.workers for tenant in group.tenants) <= made.server.cores
        assert sum(tenant.cache_ways for tenant in group.tenants) <= made.server.cache_ways


@settings(max_examples=20)
@given(demanded_fleets(least=3, most=3))
def test_the_bound_holds_for_more_models_a_server_and_only_falls(fleet):
    made, demand = fleet
    plans = [optimal_colocation(made, demand, most) for most in (1, 2, 3)]
    bounds = [plan.least_servers for plan in plans]
    assert bounds == sorted(bounds, reverse=True)
    assert all(plan.least_servers <= plan.servers for plan in plans)
    assert plans[0].servers == one_model_a_server(made, demand).servers


def fewest_by_brute_force(made, demand, most_models):
    """The integer program over every split of every set of models."""
    wanted = [model for model in made.models if demand[model]]
    patterns = []
    for size in range(1, min(most_models, len(made.models), made.server.cores, made.server.cache_ways) + 1):
        sets = all_sets(len(made.models), size)
        _, _, rates = all_splits(made, sets)
        for members, of_set in zip(sets.tolist(), rates, strict=True):
            columns = np.zeros((len(of_set), len(made.models)))
            columns[:, members] = of_set
            patterns.append(columns)
    columns = np.unique(np.concatenate(patterns), axis=0)
    cover = np.array([columns[:, made.models.index(model)] / demand[model] for model in wanted])
    found = milp(
        np.ones(len(columns)), constraints=LinearConstraint(cover, 1 - 1e-9), integrality=np.ones(len(columns))
    )
    return round(found.fun)


@settings(max_examples=60)
@given(demanded_fleets(least=2, most=3), st.integers(1, 3))
def test_it_is_the_optimum_of_all_splits_where_they_are_few(fleet, most_models):
    made, demand = fleet
    plan = optimal_colocation(made, demand, most_models)
    assert plan.servers == plan.least_servers == fewest_by_brute_force(made, demand, most_models)


def remainder():
    """A server for the many queries of one model, and the rest of them beside the few of another: 73 + 27 and 10. The
    relaxation never wants that split."""
    few = [[10, 22, 40], [23, 47, 66], [33, 72, 97]]
    many = [[19, 20, 30], [23, 27, 42], [40, 46, 73]]
    counts = (1, 2, 3)
    models = [
        ScalabilityProfile(name, counts, [row[-1] for row in qps], [0.0] * 3, counts, qps)
        for name, qps in (("few", few), ("many", many))
    ]
    return ScalabilityTables.of(models, ServerResources(3, 3, 1e9)), {"few": 7.0, "many": 98.0}


@pytest.mark.parametrize("enumerated", [20_000, 0])
def test_the_split_that_fits_the_remainder_is_found(monkeypatch, enumerated):
    monkeypatch.setattr(colocation_optimum, "_MOST_ENUMERATED", enumerated)
    plan = optimal_colocation(*remainder())
    assert plan.servers == plan.least_servers == 2
    assert plan.capacity_qps["many"] >= 98
    assert plan.capacity_qps["few"] >= 7


def test_what_is_proven_of_some_patterns_only_is_no_bound(monkeypatch):
    """Without the split that fits the remainder three servers are needed, with it two."""
    for most in ("_MOST_ENUMERATED", "_MOST_TRIED_FOR_REST"):
        monkeypatch.setattr(colocation_optimum, most, 0)
    plan = optimal_colocation(*remainder())
    assert (plan.servers, plan.least_servers) == (3, 2)


@settings(max_examples=40)
@given(demanded_fleets(least=2, most=4), st.integers(2, 4))
def test_plans_where_splits_are_too_many_to_be_listed(fleet, most_models):
    made, demand = fleet
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(colocation_optimum, "_MOST_ENUMERATED", 0)
        plan = optimal_colocation(made, demand, most_models)
    least = fewest_by_brute_force(made, demand, most_models)
    assert plan.least_servers <= least <= plan.servers <= hera(made, demand).servers
    for model, qps in plan.capacity_qps.items():
        assert qps >= demand[model] * (1 - 1e-6)
    for group in plan.groups:
        sets, cores, ways = (
            [[of(tenant) for tenant in group.tenants]]
            for of in (
                lambda tenant: made.index_of(tenant.model),
                lambda tenant: tenant.cores,
                lambda tenant: tenant.cache_ways,
            )
        )
        served = rates_of(made, *map(np.array, (sets, cores, ways)))
        np.testing.assert_allclose([tenant.qps for tenant in group.tenants], served[0], rtol=1e-9)


def test_the_optimum_is_proven_on_an_example_that_greed_gets_wrong():
    """Two models that both scale badly: Algorithm 2 has no partner for them, and yet they fit together."""
    demand = {"bandwidth-bound": 2_000.0, "capacity-bound": 400.0}
    best, greedy = optimal_colocation(tables(), demand), hera(tables(), demand)
    assert greedy.servers == 20
    assert best.servers == best.least_servers < 15


def test_the_optimum_is_proven_where_greed_happens_to_reach_it():
    many = {model: 10 * qps for model, qps in DEMAND.items()}
    best = optimal_colocation(tables(), many)
    assert best.servers == best.least_servers == hera(tables(), many).servers


def test_three_models_a_server_pay_where_two_leave_something_over():
    """None does better with more than five workers, so two leave six cores idle."""
    five = [profile(name, 10.0, limit=5) for name in "abc"]
    demand = dict.fromkeys("abc", 2_000.0)
    made = tables(*five)
    assert optimal_colocation(made, demand, 2).servers == 60
    three = optimal_colocation(made, demand, 3)
    assert three.servers == three.least_servers == 40
    assert {len(group.tenants) for group in three.groups} == {3}


def test_models_that_nobody_asks_for_are_left_out():
    plan = optimal_colocation(tables(), {"cache-bound": 16_000.0, "compute-bound": 0.0})
    assert plan.servers == 1
    assert plan.demand_qps == {"cache-bound": 16_000.0}


@pytest.mark.parametrize("tiny_qps", [1e-14, 5e-324])
def test_a_demand_next_to_nothing_takes_a_place_like_any_other(tiny_qps):
    """Of cache-bound, one core serves 300 queries/s or more; all of compute-bound's fit beside it."""
    plans = [optimal_colocation(tables(), {"cache-bound": qps, "compute-bound": 10_500.0}) for qps in (1.0, tiny_qps)]
    assert [(plan.servers, plan.least_servers) for plan in plans] == [(14, 14)] * 2
    assert plans[1].capacity_qps["cache-bound"] >= 300
    nothing = {"cache-bound": tiny_qps, "compute-bound": tiny_qps, "capacity-bound": tiny_qps}
    assert optimal_colocation(tables(), nothing).servers == 2
    assert optimal_colocation(tables(), nothing, 3).servers == 1


def test_a_server_of_one_core_is_planned_without_sharing():
    made = tables(
        profile("m", 2.0, memory_limit=1), profile("n", 1.0, memory_limit=1), server=ServerResources(1, 11, 1e11)
    )
    assert optimal_colocation(made, {"m": 5.0, "n": 1.0}).servers == 4


def test_a_plan_is_given_however_little_time_there_is():
    plan = optimal_colocation(tables(), DEMAND, time_limit_s=1e-9)
    assert plan.least_servers <= plan.servers <= hera(tables(), DEMAND).servers


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"most_models": 0}, "most_models is 0: must be a whole number"),
        ({"most_models": 2.0}, "most_models is 2.0"),
        ({"time_limit_s": 0.0}, "time_limit_s is 0.0"),
        ({"time_limit_s": float("nan")}, "time_limit_s is nan"),
        ({"time_limit_s": True}, "time_limit_s is True"),
        ({"demand_qps": {}}, "demand_qps: is empty"),
        ({"demand_qps": {"ncf": 1.0}}, "model ncf: has no scalability profile"),
    ],
)
def test_bad_questions_are_refused(change, message):
    with pytest.raises(PlanningError, match=message):
        optimal_colocation(tables(CACHE_BOUND), **{"demand_qps": {"cache-bound": 1.0}} | change)


def test_too_many_sets_are_refused_before_they_are_made():
    many = [profile(f"m{number}", 1.0) for number in range(200)]
    with pytest.raises(PlanningError, match="most_models is 4: 3 out of 200 models in all splits"):
        optimal_colocation(tables(*many), {f"m{number}": 1.0 for number in range(200)}, 4)
