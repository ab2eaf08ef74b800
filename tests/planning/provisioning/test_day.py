from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, milp

from hebe.planning.error import PlanningError
from hebe.planning.provisioning.baselines import provision_greedily
from hebe.planning.provisioning.day import DayPlan, follow_day, plan_day
from hebe.planning.provisioning.provisioning import FleetOptions, InfeasibleDemandError, Objective, provision
from hebe_lab.baselines.provisioning_instance import generate_fleet

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
    assert steady.gap == pytest.approx(500 / 492 - 1)  # the bound: 5 cpu or 4 gpu, whichever is cheaper at the time


def test_a_server_is_whole_in_the_bound_too():
    """A thousandth of a server would carry each load: set-ups or not, each model needs one."""
    options = FleetOptions(("a", "b", "c"), ("T1",), [[100.0]] * 3, [[100.0]] * 3, [10])
    for time_limit_s in (0.5, 0.0):
        day = plan_day(options, [[0.1, 0.1, 0.1]] * 3, 600, set_up_s=30, time_limit_s=time_limit_s)
        assert (day.cost, day.bound, day.gap) == (300.0, 300.0, 0.0)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from([30.0, 300.0, 900.0]), st.booleans())
def test_no_day_is_cheaper_than_the_bound(seed, set_up_s, knows_before):
    """Whatever it does from one interval to the next: a program over the whole day, with starts as variables."""
    draw = np.random.default_rng(seed)
    options = FleetOptions(
        ("a", "b"), ("T1", "T2"), draw.integers(1, 9, (2, 2)), draw.integers(1, 9, (2, 2)), draw.integers(2, 7, 2)
    )
    loads = draw.uniform(0, 8, (4, 2))
    previous = draw.integers(0, 2, (2, 2)) if knows_before else None
    least = cheapest_day(options, loads, set_up_s / 600, previous)
    if least is None:
        with pytest.raises(InfeasibleDemandError):
            plan_day(options, loads, 600, set_up_s=set_up_s, previous=previous, target_gap=0)
        return
    day, least = plan_day(options, loads, 600, set_up_s=set_up_s, previous=previous, target_gap=0), least / 4
    assert day.bound <= least + 1e-6
    assert least <= day.cost + 1e-6


def cheapest_day(options, loads, set_up_share, previous):
    """The least sum of the intervals' costs, set-ups included, which may take servers from another model at once; None
    where an interval's load does not fit."""
    pairs, intervals = options.qps.size, len(loads)
    cost = options.power_watts.ravel()
    running, started = (np.arange(intervals * pairs).reshape(intervals, pairs) + at for at in (0, intervals * pairs))
    objective = np.concatenate((np.tile(cost, intervals), np.tile(cost * set_up_share, intervals)))
    rows, least = [], []

    def at_least(columns, values, bound):
        row = np.zeros(len(objective))
        row[columns] = values
        rows.append(row)
        least.append(bound)

    models, kinds = np.divmod(np.arange(pairs), options.qps.shape[1])
    for interval, load in enumerate(loads):
        for model, qps in enumerate(load):
            at_least(running[interval, models == model], options.qps[model], qps)
        for kind, count in enumerate(options.available):
            at_least(running[interval, kinds == kind], -1, -count)
        for pair in range(pairs):
            if interval:
                columns = [started[interval, pair], running[interval, pair], running[interval - 1, pair]]
                at_least(columns, [1, -1, 1], 0)
            elif previous is not None:
                at_least([started[0, pair], running[0, pair]], [1, -1], -previous.ravel()[pair])
    found = milp(
        objective, constraints=LinearConstraint(np.array(rows), least), integrality=np.ones(len(objective)),
        options={"mip_rel_gap": 0},
    )  # fmt: skip
    assert found.status in (0, 2), found.message  # solved, or no solution
    return None if found.status else found.fun


MOVED = [[900.0, 100.0], [700.0, 300.0], [500.0, 500.0], [300.0, 700.0], [100.0, 900.0]]
"""A load that moves from one model to the other; servers of 100 queries/s carry it, ten of them busy at all times."""


def same_servers(available):
    return FleetOptions(("a", "b"), ("T1",), [[100.0], [100.0]], [[1.0], [1.0]], [available])


