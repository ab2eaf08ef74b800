"""When a query is spread over idle places; see test_node.py for the same through `NodeScheduler`."""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from hebe.profile import LatencyProfile
from hebe.query import Batch, Query
from hebe.scheduling.events import (
    Availability,
    BatchFinished,
    CompleteQuery,
    Event,
    QueryArrived,
    Stage,
    StartBatch,
    WorkerChanged,
)
from hebe.scheduling.node.batching import Handling
from hebe.scheduling.node.core_slots import PlacedWorkers
from hebe.scheduling.node.node import NodeConfig, NodeScheduler
from hebe.scheduling.node.scattering import Spreading
from hebe.scheduling.node.service_times import ServiceTimes
from hebe.simulation.node.node_run import profiled_service, run_node
from hebe.workload.query_sizes import ProductionSizes

ITEMS = 32
DEAR = LatencyProfile((1, 256), (0.00042, 0.00472), (0.00002, 0.0002))
"""0.4 ms a batch and 17 us an item: a query of 32 items takes 0.95 ms, and half as much work again in two parts."""


class Server:
    """Places of which some are busy, and the decisions for them."""

    def __init__(self, places: int, profile: LatencyProfile = DEAR) -> None:
        self.workers = PlacedWorkers()
        for number in range(places):
            self.workers.change(WorkerChanged(number, Availability.UP, (number,)))
        self.handling = Handling()
        self.spreading = Spreading(self.workers, ServiceTimes(self.workers, {Stage.WHOLE: profile}), self.handling)

    def parts(self, busy: int, waits: bool = False) -> int:
        """Of a query that finds so many places busy."""
        for worker in self.workers.up[:busy]:
            self.workers.start(worker, Batch(0, (), 1), 0.001, 0.0)
        parts = self.spreading.parts(ITEMS, 1, waits=waits, arrives=True)
        for worker in self.workers.up[:busy]:
            self.workers.end(worker, 0.001)
        return parts


def test_where_queries_come_one_at_a_time_they_are_spread_at_more_work():
    server = Server(2)
    assert server.parts(busy=0) == 1  # nobody knows yet how many come
    parts = [server.parts(busy=0) for _ in range(200)]
    assert parts[-80:].count(2) >= 78, "but for those that are tried whole"


def test_where_others_come_meanwhile_a_query_leaves_places_to_them():
    for seen in ((1, 0), (2, 0, 0, 0)):
        server = Server(2)
        parts = [server.parts(busy) for _ in range(100) for busy in seen]
        assert parts.count(2) <= len(parts) / 32 + 1  # but for those that are tried
    server = Server(2)
    parts = [server.parts(busy=0, waits=number % 2 == 0) for number in range(200)]
    assert parts[::2] == [1] * 100
    assert parts[1::2].count(2) <= 4


def test_of_many_places_a_query_takes_some_and_leaves_most():
    server = Server(16)
    parts = [server.parts(busy=2) for _ in range(300)]
    assert set(parts[-100:]) == {2, 4}  # a third part would save 0.09 ms; and those that are tried
    assert parts[-100:].count(2) >= 96
    parts = [server.parts(busy=9) for _ in range(300)]
    assert max(set(parts[-100:]), key=parts[-100:].count) == 1


def test_what_takes_the_same_whatever_its_size_is_not_spread():
    server = Server(2, LatencyProfile((1, 256), (0.00095, 0.001), (0.0, 0.0)))
    parts = [server.parts(busy=0) for _ in range(400)]
    assert parts.count(2) == 400 // 32  # those that are tried


def test_what_adds_little_work_is_spread_whatever_the_load():
    server = Server(4, LatencyProfile((1, 100), (0.001, 0.1), (0.0, 0.0)))
    assert [server.parts(busy=2) for _ in range(31)] == [2] * 31
    assert [server.parts(busy=2) for _ in range(5000)].count(1) == 9, "after 32, 64, ... 1024, and 1024 each"


def test_one_stall_ends_no_spreading():
    server = Server(2)
    for _ in range(100):
        server.parts(busy=0)
        server.spreading.observe(0.001, 0.001, spread=False)
        server.spreading.observe(0.0007, 0.00072, spread=True)
    server.spreading.observe(0.0007, 3.0, spread=True)
    assert server.parts(busy=0) == 2


def test_what_spreading_costs_is_paid_by_those_that_run_beside_as_well():
    profile = LatencyProfile((1, 100), (0.001, 0.1), (0.0, 0.0))
    for late_s, busy, spread in ((0.0, 1, True), (0.012, 0, True), (0.012, 1, False), (0.03, 0, False)):
        server = Server(4, profile)
        for _ in range(100):
            server.spreading.observe(0.1, 0.1, spread=False)
            server.spreading.observe(0.1, 0.1 + late_s, spread=True)
        parts = [server.parts(busy) for _ in range(200)][-50:]  # three parts save 21 ms, four 24 ms
        assert (max(set(parts), key=parts.count) > 1) == spread, (late_s, busy)


