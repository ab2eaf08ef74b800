import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

import hebe.scheduling.fleet.matching
from hebe.query import Query, SubQuery
from hebe.scheduling.fleet.fleet import Fleet
from hebe.scheduling.fleet.matching import CostMatching

from .two_types import arrive, fleet_of, placed

SLA_S = 0.1


def test_the_query_that_gains_most_gets_the_fast_worker() -> None:
    """Kairos Fig. 5: the larger query has the higher speed-up, whatever the order of arrival."""
    policy = CostMatching(SLA_S, 1000)
    fleet = fleet_of(1, 1, policy)
    arrive(policy, fleet, 10, 900)
    assert sorted(placed(policy, fleet)) == [(0, "cpu"), (1, "gpu")]


def test_a_lone_query_takes_the_worker_whose_time_is_worth_less() -> None:
    policy = CostMatching(SLA_S, 1000)
    fleet = fleet_of(1, 1, policy)
    arrive(policy, fleet, 10)  # 1.1 ms of a gpu against 1.5 ms of a cpu, which counts a fifth
    assert placed(policy, fleet) == [(0, "cpu")]


def test_a_query_too_large_for_the_idle_type_waits_for_the_other() -> None:
    policy = CostMatching(0.03, 1000)  # 900 items: 10 ms on the gpu, 46 ms on the cpu
    fleet = fleet_of(1, 1, policy)
    arrive(policy, fleet, 900, 900)
    for entry in policy._window.entries:
        entry.sub_query.query.deadline_s = 0.03
    ((first, name),) = placed(policy, fleet)
    assert name == "gpu"
    assert policy.waiting == 1
    fleet.release(next(worker for worker in fleet.workers if worker.server_type == 0))
    assert placed(policy, fleet, 0.01) == [(1 - first, "gpu")]


def test_a_query_late_everywhere_is_sent_all_the_same() -> None:
    policy = CostMatching(SLA_S, 1000)
    fleet = fleet_of(1, 1, policy)
    arrive(policy, fleet, 900)
    assert len(placed(policy, fleet, now=1.0)) == 1


def test_a_late_query_goes_where_the_time_that_it_takes_is_worth_least() -> None:
    policy = CostMatching(SLA_S, 1000)
    fleet = fleet_of(1, 1, policy)
    arrive(policy, fleet, 10)  # 1.1 ms of a gpu against 1.5 ms of a cpu, which counts a fifth
    assert placed(policy, fleet, now=1.0) == [(0, "cpu")]


def large(policy: CostMatching, fleet: Fleet, *query_ids: int, sla_s: float = 0.03) -> None:
    """Queries of 900 items: 10 ms on a gpu, 46 ms on a cpu."""
    for query_id in query_ids:
        policy.arrived(SubQuery(Query(query_id, 900, 0.0, deadline_s=sla_s), 0, 900), fleet, 0.0)


def test_nothing_waits_for_a_type_that_has_no_worker() -> None:
    policy = CostMatching(0.03, 1000)
    fleet = fleet_of(0, 2, policy)
    large(policy, fleet, 0, 1)
    assert placed(policy, fleet) == [(0, "cpu"), (1, "cpu")]


def test_what_waits_for_a_type_that_is_lost_is_sent_and_one_that_is_back_is_waited_for_again() -> None:
    policy = CostMatching(0.03, 1000)
    fleet = fleet_of(1, 2, policy)
    large(policy, fleet, 0, 1, 2)
    assert [name for _, name in placed(policy, fleet)] == ["gpu"]
    fleet.remove(next(worker for worker in fleet.workers if worker.server_type == 0))
    policy.fleet_changed(fleet, 0.001)
    assert [name for _, name in placed(policy, fleet, 0.001)] == ["cpu", "cpu"]
    fleet.add(9, "gpu", 1)
    fleet.release(next(worker for worker in fleet.workers if worker.taken))
    policy.fleet_changed(fleet, 0.002)
    large(policy, fleet, 3, 4)
    assert [name for _, name in placed(policy, fleet, 0.002)] == ["gpu"]
    assert policy.waiting == 1


def test_queries_wait_for_a_type_that_is_busy_for_as_long_as_it_could_be_in_time() -> None:
    policy = CostMatching(0.03, 1000)
    fleet = fleet_of(1, 2, policy)
    fleet.take(0).busy_until_s = 0.025
    large(policy, fleet, 0, 1)
    assert placed(policy, fleet) == []
    assert placed(policy, fleet, now=0.019) == [], "10 ms there, and it may be done sooner than predicted"
    assert [name for _, name in placed(policy, fleet, now=0.0205)] == ["cpu"], "late, and leaves one worker idle"
    assert policy.waiting == 1


