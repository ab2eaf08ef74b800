import numpy as np
import pytest

import hebe.scheduling.fleet.assignment
from hebe.query import Query, SubQuery
from hebe.scheduling.events import Availability, InstanceChanged
from hebe.scheduling.fleet.distribution import DistributionPolicy, EarliestFinish, FirstComeFirstServed, SizeThreshold
from hebe.scheduling.fleet.fleet import Fleet
from hebe.scheduling.fleet.matching import CostMatching
from hebe.scheduling.fleet.partitioning import PartitionedRouter
from hebe.scheduling.fleet.router import Router, RouterConfig
from hebe.scheduling.fleet.splitting import PricedSplitting
from hebe.simulation.fleet.fleet_run import QueryTrace, TableServers, run_fleet
from hebe.simulation.measured.service_table import ServiceTable
from hebe.workload.query_sizes import FixedSizes, ProductionSizes

SLA_S = 0.1


def servers() -> TableServers:
    """A fast type, and a slow one that answers the largest queries too late."""
    rng = np.random.default_rng(5)
    noise = rng.normal(1, 0.02, 20)
    sizes = range(100, 1001, 100)
    return TableServers(
        ServiceTable.from_samples(
            {
                "gpu": {size: ((2e-3 + 2e-5 * size) * noise).tolist() for size in sizes},
                "cpu": {size: ((1e-3 + 12e-5 * size) * noise).tolist() for size in sizes},
            }
        )
    )


POLICIES: dict[str, type[FirstComeFirstServed] | object] = {
    "fcfs": FirstComeFirstServed,
    "threshold": lambda: SizeThreshold(300),
    "earliest": EarliestFinish,
    "matching": lambda: CostMatching(SLA_S, 1000),
    "splitting": lambda: PricedSplitting(SLA_S, [4.0, 1.0]),
}


def policy(name: str) -> DistributionPolicy:
    return POLICIES[name]()  # type: ignore[operator,no-any-return]


@pytest.mark.parametrize("name", POLICIES)
def test_all_queries_are_answered_and_the_run_can_be_repeated_to_the_bit(name: str) -> None:
    trace = QueryTrace.draw(2000, ProductionSizes(), seed=3)
    runs = [run_fleet(trace, 60.0, (1, 3), servers(), policy(name), SLA_S) for _ in range(2)]
    assert np.isfinite(runs[0].latency_s).all()
    assert (runs[0].latency_s > 0).all()
    np.testing.assert_array_equal(runs[0].latency_s, runs[1].latency_s)
    assert runs[0].busy_s == runs[1].busy_s


def test_one_server_first_come_first_served_is_lindley_s_recursion() -> None:
    trace = QueryTrace.draw(3000, ProductionSizes(), seed=4)
    model, rate = servers(), 100.0
    run = run_fleet(trace, rate, (1, 0), model, FirstComeFirstServed(), SLA_S)
    free_s, expected = 0.0, []
    for at, arrival_s in enumerate(np.cumsum(trace.gaps) / rate):
        items = int(trace.sizes[at])
        free_s = max(free_s, arrival_s) + model.service_s(0, SubQuery(Query(at, items, 0.0), 0, items))
        expected.append(free_s - arrival_s)
    np.testing.assert_allclose(run.latency_s, expected, rtol=1e-9)


@pytest.mark.parametrize("name", ["matching", "splitting"])
@pytest.mark.parametrize(("rate_qps", "in_time"), [(1.3 * 335, 0.88), (2.0 * 335, 0.65)])
def test_an_overloaded_fleet_answers_most_of_what_it_can_in_time(name: str, rate_qps: float, in_time: float) -> None:
    """At 335 queries/s 99% are in time. Late ones that were served in turn would make all others late."""
    trace = QueryTrace.draw(6000, ProductionSizes(), 3)
    run = run_fleet(trace, rate_qps, (1, 6), servers(), policy(name), SLA_S)
    assert run.attainment(SLA_S) > in_time
    assert np.isfinite(run.latency_s).all()


