from collections.abc import Sequence

import pytest

from hebe.query import Query, SubQuery
from hebe.scheduling.fleet.fleet import Fleet
from hebe.scheduling.fleet.splitting import WINDOW_PER_WORKER, PricedSplitting

from .two_types import fleet_of

SLA_S = 0.1


def arrive(policy: PricedSplitting, fleet: Fleet, *items: int, sla_s: float = SLA_S, now: float = 0.0) -> None:
    for query_id, count in enumerate(items):
        policy.arrived(SubQuery(Query(query_id, count, now, now + sla_s), 0, count), fleet, now)


def placed(policy: PricedSplitting, fleet: Fleet, now: float = 0.0) -> list[tuple[int, int, int, str]]:
    """Query, first and last item, type of each part sent."""
    sent = []
    for part, worker in policy.place(fleet, now):
        worker.sub_query = part
        worker.busy_until_s = now + fleet.service_time_s(worker.server_type, part.items)
        sent.append((part.query.query_id, part.start, part.stop, fleet.types[worker.server_type]))
    return sent


def free_one(fleet: Fleet, name: str) -> None:
    fleet.release(next(w for w in fleet.workers if w.taken and fleet.types[w.server_type] == name))


# Learned: 1 ms and 10 us an item on a gpu, 50 us on a cpu.


def test_a_query_that_one_worker_answers_in_time_is_not_split() -> None:
    policy = PricedSplitting(SLA_S, [5.0, 1.0])
    fleet = fleet_of(0, 4, policy)
    arrive(policy, fleet, 900)
    assert placed(policy, fleet) == [(0, 0, 900, "cpu")]


@pytest.mark.parametrize("cpus", [2, 4])
def test_a_query_too_large_for_one_worker_goes_in_equal_parts_and_no_more_than_it_needs(cpus: int) -> None:
    policy = PricedSplitting(0.03, [5.0, 1.0])
    fleet = fleet_of(0, cpus, policy)
    arrive(policy, fleet, 900, sla_s=0.03)  # 46 ms whole, 23.5 in two
    assert placed(policy, fleet) == [(0, 0, 450, "cpu"), (0, 450, 900, "cpu")]


def test_of_parts_that_cannot_be_equal_the_largest_must_be_in_time() -> None:
    policy = PricedSplitting(0.00115, [5.0, 1.0])
    fleet = fleet_of(0, 4, policy)
    arrive(policy, fleet, 5, sla_s=0.00115)  # 1.15 ms for three items, too long by the safeguard, and 1.1 for two
    assert placed(policy, fleet) == [(0, 0, 1, "cpu"), (0, 1, 3, "cpu"), (0, 3, 5, "cpu")]


@pytest.mark.parametrize(("prices", "names"), [([2.0, 1.0], ["gpu"]), ([9.0, 1.0], ["cpu", "cpu"])])
def test_the_price_decides_between_a_fast_worker_and_two_slow_ones(prices: Sequence[float], names: list[str]) -> None:
    policy = PricedSplitting(0.03, prices)
    fleet = fleet_of(1, 4, policy)
    arrive(policy, fleet, 900, sla_s=0.03)  # 10 ms of a gpu, or twice 23.5 ms of a cpu
    assert [name for *_, name in placed(policy, fleet)] == names


def test_parts_start_as_workers_become_free() -> None:
    policy = PricedSplitting(0.03, [5.0, 1.0])
    fleet = fleet_of(0, 2, policy)
    arrive(policy, fleet, 60, 900, sla_s=0.03)  # the first takes 4 ms
    assert placed(policy, fleet) == [(0, 0, 60, "cpu"), (1, 0, 450, "cpu")]
    assert policy.waiting == 1
    free_one(fleet, "cpu")
    assert placed(policy, fleet, now=0.004) == [(1, 450, 900, "cpu")]


