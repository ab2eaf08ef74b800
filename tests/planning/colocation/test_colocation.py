from collections import Counter

import numpy as np
import pytest
from hypothesis import given

from hebe.planning.colocation.affinity import affinity_matrix, contended_affinity
from hebe.planning.colocation.colocation import hera, hera_random, one_model_a_server, random_pairs, share_server
from hebe.planning.colocation.shared_server import ServerResources
from hebe.planning.error import PlanningError

from .scalability import (
    BANDWIDTH_BOUND,
    CACHE_BOUND,
    CAPACITY_BOUND,
    COMPUTE_BOUND,
    DEMAND,
    demanded_fleets,
    profile,
    tables,
)

POLICIES = {
    "one_model_a_server": one_model_a_server,
    "random_pairs": lambda made, demand: random_pairs(made, demand, np.random.default_rng(1)),
    "hera_random": lambda made, demand: hera_random(made, demand, np.random.default_rng(1)),
    "hera": hera,
}


@pytest.mark.parametrize("policy", POLICIES)
@given(fleet=demanded_fleets())
def test_demand_is_met_on_servers_that_can_exist(policy, fleet):
    made, demand = fleet
    plan = POLICIES[policy](made, demand)
    assert plan.policy == policy
    for model, qps in plan.capacity_qps.items():
        assert qps >= demand[model] * (1 - 1e-6)
    for group in plan.groups:
        assert group.servers >= 1
        assert sum(tenant.workers for tenant in group.tenants) <= made.server.cores
        assert sum(tenant.cache_ways for tenant in group.tenants) <= made.server.cache_ways
        assert len({tenant.model for tenant in group.tenants}) == len(group.tenants)
        alone = {model: made.alone[made.index_of(model)] for model in demand}
        assert group.utilization == pytest.approx(sum(tenant.qps / alone[tenant.model] for tenant in group.tenants))


@given(demanded_fleets())
def test_every_server_that_hera_fills_does_at_least_as_much_as_servers_of_one_model(fleet):
    plan = hera(*fleet)
    assert all(group.utilization >= 1 - 1e-9 for group in plan.groups)
    assert plan.utilization >= 1 - 1e-9


@given(demanded_fleets())
def test_hera_takes_at_most_a_last_server_a_model_more_than_servers_of_one_model(fleet):
    """EMU above 1 on every server; what is not made use of is at most the last server of each pair formed."""
    made, demand = fleet
    plan = hera(made, demand)
    assert plan.servers <= one_model_a_server(made, demand).servers + len(plan.groups)


def test_hera_gives_a_model_that_scales_badly_its_best_partner_first():
    made = tables()
    affinity = contended_affinity(made)[0]
    plan = hera(made, DEMAND | {"other-cache-bound": 20_000.0})
    partners = [group.tenants[1].model for group in plan.groups if group.tenants[0].model == "bandwidth-bound"]
    assert len(partners) > 1
    values = [affinity[made.index_of(partner)] for partner in partners]
    assert values == sorted(values, reverse=True)
    assert values[0] == max(affinity[2:])


def test_hera_saves_servers_where_models_complement_each_other():
    made = tables()
    assert hera(made, DEMAND).servers < 0.9 * one_model_a_server(made, DEMAND).servers
    assert hera(made, DEMAND).utilization > 1.1


def test_hera_leaves_alone_what_does_worse_together():
    """What five cores bring is less than what the cache ways bring that go with them."""
    pair = [profile(name, 10.0, limit=limit, one_way=0.1, curve=1) for name, limit in (("low", 11), ("high", 16))]
    made = tables(*pair)
    assert share_server(made, ["low", "high"]).utilization < 1
    assert {len(group.tenants) for group in hera(made, {"low": 500.0, "high": 900.0}).groups} == {1}


def test_the_partner_s_demand_is_not_exceeded_by_more_than_a_server():
    plan = hera(tables(CAPACITY_BOUND, CACHE_BOUND), {"capacity-bound": 4_000.0, "cache-bound": 10_000.0})
    shared = next(group for group in plan.groups if len(group.tenants) == 2)
    assert plan.capacity_qps["cache-bound"] <= 10_000 + shared.tenants[1].qps


def test_random_baselines_are_drawn_from_the_generator_given():
    made = tables()
    for policy in (random_pairs, hera_random):
        assert policy(made, DEMAND, np.random.default_rng(5)) == policy(made, DEMAND, np.random.default_rng(5))
    plans = {random_pairs(made, DEMAND, np.random.default_rng(seed)).groups for seed in range(5)}
    assert len(plans) > 1


def test_random_pairs_that_do_not_fit_each_get_a_server():
    heavy = [profile(name, 1.0, memory=150e9, memory_limit=1) for name in "ab"]
    plan = random_pairs(tables(*heavy), {"a": 3.0, "b": 5.0}, np.random.default_rng(0))
    assert plan.servers == 8


def test_hera_random_draws_any_pair_but_two_of_high_scalability():
    low, high = {"bandwidth-bound", "capacity-bound"}, {"cache-bound", "compute-bound"}
    plans = [hera_random(tables(), DEMAND, np.random.default_rng(seed)) for seed in range(20)]
    groups = [group for plan in plans for group in plan.groups if len(group.tenants) == 2]
    pairs = {frozenset(tenant.model for tenant in group.tenants) for group in groups}
    assert pairs == {frozenset([one, other]) for one in low for other in (low | high) - {one}}