def test_traces_scale_with_the_rate_and_stay_the_same_queries() -> None:
    trace = QueryTrace.draw(20_000, FixedSizes(100), seed=1)
    assert trace.gaps.mean() == pytest.approx(1.0, rel=0.02)
    assert trace.gaps.std() == pytest.approx(1.0, rel=0.05)
    again = QueryTrace.draw(20_000, FixedSizes(100), seed=1)
    np.testing.assert_array_equal(trace.gaps, again.gaps)
    assert (QueryTrace.draw(20_000, FixedSizes(100), seed=2).gaps != trace.gaps).any()


def test_service_times_have_the_measured_spread_and_a_query_keeps_its_luck() -> None:
    model = servers()
    trace = QueryTrace.draw(5000, FixedSizes(500), seed=1)
    model.begin(trace)
    whole = [SubQuery(Query(at, 500, 0.0), 0, 500) for at in range(5000)]
    drawn = np.array([[model.service_s(kind, part) for part in whole] for kind in (0, 1)])
    np.testing.assert_allclose(drawn.mean(axis=1), model.table.mean_s[:, 499], rtol=0.01)
    assert np.corrcoef(drawn)[0, 1] > 0.99
    half = model.service_s(1, SubQuery(whole[0].query, 0, 250))
    assert half in model.table.quantiles_s[1, 250]


def test_parts_of_a_query_are_not_alike() -> None:
    model = servers()
    trace = QueryTrace.draw(500, FixedSizes(800), seed=1)
    model.begin(trace)
    halves = [
        [model.service_s(1, SubQuery(Query(at, 800, 0.0), start, start + 400)) for at in range(500)]
        for start in (0, 400)
    ]
    assert abs(np.corrcoef(halves)[0, 1]) < 0.5


def test_a_lost_instance_s_queries_are_answered_by_others_and_a_new_one_helps() -> None:
    trace = QueryTrace.draw(3000, FixedSizes(200), seed=2)
    change = [(5.0, InstanceChanged(0, "gpu", Availability.LOST))]
    lost = run_fleet(trace, 150.0, (1, 3), servers(), FirstComeFirstServed(), SLA_S, changes=change)
    assert np.isfinite(lost.latency_s).all()
    change.append((5.0, InstanceChanged(99, "gpu", Availability.UP)))
    replaced = run_fleet(trace, 150.0, (1, 3), servers(), FirstComeFirstServed(), SLA_S, changes=change)
    assert replaced.percentile_s(99) < lost.percentile_s(99) / 2


def tight() -> tuple[TableServers, float]:
    """A fast type, and one that is in time within the last two percent only; the SLA in seconds."""
    gpu, cpu = [4e-3, 5e-3, 6e-3], [10e-3, 11e-3, 11.5e-3, 11.95e-3]
    return TableServers(ServiceTable.from_samples({"gpu": {1: gpu, 100: gpu}, "cpu": {1: cpu, 100: cpu}})), 0.012


TIGHT_POLICIES = {
    "matching": lambda: CostMatching(0.012, 100),
    "splitting": lambda: PricedSplitting(0.012, [4.0, 1.0], largest=100),
    "splitting, learned prices": lambda: PricedSplitting(0.012, largest=100, most_parts=1),
}
LOST = InstanceChanged(0, "gpu", Availability.LOST)
BACK = InstanceChanged(99, "gpu", Availability.UP)


@pytest.mark.parametrize("name", TIGHT_POLICIES)
@pytest.mark.parametrize(
    ("pool", "changes"),
    [
        ((0, 3), []),
        ((1, 3), []),
        ((1, 3), [(5.0, LOST)]),
        ((1, 3), [(5.0, LOST), (9.0, BACK)]),
        ((0, 3), [(9.0, BACK)]),
    ],
    ids=["no instance of a type", "all types", "a type lost", "lost and back", "late"],
)
def test_nothing_waits_in_vain_beside_idle_workers(
    name: str, pool: tuple[int, int], changes: list[tuple[float, InstanceChanged]]
) -> None:
    model, sla_s = tight()
    trace = QueryTrace.draw(500, FixedSizes(50), seed=3)
    run = run_fleet(trace, 30.0, pool, model, TIGHT_POLICIES[name](), sla_s, changes=changes)
    assert np.isfinite(run.latency_s).all(), "also the last ones"
    assert run.attainment(sla_s) > 0.93


