from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.planning.error import PlanningError
from hebe.planning.provisioning import provisioning
from hebe.planning.provisioning.program import relax
from hebe.planning.provisioning.provisioning import (
    FleetOptions,
    InfeasibleDemandError,
    Objective,
    make_program,
    provision,
    rounded_down,
)
from hebe.profile import EfficiencyTuple


def fleet(qps, watts, available, prices=None):
    qps = np.asarray(qps, dtype=float)
    models = tuple(f"model-{number}" for number in range(qps.shape[0]))
    kinds = tuple(f"T{number}" for number in range(qps.shape[1]))
    return FleetOptions(models, kinds, qps, np.asarray(watts, dtype=float), np.asarray(available), prices)


def divisions(servers, models):
    """All ways to give at most `servers` of one type to `models`."""
    return [one for one in itertools.product(range(servers + 1), repeat=models) if sum(one) <= servers]


def cheapest_by_trying_all(program):
    models, kinds = program.qps.shape
    best = np.inf
    for columns in itertools.product(*(divisions(int(count), models) for count in program.available)):
        counts = np.array(columns).T.reshape(models, kinds)
        if ((program.qps * counts).sum(axis=1) >= program.demand * (1 - 1e-12)).all():
            best = min(best, program.value(counts))
    return best


@st.composite
def tiny_problems(draw):
    models, kinds = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    number = st.integers(1, 20)
    table = lambda values: draw(st.lists(values, min_size=models * kinds, max_size=models * kinds))  # noqa: E731
    qps = np.reshape(table(st.one_of(st.just(0), number)), (models, kinds)).astype(float)
    watts = np.reshape(table(number), (models, kinds)).astype(float)
    available = np.array(draw(st.lists(st.integers(0, 3), min_size=kinds, max_size=kinds)))
    demand = np.array(draw(st.lists(st.integers(0, 40), min_size=models, max_size=models)), dtype=float)
    previous = np.reshape(table(st.integers(0, 2)), (models, kinds))
    set_up = draw(st.sampled_from([0.0, 0.5, 7.0]))
    return fleet(qps, watts, available), demand, previous, set_up


@settings(deadline=None, max_examples=150)
@given(tiny_problems())
def test_the_optimum_of_tiny_problems_is_that_of_trying_everything(problem):
    options, demand, previous, set_up = problem
    program = make_program(options, demand, previous=previous, set_up_cost=set_up)
    best = cheapest_by_trying_all(program)
    arguments = {"previous": previous, "set_up_cost": set_up, "target_gap": 0.0}
    if not np.isfinite(best):
        with pytest.raises(InfeasibleDemandError):
            provision(options, demand, **arguments)
        return
    plan = provision(options, demand, **arguments)
    assert plan.cost + plan.set_up_cost == pytest.approx(best, abs=1e-6)
    assert plan.cost + plan.set_up_cost == pytest.approx(program.value(plan.counts))
    assert (plan.counts >= 0).all()
    assert (plan.counts.sum(axis=0) <= options.available).all()
    assert (plan.capacity_qps >= demand * (1 - 1e-9)).all()
    assert plan.bound <= best + 1e-6
    assert relax(program).bound <= best + 1e-6


@settings(deadline=None, max_examples=40)
@given(tiny_problems())
def test_without_the_integer_program_a_plan_still_meets_the_demand(problem):
    options, demand, previous, set_up = problem
    program = make_program(options, demand, previous=previous, set_up_cost=set_up)
    best = cheapest_by_trying_all(program)
    if np.isfinite(best):
        plan = provision(options, demand, previous=previous, set_up_cost=set_up, time_limit_s=0)
        assert program.is_met(plan.counts)
        assert plan.bound <= best + 1e-6
        assert best <= plan.cost + plan.set_up_cost + 1e-6


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1000), st.randoms(use_true_random=False))
def test_the_order_of_models_and_types_does_not_matter(seed, shuffle):
    draw = np.random.default_rng(seed)
    options = fleet(draw.uniform(5, 20, (3, 4)), draw.uniform(50, 300, (3, 4)), draw.integers(2, 8, 4))
    demand = draw.uniform(5, 30, 3)
    models, kinds = shuffle.sample(range(3), 3), shuffle.sample(range(4), 4)
    other = FleetOptions(
        tuple(options.models[model] for model in models),
        tuple(options.server_types[kind] for kind in kinds),
        options.qps[models][:, kinds],
        options.power_watts[models][:, kinds],
        options.available[kinds],
    )
    cost = provision(options, demand, target_gap=0).cost
    assert provision(other, demand[models], target_gap=0).cost == pytest.approx(cost)


