"""The live driver with an executor of the test's own: what reaches the scheduler and what comes back."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

import hebe.serving.engine.driver
from hebe.embeddings.store import StoreError
from hebe.machine.pinning import PlacedLane, available_cores
from hebe.query import KeyCounts
from hebe.scheduling.events import Stage
from hebe.scheduling.node.node import NodeConfig
from hebe.server_configuration import Lane, Placement
from hebe.serving.engine.driver import NodeDriver, clock
from hebe.serving.requests.errors import QueryFailed, QueryRefused

from .echo_driver import Echo, EchoDense, EchoModel, drivers_of, lane, new_query


@pytest.fixture
def model():
    return EchoModel()


@pytest.fixture
def make_driver(model):
    yield from drivers_of(model)


async def test_scores_come_back_in_item_order_over_all_parts(make_driver):
    driver = make_driver(workers=2)
    query = new_query(driver, 777)
    result = await driver.infer(query)
    np.testing.assert_allclose(result.scores[:, 0], query.query_id + np.arange(777) / 1000, rtol=1e-6)
    assert result.keys == KeyCounts(7770, 777)
    assert result.latency_s > 0
    assert result.sparse_s == pytest.approx(0.008)
    assert result.dense_s == pytest.approx(0.016)


async def test_many_queries_at_once_each_get_their_own_scores(make_driver):
    driver = make_driver(workers=2)
    queries = [new_query(driver, 1 + i % 230) for i in range(200)]
    results = await asyncio.gather(*(driver.infer(query) for query in queries))
    for query, result in zip(queries, results, strict=True):
        expected = query.query_id + np.arange(query.items) / 1000
        np.testing.assert_allclose(result.scores[:, 0], expected, rtol=1e-6)


async def test_queries_that_wait_are_fused(make_driver, model):
    driver = make_driver()
    model.gate.clear()
    tasks = [asyncio.ensure_future(driver.infer(new_query(driver, 20))) for _ in range(6)]
    await asyncio.sleep(0.02)
    assert driver.queue_depth == 5
    model.gate.set()
    await asyncio.gather(*tasks)
    assert [batch.items for batch in model.batches] == [20, 100]


async def test_the_threads_of_a_worker_run_a_batch_each(make_driver, model):
    driver = make_driver(threads=2)
    assert driver.workers == 1
    assert driver.healthy
    model.gate.clear()
    tasks = [asyncio.ensure_future(driver.infer(new_query(driver, items))) for items in (60, 60, 20, 20)]
    await asyncio.sleep(0.02)
    assert driver.queue_depth == 2
    model.gate.set()
    await asyncio.gather(*tasks)
    assert sorted(batch.items for batch in model.batches) == [40, 60, 60]


async def test_a_worker_that_has_lost_a_thread_is_none(make_driver):
    driver = make_driver(workers=2, threads=2)
    driver._threads[3].thread.stop()
    assert driver.workers == 1
    assert not driver.healthy


def test_the_threads_of_a_worker_warm_up_one_after_the_other(model):
    running, most, lock, warm_up = 0, 0, threading.Lock(), model.warm_up

    def slowly(executor, batch_size):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        return warm_up(executor, batch_size)

    model.warm_up = slowly
    NodeDriver(model, NodeConfig(batch_size=8), [lane(available_cores())], threads=2).close()
    assert most == 1


async def test_a_failing_batch_fails_its_query_and_not_the_next(make_driver, model):
    driver = make_driver()
    said = "the server's log has the details"
    for model.fault, told in (
        (StoreError("persistent store /var/rows: IO error: /var/rows/7.sst", "persistent store: IO error"), "IO error"),
        (StoreError("persistent store /var/rows: is gone"), "the tables of embedding rows cannot be read"),
        (OSError(5, "Input/output error", "/var/model"), "OSError"),
    ):
        with pytest.raises(QueryFailed, match=f"^the batch failed on its worker: .*{told}; {said}$") as failure:
            await driver.infer(new_query(driver, 5))
        assert failure.value.__cause__ is model.fault, "the log has all of it"
        assert "/var" not in str(failure.value)
    assert not driver.healthy
    assert 0 < driver.failing_s < 60
    model.fault = None
    await driver.infer(new_query(driver, 5))
    assert driver.healthy
    assert driver.failing_s is None


async def test_a_pipeline_whose_dense_batches_all_fail_fails_whatever_sparse_workers_hand_on(model, monkeypatch):
    cores = available_cores()
    placed = PlacedLane(Lane(Placement.PIPELINE_ON_HOST, 1, 1, 100, dense_workers=1), (cores,), (cores,))
    driver = NodeDriver(model, NodeConfig(batch_size=100), [placed])

    def fail(*_):
        raise OSError(5, "Input/output error")

    try:
        with monkeypatch.context() as patch:
            patch.setattr(EchoDense, "run", fail)
            for _ in range(3):
                assert not driver.fails
                with pytest.raises(QueryFailed):
                    await driver.infer(new_query(driver, 5))
        assert driver.fails
        assert not driver.healthy
        await driver.infer(new_query(driver, 5))
        assert driver.healthy
    finally:
        driver.close(patience_s=1.0)


async def test_scores_of_another_shape_than_the_models_fail_their_batch(make_driver, monkeypatch):
    driver = make_driver()
    with monkeypatch.context() as patch:
        patch.setattr(Echo, "scores_of", lambda _, scores: np.ones((len(scores), 3), np.float32))
        with pytest.raises(QueryFailed, match="the batch failed on its worker: ValueError"):
            await driver.infer(new_query(driver, 5))
    assert (await driver.infer(new_query(driver, 5))).scores.shape == (5, 1)
    assert driver.healthy


async def test_what_ends_a_thread_fails_its_batch_only(make_driver, model):
    driver = make_driver()
    model.fault = SystemExit(3)
    with pytest.raises(QueryFailed) as failure:
        await driver.infer(new_query(driver, 5))
    assert str(failure.value.__cause__) == "SystemExit: 3"
    model.fault = None
    await driver.infer(new_query(driver, 5))
    assert driver.workers == 1


async def test_memory_that_ends_while_scores_are_taken_in_fails_their_batch(make_driver, monkeypatch):
    driver = make_driver()

    def collect(_batch, _outcome):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(driver, "_collect", collect)
        queries = (driver.infer(new_query(driver, 100)) for _ in range(5))
        failures = await asyncio.gather(*queries, return_exceptions=True)
    assert [type(failure) for failure in failures] == [QueryFailed] * 5
    await driver.infer(new_query(driver, 5))
    assert driver.healthy


async def test_an_observer_that_fails_keeps_nobody_from_an_answer(make_driver):
    driver = make_driver()

    def count(*_):
        raise MemoryError

    driver.on_batch = count
    for _ in range(2):
        await driver.infer(new_query(driver, 5))
    assert driver.healthy


async def test_a_cancelled_query_is_withdrawn(make_driver, model):
    driver = make_driver()
    model.gate.clear()
    first = asyncio.ensure_future(driver.infer(new_query(driver, 100)))
    second = asyncio.ensure_future(driver.infer(new_query(driver, 100)))
    await asyncio.sleep(0.02)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert driver.queue_depth == 0
    model.gate.set()
    await first
    assert len(model.batches) == 1


async def test_overload_is_refused_at_once(make_driver, model):
    driver = make_driver(sla_s=0.05)
    model.service_s, started_s = 0.02, clock()
    outcomes = await asyncio.gather(*(driver.infer(new_query(driver, 100)) for _ in range(200)), return_exceptions=True)
    refused = [o for o in outcomes if isinstance(o, QueryRefused)]
    assert {(refusal.reason, refusal.timed_out) for refusal in refused} <= {("deadline", False), ("expired", False)}
    assert len(refused) > 150
    assert clock() - started_s < 3.0, "all of them would take 4 s"


async def test_refusals_tell_the_bound_and_what_was_predicted(make_driver, model, monkeypatch):
    driver = make_driver(sla_s=0.0005)
    model.gate.clear()
    admitted = [asyncio.ensure_future(driver.infer(new_query(driver, 100, deadline_s=clock() + 60))) for _ in range(2)]
    await asyncio.sleep(0)
    expected = r"refused: expected to take [1-9]\d*\.\d ms or more, with 0\.\d ms left of its {}"
    with pytest.raises(QueryRefused, match=expected.format(r"latency bound of 0\.5 ms")):
        await driver.infer(new_query(driver, 100))
    assert driver.refuses_of_late
    monkeypatch.setattr(hebe.serving.engine.driver, "_OF_LATE_S", -1.0)  # as a second later
    assert not driver.refuses_of_late
    told = driver.refusal(query := new_query(driver, 100))
    assert re.fullmatch(expected.format(r"latency bound of 0\.5 ms"), told.message)
    query.deadline_s = query.arrival_s + 0.0007
    with pytest.raises(QueryRefused, match=expected.format(r"timeout of 0\.7 ms")):
        await driver.infer(query)
    model.gate.set()
    await asyncio.gather(*admitted)


async def test_a_refusal_of_a_full_queue_tells_its_limit(make_driver, model):
    driver = make_driver(max_queue=1, admission=False)
    model.gate.clear()
    admitted = [asyncio.ensure_future(driver.infer(new_query(driver, 100))) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(QueryRefused, match="refused: the queue is full, max_queue is 1"):
        await driver.infer(new_query(driver, 100))
    model.gate.set()
    await asyncio.gather(*admitted)


@pytest.mark.parametrize(
    ("timeout_s", "message"),
    [
        (None, r"refused: after waiting it could not be answered within its latency bound of 9,000\.0 ms any"),
        (8.0, r"its timeout of 8,000\.0 ms passed before it could be answered"),
    ],
)
async def test_a_query_that_waited_too_long_is_told_its_bound(make_driver, model, monkeypatch, timeout_s, message):
    driver = make_driver(sla_s=9.0)
    model.gate.clear()
    first = asyncio.ensure_future(driver.infer(new_query(driver, 100)))
    await asyncio.sleep(0)
    query = new_query(driver, 100)
    if timeout_s is not None:
        query.deadline_s = query.arrival_s + timeout_s
    second = asyncio.ensure_future(driver.infer(query))
    await asyncio.sleep(0)
    monkeypatch.setattr(hebe.serving.engine.driver, "clock", lambda: clock() + 10.0)
    model.gate.set()
    await first
    with pytest.raises(QueryRefused, match=message) as refusal:
        await second
    assert refusal.value.timed_out is (timeout_s is not None)


async def test_an_answer_after_the_callers_own_timeout_is_a_refusal(make_driver, model):
    driver = make_driver()
    await driver.infer(new_query(driver, 1))
    model.service_s = 0.6
    with pytest.raises(QueryRefused) as refusal:
        await driver.infer(new_query(driver, 1, deadline_s=clock() + 0.5))
    assert refusal.value.reason == "expired"
    assert refusal.value.timed_out


async def test_a_wait_bound_starts_a_part_filled_batch_in_time(make_driver, model, monkeypatch):
    driver = make_driver(max_wait_s=0.02)
    queries = [new_query(driver, 10) for _ in range(3)]
    wall = SimpleNamespace(stands_s=clock())  # while they arrive: a machine may take longer over that than they wait
    monkeypatch.setattr(
        hebe.serving.engine.driver, "clock", lambda: clock() if (at_s := wall.stands_s) is None else at_s
    )
    answered = asyncio.gather(*map(driver.infer, queries))
    await asyncio.sleep(0)
    wall.stands_s = None
    assert all(result.queue_s >= 0.015 for result in await answered)
    assert [batch.items for batch in model.batches] == [30]


async def test_batches_are_reported_to_the_observer(make_driver):
    driver = make_driver()
    seen = []
    driver.on_batch = lambda items, sparse_s, dense_s: seen.append((items, sparse_s, dense_s))
    await driver.infer(new_query(driver, 7))
    async with asyncio.timeout(60):
        while not seen:
            await asyncio.sleep(0.001)
    assert seen == [(7, 0.001, 0.002)]


async def test_an_observer_is_told_of_every_event_and_what_the_scheduler_made_of_it(make_driver):
    driver = make_driver()
    seen: list = []
    driver.observer = lambda *step: seen.append(step)
    await driver.infer(new_query(driver, 150))
    words = [(type(event).__name__, [type(action).__name__ for action in actions]) for _, event, actions in seen]
    assert words == [
        ("QueryArrived", ["StartBatch"]),
        ("BatchFinished", ["StartBatch"]),
        ("BatchFinished", ["CompleteQuery"]),
    ]
    times = [now for now, _, _ in seen]
    assert times == sorted(times)
    driver.observer = None
    await driver.infer(new_query(driver, 7))
    assert len(seen) == 3


async def test_closing_answers_the_admitted_and_refuses_the_rest(make_driver, model):
    driver = make_driver()
    model.gate.clear()
    admitted = asyncio.ensure_future(driver.infer(new_query(driver, 10)))
    await asyncio.sleep(0.01)
    closing = asyncio.ensure_future(asyncio.to_thread(driver.close))
    while not driver._scheduler._shutting_down:
        await asyncio.sleep(0.001)
    with pytest.raises(QueryRefused) as refusal:
        await driver.infer(new_query(driver, 10))
    assert refusal.value.reason == "shutting_down"
    model.gate.set()
    assert (await admitted).scores.shape == (10, 1)
    await closing
    assert driver.workers == 0


async def test_closing_refuses_what_waits_when_its_patience_ends_and_finishes_what_runs(make_driver, model):
    driver = make_driver()
    model.gate.clear()
    running, *waiting = [asyncio.ensure_future(driver.infer(new_query(driver, 100))) for _ in range(4)]
    larger = asyncio.ensure_future(driver.infer(new_query(driver, 300)))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(asyncio.to_thread(driver.close, patience_s=0.0))
    refusals = await asyncio.gather(*waiting, larger, return_exceptions=True)
    assert [getattr(refusal, "reason", None) for refusal in refusals] == ["shutting_down"] * 4
    assert not running.done(), "its batch runs"
    model.gate.set()
    assert (await running).scores.shape == (100, 1)
    await closing
    assert len(model.batches) == 1
    assert driver.workers == 0


async def test_a_query_of_which_a_part_waits_when_the_patience_ends_is_refused(make_driver, model):
    driver = make_driver()
    model.gate.clear()
    asked = asyncio.ensure_future(driver.infer(new_query(driver, 300)))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(asyncio.to_thread(driver.close, patience_s=0.0))
    while not driver._stopping:
        await asyncio.sleep(0.001)
    model.gate.set()
    with pytest.raises(QueryRefused, match="being unloaded"):
        await asked
    await closing
    assert len(model.batches) == 1


async def test_dense_workers_take_nothing_more_when_the_patience_ends(model):
    cores = available_cores()
    placed = PlacedLane(Lane(Placement.PIPELINE_ON_HOST, 1, 1, 100, dense_workers=1), (cores,), (cores,))
    driver = NodeDriver(model, NodeConfig(batch_size=100), [placed])
    model.gate.clear()
    asked = [asyncio.ensure_future(driver.infer(new_query(driver, 100))) for _ in range(3)]
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(asyncio.to_thread(driver.close, patience_s=0.0))
    while not driver._stopping:
        await asyncio.sleep(0.001)
    model.gate.set()
    refusals = await asyncio.gather(*asked, return_exceptions=True)
    assert [getattr(refusal, "reason", None) for refusal in refusals] == ["shutting_down"] * 3
    await closing
    assert len(model.batches) == 1, "of the sparse worker"
    assert driver.workers == 0


async def test_a_worker_that_cannot_warm_up_fails_the_driver(model):
    model.warm_up = lambda *_: (_ for _ in ()).throw(ValueError("scores are not finite"))
    with pytest.raises(ValueError, match="not finite"):
        NodeDriver(model, NodeConfig(batch_size=8), [lane(available_cores())])


@pytest.fixture
def wall(monkeypatch):
    """The driver's clock, which the test sets."""
    wall = SimpleNamespace(now=100.0)
    monkeypatch.setattr(hebe.serving.engine.driver, "clock", lambda: wall.now)
    return wall