@pytest.mark.parametrize("name", TIGHT_POLICIES)
def test_partitions_that_lack_a_type_answer_all(name: str) -> None:
    model, sla_s = tight()
    trace = QueryTrace.draw(500, FixedSizes(50), seed=3)
    router = PartitionedRouter(4, lambda: Router(Fleet(model.types), TIGHT_POLICIES[name](), RouterConfig(sla_s=sla_s)))
    run = run_fleet(trace, 100.0, (1, 11), model, router, sla_s)
    assert np.isfinite(run.latency_s).all()
    assert run.attainment(sla_s) > 0.93


def test_an_instance_with_more_workers_does_more_at_a_time() -> None:
    trace = QueryTrace.draw(2000, FixedSizes(200), seed=2)
    one = run_fleet(trace, 140.0, (1, 0), servers(), FirstComeFirstServed(), SLA_S)
    two = run_fleet(trace, 140.0, (1, 0), servers(), FirstComeFirstServed(), SLA_S, workers_per_instance={"gpu": 2})
    assert two.percentile_s(95) < one.percentile_s(95)


def test_known_service_times_are_told_to_the_router_and_keep_early_queries_from_being_late() -> None:
    trace = QueryTrace.draw(200, ProductionSizes(), 3)
    learning, known = servers(), TableServers(servers().table, known=True)
    assert learning.profiles == {}
    fleet = known.fleet()
    for server_type in range(2):
        for items in (150, 300, 900):
            expected_s = known.table.mean_s[server_type, items - 1]
            assert fleet.service_time_s(server_type, items) == pytest.approx(expected_s, rel=0.1)
    late = [
        1 - run_fleet(trace, 450, (1, 6), own, policy("splitting"), SLA_S).attainment(SLA_S)
        for own in (learning, known)
    ]
    assert late[1] < late[0]


def test_giving_up_stops_early_and_counts_the_rest_as_late() -> None:
    trace = QueryTrace.draw(5000, FixedSizes(900), seed=2)
    run = run_fleet(trace, 500.0, (1, 0), servers(), FirstComeFirstServed(), SLA_S, give_up_late=50)
    assert run.attainment(SLA_S) < 0.1
    assert run.percentile_s(99) == np.inf
    assert run.end_s < 5.0


@pytest.mark.parametrize(("pool", "rate"), [((1, 8), 425.0), ((2, 10), 630.0)])
def test_merging_busy_workers_answers_as_many_in_time_as_the_exact_matching(
    pool: tuple[int, int], rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = []
    for most_work in (np.inf, -1):  # each busy worker a column of its own; those of one type one column
        monkeypatch.setattr(hebe.scheduling.fleet.assignment, "_MOST_WORK", most_work)
        runs = [
            run_fleet(QueryTrace.draw(3000, ProductionSizes(), seed), rate, pool, servers(), policy("matching"), SLA_S)
            for seed in (1, 2)
        ]
        shares.append(np.mean([run.attainment(SLA_S) for run in runs]))
    assert 0.98 < shares[0] < 0.999
    assert shares[1] >= shares[0] - 0.002


@pytest.mark.parametrize(
    ("rate", "pool", "size", "message"),
    [
        (0.0, (1, 0), 10, "rate_qps is 0"),
        (1.0, (0, 0), 10, "no instance"),
        (1.0, (1, 0), 1001, "queries of 1001 items"),
    ],
)
def test_arguments_are_checked(rate: float, pool: tuple[int, int], size: int, message: str) -> None:
    trace = QueryTrace.draw(10, FixedSizes(size), seed=1)
    with pytest.raises(ValueError, match=message):
        run_fleet(trace, rate, pool, servers(), FirstComeFirstServed(), SLA_S)


def test_a_partitioned_fleet_answers_all_nearly_as_fast() -> None:
    trace = QueryTrace.draw(4000, ProductionSizes(), seed=3)
    whole = run_fleet(trace, 400.0, (6, 18), servers(), CostMatching(SLA_S, 1000), SLA_S)
    router = PartitionedRouter(
        3, lambda: Router(Fleet(["gpu", "cpu"]), CostMatching(SLA_S, 1000), RouterConfig(sla_s=SLA_S))
    )
    dealt = run_fleet(trace, 400.0, (6, 18), servers(), router, SLA_S)
    assert np.isfinite(dealt.latency_s).all()
    assert dealt.percentile_s(95) < 1.5 * whole.percentile_s(95)
