"""A node scheduler with workers alike, and what its actions say."""

from __future__ import annotations

from hebe.profile import LatencyProfile
from hebe.query import Query
from hebe.scheduling.events import Availability, StartBatch, WorkerChanged
from hebe.scheduling.node.node import NodeConfig, NodeScheduler

PROFILE = LatencyProfile((1, 100), (0.001, 0.100), (0.0, 0.0))
"""1 ms an item."""
COSTLY_BATCHES = LatencyProfile((1, 100), (0.101, 0.200), (0.0, 0.0))
"""And 100 ms a batch: all that waits is fused."""


def scheduler(workers: int = 1, profile: LatencyProfile | None = PROFILE, threads: int = 1, **config) -> NodeScheduler:
    """Worker ids count the first threads of all workers, then the second ones."""
    node = NodeScheduler(NodeConfig(**{"batch_size": 100, **config}), profile)
    for worker_id in range(workers * threads):
        cores = (worker_id % workers,) if threads > 1 else ()
        assert node.handle(WorkerChanged(worker_id, Availability.UP, cores), 0.0) == []
    return node


def query(query_id: int, items: int, arrival_s: float = 0.0, **fields) -> Query:
    return Query(query_id, items, arrival_s, **fields)


def started(actions) -> list[tuple[int, list[tuple[int, int, int]]]]:
    """(worker, [(query, start, stop)]) of each StartBatch."""
    return [
        (a.worker_id, [(p.query.query_id, p.start, p.stop) for p in a.batch.sub_queries])
        for a in actions
        if isinstance(a, StartBatch)
    ]


def batch_ids(actions) -> list[int]:
    return [a.batch.batch_id for a in actions if isinstance(a, StartBatch)]
