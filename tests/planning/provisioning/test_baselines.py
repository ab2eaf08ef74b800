from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.planning.error import PlanningError
from hebe.planning.provisioning.baselines import provision_by_priority, provision_greedily, provision_obliviously
from hebe.planning.provisioning.provisioning import FleetOptions, Objective, provision
from hebe_lab.baselines.provisioning_instance import generate_fleet

# III-C: CPU, CPU+NMP and CPU+GPU servers, 70, 15 and 5 of them. Both models prefer NMP, rm2 gains more by it.
PAPER = FleetOptions(
    ("rm1", "rm2"),
    ("cpu", "cpu+nmp", "cpu+gpu"),
    np.array([[1000.0, 2000, 2600], [500.0, 2500, 1400]]),
    np.array([[100.0, 110, 220], [100.0, 110, 220]]),
    np.array([70, 15, 5]),
    np.array([1.0, 2.0, 3.0]),
)


def plans(options, demand, seed=0, **arguments):
    return {
        "oblivious": provision_obliviously(options, demand, np.random.default_rng(seed), **arguments),
        "greedy": provision_greedily(options, demand, np.random.default_rng(seed), **arguments),
        "priority": provision_by_priority(options, demand, **arguments),
    }


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000))
def test_all_meet_the_demand_and_none_is_below_the_optimum(seed):
    options, demand = generate_fleet(4, 7, seed)
    demand = 0.5 * demand
    best = provision(options, demand, over_provision_rate=0.1)
    for name, plan in plans(options, demand, seed, over_provision_rate=0.1).items():
        assert (plan.capacity_qps >= 1.1 * demand * (1 - 1e-9)).all(), name
        assert (plan.counts.sum(axis=0) <= options.available).all(), name
        assert not plan.counts[options.qps == 0].any(), name
        assert plan.cost == pytest.approx(plan.power_watts), name
        assert plan.cost >= best.bound, name
        assert plan.gap is None


def test_priority_gives_the_contested_servers_to_whom_they_serve_most():
    demand = [20_000, 20_000]
    greedy = np.mean([plans(PAPER, demand, seed)["greedy"].power_watts for seed in range(20)])
    by_priority = provision_by_priority(PAPER, demand)
    oblivious = np.mean([plans(PAPER, demand, seed)["oblivious"].power_watts for seed in range(20)])
    np.testing.assert_array_equal(by_priority.counts[:, 1], [7, 8])
    assert provision(PAPER, demand).power_watts <= by_priority.power_watts < greedy < oblivious


def test_priority_is_by_gain_and_not_by_efficiency():
    """The first model is the more efficient one on the contested servers, but does nearly as well without them."""
    options = FleetOptions(("a", "b"), ("cpu", "nmp"), [[1000.0, 2000], [100, 1500]], [[100.0] * 2] * 2, [70, 5])
    assert provision_by_priority(options, [10_000, 7_500]).counts.tolist() == [[10, 0], [0, 5]]


def test_servers_that_cost_nothing_come_first():
    """Though one at a price does a hundred times as much."""
    options = FleetOptions(("m",), ("free", "paid"), [[10.0, 1000.0]], [[1.0, 1.0]], [5, 5], [0.0, 1.0])
    plan = provision_greedily(options, [50.0], np.random.default_rng(0), objective=Objective.PRICE)
    assert plan.counts.tolist() == [[5, 0]]


def test_greedy_divides_contested_servers_at_random_and_takes_the_next_best_then():
    counts = np.array([plans(PAPER, [30_000, 30_000], seed)["greedy"].counts for seed in range(20)])
    assert (counts[:, :, 1].sum(axis=1) == 15).all()
    assert len(set(counts[:, 0, 1].tolist())) > 1
    assert (counts[:, :, 2].sum(axis=1) == 5).all()


def test_greedy_alone_takes_its_ranking_in_order():
    plan = provision_greedily(PAPER, [45_000, 0], np.random.default_rng(0))
    np.testing.assert_array_equal(plan.counts, [[2, 15, 5], [0, 0, 0]])


def test_oblivious_draws_in_proportion_to_what_is_there():
    used = sum(plans(PAPER, [20_000, 10_000], seed)["oblivious"].counts.sum(axis=0) for seed in range(100))
    np.testing.assert_allclose(used / used.sum(), np.array([70, 15, 5]) / 90, atol=0.03)


def test_what_is_drawn_depends_on_the_seed_alone():
    for name, plan in plans(PAPER, [20_000, 20_000], seed=5).items():
        np.testing.assert_array_equal(plan.counts, plans(PAPER, [20_000, 20_000], seed=5)[name].counts)


def test_by_price_the_ranking_is_another():
    plan = provision_by_priority(PAPER, [30_000, 0], objective=Objective.PRICE)
    np.testing.assert_array_equal(plan.counts[0], [30, 0, 0])
    assert plan.cost == plan.price_per_hour == 30.0


def test_no_demand_needs_no_servers():
    assert {plan.servers for plan in plans(PAPER, [0, 0]).values()} == {0}


@pytest.mark.parametrize("name", ["oblivious", "greedy", "priority"])
def test_the_model_that_lacks_servers_is_named(name):
    with pytest.raises(PlanningError, match=r"provisioning: rm. lacks .* queries/s"):
        plans(PAPER, {"oblivious": [1e6, 0], "greedy": [0, 1e6], "priority": [0, 1e6]}[name])
    only_first = FleetOptions(("a", "b"), ("T1",), [[1.0], [0.0]], [[1.0], [1.0]], [9])
    calls = {
        "oblivious": lambda: provision_obliviously(only_first, [1, 1], np.random.default_rng(0)),
        "greedy": lambda: provision_greedily(only_first, [1, 1], np.random.default_rng(0)),
        "priority": lambda: provision_by_priority(only_first, [1, 1]),
    }
    with pytest.raises(PlanningError, match="b lacks 1 queries/s"):
        calls[name]()
