"""One model in one interval of a planned day, on servers whose times can be reckoned by hand."""

import math

import numpy as np
import pytest

from hebe.scheduling.fleet.distribution import FirstComeFirstServed
from hebe.simulation.fleet.fleet_run import QueryTrace, TableServers
from hebe.simulation.fleet.provisioned_day import LateServers, PlannedServers, run_interval
from hebe.simulation.measured.service_table import ServiceTable
from hebe.spec import SlaTarget
from hebe.workload.query_sizes import FixedSizes

FAST_S, SLOW_S = 0.01, 0.04
SLA = SlaTarget(60.0, 95.0)


def fast_and_slow():
    return TableServers(ServiceTable(("fast", "slow"), np.array([[[FAST_S]] * 2, [[SLOW_S]] * 2])))


def even(queries, rate_qps):
    """One query after another, all alike, none of which waits where there are servers enough."""
    assert rate_qps > 0
    return QueryTrace(np.ones(queries), np.ones(queries, dtype=np.int64), np.zeros(queries))


def run(planned, draw=even, *, interval_s=100.0, queries=1000, times=1, **options):
    return run_interval(
        planned, interval_s, fast_and_slow(), FirstComeFirstServed, SLA,
        queries=queries, draws=[draw] * times, **options,
    )  # fmt: skip


def late(count, after_s=10.0):
    """So many fast servers that join then."""
    return (LateServers(after_s, (count, 0)),)


def test_enough_servers_answer_all_in_their_service_time_and_work_their_share():
    """50 queries/s at 10 ms are half of one server's time."""
    found = run(PlannedServers(50.0, (1, 0)))
    assert found.attainment == 1.0
    assert found.tail_s == pytest.approx(FAST_S)
    assert found.utilisation == (pytest.approx(0.5, rel=0.01), 0.0)
    assert found.meets(SLA)


def test_unlike_servers_share_the_load():
    """Together they answer 125 queries/s; the slow one takes what the fast one is too busy for."""
    found = run(PlannedServers(120.0, (1, 1)))
    assert found.attainment == 1.0
    assert found.tail_s == pytest.approx(SLOW_S)
    assert found.utilisation[0] * 100 + found.utilisation[1] * 25 == pytest.approx(120, rel=0.01)


def test_a_load_that_is_too_high_ends_with_low_attainment():
    found = run(PlannedServers(200.0, (1, 0)))
    assert found.attainment < 0.02
    assert not found.meets(SLA)
    assert found.utilisation[0] == pytest.approx(1.0, abs=0.01)


def test_no_load_is_no_run_and_a_load_without_servers_is_answered_by_nobody():
    assert run(PlannedServers(0.0, (1, 0))) is None
    found = run(PlannedServers(10.0, (0, 0)))
    assert (found.attainment, found.tail_s, found.utilisation) == (0.0, math.inf, (0.0, 0.0))


def test_a_late_server_serves_when_it_is_set_up():
    """Until then nobody is there: of 100 s the first 10."""
    found = run(PlannedServers(20.0, (1, 0), late(1)))
    assert found.attainment == pytest.approx(0.9, abs=0.01)
    assert math.isinf(found.tail_s)
    assert run(PlannedServers(20.0, (1, 0))).attainment == 1.0


def test_what_waits_for_a_late_server_counts_until_it_is_answered():
    """Of 150 queries/s one server answers 100: after 10 s 500 wait, and two answer them within another 10 s. All but
    those of the first moments are late until then: a fifth of the interval."""
    found = run(PlannedServers(150.0, (2, 0), late(1)))
    assert found.attainment == pytest.approx(0.8, abs=0.02)
    assert not found.meets(SLA)
    assert found.utilisation[0] < 0.8


def test_servers_that_are_set_up_only_after_the_interval_do_not_serve_in_it():
    assert run(PlannedServers(20.0, (1, 0), late(1, 100.0))).attainment == 0.0
    assert run(PlannedServers(20.0, (2, 0), late(1, 500.0))).attainment == 1.0


