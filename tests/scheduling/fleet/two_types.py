"""A fleet of two unlike types for the tests of distribution policies."""

from hebe.query import Query, SubQuery
from hebe.scheduling.fleet.distribution import DistributionPolicy
from hebe.scheduling.fleet.fleet import Fleet

SERVICE_S = {"gpu": (1e-3, 1e-5), "cpu": (1e-3, 5e-5)}


def fleet_of(gpus: int, cpus: int, policy: DistributionPolicy) -> Fleet:
    """With service times learned: 1 ms and 10 or 50 us an item."""
    fleet = Fleet(["gpu", "cpu"])
    for name, (fixed_s, per_item_s) in SERVICE_S.items():
        for items in range(1, 1000, 7):
            fleet.predictors[fleet.index[name]].observe(items, fixed_s + per_item_s * items)
    for at in range(gpus):
        fleet.add(at, "gpu", 1)
    for at in range(cpus):
        fleet.add(gpus + at, "cpu", 1)
    policy.fleet_changed(fleet, 0.0)
    return fleet


def arrive(policy: DistributionPolicy, fleet: Fleet, *items: int, now: float = 0.0) -> None:
    for query_id, count in enumerate(items):
        policy.arrived(SubQuery(Query(query_id, count, now, now + 0.1), 0, count), fleet, now)


def placed(policy: DistributionPolicy, fleet: Fleet, now: float = 0.0) -> list[tuple[int, str]]:
    sent = []
    for part, worker in policy.place(fleet, now):
        worker.sub_query = part
        worker.busy_until_s = now + fleet.service_time_s(worker.server_type, part.items)
        sent.append((part.query.query_id, fleet.types[worker.server_type]))
    return sent