def test_servers_that_serve_until_then_are_late():
    day = plan_day(same_servers(10), MOVED, 600, set_up_s=300)
    assert day.counts[:, :, 0].tolist() == [[9, 1], [7, 3], [5, 5], [3, 7], [1, 9]]
    assert day.late[:, :, 0].tolist() == [[0, 0], [0, 2], [0, 2], [0, 2], [0, 2]]
    # of five intervals b lacks two servers for half of each but the first
    assert day.covered_share(np.array(MOVED), 600).tolist() == pytest.approx([1.0, 1 - 4 * 0.5 / 5])
    # with loads told for every minute; in the last of them five servers more are asked for
    finer = np.repeat(MOVED, 10, axis=0)
    assert day.covered_share(finer, 60).tolist() == pytest.approx([1.0, 1 - 4 * 0.5 / 5])
    finer[-1, 0] = 500.0
    assert day.covered_share(finer, 60).tolist() == pytest.approx([1 - 1 / 50, 1 - 4 * 0.5 / 5])


def test_servers_that_are_set_up_for_longer_than_an_interval_are_late_in_several():
    day = plan_day(same_servers(10), MOVED, 600, set_up_s=900)
    assert day.late[:, :, 0].tolist() == [[0, 0], [0, 2], [0, 2], [0, 2], [0, 2]]
    # in the second interval b lacks two of its three, from the third on four at first, then two: never enough
    assert day.covered_share(np.array(MOVED), 600).tolist() == pytest.approx([1.0, 0.2])
    level = np.array([[900.0, 100.0], [700.0, 300.0], [700.0, 300.0]])
    day = plan_day(same_servers(10), level, 600, set_up_s=900)
    assert day.covered_share(level, 600).tolist() == pytest.approx([1.0, 0.5])


def test_free_servers_are_set_up_before():
    for available, set_up_s, late in ((12, 300, 0), (12, 600, 0), (12, 601, 6), (14, 1200, 0), (11, 300, 4)):
        day = plan_day(same_servers(available), MOVED, 600, set_up_s=set_up_s)
        assert day.late.sum() == late
        assert (day.covered_share(np.array(MOVED), 600) == 1.0).all() == (late == 0)


def test_another_type_is_taken_where_the_best_ones_would_be_late():
    """T2 costs more, and is free; all of T1 serve a until b needs two of them."""
    options = FleetOptions(("a", "b"), ("T1", "T2"), [[100.0, 100.0]] * 2, [[100.0, 110.0]] * 2, [10, 4])
    day = plan_day(options, [[900, 100], [700, 300]], 600, set_up_s=300, target_gap=0)
    assert day.late.sum() == 0
    assert day.counts[1].tolist() == [[7, 0], [1, 2]]
    # what the over-provision rate adds carries the load meanwhile
    raised = plan_day(options, [[900, 100], [700, 100]], 600, over_provision_rate=[0.0, 1.0], set_up_s=300)
    assert raised.counts[1].sum() == 9
    once = plan_day(options, [[900, 100], [700, 300]], 600, target_gap=0)
    assert once.counts[1].tolist() == [[7, 0], [3, 0]]
    assert once.late.sum() == 0


def test_servers_that_an_interval_before_has_begun_to_set_up_do_not_serve_yet():
    """The second X is late for a from 1200 s on and serves from 2100 s; Y is free to be there at 1800 s."""
    rates, power = [[100, 100], [100, 0], [0, 100]], [[100, 150], [100, 0], [0, 150]]
    options = FleetOptions(("a", "b", "c"), ("X", "Y"), rates, power, [2, 1])
    loads = np.array([[100, 100, 100], [100, 100, 0], [200, 0, 0], [200, 0, 0]])
    day = plan_day(options, loads, 600, set_up_s=900)
    assert day.counts[2:, 0].tolist() == [[2, 0], [2, 1]]
    assert day.late.sum(axis=(1, 2)).tolist() == [0, 0, 1, 0]
    assert day.covered_share(loads, 600)[0] == pytest.approx(0.75)


def test_what_ran_before_may_be_late_in_the_first_interval():
    day = plan_day(same_servers(10), [[500.0, 500.0]], 600, set_up_s=60, previous=np.array([[8], [2]]))
    assert day.late[0].tolist() == [[0], [3]]
    assert day.covered_share(np.array([[500.0, 500.0]]), 600).tolist() == pytest.approx([1.0, 0.9])
    more_than_there_is = np.array([[8], [4]])
    assert plan_day(same_servers(10), [[500.0, 500.0]], 600, set_up_s=60, previous=more_than_there_is).servers[0] == 10


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from([60.0, 600.0, 1500.0]))
def test_servers_that_are_set_up_are_there(seed, set_up_s):
    """At any time those that run, and those that are set up in time for later intervals, are no more than there are."""
    draw = np.random.default_rng(seed)
    options = FleetOptions(("a", "b"), ("T1", "T2"), [[1.0, 2.0]] * 2, draw.integers(1, 9, (2, 2)), [6, 3])
    day = plan_day(options, draw.uniform(0, 4, (5, 2)), 600, set_up_s=set_up_s)
    late, started = day.late, day.started
    assert ((late >= 0) & (late <= started)).all()
    in_time = (started - late).sum(axis=1)
    for interval, busy in enumerate(day.servers_by_type):
        ahead = [in_time[at] for at in range(interval + 1, 5) if (at - interval - 1) * 600 < set_up_s]
        assert (busy + sum(ahead, np.zeros(2)) <= options.available).all()


