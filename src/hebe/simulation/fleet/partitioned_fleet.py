"""A policy for `run_fleet`, dealt over partitions of the fleet, as a large live fleet would be."""

from __future__ import annotations

from collections.abc import Callable

from hebe.scheduling.fleet.distribution import DistributionPolicy
from hebe.scheduling.fleet.partitioning import PartitionedRouter
from hebe.scheduling.fleet.router import Router, RouterConfig
from hebe.simulation.fleet.fleet_run import ServiceModel


def partitioned(
    servers: ServiceModel, make_policy: Callable[[], DistributionPolicy], sla_s: float, partitions: int
) -> DistributionPolicy | PartitionedRouter:
    """The policy itself for one partition; else a router that gives each of its partitions a policy of its own.

    `sla_s` must be that of the run. `scheduling.partitioning.partitions_for` says how many suit a fleet. Raises
    `ValueError` for fewer than one.
    """
    if partitions == 1:
        return make_policy()
    return PartitionedRouter(partitions, lambda: Router(servers.fleet(), make_policy(), RouterConfig(sla_s=sla_s)))