def test_what_is_late_everywhere_yields_to_all_others_and_is_answered_by_an_idle_fleet() -> None:
    policy = CostMatching(0.03, 1000)
    fleet = fleet_of(1, 0, policy)
    large(policy, fleet, 0, 1, 2)  # 10 ms each on a gpu
    assert placed(policy, fleet, now=0.025) == [(0, "gpu")]
    arrive(policy, fleet, 10, now=0.03)
    fleet.release(fleet.workers[0])
    policy.withdraw(1)
    assert placed(policy, fleet, now=0.03)[0][0] == 0, "the one that came now, before 2"
    assert policy.give_up(0.03).query_id == 2  # type: ignore[union-attr]
    assert (policy.give_up(0.03), policy.waiting) == (None, 0)


def test_a_query_that_an_idle_worker_answers_within_the_safeguard_does_not_wait() -> None:
    policy = CostMatching(0.0465, 1000)  # 46 ms on a cpu are in time, if not by two percent
    fleet = fleet_of(1, 1, policy)
    large(policy, fleet, 0, 1, sla_s=0.0465)
    assert sorted(name for _, name in placed(policy, fleet)) == ["cpu", "gpu"]


def test_a_lone_query_is_not_sent_where_it_is_in_time_by_less_than_the_safeguard() -> None:
    policy = CostMatching(0.0465, 1000)  # the cpu's 46 ms would cost a little less than the gpu's 10
    fleet = fleet_of(1, 1, policy)
    large(policy, fleet, 0, sla_s=0.0465)
    assert placed(policy, fleet) == [(0, "gpu")]


@pytest.mark.parametrize("queries", [1, 2])
def test_no_query_waits_for_a_busy_type_that_would_answer_it_within_the_safeguard_only(queries: int) -> None:
    policy = CostMatching(0.0101, 1000)
    fleet = fleet_of(1, 3, policy)
    fleet.take(0).busy_until_s = 0.005
    large(policy, fleet, *range(queries), sla_s=0.0101)  # 10 ms on a gpu, 9.9 ms but for two percent
    assert placed(policy, fleet) == [(at, "cpu") for at in range(queries)]


def test_what_waits_does_so_in_order_of_arrival_whatever_it_was_matched_with() -> None:
    policy = CostMatching(0.03, 1000)
    fleet = fleet_of(1, 1, policy)
    fleet.take(0).busy_until_s = 0.001
    for query_id, items in enumerate((900, 800)):  # the second is matched with the gpu, the first with the cpu, late
        policy.arrived(SubQuery(Query(query_id, items, 0.0, deadline_s=0.03), 0, items), fleet, 0.0)
    assert placed(policy, fleet) == []
    assert policy.give_up(0.04).query_id == 0  # type: ignore[union-attr]


def fleet_with_a_very_slow_type(policy: CostMatching) -> Fleet:
    """One worker each: 1 ms and 10 us an item on a gpu, 200 us on a cpu, almost twenty times slower."""
    fleet = Fleet(["gpu", "cpu", "absent"])
    for kind, per_item_s in ((0, 1e-5), (1, 2e-4)):
        for items in range(1, 1000, 7):
            fleet.predictors[kind].observe(items, 1e-3 + per_item_s * items)
        fleet.add(kind, fleet.types[kind], 1)
    policy.fleet_changed(fleet, 0.0)
    return fleet


@pytest.mark.parametrize("cpu_busy", [False, True])
def test_no_query_is_late_on_a_very_slow_type_while_a_fast_worker_is_idle(cpu_busy: bool) -> None:
    """By Eq. 8 late there costs about half of what in time costs on the fast type."""
    policy = CostMatching(0.0105, 1000)
    fleet = fleet_with_a_very_slow_type(policy)
    if cpu_busy:
        fleet.take(1).busy_until_s = 0.005
    large(policy, fleet, 0, sla_s=0.0105)
    assert placed(policy, fleet) == [(0, "gpu")]


def test_a_lone_query_waits_for_a_fast_worker_rather_than_be_nearly_late_on_a_very_slow_one() -> None:
    """7.5 ms until the gpu has answered it, or 11 ms of the cpu: late there costs no less than in time on any type."""
    policy = CostMatching(0.0111, 1000)
    fleet = fleet_with_a_very_slow_type(policy)
    fleet.take(0).busy_until_s = 0.006
    policy.arrived(SubQuery(Query(0, 50, 0.0, deadline_s=0.0111), 0, 50), fleet, 0.0)
    assert placed(policy, fleet) == []