def test_a_query_is_not_split_over_a_worker_that_becomes_free_too_late() -> None:
    policy = PricedSplitting(0.03, [9.0, 1.0])
    fleet = fleet_of(1, 2, policy)
    fleet.take(1).busy_until_s = 0.02
    arrive(policy, fleet, 900, sla_s=0.03)  # 23.5 ms in two, which on idle workers is the cheapest way
    assert placed(policy, fleet) == [(0, 0, 900, "gpu")]


def test_an_idle_worker_takes_what_waits_for_a_cheaper_type_if_that_costs_little() -> None:
    for prices, sent in (([4.0, 1.0], True), ([9.0, 1.0], False)):
        policy = PricedSplitting(SLA_S, prices, most_parts=1)
        fleet = fleet_of(1, 1, policy)
        arrive(policy, fleet, 100, 100)  # 6 ms of a cpu, 2 ms of a gpu
        assert ((1, 0, 100, "gpu") in placed(policy, fleet)) is sent


def test_of_queries_that_cannot_all_be_in_time_the_dearest_gives_way() -> None:
    """Moore and Hodgson: 46 ms and twice 11 ms on one worker, within 50 ms."""
    policy = PricedSplitting(0.05, [5.0, 1.0])
    fleet = fleet_of(0, 1, policy)
    arrive(policy, fleet, 900, 200, 200, sla_s=0.05)
    assert placed(policy, fleet) == [(1, 0, 200, "cpu")]
    free_one(fleet, "cpu")
    assert placed(policy, fleet, now=0.011) == [(2, 0, 200, "cpu")]
    free_one(fleet, "cpu")
    assert placed(policy, fleet, now=0.022) == [(0, 0, 180, "cpu")], "late, but answered when nothing else waits"


def test_of_queries_that_cannot_all_be_in_time_the_dearest_gives_way_if_it_is_the_last_too() -> None:
    policy = PricedSplitting(0.05, [5.0, 1.0])
    fleet = fleet_of(0, 1, policy)
    arrive(policy, fleet, 200, 900, sla_s=0.05)  # 11 and 46 ms
    assert placed(policy, fleet) == [(0, 0, 200, "cpu")]


def test_several_dear_queries_give_way_at_once_each_to_others_that_are_cheaper() -> None:
    """46 ms twice and 18.5 ms four times on two workers, within 50 ms."""
    policy = PricedSplitting(0.05, [5.0, 1.0], most_parts=1)
    fleet = fleet_of(0, 2, policy)
    arrive(policy, fleet, 900, 900, 350, 350, 350, 350, sla_s=0.05)
    assert placed(policy, fleet) == [(2, 0, 350, "cpu"), (3, 0, 350, "cpu")]


def test_no_query_gives_way_to_one_that_is_late_all_the_same() -> None:
    policy = PricedSplitting(SLA_S, [5.0, 1.0])
    fleet = fleet_of(0, 5, policy)
    for worker in fleet.workers[:4]:  # so few idle ones do not serve late queries
        fleet.take_worker(worker)
        worker.busy_until_s = 1.0
    arrive(policy, fleet, 300)
    policy.arrived(SubQuery(Query(1, 40, 0.0, 0.002), 0, 40), fleet, 0.0)  # takes 3 ms
    assert placed(policy, fleet) == [(0, 0, 300, "cpu")]


def test_a_query_late_from_the_start_is_answered_by_an_idle_fleet() -> None:
    policy = PricedSplitting(0.001, [5.0, 1.0])
    fleet = fleet_of(1, 1, policy)
    arrive(policy, fleet, 900, sla_s=0.001)
    sent = []
    while policy.waiting:
        sent += placed(policy, fleet)
        for worker in fleet.workers:
            if worker.taken:
                fleet.release(worker)
    assert [part[1] for part in sent] == [0, *(part[2] for part in sent[:-1])]
    assert sent[-1][2] == 900


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_query_that_can_be_in_time_only_within_the_safeguard_is_sent_while_it_can(gpus: int) -> None:
    policy = PricedSplitting(0.0465, [5.0, 1.0], most_parts=1)  # 46 ms on a cpu, 45.6 ms but for two percent
    fleet = fleet_of(gpus, 2, policy)
    for _ in range(gpus):
        fleet.take(0).busy_until_s = 0.04
    arrive(policy, fleet, 900, sla_s=0.0465)
    assert placed(policy, fleet) == [(0, 0, 900, "cpu")]


