"""Workers that need no interpreter lock, and who hears of their batches."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from hebe.machine.pinning import available_cores
from hebe.query import Batch, SubQuery
from hebe.runtime.loaded_model import LoadedModel
from hebe.runtime.workers.gil_free_worker import Reports, UnlockedWorker
from hebe.runtime.workers.worker import Work


@pytest.fixture(scope="module")
def model(repository):
    loaded = LoadedModel.load(repository, "dlrm-rmc1")
    yield loaded
    loaded.close()


def batch(model: LoadedModel, batch_id: int, items: int = 4) -> Batch:
    return Batch(batch_id, (SubQuery(model.random_query(items, seed=batch_id), 0, items),), items)


def started(model: LoadedModel, worker_id: int, reports: Reports) -> UnlockedWorker:
    executor = model.new_unlocked_executor(8)
    worker = UnlockedWorker(
        worker_id, executor, available_cores()[-1:], lambda: model.warm_up(executor.rehearse, 8), reports
    )
    assert [items for items, _ in worker.started.result(60)] == [1, 2, 8]
    return worker


def heard(reports: Reports, told: SimpleQueue[Any]) -> Any:
    """What `finished` puts into `told`, next."""
    give_up_s = time.monotonic() + 60
    while time.monotonic() < give_up_s:
        reports.hear()
        try:
            return told.get(timeout=0.002)
        except Empty:
            continue
    raise AssertionError("nothing was told within a minute")


def test_outcomes_are_told_to_who_hears_and_what_is_due_then_runs(model):
    told: SimpleQueue[tuple[object, ...]] = SimpleQueue()

    def finished(worker_id, done, outcome):
        scores = None if isinstance(outcome, Exception) else outcome.scores.copy()
        told.put((worker_id, done, outcome, scores, threading.current_thread()))
        return Work(batch(model, done.batch_id + 1)) if done.batch_id in (10, 11) else None

    reports = Reports(finished)
    workers = [started(model, worker_id, reports) for worker_id in (0, 1)]
    workers[0].submit(Work(batch(model, 10)))
    workers[1].submit(Work(batch(model, 20)))
    each_told = [heard(reports, told) for _ in range(4)]
    assert sorted((name, done.batch_id) for name, done, *_ in each_told) == [(0, 10), (0, 11), (0, 12), (1, 20)]
    for _, done, _, scores, thread in each_told:
        np.testing.assert_array_equal(scores, model.new_executor(8).run(done).scores)
        assert thread is threading.current_thread()
    for worker in workers:
        assert worker.alive
        worker.stop()
        assert not worker.alive
        worker.end()  # heard by nobody
    reports.close()
    reports.close()


async def test_an_event_loop_hears_of_batches_as_they_come_also_after_another_one_did(model):
    told: asyncio.Queue[tuple[int, threading.Thread]] = asyncio.Queue()
    here, loop, numbers = threading.current_thread(), asyncio.get_running_loop(), list[int]()

    def finished(_worker, done, _outcome):
        numbers.append(done.batch_id)
        loop.call_soon_threadsafe(told.put_nowait, (done.batch_id, threading.current_thread()))

    reports = Reports(finished)
    worker = await asyncio.to_thread(started, model, 0, reports)
    reports.hear_on(loop)
    worker.submit(Work(batch(model, 1)))
    assert await asyncio.wait_for(told.get(), 60) == (1, here)

    async def elsewhere():
        reports.hear_on(asyncio.get_running_loop())
        worker.submit(Work(batch(model, 2)))
        while 2 not in numbers:
            await asyncio.sleep(0.002)

    await asyncio.to_thread(asyncio.run, elsewhere())
    assert (await asyncio.wait_for(told.get(), 60))[0] == 2  # on whichever thread
    worker.submit(Work(batch(model, 3)))
    assert await asyncio.wait_for(told.get(), 60) == (3, here)
    await asyncio.to_thread(worker.stop)
    await asyncio.to_thread(reports.close)
    await asyncio.sleep(0)
    assert not loop.remove_reader(reports._inbox)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reports._inbox)


async def test_two_event_loops_that_ask_in_turns_lose_no_batch(model):
    told: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    reports = Reports(lambda _worker, done, _outcome: loop.call_soon_threadsafe(told.put_nowait, done.batch_id))
    worker = await asyncio.to_thread(started, model, 0, reports)

    async def ask():
        reports.hear_on(asyncio.get_running_loop())

    with ThreadPoolExecutor(1) as elsewhere:
        reports.hear_on(loop)
        elsewhere.submit(asyncio.run, ask()).result()
        reports.hear_on(loop)
        await asyncio.sleep(0)
        worker.submit(Work(batch(model, 1)))
        assert await asyncio.wait_for(told.get(), 60) == 1
    await asyncio.to_thread(worker.stop)
    await asyncio.to_thread(reports.close)
    await asyncio.sleep(0)


def test_faults_are_told_and_the_worker_goes_on(model):
    told: SimpleQueue[object] = SimpleQueue()
    reports = Reports(lambda _worker, _batch, outcome: told.put(outcome))
    worker = started(model, 3, reports)
    wrong = batch(model, 1)
    for keys in wrong.sub_queries[0].query.features.values():
        keys[0] = model.spec.tables[0].rows
    for each, fault in ((wrong, "out of range"), (batch(model, 2, items=9), "holds at most 8")):
        worker.submit(Work(each))
        assert fault in str(heard(reports, told))
    worker.submit(Work(batch(model, 3)))
    assert np.isfinite(heard(reports, told).scores).all()
    worker.stop()
    reports.close()


def test_the_last_batch_is_told_of_though_the_worker_has_been_told_to_end(model):
    told: SimpleQueue[int] = SimpleQueue()
    reports = Reports(lambda _worker, done, _outcome: told.put(done.batch_id))
    worker = started(model, 3, reports)
    worker.submit(Work(batch(model, 5)))
    worker.stop()
    reports.close()
    assert told.get_nowait() == 5
    assert not reports._workers


def test_what_cannot_be_told_ends_its_worker_and_no_other(model):
    told: SimpleQueue[int] = SimpleQueue()

    def finished(_worker, done, _outcome):
        if done.batch_id == 1:
            raise MemoryError
        told.put(done.batch_id)

    reports = Reports(finished)
    one, other = (started(model, worker_id, reports) for worker_id in (0, 1))
    with capture_logs() as logged:
        one.submit(Work(batch(model, 1)))
        one.join()
    assert [(each["event"], each["worker"]) for each in logged] == [("worker lost: its batch could not be told of", 0)]
    assert not one.alive
    other.submit(Work(batch(model, 2)))
    assert heard(reports, told) == 2
    other.stop()
    reports.close()
    reports.tell(1)  # heard by nobody


def test_a_warm_up_that_fails_ends_the_worker(model):
    reports = Reports(lambda *_: None)
    executor = model.new_unlocked_executor(8)

    def fails():
        raise RuntimeError("cold")

    worker = UnlockedWorker(0, executor, available_cores(), fails, reports)
    with pytest.raises(RuntimeError, match="cold"):
        worker.started.result(60)
    worker.stop()
    reports.close()


def test_no_thread_of_another_op_worker_no_worker(model, threads_refused):
    threads_refused.add("hebe-op")
    reports, files = Reports(lambda *_: None), len(os.listdir("/proc/self/fd"))
    executor = model.new_unlocked_executor(64, 3)
    worker = UnlockedWorker(0, executor, available_cores(), lambda: model.warm_up(executor.rehearse, 64), reports)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        worker.started.result(60)
    worker.stop()
    assert not reports._workers
    assert len(os.listdir("/proc/self/fd")) == files
    reports.close()


def test_no_thread_no_worker(model, threads_refused):
    threads_refused.add("hebe-worker")
    reports = Reports(lambda *_: None)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        started(model, 0, reports)
    threads_refused.clear()
    worker = started(model, 1, reports)
    worker.stop()
    reports.close()
