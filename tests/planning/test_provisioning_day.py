from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.planning.error import PlanningError
from hebe.planning.provisioning import FleetOptions, InfeasibleDemandError, Objective, provision
from hebe.planning.provisioning_baselines import provision_greedily
from hebe.planning.provisioning_day import DayPlan, follow_day, plan_day
from hebe.planning.provisioning_instance import generate_fleet

ONE = FleetOptions(("rm",), ("cpu",), [[10.0]], [[100.0]], [9], [2.0])
TWO = FleetOptions(("rm",), ("cpu", "gpu"), [[10.0, 12.0]], [[100.0, 121.0]], [9, 9])


def diurnal(models, intervals=24):
    """A day with its peak in the evening, [intervals, models]."""
    phase = 2 * np.pi * np.arange(intervals) / intervals
    return 0.65 - 0.35 * np.cos(phase)[:, None] * np.ones(models)


def test_a_day_follows_the_load():
    options, peak = generate_fleet(4, 5, seed=2)
    loads = diurnal(4) * peak
    day = plan_day(options, loads, 3600, over_provision_rate=0.05)
    assert (day.capacity_qps >= 1.05 * loads * (1 - 1e-9)).all()
    assert (day.servers_by_type <= options.available).all()
    assert day.servers.argmax() == 12
    assert day.power_watts[0] < 0.5 * day.power_watts[12]
    assert day.bound <= day.cost <= day.bound * 1.02
    assert day.gap == pytest.approx(day.cost / day.bound - 1)
    assert day.cost == pytest.approx(day.power_watts.mean())
    assert day.energy_kwh == pytest.approx(day.power_watts.mean() * 24 / 1000)


def test_saves_over_greedy_what_the_figures_say():
    options, peak = generate_fleet(4, 5, seed=2)
    loads = diurnal(4) * 0.9 * peak
    day = plan_day(options, loads, 3600)
    greedy = follow_day(
        options, loads, 3600, lambda demand, _: provision_greedily(options, demand, np.random.default_rng(0))
    )
    saving = day.power_saving_over(greedy)
    assert saving.peak == pytest.approx(1 - day.power_watts.max() / greedy.power_watts.max())
    assert saving.mean == pytest.approx(1 - day.power_watts.mean() / greedy.power_watts.mean())
    assert saving.mean > 0
    fewer = day.capacity_saving_over(greedy)
    assert fewer.mean == pytest.approx(1 - day.servers.mean() / greedy.servers.mean())
    assert greedy.bound is None
    assert greedy.gap is None


def test_set_up_cost_keeps_the_type_that_runs():
    loads = [[50.0], [48.0], [50.0], [48.0]]  # 5 cpu or 4 gpu serve 48
    flapping = plan_day(TWO, loads, 600, target_gap=0)
    steady = plan_day(TWO, loads, 600, set_up_s=60, target_gap=0)
    assert flapping.counts[:, 0].tolist() == [[5, 0], [0, 4], [5, 0], [0, 4]]
    assert flapping.started.sum() == 13
    assert steady.counts[:, 0].tolist() == [[5, 0]] * 4
    assert steady.started.sum() == 0
    assert steady.gap == pytest.approx(500 / 490 - 1)  # the bound is that of fractions of servers


@pytest.mark.parametrize(
    ("set_up_s", "planned"),
    [
        (0, [5, 2, 5, 2, 2, 5]),
        (600, [5, 2, 5, 2, 2, 5]),  # a dip of one interval costs as much as a set-up
        (601, [5, 5, 5, 2, 2, 5]),
        (1201, [5, 5, 5, 5, 5, 5]),
    ],
)
def test_dips_are_bridged_where_a_set_up_costs_more(set_up_s, planned):
    day = plan_day(ONE, [[50.0], [20.0], [50.0], [20.0], [20.0], [50.0]], 600, set_up_s=set_up_s)
    assert day.counts[:, 0, 0].tolist() == planned


def test_a_dip_is_not_bridged_with_servers_that_another_model_needs():
    options = FleetOptions(("a", "b"), ("T1",), [[1.0], [1.0]], [[1.0], [1.0]], [3])
    day = plan_day(options, [[3, 0], [1, 2], [3, 0]], 600, set_up_s=6000)
    assert day.counts[:, :, 0].tolist() == [[3, 0], [1, 2], [3, 0]]


