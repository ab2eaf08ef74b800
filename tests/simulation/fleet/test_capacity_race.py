import pytest

from hebe.scheduling.fleet.distribution import FirstComeFirstServed
from hebe.simulation.fleet.capacity import fleet_capacity
from hebe.simulation.fleet.capacity_race import CapacityRace
from hebe.simulation.fleet.fleet_run import QueryTrace, TableServers
from hebe.spec import SlaTarget
from tests.examples.pool_service import SLA_MS, EvenSizes, table

SLA = SlaTarget(SLA_MS, 95.0)


@pytest.fixture
def race():
    return CapacityRace(QueryTrace.draw(1_500, EvenSizes(), 1), TableServers(table()), SLA, guess_qps=50.0)


def test_the_best_is_what_searching_each_alone_finds(race):
    pools = [(1, 1), (4, 0), (2, 2), (3, 3), (1, 4)]
    alone = {
        pool: fleet_capacity(
            [QueryTrace.draw(1_500, EvenSizes(), 1)], pool, TableServers(table()), FirstComeFirstServed, SLA
        ).qps
        for pool in pools
    }
    found = {pool: race.enter(pool, FirstComeFirstServed) for pool in pools}
    assert race.best_qps == max(found.values())
    assert race.best_qps == pytest.approx(max(alone.values()), rel=0.011)
    assert found[3, 3] == race.best_qps
    assert race.entered == len(pools)


def test_what_is_not_better_is_not_searched(race):
    best = race.enter((3, 3), FirstComeFirstServed)
    assert best > 0
    runs = []

    def make():
        runs.append(None)
        return FirstComeFirstServed()

    assert race.enter((1, 0), make) == 0
    assert len(runs) == 1
    assert race.best_qps == best


def test_a_pool_that_is_late_at_any_rate_reaches_nothing():
    slow = TableServers(table(item_ms=(2.0, 2.0)))
    race = CapacityRace(QueryTrace.draw(200, EvenSizes(), 1), slow, SLA, guess_qps=50.0)
    assert race.enter((3, 3), FirstComeFirstServed) == 0
    assert race.best_qps == 0


def test_attainment_falls_with_the_rate(race):
    shares = [race.attainment(rate_qps, (2, 2), FirstComeFirstServed) for rate_qps in (20.0, 400.0)]
    assert shares[0] == 1.0
    assert shares[1] < 0.5