async def test_it_tells_how_long_a_worker_of_each_kind_has_worked(make_driver, model, wall):
    driver = make_driver(workers=2)
    ((kind, none_s),) = driver.worked_s.items()
    assert (kind[1], none_s) == (Stage.WHOLE, 0.0)
    model.gate.clear()
    asked = asyncio.ensure_future(driver.infer(new_query(driver, 5)))
    await asyncio.sleep(0)
    wall.now += 3.0
    assert driver.worked_s[kind] == pytest.approx(3.0 / 2), "of two workers"
    wall.now += 1.0
    model.gate.set()
    await asked
    wall.now += 7.0
    assert driver.worked_s[kind] == pytest.approx(4.0 / 2)
    driver.reconfigure([lane(available_cores())])
    assert list(driver.worked_s.values()) == [0.0], "of another way to split the server"


async def test_a_worker_has_worked_while_any_of_its_threads_has(make_driver, model, wall):
    driver = make_driver(threads=2)
    model.gate.clear()
    asked = [asyncio.ensure_future(driver.infer(new_query(driver, 60))) for _ in range(2)]
    await asyncio.sleep(0)
    assert driver.queue_depth == 0, "each thread runs one"
    wall.now += 3.0
    model.gate.set()
    await asyncio.gather(*asked)
    wall.now += 7.0
    assert list(driver.worked_s.values()) == [pytest.approx(3.0)]