def test_a_query_takes_a_dearer_type_rather_than_be_in_time_within_the_safeguard_only() -> None:
    policy = PricedSplitting(0.0465, [5.0, 1.0], most_parts=1)  # 46 ms of a cpu are cheaper than 10 ms of a gpu
    fleet = fleet_of(1, 1, policy)
    arrive(policy, fleet, 900, sla_s=0.0465)
    assert placed(policy, fleet) == [(0, 0, 900, "gpu")]


@pytest.mark.parametrize(("sla_s", "cpus"), [(0.0465, 1), (0.0238, 2)])
def test_a_query_that_can_be_in_time_only_within_the_safeguard_leaves_the_others_theirs(
    sla_s: float, cpus: int
) -> None:
    """Of 46 ms whole, or 23.5 in two; the query behind it is in time on one of the workers that it would need."""
    policy = PricedSplitting(sla_s, [5.0, 1.0], most_parts=cpus)
    fleet = fleet_of(0, cpus, policy)
    arrive(policy, fleet, 900, 100, sla_s=sla_s)
    assert placed(policy, fleet) == [(1, 0, 100, "cpu")]
    assert policy.waiting == 1


def queue(policy: PricedSplitting, fleet: Fleet, query_id: int, items: int, deadline_s: float) -> None:
    policy.arrived(SubQuery(Query(query_id, items, 0.0, deadline_s), 0, items), fleet, 0.0)


@pytest.mark.parametrize("workers", [1, 6])
def test_a_query_behind_a_window_of_late_ones_goes_before_them(workers: int) -> None:
    policy = PricedSplitting(SLA_S, [5.0, 1.0])
    fleet = fleet_of(0, workers, policy)
    for _ in range(workers):
        fleet.take(1).busy_until_s = 0.15
    for query_id in range(WINDOW_PER_WORKER * workers):
        queue(policy, fleet, query_id, 100, deadline_s=0.1)
    queue(policy, fleet, 99, 100, deadline_s=0.2)
    free_one(fleet, "cpu")
    assert placed(policy, fleet, now=0.15) == [(99, 0, 100, "cpu")]


def test_what_follows_into_the_window_does_not_wait_for_a_worker_that_was_just_given_work() -> None:
    policy = PricedSplitting(SLA_S, [9.0, 1.0], most_parts=1)
    fleet = fleet_of(1, 1, policy)
    for query_id in range(WINDOW_PER_WORKER * 2 - 1):
        queue(policy, fleet, query_id, 100, deadline_s=0.1)
    for query_id in (98, 99):  # 46 ms of the cpu, 10 of the gpu
        queue(policy, fleet, query_id, 900, deadline_s=0.21)
    assert placed(policy, fleet, now=0.15) == [(98, 0, 900, "cpu"), (99, 0, 900, "gpu")]


def test_late_queries_leave_some_workers_idle() -> None:
    policy = PricedSplitting(0.3, [5.0, 1.0])
    fleet = fleet_of(0, 10, policy)
    arrive(policy, fleet, *[900] * 12, sla_s=0.001)
    assert len(placed(policy, fleet)) == 8
    assert policy.waiting == 4


def test_late_queries_wait_for_all_others_though_these_want_no_idle_worker() -> None:
    policy = PricedSplitting(0.03, [5.0, 1.0], most_parts=1)
    fleet = fleet_of(1, 2, policy)
    fleet.take(0).busy_until_s = 0.01
    queue(policy, fleet, 0, 100, deadline_s=0.001)
    queue(policy, fleet, 1, 900, deadline_s=0.03)  # in time on the gpu only
    assert placed(policy, fleet) == []
    free_one(fleet, "gpu")
    assert placed(policy, fleet, now=0.01) == [(1, 0, 900, "gpu"), (0, 0, 100, "cpu")]


