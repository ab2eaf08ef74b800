"""Whether a query that waits shares the batch of those before it.

What a batch costs to be begun and heard of.
"""

from __future__ import annotations

import numpy as np
import pytest

from hebe.profile import LatencyProfile
from hebe.query import SubQuery
from hebe.scheduling.events import Availability, Stage, WorkerChanged, WorkerRole
from hebe.scheduling.node.batching import Fusing, Handling
from hebe.scheduling.node.core_slots import PlacedWorkers
from hebe.scheduling.node.node import NodeConfig
from hebe.scheduling.node.service_times import ServiceTimes
from hebe.simulation.fleet.capacity import in_one, narrowed_rate_qps
from hebe.simulation.node.node_run import profiled_service, run_node
from hebe.workload.query_sizes import ProductionSizes

from .one_node import query

WHOLE = WorkerRole()


TEN_MS = LatencyProfile((1, 100), (0.011, 0.110), (0.0, 0.0))
"""10 ms a batch, 1 ms an item."""


def fusing(profile: LatencyProfile = TEN_MS, handling: Handling | None = None) -> Fusing:
    return Fusing(ServiceTimes(PlacedWorkers(), {Stage.WHOLE: profile}), handling or Handling())


def part(query_id: int, items: int) -> SubQuery:
    return SubQuery(query(query_id, items), 0, items)


@pytest.mark.parametrize(
    ("items", "gathered", "waiting", "worth_it"),
    [
        (9, [50], 1, True),  # 10 ms for one, 9 ms of one
        (11, [50], 1, False),
        (11, [50], 2, True),  # for two
        (9, [1, 1], 1, False),  # 9 ms of each of two
        (9, [1, 1], 2, True),
        (1000, [1], 100, False),
        (1000, [1], 101, True),
    ],
)
def test_what_all_that_wait_save_is_held_against_what_those_in_the_batch_lose(items, gathered, waiting, worth_it):
    before = [part(number, each) for number, each in enumerate(gathered)]
    assert fusing().is_worth_it(WHOLE, part(99, items), before, waiting) is worth_it


def test_parts_of_one_query_do_not_delay_each_other():
    own = query(1, 100)
    first, second = SubQuery(own, 0, 50), SubQuery(own, 50, 100)
    assert fusing().is_worth_it(WHOLE, second, [first], 1)


def test_what_is_handed_on_costs_in_both_stages():
    sparse, dense = WorkerRole(Stage.SPARSE, 100), WorkerRole(Stage.DENSE, 100)
    workers = PlacedWorkers()
    for worker_id, role in enumerate((sparse, dense)):
        workers.change(WorkerChanged(worker_id, Availability.UP, (worker_id,), role))
    free = LatencyProfile((1, 100), (0.001, 0.100), (0.0, 0.0))
    times = ServiceTimes(workers, {Stage.SPARSE: free, Stage.DENSE: TEN_MS})
    # Of each item both stages take 1 ms, and a batch costs the dense stage's 10.
    assert Fusing(times, Handling()).is_worth_it(sparse, part(2, 5), [part(1, 50)], 1)
    assert not Fusing(times, Handling()).is_worth_it(sparse, part(2, 6), [part(1, 50)], 1)


@pytest.mark.parametrize(("beside_s", "items"), [(0.0, 20), (0.005, 30), (0.010, 40)])
def test_what_it_takes_to_begin_a_batch_and_to_hear_of_it_is_saved_as_well(beside_s, items):
    handling = Handling()
    for _ in range(50_000):
        handling.observe(beside_s)
    handling.observe(1.0)  # to wait is no work
    assert fusing(handling=handling).is_worth_it(WHOLE, part(2, items - 1), [part(1, 50)], 2)
    assert not fusing(handling=handling).is_worth_it(WHOLE, part(2, items + 1), [part(1, 50)], 2)


def test_where_nothing_tells_what_a_batch_costs_some_are_fused_to_learn_it():
    alike = fusing(LatencyProfile((50,), (0.050,), (0.0,)))
    answers = [alike.is_worth_it(WHOLE, part(2, 50), [part(1, 50)], 3) for _ in range(64)]
    assert sum(answers) == 2


def capacity_qps(batch_size: int, *, item_s: float) -> float:
    """Queries/s of two workers within 20 ms, with 0.2 ms a batch."""
    rng, queries, fixed_s = np.random.default_rng(0), 1500, 2e-4
    sizes = ProductionSizes().draw(queries, rng)
    arrivals_s = np.cumsum(rng.exponential(1.0, queries))
    points = (1, 1024)
    service_s = tuple(fixed_s + item_s * items for items in points)
    profile = LatencyProfile(points, service_s, tuple(0.03 * each for each in service_s))
    config = NodeConfig(batch_size, sla_s=0.02)

    def holds(rate_qps: float) -> bool:
        service = profiled_service(profile, np.random.default_rng(1))
        run = run_node(arrivals_s / rate_qps, sizes, config, service, workers=2, give_up_late=queries // 20)
        return run.attainment(0.02) >= 0.95

    return in_one(narrowed_rate_qps(holds, 1.4 / profile.service_time_s(238), 0.02))


def test_batches_that_take_as_long_as_there_is_time_are_not_filled():
    """What it takes: of a full batch of 1,024, at 20 µs an item, 20.7 ms."""
    assert capacity_qps(1024, item_s=2e-5) > 0.95 * capacity_qps(256, item_s=2e-5)
    assert capacity_qps(1024, item_s=2e-6) > capacity_qps(256, item_s=2e-6)


def handling(*beside_s: float, times: int = 500) -> Handling:
    """That has seen so many batches of each kind, one kind after the other."""
    seen = Handling()
    for each_s in beside_s:
        for _ in range(times):
            seen.observe(each_s)
    return seen


def test_nothing_is_known_at_first_and_costs_nothing():
    assert (Handling().of_late_s, Handling().cost_s) == (0.0, 0.0)
    assert handling(0.0).cost_s == 0.0


def test_where_nobody_waits_a_batch_costs_what_it_takes_itself():
    for takes_s in (0.00005, 0.0001, 0.0003):
        seen = handling(takes_s)
        assert seen.of_late_s == pytest.approx(takes_s)
        assert seen.cost_s == pytest.approx(takes_s, rel=0.1)


@pytest.mark.parametrize("busy", [0.3, 0.6, 0.8])
def test_where_batches_wait_one_more_costs_what_a_queue_says(busy):
    """What all customers wait for a server with one time of service, a second, is its rate times what each waits."""
    takes_s = 0.001
    wait_s = takes_s * busy / (2 * (1 - busy))
    seen = handling(takes_s)
    for _ in range(200):  # before what is least is thought to have become more
        seen.observe(takes_s + wait_s)

    def spent(share: float) -> float:
        return share * (takes_s + takes_s * share / (2 * (1 - share)))

    one_more_s = (spent(busy + 1e-6) - spent(busy - 1e-6)) / 2e-6
    assert seen.cost_s == pytest.approx(one_more_s, rel=0.15)


def test_what_it_costs_falls_again():
    assert handling(0.0002, 0.005, 0.0002).of_late_s == pytest.approx(0.0002, rel=1e-4)


def test_what_it_takes_alone_may_become_more():
    assert handling(0.0002, 0.001, times=100).cost_s > 0.005
    assert handling(0.0002, 0.001, times=50_000).cost_s == pytest.approx(0.001, rel=0.01)


def test_a_stall_counts_as_little_more_than_twice_what_is_usual():
    seen = handling(0.001)
    seen.observe(3.0)
    assert seen.of_late_s < 0.0011