def test_the_same_arguments_give_the_same_plan():
    draw = np.random.default_rng(1)
    options = fleet(draw.uniform(5, 20, (8, 12)), draw.uniform(50, 300, (8, 12)), draw.integers(2, 9, 12))
    demand = np.full(8, 60.0)
    plans = [provision(options, demand, time_limit_s=0, seed=3) for _ in range(2)]
    np.testing.assert_array_equal(plans[0].counts, plans[1].counts)


def test_the_best_servers_go_where_they_save_most():
    # III-C: both models would take the near-memory servers (T1); they save more where they are four times as good
    options = fleet([[100, 200], [100, 400]], [[100, 120], [100, 120]], [70, 5])
    plan = provision(options, [1000, 2000], target_gap=0)
    np.testing.assert_array_equal(plan.counts, [[10, 0], [0, 5]])
    assert plan.power_watts == plan.cost == 1600
    assert plan.servers == 15
    assert plan.gap == 0
    np.testing.assert_array_equal(plan.capacity_qps, [1000, 2000])


def test_over_provisioning_raises_each_demand():
    options = fleet([[10], [10]], [[1], [1]], [100])
    plan = provision(options, [100, 100], over_provision_rate=[0.1, 0.5])
    np.testing.assert_array_equal(plan.counts, [[11], [15]])
    assert provision(options, [100, 100], over_provision_rate=0.2).servers == 24


def test_price_and_power_choose_differently():
    options = fleet([[10, 10]], [[100, 200]], [9, 9], prices=[2.0, 1.0])
    by_power, by_price = (provision(options, [30], objective=objective) for objective in Objective)
    np.testing.assert_array_equal(by_power.counts, [[3, 0]])
    np.testing.assert_array_equal(by_price.counts, [[0, 3]])
    assert (by_price.cost, by_price.price_per_hour, by_price.power_watts) == (3.0, 3.0, 600.0)
    with pytest.raises(PlanningError, match="price_per_hour is not known"):
        provision(fleet([[1]], [[1]], [1]), [1], objective=Objective.PRICE)


def test_set_up_cost_keeps_running_servers():
    options = fleet([[10, 10]], [[100, 101]], [9, 9])
    previous = np.array([[0, 3]])
    moved = provision(options, [30], previous=previous)
    kept = provision(options, [40], previous=previous, set_up_cost=5.0, target_gap=0)
    np.testing.assert_array_equal(moved.counts, [[3, 0]])
    np.testing.assert_array_equal(kept.counts, [[1, 3]])
    assert (kept.cost, kept.set_up_cost, kept.bound) == (403.0, 5.0, 408.0)


def test_servers_that_are_gone_are_not_kept():
    options = fleet([[10, 10]], [[100, 101]], [9, 1])
    plan = provision(options, [30], previous=np.array([[0, 3]]), set_up_cost=5.0, target_gap=0)
    np.testing.assert_array_equal(plan.counts, [[2, 1]])


def test_no_demand_needs_no_servers():
    plan = provision(fleet([[10], [0]], [[1], [1]], [5]), [0, 0])
    assert (plan.servers, plan.cost, plan.bound, plan.gap) == (0, 0, 0, 0)


def test_a_medium_fleet_is_planned_near_its_bound_with_or_without_the_integer_program():
    draw = np.random.default_rng(7)
    options = fleet(draw.uniform(50, 200, (6, 30)), draw.uniform(90, 300, (6, 30)), draw.integers(5, 20, 30))
    demand = np.full(6, 3000.0)
    rounded = provision(options, demand, time_limit_s=0)
    searched = provision(options, demand, target_gap=0.002)
    assert rounded.gap < 0.02
    assert searched.cost <= rounded.cost
    assert searched.bound <= searched.cost


def test_infeasible_demand_names_what_is_exhausted_and_what_fits():
    # T1 serves model-1 alone; model-0 has enough of T0
    options = fleet([[10, 0], [0, 10]], [[1, 1], [1, 1]], [100, 4])
    with pytest.raises(InfeasibleDemandError) as caught:
        provision(options, [100, 50])
    fault = caught.value
    assert (fault.models, fault.server_types) == (("model-1",), ("T1",))
    assert fault.load_factor == pytest.approx(0.8)
    assert "all of T1 are taken by model-1" in str(fault)
    assert "0.8 of this load fits" in str(fault)
    provision(options, np.array([100, 50]) * fault.load_factor)


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e12])
def test_a_demand_of_any_size_names_what_is_exhausted_and_what_fits(scale):
    options = fleet([[400, 1500], [900, 2000]], [[1, 1], [1, 1]], [40, 12])
    with pytest.raises(InfeasibleDemandError, match="all of T0, T1 are taken by model-0, model-1") as caught:
        provision(options, [100_000 * scale, 10_000 * scale])
    assert caught.value.load_factor * scale == pytest.approx(0.324)
    with pytest.raises(InfeasibleDemandError, match="all of T0, T1 are taken by model-0") as caught:
        provision(options, [100_000 * scale, 0.5 / scale])
    assert caught.value.load_factor * scale == pytest.approx(0.336, rel=0.02)