def test_a_late_query_goes_in_parts_for_which_nobody_waits_long() -> None:
    policy = PricedSplitting(0.1, [5.0, 1.0])
    fleet = fleet_of(0, 2, policy)
    arrive(policy, fleet, 900, sla_s=0.001)
    sent = placed(policy, fleet)  # of 46 ms, at most 20 at once
    for now in (0.02, 0.04, 0.06):
        while any(worker.taken for worker in fleet.workers):
            free_one(fleet, "cpu")
        sent += placed(policy, fleet, now)
    assert sent == [(0, 0, 300, "cpu"), (0, 300, 600, "cpu"), (0, 600, 900, "cpu")]
    assert policy.waiting == 0


@pytest.mark.parametrize(("items", "first"), [(902, 301), (761, 254)])
def test_the_first_part_of_a_late_query_is_the_largest_and_short_enough(items: int, first: int) -> None:
    policy = PricedSplitting(0.1001, [5.0, 1.0])
    fleet = fleet_of(0, 1, policy)
    arrive(policy, fleet, items, sla_s=0.001)  # at most 20.02 ms: 380 items
    assert placed(policy, fleet) == [(0, 0, first, "cpu")]


def test_a_query_that_only_its_tail_s_time_makes_late_is_not_sent_in_parts() -> None:
    policy = PricedSplitting(0.05, [5.0, 1.0], most_parts=1)
    fleet = fleet_of(0, 1, policy)
    for at in range(1000):  # 900 items: 46 ms in the middle, 58 nine times in ten
        fleet.predictors[1].observe(900, 0.046 * (1.3 if at % 2 else 0.7))
    arrive(policy, fleet, 900, sla_s=0.05)
    assert placed(policy, fleet) == [(0, 0, 900, "cpu")]


def test_who_is_late_longest_is_given_up_first() -> None:
    policy = PricedSplitting(0.3, [5.0, 1.0])
    fleet = fleet_of(0, 1, policy)
    fleet.take(0 if fleet.idle(0) else 1).busy_until_s = 9.0
    arrive(policy, fleet, 900, 900, sla_s=0.001)
    policy._window.refill(fleet)
    assert policy.give_up(0.0) is None, "they were not looked at yet"
    free_one(fleet, "cpu")
    assert placed(policy, fleet, 0.5) == [(0, 0, 900, "cpu")]
    assert policy.give_up(0.5).query_id == 1  # type: ignore[union-attr]
    assert (policy.give_up(0.5), policy.waiting) == (None, 0)


def test_without_prices_the_learned_coefficients_decide() -> None:
    policy = PricedSplitting(SLA_S, largest=1000)
    fleet = fleet_of(1, 1, policy)
    arrive(policy, fleet, 10)
    assert placed(policy, fleet) == [(0, 0, 10, "cpu")]


def test_a_worker_busy_longer_than_predicted_is_not_taken_for_idle() -> None:
    policy = PricedSplitting(SLA_S, [5.0, 1.0])
    fleet = fleet_of(0, 2, policy)
    arrive(policy, fleet, 100)
    placed(policy, fleet)
    arrive(policy, fleet, 100, 100, now=0.05)
    assert len(placed(policy, fleet, now=0.05)) == 1


@pytest.mark.parametrize("prices", [[-1.0, 1.0], [0.0, 0.0], [float("inf"), 1.0], []])
def test_prices_are_checked(prices: list[float]) -> None:
    with pytest.raises(ValueError, match="prices"):
        PricedSplitting(SLA_S, prices)


@pytest.mark.parametrize("settings", [{"sla_s": 0.0}, {"most_parts": 0}, {"largest": 0}])
def test_settings_are_checked(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        PricedSplitting(**({"sla_s": SLA_S} | settings))  # type: ignore[arg-type]