def test_a_very_slow_type_takes_what_it_answers_in_time_while_the_fast_one_that_others_wait_for_is_busy() -> None:
    """By Eq. 8 alone the large query would be matched with the cpu, late, and the small one with the busy gpu."""
    policy = CostMatching(0.015, 1000)
    fleet = fleet_with_a_very_slow_type(policy)
    fleet.take(0).busy_until_s = 0.004
    large(policy, fleet, 0, sla_s=0.015)
    policy.arrived(SubQuery(Query(1, 50, 0.0, deadline_s=0.015), 0, 50), fleet, 0.0)  # 11 ms on the cpu
    assert placed(policy, fleet) == [(1, "cpu")]


@pytest.mark.parametrize(("scatter", "sent_to"), [(0.0, ["cpu", "gpu"]), (0.3, ["gpu"])])
def test_a_type_whose_times_scatter_gets_nothing_that_it_serves_in_time_only_on_average(
    scatter: float, sent_to: list[str]
) -> None:
    policy = CostMatching(0.05, 1000)
    fleet = fleet_of(1, 1, policy)
    for at in range(1000):  # 900 items: 46 ms on the cpu, in the middle
        fleet.predictors[1].observe(900, 0.046 * (1 + scatter if at % 2 else 1 - scatter))
    for query_id in range(2):
        policy.arrived(SubQuery(Query(query_id, 900, 0.0, deadline_s=0.05), 0, 900), fleet, 0.0)
    assert sorted(name for _, name in placed(policy, fleet)) == sent_to


def test_an_own_deadline_counts() -> None:
    policy = CostMatching(SLA_S, 1000)
    fleet = fleet_of(1, 1, policy)
    policy.arrived(SubQuery(Query(0, 900, 0.0, deadline_s=0.02), 0, 900), fleet, 0.0)  # 46 ms on the cpu: too long
    assert placed(policy, fleet) == [(0, "gpu")]


def test_queries_beyond_the_window_follow_in_order() -> None:
    policy = CostMatching(SLA_S, 1000)
    fleet = fleet_of(1, 1, policy)
    arrive(policy, fleet, *[100] * 9)
    sent = [query for query, _ in placed(policy, fleet)]
    for _ in range(7):
        busy = next(worker for worker in fleet.workers if worker.taken)
        fleet.release(busy)
        sent += [query for query, _ in placed(policy, fleet)]
    assert sorted(sent) == list(range(9))
    assert set(sent[:2]) <= {0, 1, 2, 3}, "the first two come from the window of four"


def test_coefficients_can_be_fixed() -> None:
    policy = CostMatching(SLA_S, 1000, coefficients=np.array([0.1, 1.0]))
    fleet = fleet_of(1, 1, policy)
    arrive(policy, fleet, 10)
    assert placed(policy, fleet) == [(0, "gpu")]


def plain_cost(policy: CostMatching, fleet: Fleet, now: float) -> np.ndarray:
    """Eq. 4 and 8 as they are written: a row a waiting query, a column an instance, idle ones first."""
    coefficients = fleet.coefficients(1000)
    rows = []
    for entry in policy._window.entries:
        query = entry.sub_query.query
        row = []
        for worker in sorted(fleet.workers, key=lambda worker: worker.taken):
            free_s = max(worker.busy_until_s - now, 0.0) if worker.taken else 0.0
            ends_s = free_s + fleet.predictors[worker.server_type].tail_time_s(query.items, 0.98)
            late = now + ends_s > query.deadline_s - 0.02 * SLA_S
            row.append(coefficients[worker.server_type] * (10 * SLA_S if late else ends_s))
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("seed", range(12))
def test_in_a_fleet_of_kairos_size_what_is_sent_is_part_of_an_exact_matching(seed: int) -> None:
    rng = np.random.default_rng(seed)
    policy = CostMatching(SLA_S, 1000)
    fleet = fleet_of(3, 10, policy)
    for worker in fleet.workers[: int(rng.integers(4, 13))]:
        fleet.take_worker(worker)
        worker.busy_until_s = float(rng.uniform(-0.01, 0.09))
    for query_id in range(int(rng.integers(3, 26))):
        items, arrived_s = int(rng.integers(1, 1000)), float(rng.uniform(-0.07, 0.0))
        policy.arrived(SubQuery(Query(query_id, items, arrived_s, arrived_s + SLA_S), 0, items), fleet, 0.0)
    entries = list(policy._window.entries)
    cost = plain_cost(policy, fleet, 0.0)
    order = sorted(fleet.workers, key=lambda worker: worker.taken)
    sent = policy._match(fleet, 0.0)
    rows = [next(at for at, entry in enumerate(entries) if entry.sub_query is part) for part, _ in sent]
    columns = [order.index(worker) for _, worker in sent]

    def least(matrix: np.ndarray) -> float:
        return float(matrix[linear_sum_assignment(matrix)].sum())

    rest = np.delete(np.delete(cost, rows, axis=0), columns, axis=1)
    assert cost[rows, columns].sum() + least(rest) == pytest.approx(least(cost))