def total(day):
    return day.cost * len(day.counts)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=5), st.sampled_from([0.0, 300.0, 900.0, 1500.0]))
def test_one_model_on_one_type_is_planned_as_well_as_by_trying_everything(loads, set_up_s):
    day = plan_day(ONE, [[10.0 * load] for load in loads], 600, set_up_s=set_up_s)
    tried = [
        total(DayPlan(ONE, np.reshape(counts, (-1, 1, 1)), day.demand_qps, 600, set_up_s, Objective.POWER))
        for counts in itertools.product(range(4), repeat=len(loads))
        if all(count >= load for count, load in zip(counts, loads, strict=True))
    ]
    # the first interval's servers start for nothing; the plan does not begin with more of them than it needs
    begins_alike = [
        total(DayPlan(ONE, np.reshape(counts, (-1, 1, 1)), day.demand_qps, 600, set_up_s, Objective.POWER))
        for counts in itertools.product(range(4), repeat=len(loads))
        if counts[0] == loads[0] and all(count >= load for count, load in zip(counts, loads, strict=True))
    ]
    assert total(day) == pytest.approx(min(begins_alike))
    assert day.bound * len(loads) <= min(tried) + 1e-6


def test_what_ran_before_counts_in_the_first_interval():
    previous = np.array([[0, 4]])
    day = plan_day(TWO, [[50.0]], 600, set_up_s=300, previous=previous, target_gap=0)
    assert day.counts[0, 0].tolist() == [1, 4]
    assert day.started[0, 0].tolist() == [1, 0]
    assert day.cost == pytest.approx(100 + 4 * 121 + 50)
    assert day.energy_kwh == pytest.approx((584 * 600 + 100 * 300) / 3.6e6)


def test_by_price():
    day = plan_day(ONE, [[20.0], [40.0]], 600, objective=Objective.PRICE)
    assert day.price_per_hour.tolist() == [4.0, 8.0]
    assert day.cost == 6.0
    assert plan_day(TWO, [[20.0]], 600).price_per_hour is None


def test_no_load_all_day():
    day = plan_day(ONE, [[0.0], [0.0]], 600)
    assert (day.cost, day.gap, day.servers.tolist()) == (0, 0, [0, 0])
    assert day.power_saving_over(day).mean == 0


def test_progress_is_told():
    told = []
    plan_day(ONE, [[10.0]] * 3, 600, on_interval=told.append)
    assert told == [0, 1, 2]


def test_infeasible_demand_names_the_worst_interval():
    with pytest.raises(InfeasibleDemandError, match=r"interval 3, from 1800 s: demand_qps: more than") as caught:
        plan_day(ONE, [[10.0], [100.0], [10.0], [180.0], [110.0]], 600)
    assert caught.value.load_factor == pytest.approx(0.5)
    plan_day(ONE, np.array([[10.0], [100.0], [10.0], [180.0], [110.0]]) * 0.5, 600)
    two = FleetOptions(("a", "b"), ("T1",), [[10.0], [10.0]], [[1.0], [1.0]], [3])
    with pytest.raises(InfeasibleDemandError, match=r"interval 1, from 600 s: .*only fractions"):
        plan_day(two, [[10, 10], [15, 15]], 600)


def test_a_baseline_that_fails_names_the_interval():
    greedy = lambda demand, _: provision_greedily(ONE, demand, np.random.default_rng(0))  # noqa: E731
    with pytest.raises(PlanningError, match="interval 1, from 600 s: greedy provisioning: rm lacks"):
        follow_day(ONE, [[10.0], [100.0]], 600, greedy)
    assert follow_day(ONE, [[10.0]], 600, lambda demand, _: provision(ONE, demand)).servers.tolist() == [1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"interval_s": 0}, "interval_s is 0"),
        ({"set_up_s": -1}, "set_up_s is -1"),
        ({"demand_qps": [1.0]}, "demand_qps: has shape"),
        ({"demand_qps": np.zeros((0, 1))}, "demand_qps: has shape"),
        ({"demand_qps": [["x"]]}, "demand_qps: must be numbers"),
        ({"demand_qps": [[1.0], [float("nan")]]}, "interval 1, from 600 s: demand_qps: is nan"),
    ],
)
def test_bad_arguments_are_refused_by_name(change, message):
    with pytest.raises(PlanningError, match=message):
        plan_day(ONE, **{"demand_qps": [[1.0]], "interval_s": 600.0} | change)
