"""Workers that are lost, and schedulers that fail: who is answered by whom, and what becomes of what was handed on."""

from __future__ import annotations

import asyncio
import threading

import pytest

from hebe.machine.pinning import PlacedLane, available_cores
from hebe.scheduling.events import BatchFinished, QueryArrived
from hebe.scheduling.node.node import NodeConfig
from hebe.server_configuration import Lane, Placement
from hebe.serving.engine.driver import NodeDriver
from hebe.serving.requests.errors import QueryFailed, QueryRefused

from .echo_driver import EchoModel, drivers_of, lane, new_query


@pytest.fixture
def model():
    return EchoModel()


@pytest.fixture
def make_driver(model):
    yield from drivers_of(model)


def fail_once(driver, monkeypatch, thread_id=None):
    """The scheduler runs out of memory when a thread (this one, or the first) reports."""
    handle, failed = driver._scheduler.handle, threading.Event()

    def failing(event, now):
        mine = isinstance(event, BatchFinished) and thread_id in (None, event.worker_id)
        if mine and not failed.is_set():
            failed.set()
            raise MemoryError
        return handle(event, now)

    monkeypatch.setattr(driver._scheduler, "handle", failing)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_worker_that_is_lost_fails_its_batch_and_others_go_on(make_driver, model, monkeypatch):
    driver = make_driver(workers=2, spread=False)
    fail_once(driver, monkeypatch)
    model.gate.clear()
    asked = [asyncio.ensure_future(driver.infer(new_query(driver, 100))) for _ in range(6)]
    await asyncio.sleep(0)
    model.gate.set()
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    (failure,) = (outcome for outcome in outcomes if isinstance(outcome, Exception))
    assert isinstance(failure, QueryFailed)
    assert "lost" in str(failure)
    async with asyncio.timeout(10):
        while driver.healthy:
            await asyncio.sleep(0.005)
    assert driver.workers == 1
    driver.reconfigure([lane(available_cores())])
    assert driver.healthy
    await driver.infer(new_query(driver, 5))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_without_its_last_worker_a_driver_refuses(make_driver, model, monkeypatch):
    driver = make_driver()
    fail_once(driver, monkeypatch)
    model.gate.clear()
    asked = [asyncio.ensure_future(driver.infer(new_query(driver, 100))) for _ in range(3)]
    await asyncio.sleep(0)
    model.gate.set()
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [QueryFailed, QueryRefused, QueryRefused]
    with pytest.raises(QueryRefused, match="no worker is up"):
        await driver.infer(new_query(driver, 5))


@pytest.mark.parametrize("role", ["sparse", "dense"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_worker_of_a_pipeline_that_is_lost_fails_its_batch_and_others_go_on(model, monkeypatch, role):
    cores = available_cores()
    placed = PlacedLane(
        Lane(Placement.PIPELINE_ON_HOST, 2, 1, 100, dense_workers=2, fused_items=0), (cores, cores), (cores, cores)
    )
    driver = NodeDriver(model, NodeConfig(batch_size=100, spread=False), [placed])
    try:
        threads = {each.role.stage: thread_id for thread_id, each in driver._threads.items()}
        fail_once(driver, monkeypatch, threads[role])
        outcomes = []
        async with asyncio.timeout(20):
            while driver.healthy:
                queries = (driver.infer(new_query(driver, 100)) for _ in range(6))
                outcomes += await asyncio.gather(*queries, return_exceptions=True)
            (failure,) = (outcome for outcome in outcomes if isinstance(outcome, Exception))
            assert isinstance(failure, QueryFailed)
            assert (await driver.infer(new_query(driver, 300))).scores.shape == (300, 1)
        assert driver.workers == 3
    finally:
        driver.close(patience_s=1.0)
    assert sorted(map(id, model.put_back)) == sorted(map(id, model.handed)), "each once"


@pytest.mark.parametrize(("at", "failed"), [(QueryArrived, 1), (BatchFinished, 0)])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_what_the_scheduler_decided_before_it_failed_is_done(make_driver, monkeypatch, at, failed):
    driver = make_driver(workers=2, spread=False)
    scheduler = driver._scheduler
    handle, expire, events = scheduler.handle, scheduler._expire_behind, []

    def handling(event, now):
        events.append(event)
        return handle(event, now)

    def failing(now, actions):
        if isinstance(events[-1], at) and len(events) > 2:  # it has told the workers by then
            monkeypatch.setattr(scheduler, "_expire_behind", expire)
            raise MemoryError
        expire(now, actions)

    monkeypatch.setattr(scheduler, "handle", handling)
    monkeypatch.setattr(scheduler, "_expire_behind", failing)
    async with asyncio.timeout(10):
        outcomes = await asyncio.gather(
            *(driver.infer(new_query(driver, 100)) for _ in range(8)), return_exceptions=True
        )
        assert sum(isinstance(outcome, Exception) for outcome in outcomes) == failed
        for _ in range(4):
            await driver.infer(new_query(driver, 100))
        while not driver.idle:
            await asyncio.sleep(0.005)
