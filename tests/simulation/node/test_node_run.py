import asyncio
import heapq
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

import hebe.runtime.workers.lane_workers
import hebe.serving.engine.driver
from hebe.embeddings.hierarchy import LookupReport
from hebe.machine.pinning import PlacedLane
from hebe.profile import LatencyProfile
from hebe.query import KeyCounts, Query
from hebe.runtime.accelerator import Accelerator
from hebe.runtime.executors.batch_outcome import BatchOutcome
from hebe.scheduling.events import (
    Availability,
    BatchFinished,
    CompleteQuery,
    RejectReason,
    Stage,
    StartBatch,
    WorkerChanged,
)
from hebe.scheduling.node.lane_roles import roles_of
from hebe.scheduling.node.node import NodeConfig
from hebe.server_configuration import Lane, Placement
from hebe.serving.engine.driver import NodeDriver
from hebe.serving.requests.errors import QueryRefused
from hebe.simulation.node.node_run import profiled_service, run_node

FIXED_S, ITEM_S = 1e-3, 1e-4
PROFILE = LatencyProfile((1, 100), (FIXED_S + ITEM_S, FIXED_S + 100 * ITEM_S), (0.0, 0.0))


def linear(items, now):  # noqa: ARG001
    return FIXED_S + ITEM_S * items


def poisson(rate_qps, queries, seed=0, largest=150):
    rng = np.random.default_rng(seed)
    return np.cumsum(rng.exponential(1 / rate_qps, queries)), rng.integers(1, largest + 1, queries)


def plain(**config):
    return NodeConfig(**{"batch_size": 100, "fuse": False, "spread": False, "admission": False, **config})


def test_one_worker_without_fusion_is_a_queue_in_order():
    arrivals_s, sizes = poisson(120.0, 500, largest=100)
    run = run_node(arrivals_s, sizes, plain(max_queue=500), linear)
    done_s, expected = 0.0, []
    for arrival_s, size in zip(arrivals_s.tolist(), sizes.tolist(), strict=True):
        done_s = max(arrival_s, done_s) + linear(size, 0.0)
        expected.append(done_s - arrival_s)
    np.testing.assert_allclose(run.latency_s, expected, rtol=1e-9)
    assert run.batches == 500
    assert run.end_s == pytest.approx(done_s)
    assert run.busy_share == pytest.approx(sum(linear(size, 0.0) for size in sizes.tolist()) / done_s)
    assert run.refused() == 0


def test_two_queries_at_once_share_a_batch():
    run = run_node(np.array([0.0, 1e-4, 2e-4]), np.array([50, 30, 10]), plain(fuse=True), linear, profile=PROFILE)
    assert run.batches == 2
    first_s = linear(50, 0.0)
    np.testing.assert_allclose(run.latency_s[1:] + np.array([1e-4, 2e-4]), first_s + linear(40, 0.0))


def test_a_part_filled_batch_waits_for_its_timer():
    run = run_node(np.array([0.0, 0.004]), np.array([10, 10]), plain(fuse=True, max_wait_s=0.01), linear)
    assert run.batches == 1
    np.testing.assert_allclose(run.latency_s, [0.01 + linear(20, 0.0), 0.006 + linear(20, 0.0)])


def test_a_timer_that_another_replaced_does_not_fire():
    fired = []
    arrivals_s = np.array([0.0, 0.002, 0.03])
    run_node(
        arrivals_s, np.array([60, 60, 10]), plain(fuse=True, max_wait_s=0.01), linear,
        observer=lambda now, event, _: fired.append(round(now, 6)) if type(event).__name__ == "TimerFired" else None,
    )  # fmt: skip
    assert len(fired) == len(set(fired)) <= 3
    assert 0.04 in fired


def test_overload_is_refused_with_its_reasons():
    arrivals_s, sizes = poisson(600.0, 2_000)
    run = run_node(arrivals_s, sizes, NodeConfig(100, sla_s=0.03), linear, profile=PROFILE)
    assert run.refused(RejectReason.DEADLINE) > 500
    assert run.refused() == int(np.isnan(run.latency_s).sum())
    assert run.attainment(0.03) == pytest.approx(np.sum(run.latency_s <= 0.03) / 2_000)
    assert run.busy_share > 0.9
    full = run_node(arrivals_s, sizes, plain(max_queue=3), linear)
    assert full.refused(RejectReason.QUEUE_FULL) == full.refused() > 500


