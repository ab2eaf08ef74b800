"""Scalability profiles to test co-location with: of Hera's kinds by hand, and any that hypothesis can think of."""

from __future__ import annotations

from hypothesis import strategies as st

from hebe.planning.colocation.shared_server import ScalabilityTables, ServerResources
from hebe.profile import ScalabilityProfile

SERVER = ServerResources(cores=16, cache_ways=11, bandwidth_bytes_per_s=100e9, memory_bytes=200e9)


def profile(
    model, qps_a_worker, *, limit=16, memory_limit=16, bandwidth_a_worker=1e9, one_way=1.0, curve=2, memory=1e9
):
    """Linear in workers up to `limit`; `one_way` is the share of throughput left with a single cache way.

    From there to all 11 ways it rises in proportion for a `curve` of 1, sooner for more.
    """
    workers = tuple(range(1, memory_limit + 1))
    ways = tuple(range(1, 12))
    share = [one_way + (1 - one_way) * (1 - ((11 - way) / 10) ** curve) for way in ways]
    qps = [qps_a_worker * min(count, limit) for count in workers]
    bandwidth = [bandwidth_a_worker * min(count, limit) for count in workers]
    rows = [[rate * part for part in share] for rate in qps]
    return ScalabilityProfile(model, workers, qps, bandwidth, ways, rows, [memory * count for count in workers])


BANDWIDTH_BOUND = profile("bandwidth-bound", 20.0, limit=10, bandwidth_a_worker=9.5e9, one_way=0.9)
CAPACITY_BOUND = profile("capacity-bound", 5.0, memory_limit=8, bandwidth_a_worker=5e9, one_way=0.9, memory=24e9)
CACHE_BOUND = profile("cache-bound", 1000.0, one_way=0.3)
OTHER_CACHE_BOUND = profile("other-cache-bound", 300.0, one_way=0.4, bandwidth_a_worker=2e9)
COMPUTE_BOUND = profile("compute-bound", 50.0, one_way=0.95, bandwidth_a_worker=0.2e9)
KINDS = (BANDWIDTH_BOUND, CAPACITY_BOUND, CACHE_BOUND, OTHER_CACHE_BOUND, COMPUTE_BOUND)

DEMAND = {"bandwidth-bound": 2_000.0, "capacity-bound": 300.0, "cache-bound": 90_000.0, "compute-bound": 2_000.0}


def tables(*profiles, server=SERVER):
    return ScalabilityTables.of(profiles or KINDS, server)


@st.composite
def small_fleets(draw, least=1, most=4, cores=5, ways=4):
    """Tables of a few models on a small server, each of which serves something alone."""
    amount = st.floats(0.05, 1.0)
    profiles = []
    for number in range(draw(st.integers(least, most))):
        largest = draw(st.integers(1, cores))
        counts = list(range(1, cores + 1))
        grow = [draw(amount) if count <= largest else 0.0 for count in counts]
        qps = [draw(st.sampled_from([1.0, 30.0, 1000.0])) * sum(grow[:count]) for count in counts]
        loss = draw(st.floats(0, 0.8))
        rows = [[rate * (1 - loss * (ways - way) / ways) for way in range(1, ways + 1)] for rate in qps]
        heavy = draw(st.one_of(st.just(0.0), st.floats(1e-3, 1)))
        bandwidth = [heavy * count / cores for count in counts]
        memory = sorted(draw(st.sampled_from([0.0, 0.1, 0.2])) * count for count in counts)
        profiles.append(
            ScalabilityProfile(f"m{number}", counts, qps, bandwidth, list(range(1, ways + 1)), rows, memory)
        )
    return ScalabilityTables.of(profiles, ServerResources(cores, ways, 1.0, draw(st.sampled_from([1.0, 10.0]))))


@st.composite
def demanded_fleets(draw, least=1, most=4):
    """Tables and a demand that takes from a part of a server to some servers for each model, of some models none."""
    made = draw(small_fleets(least, most))
    servers = st.one_of(st.just(0.0), st.floats(0.01, 12.0))
    demand = {name: draw(servers) * float(alone) for name, alone in zip(made.models, made.alone, strict=True)}
    if not any(demand.values()):
        demand[made.models[0]] = float(made.alone[0])
    return made, demand