def test_servers_join_each_at_its_own_time():
    """200 queries/s, and a server answers 100. Who comes waits longer and longer until the second one joins, as long as
    the others then, 5 s, and less and less after the third has joined: for more than 4 s if it is from the 4th to the
    28th second that he comes. Did both join first, or last, that were to the 8th, or the 48th."""
    delayed = (*late(1, 10.0), *late(1, 30.0))

    def simulated(planned):
        within_4_s = SlaTarget(4000.0, 95.0)
        return run_interval(
            planned, 100.0, fast_and_slow(), FirstComeFirstServed, within_4_s, queries=1000, draws=[even]
        )

    assert simulated(PlannedServers(200.0, (3, 0), delayed)).attainment == pytest.approx(0.76, abs=0.01)
    one_never_joins = simulated(PlannedServers(200.0, (3, 1), (*delayed, LateServers(100.0, (0, 1)))))
    assert one_never_joins.attainment == pytest.approx(0.76, abs=0.01)
    assert one_never_joins.utilisation[1] == 0.0


def test_few_queries_are_simulated_whole_and_many_as_a_sample():
    asked = []

    def noting(queries, rate_qps):
        asked.append(queries)
        return even(queries, rate_qps)

    run(PlannedServers(5.0, (1, 0)), noting)
    run(PlannedServers(50.0, (1, 0)), noting)
    run(PlannedServers(0.001, (1, 0)), noting)
    run(PlannedServers(50.0, (2, 0), late(1)), noting)  # 20 s in real time, then a sample of the other 80 s
    run(PlannedServers(2000.0, (50, 0), late(1)), noting)  # of 40,000 queries in 20 s, 20 samples' worth
    assert asked == [500, 1000, 1, 1000, 1000, 20_000, 1000]


def test_an_opening_lasts_whole_periods_of_the_arrivals():
    """Until late servers are set up and as long again are 20 s; of 7 s there are three."""
    asked = []

    def noting(queries, rate_qps):
        asked.append(queries)
        return even(queries, rate_qps)

    found = run(PlannedServers(50.0, (2, 0), late(1)), noting, period_s=7.0)
    run(PlannedServers(50.0, (2, 0), late(1, 45.0)), noting, period_s=7.0)  # no longer than the interval
    run(PlannedServers(50.0, (2, 0), late(1)), noting, period_s=7.0, queries=10)  # shorter, but a period
    assert asked == [1050, 1000, 4550, 450, 350, 10]
    assert found.queries == 2050


def test_several_draws_count_alike():
    def drawn(seed):
        return lambda queries, _: QueryTrace.draw(queries, FixedSizes(1), seed)

    planned = PlannedServers(90.0, (1, 0))
    first, second = (run(planned, drawn(seed)) for seed in (0, 1))
    both = run_interval(
        planned, 100.0, fast_and_slow(), FirstComeFirstServed, SLA, queries=1000, draws=[drawn(0), drawn(1)]
    )
    assert first.attainment != second.attainment
    assert both.attainment == pytest.approx((first.attainment + second.attainment) / 2)
    assert both.utilisation[0] == pytest.approx((first.utilisation[0] + second.utilisation[0]) / 2)
    assert min(first.tail_s, second.tail_s) <= both.tail_s <= max(first.tail_s, second.tail_s)


def test_a_server_of_several_workers_is_as_good_as_so_many_servers():
    two = run(PlannedServers(150.0, (1, 0)), workers_per_instance={"fast": 2})
    assert two == run(PlannedServers(150.0, (2, 0)))
    delayed = run(PlannedServers(150.0, (2, 0), late(1)), workers_per_instance={"fast": 2})
    assert delayed.attainment == 1.0
    assert delayed.utilisation[0] < two.utilisation[0]
