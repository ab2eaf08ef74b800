"""How long batches take by what a scheduler was told, and queries that keep all workers busy."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from hebe.load_generator.queries.query_pool import QueryPool
from hebe.machine.pinning import PlacedLane
from hebe.profiling.error import ProfilingError
from hebe.profiling.measurements import busy_service
from hebe.profiling.measurements.busy_service import BatchTimes, busy_service_times
from hebe.profiling.measurements.driver_sender import inputs_of
from hebe.query import Batch, Query
from hebe.scheduling.events import BatchFinished, CompleteQuery, QueryArrived, Stage, StartBatch
from hebe.server_configuration import Lane, Placement
from hebe.serving.requests.errors import QueryFailed
from hebe.workload.key_skew import UniformKeys

from .test_driver_sender import SLA, SPEC, Model

HOST = Lane(Placement.MODEL_ON_HOST, 2, 1, 4)
POOL = QueryPool(inputs_of(SPEC, SLA), UniformKeys(), 40, np.random.default_rng(0), pool_bytes=4000)


def start(worker_id: int, items: int, *handed: int) -> StartBatch:
    return StartBatch(worker_id, Batch(0, (), items), handed)


def finished(worker_id: int, *, failed: bool = False) -> BatchFinished:
    return BatchFinished(worker_id, 0, 0.0, failed)


def test_a_batch_takes_from_its_start_until_its_end_is_heard_of():
    times = BatchTimes(8, Stage.SPARSE)
    times(1.0, QueryArrived(Query(1, 16, 0.0)), [start(0, 8), start(1, 8)])
    times(1.5, finished(0), [start(0, 8), start(2, 8, 1)])  # handed on to worker 2
    times(1.75, finished(2), [CompleteQuery(Query(1, 16, 0.0))])
    times(2.0, finished(0), [])
    times(4.0, finished(1), [])
    assert times.taken_s == {Stage.SPARSE: [0.5, 0.5, 3.0], Stage.DENSE: [0.25]}
    assert times.typical()[Stage.DENSE] == (0.25, 0.0)


def test_other_sizes_failed_batches_and_those_that_began_unseen_do_not_count():
    times = BatchTimes(8, Stage.WHOLE)
    times(1.0, finished(0), [start(0, 5)])
    times(2.0, finished(0), [start(0, 8)])
    times(3.0, finished(0, failed=True), [start(0, 8)])
    times(5.0, finished(0), [])
    times(6.0, finished(0), [])
    assert times.taken_s == {Stage.WHOLE: [2.0]}


def test_the_slowest_in_twenty_do_not_count():
    times = BatchTimes(1, Stage.WHOLE)
    times.taken_s[Stage.WHOLE] = [*np.linspace(1.0, 3.0, 95).tolist(), *[100.0] * 5]
    mean_s, spread_s = times.typical()[Stage.WHOLE]
    assert mean_s == pytest.approx(2.0)
    assert spread_s == pytest.approx(0.54, abs=0.02)


class Driver:
    """Two workers that each take a tenth of a millisecond for a batch of `batch_size` items."""

    model, configured_workers, batch_size = Model(), 2, 4

    def __init__(self, fault: Exception | None = None, *, ends: bool = True, lane: Lane = HOST) -> None:
        self.lanes = (PlacedLane(lane, ((0,), (1,))),)
        self.observer, self.queries, self.fault, self.ends = None, [], fault, ends
        self._free = asyncio.Queue()
        self._free.put_nowait(0)
        self._free.put_nowait(1)

    def new_query_id(self) -> int:
        return len(self.queries) + 1

    async def infer(self, query):
        self.queries.append(query)
        if self.fault is not None:
            raise self.fault
        for _ in range(0, query.items, self.batch_size):
            worker_id = await self._free.get()
            self._say(1e-4 * len(self.queries), QueryArrived(query), [start(worker_id, self.batch_size)])
            await asyncio.sleep(1e-4)
            if self.ends:
                self._say(1e-4 * len(self.queries) + 1e-3, finished(worker_id), [])
            self._free.put_nowait(worker_id)

    def _say(self, now, event, actions):
        if self.observer is not None:
            self.observer(now, event, actions)


async def test_more_queries_than_workers_are_asked_of_many_batches_each(monkeypatch):
    monkeypatch.setattr(busy_service, "_SHORTEST_S", 0.02)
    driver = Driver()
    times = await busy_service_times(driver, POOL, 4)
    assert times[Stage.WHOLE][0] > 0
    assert {query.items for query in driver.queries} == {64}, "sixteen batches each"
    assert len(driver.queries) >= 5
    assert driver.observer is None
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    assert not tasks, "none goes on asking"


async def test_an_accelerator_takes_queries_whole(monkeypatch):
    monkeypatch.setattr(busy_service, "_SHORTEST_S", 0.02)
    driver = Driver(lane=Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, 0, 1, 4, 2, 4))
    await busy_service_times(driver, POOL, 4)
    assert {query.items for query in driver.queries} == {4}


async def test_what_a_query_fails_with_is_told():
    with pytest.raises(QueryFailed, match="out of rows"):
        await busy_service_times(Driver(QueryFailed("out of rows")), POOL, 4)


async def test_workers_that_finish_nothing_are_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(busy_service, "_FIRST_S", 0.05)
    with pytest.raises(ProfilingError, match=r"not every stage finished a batch of 4 items within 0\.05 s: leave out"):
        await busy_service_times(Driver(ends=False), POOL, 4)