@pytest.mark.parametrize("admission", [False, True])
def test_it_gives_up_once_too_many_are_late_and_is_as_it_was_until_then(admission):
    arrivals_s, sizes = poisson(200.0, 400, largest=100)
    config = plain(sla_s=0.02, admission=admission)
    whole = run_node(arrivals_s, sizes, config, linear)
    late = np.count_nonzero(~(whole.latency_s <= 0.02))
    assert late > 20
    given_up = run_node(arrivals_s, sizes, config, linear, give_up_late=20)
    assert given_up.end_s < 0.5 * whole.end_s
    answered = ~np.isnan(given_up.latency_s)
    np.testing.assert_array_equal(given_up.latency_s[answered], whole.latency_s[answered])
    refused = given_up.refused()
    assert np.count_nonzero(given_up.latency_s[answered] > 0.02) + refused == 21
    enough = run_node(arrivals_s, sizes, config, linear, give_up_late=late)
    np.testing.assert_array_equal(enough.latency_s, whole.latency_s)


def test_a_lost_workers_batch_is_run_again_by_another():
    changes = [(0.002, WorkerChanged(0, Availability.LOST)), (0.03, WorkerChanged(2, Availability.UP))]
    run = run_node(np.array([0.0, 0.04]), np.array([90, 10]), plain(), linear, workers=2, changes=changes)
    assert run.batches == 3
    np.testing.assert_allclose(run.latency_s, [0.002 + linear(90, 0.0), linear(10, 0.0)])


def test_workers_that_all_go_refuse_what_comes():
    run = run_node(np.array([0.0, 0.1]), np.array([5, 5]), plain(), linear,
                   changes=[(0.05, WorkerChanged(0, Availability.DRAINING))])  # fmt: skip
    assert run.refusals == (None, RejectReason.NO_WORKER)


def test_the_same_seed_gives_the_same_run_and_another_does_not():
    arrivals_s, sizes = poisson(150.0, 300)
    spread = LatencyProfile(PROFILE.batch_sizes, PROFILE.service_s, (2e-4, 1e-3))
    runs = [
        run_node(arrivals_s, sizes, NodeConfig(100), profiled_service(spread, np.random.default_rng(seed)), workers=2)
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(runs[0].latency_s, runs[1].latency_s)
    assert (runs[0].latency_s != runs[2].latency_s).any()


def test_profiled_service_has_the_profiles_median_and_spread():
    spread = LatencyProfile((1, 100), (1e-3, 1e-2), (1e-4, 1e-3))
    service_s = profiled_service(spread, np.random.default_rng(0))
    drawn = np.array([service_s(100, 0.0) for _ in range(4_000)])
    assert np.median(drawn) == pytest.approx(1e-2, rel=0.02)
    assert np.median(np.abs(drawn - np.median(drawn))) == pytest.approx(1e-3, rel=0.1)
    wild = profiled_service(LatencyProfile((1,), (1.0,), (5.0,)), np.random.default_rng(0))
    assert {round(wild(1, 0.0), 6) for _ in range(200)} >= {round(1 / 3, 6), 3.0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(1), np.ones(2, np.int64)), "one of each"),
        ((np.array([1.0, 0.0]), np.ones(2, np.int64)), "order of time"),
    ],
)
def test_arrivals_that_do_not_match_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        run_node(*arguments, plain(), linear)
    with pytest.raises(ValueError, match="workers is 0"):
        run_node(np.zeros(1), np.ones(1, np.int64), plain(), linear, workers=0)


# The live driver on the same trace


class PretendWorker:
    """In place of `runtime.worker.Worker`: hands its batches to the test's clock."""

    inbox: ClassVar[list] = []

    def __init__(self, worker_id, runner, cores, warm_up, finished, *, gives_way):  # noqa: ARG002
        self.worker_id, self.cores, self.finished = worker_id, (), finished
        self.started = SimpleNamespace(result=list)
        self.alive = True

    def submit(self, work):
        PretendWorker.inbox.append((self, work.batch))

    def stop(self):
        pass


class Wall:
    """The live driver's clock, turned by hand."""

    now = 0.0

    def __call__(self):
        return self.now


def said(events):
    """Events and actions without object identities: queries and parts by number."""
    return [(round(now, 9), _words(event), [_words(action) for action in actions]) for now, event, actions in events]


def _words(thing):
    if isinstance(thing, StartBatch):
        parts = tuple((part.query.query_id, part.start, part.stop) for part in thing.batch.sub_queries)
        return "start", thing.worker_id, thing.batch.batch_id, parts, thing.handed
    if isinstance(thing, BatchFinished):
        return "finished", thing.worker_id, thing.batch_id, round(thing.service_s, 9)
    query = getattr(thing, "query", None)
    return type(thing).__name__, None if query is None else query.query_id, getattr(thing, "reason", None)


