import pytest

from hebe.planning.error import PlanningError
from hebe.planning.pool.fluid_bound import fluid_bound
from hebe.scheduling.fleet.distribution import EarliestFinish, FirstComeFirstServed, SizeThreshold
from hebe.scheduling.fleet.matching import CostMatching
from hebe.scheduling.fleet.partitioning import partitions_for
from hebe.scheduling.fleet.splitting import PricedSplitting
from hebe.simulation.fleet.policy_choice import PolicyChoice, PolicyKind, policy_for_pool
from tests.examples.pool_service import LARGEST, problem, table

MADE = {
    PolicyKind.FCFS: FirstComeFirstServed,
    PolicyKind.THRESHOLD: SizeThreshold,
    PolicyKind.CLOCKWORK: EarliestFinish,
    PolicyKind.MATCHING: CostMatching,
    PolicyKind.SPLITTING: PricedSplitting,
}


@pytest.mark.parametrize("kind", PolicyKind)
def test_every_policy_is_made_anew_and_named_as_it_is_asked_for(kind):
    choice = policy_for_pool(kind, problem(), (1, 2))
    made = [choice.make(problem().types, 0.03, LARGEST) for _ in range(2)]
    assert [type(policy) for policy in made] == [MADE[kind]] * 2
    assert made[0] is not made[1]
    assert choice.to_dict()["name"] == kind
    assert type(choice.to_dict()["name"]) is str


def test_a_threshold_is_as_given_or_what_the_slow_types_serve_in_time():
    slow = problem(table(item_ms=(0.4, 1.5)))
    reach = int(slow.reach[1])
    assert 0 < reach < LARGEST
    assert policy_for_pool(PolicyKind.THRESHOLD, slow, (1, 2)).threshold_items == reach
    assert policy_for_pool(PolicyKind.THRESHOLD, slow, (1, 2), 7).to_dict() == {
        "name": "threshold",
        "threshold_items": 7,
    }
    assert policy_for_pool(PolicyKind.THRESHOLD, slow, (1, 0)).threshold_items == 0


def test_splitting_goes_by_the_prices_of_the_fluid_bound_whatever_the_order_of_types():
    choice, types = policy_for_pool(PolicyKind.SPLITTING, problem(), (1, 2)), problem().types
    prices = list(fluid_bound(problem(), (1, 2), most_parts=choice.kind.most_parts).splitting_prices_qps())
    assert choice.to_dict()["prices_qps"] == dict(zip(types, prices, strict=True))
    assert len(set(prices)) == len(types), "or their order would not show"
    assert choice.make(types, 0.03, LARGEST)._prices == prices
    assert choice.make(types[::-1], 0.03, LARGEST)._prices == prices[::-1]
    with pytest.raises(KeyError):
        choice.make(("fast", "dear"), 0.03, LARGEST)


def test_where_even_parts_come_late_splitting_is_refused():
    hopeless = problem(table(item_ms=(5.0, 5.0)))
    with pytest.raises(PlanningError, match=r"splitting: the pool cannot serve queries of \d+ items within the SLA"):
        policy_for_pool(PolicyKind.SPLITTING, hopeless, (1, 2))


def test_only_splitting_splits_and_only_slow_decisions_are_dealt_over_partitions():
    assert [kind for kind in PolicyKind if kind.most_parts > 1] == [PolicyKind.SPLITTING]
    large = (150, 250)
    dealt = {kind for kind in PolicyKind if kind.partitions(large) > 1}
    assert dealt == {PolicyKind.MATCHING, PolicyKind.SPLITTING}
    assert PolicyKind.MATCHING.partitions(large) == partitions_for(large)
    assert all(kind.partitions((1, 2)) == 1 for kind in PolicyKind)


def test_parameters_of_other_policies_are_not_said():
    assert PolicyChoice(PolicyKind.FCFS, threshold_items=3, prices_qps={"a": 1.0}).to_dict() == {"name": "fcfs"}