def usual_parts(server: Server) -> int:
    parts = [server.parts(busy=0) for _ in range(100)]
    return max(set(parts), key=parts.count)


def test_a_part_more_saves_at_least_what_it_takes_to_begin_it_and_to_hear_of_it():
    for beside_s, most in ((0.0, 4), (0.0005, 4), (0.001, 3), (0.002, 2), (0.005, 1)):
        server = Server(
            4, LatencyProfile((1, 100), (0.0003, 0.03), (0.0, 0.0))
        )  # two save 4.7 ms, four 0.8 ms more than three
        for _ in range(100):
            server.handling.observe(beside_s)
        assert usual_parts(server) == most, beside_s


def test_where_batches_are_heard_of_later_than_usual_queries_are_left_whole():
    server = Server(4, LatencyProfile((1, 100), (0.0003, 0.03), (0.0, 0.0)))
    for beside_s, most in ((0.0002, 4), (0.001, 1), (0.0002, 4)):
        for _ in range(300):
            server.handling.observe(beside_s)
        assert usual_parts(server) == most, beside_s
    server.handling.observe(3.0)
    assert usual_parts(server) == 4, "one stall"


def behind_one_thread(rate_qps: float, *, spread: bool, queries: int = 3000) -> tuple[float, float]:
    """Latency of queries to 16 workers, seconds in the middle and at the 95th percentile. One thread begins batches and
    hears of queries and of batches' ends, in that order, and takes 0.13 ms for a query and for a batch.
    """
    takes_s, rng = 0.13e-3, np.random.default_rng(0)
    profile = LatencyProfile((1, 1024), (0.16e-3, 9.9e-3), (0.0, 0.0))
    sizes = ProductionSizes().draw(queries, rng)
    arrivals_s = np.cumsum(rng.exponential(1 / rate_qps, queries))
    node = NodeScheduler(NodeConfig(1024, spread=spread, sla_s=0.02), profile)
    for worker_id in range(16):
        node.handle(WorkerChanged(worker_id, Availability.UP, (worker_id,)), 0.0)
    heard: list[tuple[float, int, Event]] = [
        (at_s, number, QueryArrived(Query(number, int(items), at_s)))
        for number, (at_s, items) in enumerate(zip(arrivals_s.tolist(), sizes.tolist(), strict=True))
    ]
    now, latency_s = 0.0, np.zeros(queries)
    while heard:
        at_s, _, event = heapq.heappop(heard)
        now = max(now, at_s) + takes_s
        for action in node.handle(event, now):
            match action:
                case StartBatch(worker_id, batch):
                    service_s = profile.service_time_s(batch.items)
                    finished = BatchFinished(worker_id, batch.batch_id, service_s)
                    heapq.heappush(heard, (now + service_s, queries + batch.batch_id, finished))
                case CompleteQuery(query):
                    latency_s[query.query_id] = now - arrivals_s[query.query_id]
    return float(np.median(latency_s)), float(np.quantile(latency_s, 0.95))


def test_spreading_does_not_keep_the_thread_that_begins_batches_busy():
    for rate_qps, middle, tail in ((400.0, 0.7, 0.45), (1600.0, 1.05, 0.6), (3200.0, 1.25, 1.0)):
        spread, whole = (behind_one_thread(rate_qps, spread=spread) for spread in (True, False))
        assert spread[0] < middle * whole[0], rate_qps
        assert spread[1] < tail * whole[1], rate_qps


@pytest.mark.parametrize("busy", [0.01, 0.05, 0.06, 0.2, 1.0, 3.7, 20.0])
def test_places_to_spare_are_what_a_poisson_process_leaves(busy):
    server = Server(16)
    server.spreading._busy_places = busy
    assert server.spreading._spare_places == 16 - min(int(stats.poisson.ppf(0.95, busy)), 16)


@pytest.mark.parametrize(("places", "load", "gain"), [(2, 0.02, 0.9), (2, 0.3, 1.01), (4, 0.1, 0.9), (16, 0.2, 0.85)])
def test_spreading_shortens_latencies_and_no_tail(places, load, gain):
    rng = np.random.default_rng(places)
    arrivals_s = np.cumsum(rng.exponential(DEAR.service_time_s(ITEMS) / places / load, 6000))
    sizes = np.full(arrivals_s.size, ITEMS)
    config = NodeConfig(batch_size=64, admission=False)
    spread, whole = (
        run_node(
            arrivals_s, sizes, each, profiled_service(DEAR, np.random.default_rng(0)), workers=places, profile=DEAR
        ).latency_s
        for each in (config, replace(config, spread=False))
    )
    assert spread.mean() < gain * whole.mean()
    assert np.quantile(spread, 0.95) < 1.05 * np.quantile(whole, 0.95)