@pytest.mark.parametrize(("qps", "demand"), [(1e3, 1e-15), (1e3, 1e-300), (1e15, 1e-15), (1e-15, 3e-15), (1e15, 3e15)])
def test_a_demand_of_any_size_is_met(qps, demand):
    plan = provision(fleet([[qps], [qps]], [[100.0], [100.0]], [9]), [demand, 0.0])
    assert plan.counts.tolist() == [[max(round(demand / qps), 1)], [0]]
    assert plan.gap == 0


def test_servers_far_too_slow_are_not_counted_by_overflow():
    options = fleet([[1e-18, 100.0]], [[1.0, 300.0]], [10**6, 9])
    assert provision(options, [500.0]).counts.tolist() == [[0, 5]]


def test_a_whole_server_is_what_the_relaxation_takes_of_one_that_could_do_more():
    plan = provision(fleet([[1000.0, 10.0], [1000.0, 10.0]], [[100.0, 30.0]] * 2, [9, 9]), [1.0, 20.0], time_limit_s=0)
    assert (plan.cost, plan.bound) == (90.0, 90.0)


def test_a_demand_that_only_fractions_of_servers_would_meet():
    options = fleet([[10], [10]], [[1], [1]], [3])
    with pytest.raises(InfeasibleDemandError, match="only fractions of servers would meet it") as caught:
        provision(options, [15, 15])
    assert caught.value.load_factor == pytest.approx(10 / 15)


def test_what_was_not_found_is_not_told_to_be_impossible(monkeypatch):
    """Each server is a model's: which does which is hard to find, and all do exactly what is wanted."""
    monkeypatch.setattr(provisioning, "_LOAD_FACTOR_LIMIT_S", 0.05)
    rng = np.random.default_rng(0)
    qps, owner = np.tile(rng.integers(1000, 100_000, 40).astype(float), (6, 1)), rng.integers(0, 6, 40)
    hidden = owner == np.arange(6)[:, None]
    with pytest.raises(InfeasibleDemandError, match=r"no whole servers that meet it were found in 0\.05 s") as caught:
        provision(fleet(qps, np.full((6, 40), 100.0), [1] * 40), (hidden * qps).sum(axis=1), time_limit_s=0.05)
    assert caught.value.load_factor < 1
    assert "search for longer" in str(caught.value)


@pytest.mark.parametrize(("qps", "available"), [([[10, 10], [0, 0]], [5, 5]), ([[10, 10], [0, 10]], [5, 0])])
def test_a_model_that_runs_nowhere_is_named(qps, available):
    with pytest.raises(InfeasibleDemandError, match="no available server type can serve model-1") as caught:
        provision(fleet(qps, [[1, 1], [1, 1]], available), [1, 1])
    assert caught.value.load_factor == 0
    assert caught.value.models == ("model-1",)


TUPLES = [
    EfficiencyTuple(model, kind, qps, 100.0)
    for model, kind, qps in [("rm1", "cpu", 10.0), ("rm1", "gpu", 0.0), ("rm2", "cpu", 5.0), ("rm2", "gpu", 50.0)]
]


def test_options_from_efficiency_tuples():
    options = FleetOptions.from_tuples(reversed(TUPLES), {"gpu": 2, "cpu": 7}, {"cpu": 0.5, "gpu": 3.0})
    assert options.models == ("rm2", "rm1")
    assert options.server_types == ("gpu", "cpu")
    np.testing.assert_array_equal(options.qps, [[50, 5], [0, 10]])
    np.testing.assert_array_equal(options.available, [2, 7])
    np.testing.assert_array_equal(options.price_per_hour, [3.0, 0.5])
    assert FleetOptions.from_tuples(TUPLES, {"cpu": 1}).server_types == ("cpu",)