@pytest.mark.parametrize(
    ("set_up_s", "planned"),
    [
        (0, [5, 2, 5, 2, 2, 5]),
        (600, [5, 2, 5, 2, 2, 5]),  # a dip of one interval costs as much as a set-up
        (601, [5, 5, 5, 2, 2, 5]),
        (1201, [5, 5, 5, 5, 5, 5]),
        (6e12, [5, 5, 5, 5, 5, 5]),  # told at once, however many intervals that is
    ],
)
def test_dips_are_bridged_where_a_set_up_costs_more(set_up_s, planned):
    day = plan_day(ONE, [[50.0], [20.0], [50.0], [20.0], [20.0], [50.0]], 600, set_up_s=set_up_s)
    assert day.counts[:, 0, 0].tolist() == planned


def test_a_dip_is_not_bridged_with_servers_that_another_model_needs():
    options = FleetOptions(("a", "b"), ("T1",), [[1.0], [1.0]], [[1.0], [1.0]], [3])
    day = plan_day(options, [[3, 0], [1, 2], [3, 0]], 600, set_up_s=6000)
    assert day.counts[:, :, 0].tolist() == [[3, 0], [1, 2], [3, 0]]


def test_a_longer_dip_is_not_bridged_where_the_type_is_exhausted_for_a_part_of_it():
    options = FleetOptions(("a", "b"), ("T1",), [[1.0], [1.0]], [[1.0], [1.0]], [3])
    loads = [[3, 0], [1, 0], [1, 2], [3, 0]]
    assert plan_day(options, loads, 600, set_up_s=6000).counts[:, :, 0].tolist() == loads


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


def test_a_bound_of_zero_proves_no_gap():
    """The servers that cost nothing serve each interval, but the one that a gives up is late for b."""
    options = FleetOptions(("a", "b"), ("own", "rented"), [[10.0, 10.0]] * 2, [[100.0, 100.0]] * 2, [3, 9], [0.0, 2.0])
    day = plan_day(options, [[20.0, 10.0], [10.0, 20.0]], 600, objective=Objective.PRICE, set_up_s=300)
    assert day.cost > 0
    assert (day.bound, day.gap) == (0, np.inf)


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


def test_the_worst_interval_is_that_in_whole_servers():
    """Of three servers of 100 queries/s more than 300 of one model is little too much; 151 and 150 are half a server
    too many, but one of both models would have to share a server."""
    two = FleetOptions(("a", "b"), ("T1",), [[100.0], [100.0]], [[1.0], [1.0]], [3])
    with pytest.raises(InfeasibleDemandError, match=r"interval 1, from 600 s: .*; 0\.6666 of this load fits") as caught:
        plan_day(two, [[310, 0], [151, 150], [0, 0], [300, 0]], 600)
    assert caught.value.load_factor == pytest.approx(100 / 150)
    with pytest.raises(InfeasibleDemandError, match=r"interval 2, .*; no share of this load was found to fit in whole"):
        plan_day(dataclasses.replace(two, available=[1]), [[310, 0], [151, 0], [1, 1]], 600)


def whole_factor(options, load):
    """By all shares of each type's servers: the largest part of a load of two models that fits."""
    best = 0.0
    for first in itertools.product(*(range(count + 1) for count in options.available.tolist())):
        counts = np.array([first, options.available - first])
        served = (counts * options.qps).sum(axis=1)
        best = max(best, min(has / wants for has, wants in zip(served, load, strict=True) if wants))
    return best


@settings(max_examples=25)
@given(st.integers(0, 100_000))
def test_the_worst_interval_by_brute_force(seed):
    rng = np.random.default_rng(seed)
    qps = rng.integers(1, 100, (2, 2)).astype(float)
    fleet = FleetOptions(("a", "b"), ("T1", "T2"), qps, np.ones((2, 2)), rng.integers(1, 4, 2))
    demand = rng.integers(0, 250, (4, 2)).astype(float)
    factors = [whole_factor(fleet, load) if load.any() else np.inf for load in demand]
    if min(factors) >= 1:
        plan_day(fleet, demand, 600)
        return
    with pytest.raises(InfeasibleDemandError) as caught:
        plan_day(fleet, demand, 600)
    assert caught.value.load_factor == pytest.approx(min(factors), rel=1e-3)
    assert factors[caught.value.interval] == pytest.approx(min(factors), rel=1e-3)


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