def test_a_large_fleet_has_two_columns_a_type_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []

    def recorded(cost, counts):
        shapes.append(cost.shape)
        assert counts.sum() == 200
        return match(cost, counts)

    match = hebe.scheduling.fleet.matching.match_queries
    monkeypatch.setattr(hebe.scheduling.fleet.matching, "match_queries", recorded)
    policy = CostMatching(SLA_S, 1000)
    fleet = fleet_of(40, 160, policy)
    for at, worker in enumerate(fleet.workers[1:]):
        fleet.take_worker(worker)
        worker.busy_until_s = 1e-4 * at
    arrive(policy, fleet, *[10 + at for at in range(400)])
    assert placed(policy, fleet)[0][1] == "gpu"
    assert shapes == [(400, 4)]


def test_in_the_next_round_what_was_just_sent_is_known_to_keep_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = []

    def recorded(queries, idle, busy_types, busy_remaining_s):
        rounds.append((busy_types.tolist(), busy_remaining_s.tolist()))
        return columns(queries, idle, busy_types, busy_remaining_s)

    columns = hebe.scheduling.fleet.matching.busy_columns
    monkeypatch.setattr(hebe.scheduling.fleet.matching, "busy_columns", recorded)
    policy = CostMatching(0.03, 1000)
    fleet = fleet_of(1, 1, policy)
    for query_id in range(5):  # 10 ms on the gpu, 46 ms on the cpu, which the next query is kept from
        policy.arrived(SubQuery(Query(query_id, 900, 0.0, deadline_s=0.03), 0, 900), fleet, 0.0)
    ((part, worker),) = policy.place(fleet, 0.0)
    predicted_s = fleet.service_time_s(0, part.items)
    assert worker.busy_until_s == pytest.approx(predicted_s)
    assert rounds == [([], []), ([0], [pytest.approx(predicted_s)])]


@pytest.mark.parametrize(("sla_s", "largest"), [(0.0, 10), (0.1, 0)])
def test_settings_are_checked(sla_s: float, largest: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        CostMatching(sla_s, largest)


SECONDS = st.sampled_from([1e-3, 2e-3, 0.01, 0.05, 0.1, 0.101, 0.5, 1.0, 2.0])


@given(st.data(), st.integers(1, 4), SECONDS, SECONDS)
def test_a_lone_query_goes_where_the_matching_of_all_would_have_it(
    data: st.DataObject, types: int, sla_s: float, deadline_s: float
) -> None:
    """Times that are alike, so that costs are, too; types of no worker; queries late here, and everywhere, and in time
    within the safeguard only."""
    fleet = Fleet([f"t{kind}" for kind in range(types)])
    for predictor in fleet.predictors:
        service_s = data.draw(SECONDS | st.just(deadline_s - 0.01 * sla_s).filter(lambda time_s: time_s > 0))
        for items in (1, 10, 1000):
            predictor.observe(items, service_s * data.draw(st.sampled_from([1.0, items / 10])))
    for instance, kind in enumerate(data.draw(st.lists(st.integers(0, types - 1), min_size=1, max_size=6))):
        fleet.add(instance, fleet.types[kind], 1)
    for worker in data.draw(st.lists(st.sampled_from(fleet.workers), max_size=len(fleet.workers) - 1, unique=True)):
        fleet.take_worker(worker)
        worker.busy_until_s = data.draw(SECONDS) - 0.01
    given_coefficients = data.draw(st.none() | st.lists(st.sampled_from([0.01, 0.2, 1.0, 3.0]), min_size=4, max_size=4))
    coefficients = None if given_coefficients is None else np.array(given_coefficients[:types])
    policy = CostMatching(sla_s, 1000, coefficients)
    policy.fleet_changed(fleet, 0.0)
    policy.arrived(SubQuery(Query(0, 10, 0.0, deadline_s=deadline_s), 0, 10), fleet, 0.0)
    (entry,) = policy._window.entries
    chosen = policy._best_idle(entry, fleet, 0.0)
    together = policy._match_together([entry], fleet, 0.0)
    assert [worker.server_type for _, worker in together] == ([] if chosen is None else [chosen])
