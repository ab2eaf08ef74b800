"""The node scheduler in virtual time under Poisson load of heavy-tailed query sizes, below and far above capacity."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from hebe.profile import LatencyProfile
from hebe.query import Query
from hebe.scheduling.events import (
    BatchFinished,
    CompleteQuery,
    QueryArrived,
    RejectQuery,
    RejectReason,
    StartBatch,
    WorkerChanged,
    WorkerState,
)
from hebe.scheduling.node import NodeConfig, NodeScheduler
from hebe.workload.query_sizes import ProductionSizes

FIXED_S, PER_ITEM_S, BATCH_SIZE, DURATION_S = 2e-4, 26e-6, 256, 12.0
"""About what `dlrm-rmc1` takes on one core: 6.9 ms a full batch."""


@dataclass
class Outcome:
    in_time: int = 0
    items_in_time: int = 0
    late: int = 0
    refused: int = 0
    expired: int = 0

    @property
    def admitted(self) -> int:
        return self.in_time + self.late + self.expired


def serve(overload: float, sla_s: float, workers: int = 1, calm_qps: float = 0.0) -> Outcome:
    """`overload` times the capacity for a while; service times vary by 10% and now and then stall for 5 ms.

    With `calm_qps`, stalls are of 100 ms and every third batch has one; then they end, the rate falls to `calm_qps`,
    and only what arrives from then on is counted.
    """
    rng = np.random.default_rng(11)
    sizes = ProductionSizes().draw(20_000, rng)
    batches = np.ceil(sizes / BATCH_SIZE)
    rate_qps = overload * workers / np.mean(FIXED_S * batches + PER_ITEM_S * sizes)
    profile = LatencyProfile((1, 256), (FIXED_S + PER_ITEM_S, FIXED_S + 256 * PER_ITEM_S), (0.0, 0.0))
    node = NodeScheduler(NodeConfig(BATCH_SIZE, sla_s=sla_s, percentile=95.0), profile)
    for worker_id in range(workers):
        node.handle(WorkerChanged(worker_id, WorkerState.UP), 0.0)
    arrivals_s = np.cumsum(rng.exponential(1 / rate_qps, int(rate_qps * DURATION_S)))
    if calm_qps:
        calm_s = DURATION_S + np.cumsum(rng.exponential(1 / calm_qps, int(20 * calm_qps)))
        arrivals_s = np.concatenate([arrivals_s[arrivals_s < DURATION_S], calm_s])
    counted_from_s = DURATION_S if calm_qps else 0.0
    order = itertools.count()
    heap = [
        (at_s, next(order), QueryArrived(Query(i, int(size), at_s)))
        for i, (at_s, size) in enumerate(zip(arrivals_s.tolist(), itertools.cycle(sizes)))
    ]
    heapq.heapify(heap)
    outcome = Outcome()
    while heap:
        now, _, event = heapq.heappop(heap)
        for action in node.handle(event, now):
            match action:
                case StartBatch(worker_id, batch):
                    service_s = (FIXED_S + PER_ITEM_S * batch.items) * rng.lognormal(0.0, 0.1)
                    if calm_qps and now < DURATION_S:
                        service_s += 0.1 if rng.random() < 0.33 else 0.0
                    elif not calm_qps:
                        service_s += rng.exponential(0.005) if rng.random() < 0.02 else 0.0
                    finished = BatchFinished(worker_id, batch.batch_id, service_s)
                    heapq.heappush(heap, (now + service_s, next(order), finished))
                case CompleteQuery(query) | RejectQuery(query) if query.arrival_s < counted_from_s:
                    pass
                case CompleteQuery(query) if now - query.arrival_s <= sla_s:
                    outcome.in_time += 1
                    outcome.items_in_time += query.items
                case CompleteQuery():
                    outcome.late += 1
                case RejectQuery(_, RejectReason.EXPIRED):
                    outcome.expired += 1
                case RejectQuery():
                    outcome.refused += 1
    return outcome


@pytest.mark.parametrize(("sla_s", "workers"), [(0.02, 1), (0.1, 1), (0.05, 2)])
def test_goodput_does_not_fall_when_load_exceeds_capacity(sla_s, workers):
    near = serve(0.9, sla_s, workers)
    for overload in (2.0, 4.0):
        beyond = serve(overload, sla_s, workers)
        assert beyond.in_time >= near.in_time
        assert beyond.items_in_time >= 0.8 * near.items_in_time
        assert beyond.in_time >= 0.945 * beyond.admitted  # the 95th percentile, within sampling error


def test_below_capacity_hardly_anything_is_refused():
    outcome = serve(0.5, 0.1)
    assert outcome.refused + outcome.expired <= 0.005 * outcome.in_time
    assert outcome.late <= 0.005 * outcome.in_time


@pytest.mark.parametrize("calm_qps", [2.0, 60.0])
def test_after_bad_times_a_calm_server_answers_again(calm_qps):
    """Whatever an overloaded and stalling server has learned must not keep queries out afterwards."""
    outcome = serve(3.0, 0.05, calm_qps=calm_qps)
    arrived = outcome.in_time + outcome.late + outcome.expired + outcome.refused
    assert arrived >= 39
    assert outcome.in_time >= 0.8 * arrived  # the first seconds go to unlearning
