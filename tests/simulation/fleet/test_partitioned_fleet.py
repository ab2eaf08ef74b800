import numpy as np
import pytest

from hebe.scheduling.fleet.matching import CostMatching
from hebe.scheduling.fleet.partitioning import PartitionedRouter, partitions_for
from hebe.simulation.fleet.capacity import fleet_capacity
from hebe.simulation.fleet.fleet_run import QueryTrace, TableServers, partitioned, run_fleet
from hebe.spec import SlaTarget
from tests.examples.pool_service import LARGEST, SLA_MS, EvenSizes, table

SLA_S = SLA_MS / 1e3
TRACE, SHORTER = (QueryTrace.draw(queries, EvenSizes(), 1) for queries in (3_000, 1_000))


def matching() -> CostMatching:
    return CostMatching(SLA_S, LARGEST)


def test_one_partition_is_the_policy_itself() -> None:
    assert isinstance(partitioned(TableServers(table()), matching, SLA_S, 1), CostMatching)


def test_a_fleet_in_partitions_answers_all_and_as_many_in_time() -> None:
    servers, pool = TableServers(table()), (30, 90)
    partitions = partitions_for((100, 300))
    assert partitions == 4
    runs = [
        run_fleet(TRACE, 4_000.0, pool, servers, partitioned(servers, matching, SLA_S, count), SLA_S)
        for count in (1, partitions)
    ]
    assert isinstance(partitioned(servers, matching, SLA_S, partitions), PartitionedRouter)
    assert np.isfinite(runs[1].latency_s).all()
    assert runs[1].attainment(SLA_S) >= runs[0].attainment(SLA_S) - 0.01
    assert (runs[1].latency_s != runs[0].latency_s).any()


def test_partitions_have_a_capacity_too() -> None:
    servers = TableServers(table())
    sla = SlaTarget(SLA_MS, 95.0)
    whole, dealt = (
        fleet_capacity([SHORTER], (4, 8), servers, lambda n=n: partitioned(servers, matching, SLA_S, n), sla).qps  # type: ignore[misc]
        for n in (1, 2)
    )
    assert 0.85 * whole < dealt


def test_a_number_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="partitions is 0"):
        partitioned(TableServers(table()), matching, SLA_S, 0)