def test_hera_random_draws_each_of_its_pairs_as_often():
    made, little = tables(), dict.fromkeys(DEMAND, 1.0)
    first = [hera_random(made, little, np.random.default_rng(seed)).groups[0] for seed in range(500)]
    counts = Counter(frozenset(tenant.model for tenant in group.tenants) for group in first)
    assert len(counts) == 5
    assert all(70 < count < 130 for count in counts.values())


def test_what_was_measured_counts_and_not_what_is_predicted():
    made = tables()
    pair = frozenset(["capacity-bound", "cache-bound"])
    measured = {
        pair: {"capacity-bound": 30.0, "cache-bound": 4_000.0},
        frozenset(["cache-bound"]): {"cache-bound": 10_000.0},
    }
    plan = hera(made, {"capacity-bound": 300.0, "cache-bound": 60_000.0}, measured=measured)
    shared, alone = plan.groups
    assert {tenant.model: tenant.qps for tenant in shared.tenants} == measured[pair]
    assert shared.servers == 10
    assert shared.utilization == pytest.approx(30 / 40 + 4 / 10)
    assert (alone.servers, alone.utilization) == (2, 1.0)


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        ({"cache-bound": {"cache-bound": 0.0}}, "measured: cache-bound: cache-bound is 0.0"),
        ({"cache-bound": {}}, "measured: cache-bound: cache-bound is -1.0"),
        ({"cache-bound compute-bound": {"cache-bound": 1.0, "compute-bound": float("nan")}}, "compute-bound is nan"),
        ({"ncf": {"ncf": 1.0}}, "model ncf: has no scalability profile"),
    ],
)
def test_measurements_that_are_none_are_refused(measured, message):
    sets = {frozenset(models.split()): served for models, served in measured.items()}
    with pytest.raises(PlanningError, match=message):
        one_model_a_server(tables(), {"cache-bound": 1.0}, measured=sets)


def test_partners_can_be_chosen_by_another_affinity():
    made = tables()
    upside_down = 1 - affinity_matrix(made).system
    plan = hera(made, DEMAND | {"other-cache-bound": 20_000.0}, affinity=upside_down)
    first = next(group for group in plan.groups if group.tenants[0].model == "bandwidth-bound")
    assert first.tenants[1].model == made.models[2 + int(upside_down[0, 2:].argmax())]


def test_a_shared_server_serves_more_than_its_members_would_on_one_each_by_half():
    group = share_server(tables(), ["capacity-bound", "cache-bound"])
    assert group.utilization > 1.3
    assert {tenant.workers for tenant in group.tenants} == {8}
    three = share_server(tables(), ["bandwidth-bound", "compute-bound", "cache-bound"])
    assert len(three.tenants) == 3


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ([], r"models is \[\]: name at least one"),
        (["cache-bound", "cache-bound"], "none twice"),
        (["ncf"], "model ncf: has no scalability profile"),
    ],
)
def test_a_set_that_is_none_is_refused(models, message):
    with pytest.raises(PlanningError, match=message):
        share_server(tables(), models)


def test_a_set_that_does_not_fit_is_refused():
    heavy = [profile(name, 1.0, memory=150e9, memory_limit=1) for name in "ab"]
    with pytest.raises(PlanningError, match="models a, b: do not fit on one server together"):
        share_server(tables(*heavy), ["a", "b"])


def test_thousands_of_servers_are_allotted_in_blocks():
    made = tables(BANDWIDTH_BOUND, CAPACITY_BOUND, CACHE_BOUND, COMPUTE_BOUND)
    plan = hera(made, {model: qps * 500 for model, qps in DEMAND.items()})
    assert plan.servers > 5_000
    assert len(plan.groups) < 20


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("demand", "message"),
    [
        ({}, "demand_qps: is empty"),
        ({"cache-bound": 0.0}, "demand_qps: is 0 for every model"),
        ({"cache-bound": -1.0}, "demand_qps: of model cache-bound is -1.0"),
        ({"cache-bound": float("nan")}, "demand_qps: of model cache-bound is nan"),
        ({"cache-bound": float("inf")}, "demand_qps: of model cache-bound is inf"),
        ({"cache-bound": "much"}, "demand_qps: of model cache-bound is 'much': must be a number"),
        ({"ncf": 1.0}, "model ncf: has no scalability profile"),
        ({"cache-bound": 1e12}, "would take 6.25e.07 servers, most of them for model cache-bound"),
        ({"hopeless": 1.0}, "demand_qps: of model hopeless is 1, but its profile has qps 0"),
    ],
)
def test_a_demand_that_is_none_is_refused(policy, demand, message):
    made = tables(CACHE_BOUND, profile("hopeless", 0.0))
    with pytest.raises(PlanningError, match=message):
        POLICIES[policy](made, demand)


def test_a_server_of_one_core_serves_one_model_and_is_not_shared():
    made = tables(profile("m", 2.0, memory_limit=1), server=ServerResources(1, 11, 1e11))
    assert one_model_a_server(made, {"m": 5.0}).servers == 3
    with pytest.raises(PlanningError, match="two models need at least 2"):
        hera(made, {"m": 5.0})