@pytest.mark.parametrize(
    ("tuples", "available", "prices", "message"),
    [
        (TUPLES[:3], {"cpu": 1, "gpu": 1}, None, "rm2 on gpu is missing: measure it, or give it a qps of 0"),
        ([*TUPLES, TUPLES[0]], {"cpu": 1}, None, "rm1 on cpu is given twice"),
        (TUPLES, {"cpu": 1, "gpu": 1}, {"cpu": 1.0}, "price_per_hour: server type gpu is missing"),
        (TUPLES, {}, None, "server_types is empty"),
        ([], {"cpu": 1}, None, "models is empty"),
        (TUPLES, {"cpu": -1}, None, "available: is -1.0 at .0,."),
        (TUPLES, {"cpu": 1.5}, None, "available must be whole numbers"),
        (TUPLES, {"cpu": 1e19}, None, r"available is 1e\+19: must be at most 1e\+12"),
    ],
)
def test_tuples_that_make_no_table_are_refused(tuples, available, prices, message):
    with pytest.raises(PlanningError, match=message):
        FleetOptions.from_tuples(tuples, available, prices)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qps": [[1.0, float("nan")]]}, "qps: is nan at .0, 1.: must be finite"),
        ({"qps": [[1.0]]}, "qps: has shape"),
        ({"qps": [["a", 1]]}, "qps: must be numbers"),
        ({"power_watts": [[1.0, -1.0]]}, "power_watts: is -1.0"),
        ({"power_watts": [[1.0, 0.0]]}, "power_watts of a on T1 is 0"),
        ({"server_types": ("T0", "T0")}, "server_types has 'T0' twice"),
        ({"models": ()}, "models is empty"),
        ({"price_per_hour": [1.0, -2.0]}, "price_per_hour: is -2.0"),
    ],
)
def test_bad_options_are_refused_by_field(change, message):
    fields = {
        "models": ("a",),
        "server_types": ("T0", "T1"),
        "qps": [[1.0, 2.0]],
        "power_watts": [[1.0, 1.0]],
        "available": [1, 1],
    }
    with pytest.raises(PlanningError, match=message):
        FleetOptions(**fields | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"demand_qps": [1.0, 2.0]}, "demand_qps: has shape"),
        ({"demand_qps": [-1.0]}, "demand_qps: is -1.0"),
        ({"over_provision_rate": float("inf")}, "over_provision_rate: is inf"),
        ({"previous": [[1]]}, "previous: has shape"),
        ({"previous": [[0, 1]], "set_up_cost": -1}, "set_up_cost: is -1.0"),
        ({"target_gap": -0.1}, "target_gap is -0.1"),
        ({"time_limit_s": float("nan")}, "time_limit_s is nan"),
    ],
)
def test_bad_arguments_are_refused_by_name(change, message):
    with pytest.raises(PlanningError, match=message):
        provision(fleet([[1, 2]], [[1, 1]], [1, 1]), **{"demand_qps": [1.0]} | change)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (1000 / 1.1, 909.0), (909.0, 909.0), (0.99999, 0.9999), (1.0, 1.0), (1e-5 / 3, 3.33e-6), (0.001, 0.001),
        (12_345.6, 12_345.0), (123_456_789.9, 123_456_789.0), (1e-13, 1e-13),
        (0.0, 0.0), (0.1 + 0.2, 0.3), (999.99, 999.9),
    ],
)  # fmt: skip
def test_what_fits_is_rounded_down(value, told):
    assert rounded_down(value) == pytest.approx(told, rel=1e-12)


@settings(max_examples=80)
@given(st.integers(0, 100_000))
def test_the_largest_load_told_is_accepted(seed):
    rng = np.random.default_rng(seed)
    models, types = rng.integers(1, 4, 2)
    qps = np.round(rng.uniform(0.5, 2000, (models, types)), 1)
    options = FleetOptions(
        tuple(f"m{at}" for at in range(models)), tuple(f"t{at}" for at in range(types)),
        qps, np.ones((models, types)), rng.integers(0, 5, types),
    )  # fmt: skip
    demand, rate = rng.uniform(1, 9000, models), rng.choice([0.0, 0.1, 0.333])
    try:
        provision(options, demand, over_provision_rate=rate)
        return
    except InfeasibleDemandError as fault:
        factor = fault.load_factor
    if factor:
        told = np.array([rounded_down(one) for one in (demand * factor).tolist()])
        provision(options, told, over_provision_rate=rate)
        provision(options, demand * rounded_down(factor), over_provision_rate=rate)
        with pytest.raises(InfeasibleDemandError):
            provision(options, demand * factor * 1.0021, over_provision_rate=rate)