async def live(monkeypatch, arrivals_s, sizes, config, lane, service_s):
    """The trace through the live driver, its clock and its workers replaced; what its scheduler heard and said."""
    wall, heard = Wall(), []
    PretendWorker.inbox.clear()
    monkeypatch.setattr(hebe.serving.engine.driver, "clock", wall)
    monkeypatch.setattr(hebe.runtime.workers.lane_workers, "Worker", PretendWorker)
    runner = SimpleNamespace(run=None, rehearse=None)
    pipeline = SimpleNamespace(sparse=lambda: runner, dense=lambda: runner)
    model = SimpleNamespace(
        spec=SimpleNamespace(outputs=1),
        runs_unlocked=False,
        new_executor=lambda *_, **__: runner,
        new_pipeline=lambda *_, **__: pipeline,
        warm_up=list,
    )
    placed = PlacedLane(lane, ((),) * lane.workers, ((),) * lane.dense_workers)
    driver = NodeDriver(model, config, [placed], PROFILE, accelerator=Accelerator(0))
    stages = {thread_id: each.role.stage for thread_id, each in driver._threads.items()}
    driver.observer = lambda *step: heard.append(step)
    finishes, order, tasks = [], 0, []
    coming = list(zip(arrivals_s.tolist(), range(len(sizes)), sizes.tolist(), strict=True))
    while coming or finishes:
        if coming and (not finishes or coming[0][0] <= finishes[0][0]):
            wall.now, query_id, items = coming.pop(0)
            tasks.append(asyncio.ensure_future(driver.infer(Query(query_id, items, wall.now))))
            await asyncio.sleep(0)
        else:
            wall.now, _, worker, batch, takes_s = heapq.heappop(finishes)
            scores = np.zeros((batch.items, 1), np.float32)
            report = LookupReport(KeyCounts(), in_vain_s=takes_s)  # the scheduler learns nothing of it
            handed = (SimpleNamespace(items=batch.items, sparse_s=takes_s, lookup=report),)
            if stages[worker.worker_id] is not Stage.SPARSE:
                handed = ()
            outcome = BatchOutcome(scores, 2 * takes_s, 0.0, report, handed=handed)
            following = worker.finished(worker.worker_id, batch, outcome)
            if following is not None:
                PretendWorker.inbox.insert(0, (worker, following.batch))
        # in the order in which the scheduler started them
        for worker, batch in sorted(PretendWorker.inbox, key=lambda sent: sent[1].batch_id):
            order += 1
            takes_s = service_s[stages[worker.worker_id]](batch.items, wall.now)
            heapq.heappush(finishes, (wall.now + takes_s, order, worker, batch, takes_s))
        PretendWorker.inbox.clear()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    return heard, answers


def whole(workers: int, batch_size: int) -> Lane:
    return Lane(Placement.MODEL_ON_HOST, workers, 1, batch_size)


@pytest.mark.parametrize(
    ("config", "lane", "rate_qps"),
    [
        (NodeConfig(100, sla_s=0.05), whole(2, 100), 120.0),
        (NodeConfig(100, sla_s=0.03), whole(2, 100), 500.0),
        (NodeConfig(40, sla_s=0.05, spread=False), whole(3, 40), 250.0),
        (NodeConfig(100, fuse=False, admission=False, max_queue=20), whole(1, 100), 150.0),
        (NodeConfig(100, sla_s=0.05), Lane(Placement.PIPELINE_ON_HOST, 2, 1, 100, 1), 200.0),
        (NodeConfig(100, sla_s=0.05), Lane(Placement.PIPELINE_ON_HOST, 1, 1, 30, 2), 200.0),
        (NodeConfig(100, sla_s=0.08, spread=False), Lane(Placement.SPARSE_ON_HOST, 2, 1, 50, 1, 300), 250.0),
    ],
)
async def test_the_live_driver_makes_the_same_of_the_same_trace(monkeypatch, config, lane, rate_qps):
    """Two drivers, one scheduler: every event and every action is the same, in the same order."""
    arrivals_s, sizes = poisson(rate_qps, 400, seed=5)
    service_s = {
        Stage.WHOLE: linear,
        Stage.SPARSE: lambda items, now: linear(items, now) / 2,
        Stage.DENSE: lambda items, now: linear(items, now) / 3,
    }
    first, dense = roles_of(lane, 0, 8192)
    simulated = []
    run = run_node(
        arrivals_s, sizes, config, {role: service_s[role.stage] for role in (first, dense) if role},
        workers=[dense] * lane.dense_workers + [first] * lane.workers,
        profile=PROFILE, observer=lambda *step: simulated.append(step),
    )  # fmt: skip
    heard, answers = await live(monkeypatch, arrivals_s, sizes, config, lane, service_s)
    assert said(heard) == said(simulated)
    assert any(isinstance(action, CompleteQuery) for _, _, actions in heard for action in actions)
    refused = [isinstance(answer, QueryRefused) for answer in answers]
    assert refused == [reason is not None for reason in run.refusals]
    latency_s = [np.nan if isinstance(answer, QueryRefused) else answer.latency_s for answer in answers]
    np.testing.assert_allclose(run.latency_s, latency_s, rtol=1e-9)
