"""The node scheduler with sparse workers that hand on to dense ones, and with workers that change."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.query import Batch, Query
from hebe.scheduling.events import (
    Availability,
    BatchFinished,
    CompleteQuery,
    FailQuery,
    QueryArrived,
    QueryWithdrawn,
    RejectQuery,
    RejectReason,
    ReleaseWorker,
    Stage,
    StartBatch,
    WorkerChanged,
    WorkerRole,
)
from hebe.scheduling.node.node import NodeConfig, NodeScheduler

UP, DRAINING, LOST = Availability.UP, Availability.DRAINING, Availability.LOST
SPARSE_S, DENSE_S = 0.001, 0.002
"""An item's seconds on a sparse and on a dense worker."""


def sparse(batch_size: int = 100, most_handed: int = 2, lane: int = 0) -> WorkerRole:
    return WorkerRole(Stage.SPARSE, batch_size, lane=lane, most_handed=most_handed)


def dense(batch_size: int = 100, lane: int = 0, *, fuse: bool = False) -> WorkerRole:
    return WorkerRole(Stage.DENSE, batch_size, fuse, lane)


def node_of(*roles: WorkerRole, **config) -> NodeScheduler:
    """Worker i has role i; all have learned what an item takes."""
    node = NodeScheduler(NodeConfig(**{"batch_size": 100, **config}))
    takes = {Stage.WHOLE: SPARSE_S + DENSE_S, Stage.SPARSE: SPARSE_S, Stage.DENSE: DENSE_S}
    for role in dict.fromkeys(roles):
        for items in (1, 10, 100, 100, 100, 100):
            node.service_times.observe(role, items, items * takes[role.stage])
    for worker_id, role in enumerate(roles):
        node.handle(WorkerChanged(worker_id, UP, (worker_id,), role), 0.0)
    return node


def starts(actions) -> list[StartBatch]:
    return [action for action in actions if isinstance(action, StartBatch)]


def arrive(node: NodeScheduler, query_id: int, items: int, now: float = 0.0, **fields):
    return node.handle(QueryArrived(Query(query_id, items, now, **fields)), now)


def test_a_batch_goes_from_a_sparse_to_a_dense_worker_and_completes_there():
    node = node_of(sparse(), dense())
    (start,) = starts(arrive(node, 1, 60))
    assert (start.worker_id, start.batch.items, start.handed) == (0, 60, ())
    (handed,) = node.handle(BatchFinished(0, start.batch.batch_id, 0.06), 0.06)
    assert (handed.worker_id, handed.handed) == (1, (start.batch.batch_id,))
    assert handed.batch.sub_queries == start.batch.sub_queries
    assert not node.idle
    (completed,) = node.handle(BatchFinished(1, handed.batch.batch_id, 0.12), 0.18)
    assert isinstance(completed, CompleteQuery)
    assert node.idle


def test_a_slow_dense_worker_holds_sparse_ones_back():
    node = node_of(sparse(most_handed=2), dense(), fuse=False, spread=False)
    running = starts(arrive(node, 0, 50))
    now = 0.0
    for query_id in range(1, 8):
        assert arrive(node, query_id, 50) == []
    for _ in range(3):
        now += 0.05
        (running,) = [running] if isinstance(running, StartBatch) else running
        began = starts(node.handle(BatchFinished(0, running.batch.batch_id, 0.05), now))
        again = [start for start in began if start.worker_id == 0]
        if not again:
            break
        running = again[0]
    # One runs on the dense worker, two wait for it: the sparse worker is idle though five queries wait.
    assert node.queue_depth == 5
    assert not again


def test_dense_workers_that_fuse_take_all_that_was_handed_on():
    node = node_of(sparse(50, most_handed=4), dense(200, fuse=True), fuse=False, spread=False)
    first = starts(arrive(node, 0, 50))[0]
    for query_id in range(1, 4):
        arrive(node, query_id, 50)
    began = starts(node.handle(BatchFinished(0, first.batch.batch_id, 0.05), 0.05))
    on_dense = next(start for start in began if start.worker_id == 1)
    for _ in range(3):
        of_sparse = next(start for start in began if start.worker_id == 0)
        began = starts(node.handle(BatchFinished(0, of_sparse.batch.batch_id, 0.05), 0.1))
    (fused,) = [s for s in starts(node.handle(BatchFinished(1, on_dense.batch.batch_id, 0.1), 0.2)) if s.worker_id == 1]
    assert (fused.batch.items, len(fused.handed)) == (150, 3)
    completed = node.handle(BatchFinished(1, fused.batch.batch_id, 0.3), 0.5)
    assert [type(action) for action in completed] == [CompleteQuery] * 3


def test_the_prediction_counts_both_stages_and_the_slower_ones_queue():
    node = node_of(sparse(most_handed=8), dense(), sla_s=1.0, fuse=False, spread=False)
    for query_id in range(4):
        assert not [a for a in arrive(node, query_id, 100) if isinstance(a, RejectQuery)]
    # 100 ms of its own on a sparse worker; the dense one has 4 x 200 ms ahead of it, and 200 ms of its own.
    late = Query(9, 100, 0.0, deadline_s=0.99)
    assert node.refusal(late, 0.0).retry_after_s == pytest.approx(1.0, rel=0.05)
    assert node.refusal(Query(9, 100, 0.0, deadline_s=1.1), 0.0) is None


def test_an_idle_sparse_worker_does_not_make_a_busy_dense_one_idle():
    node = node_of(sparse(), dense(), sla_s=0.5, spread=False)
    (start,) = starts(arrive(node, 0, 100))
    (start,) = starts(node.handle(BatchFinished(0, start.batch.batch_id, 0.1), 0.1))
    # The dense worker runs for 200 ms more; the query takes as long there, after 100 ms on the sparse worker meanwhile.
    assert node.refusal(Query(9, 100, 0.1, 0.49), 0.1).retry_after_s == pytest.approx(0.4)
    assert node.refusal(Query(9, 100, 0.1, 0.51), 0.1) is None
    # With work ahead the margin counts, and no query is let through to learn from.
    node._admission.margin_s = 0.2
    assert all(isinstance(arrive(node, number, 100, 0.1)[0], RejectQuery) for number in range(1, 40))
    node.handle(BatchFinished(1, start.batch.batch_id, 0.2), 0.3)
    assert starts(arrive(node, 50, 100, 0.3))


def test_what_other_sparse_workers_run_is_ahead_on_the_dense_one():
    node = node_of(sparse(), sparse(), dense(), sla_s=10.0, spread=False)
    arrive(node, 0, 100)
    assert node.refusal(Query(9, 100, 0.0, 0.39), 0.0).retry_after_s == pytest.approx(0.4)


def test_a_slow_lane_beside_a_fast_one_keeps_no_query_out():
    """The fast one alone serves all fourteen within 30 ms, at 2 ms a batch on each of its workers."""
    node = NodeScheduler(NodeConfig(100, sla_s=0.040))
    taken_s = {sparse(): 0.002, dense(): 0.002, WorkerRole(lane=1): 0.030}
    for role, service_s in taken_s.items():
        for _ in range(5):
            node.service_times.observe(role, 100, service_s)
    for worker_id, role in enumerate((dense(), sparse(), WorkerRole(lane=1))):
        node.handle(WorkerChanged(worker_id, UP, (worker_id,), role), 0.0)
    for query_id in range(14):
        assert not [action for action in arrive(node, query_id, 100) if isinstance(action, RejectQuery)]


def test_a_worker_with_smaller_batches_cuts_what_was_cut_for_larger_ones():
    node = node_of(WorkerRole(Stage.WHOLE, 100), WorkerRole(Stage.WHOLE, 30), spread=False)
    began = starts(arrive(node, 1, 200))
    assert [(start.worker_id, start.batch.items) for start in began] == [(0, 100), (1, 30)]
    done, now = Counter(), 0.0
    running = {start.worker_id: start.batch for start in began}
    completed = []
    while running:
        worker_id, batch = running.popitem()
        now += 0.1
        for part in batch.sub_queries:
            done.update(range(part.start, part.stop))
        actions = node.handle(BatchFinished(worker_id, batch.batch_id, 0.1), now)
        running.update((start.worker_id, start.batch) for start in starts(actions))
        completed += [action for action in actions if isinstance(action, CompleteQuery)]
    assert done == Counter(range(200))
    assert len(completed) == 1


def test_a_draining_lane_finishes_what_it_has_and_is_let_go():
    node = node_of(sparse(), dense())
    (start,) = starts(arrive(node, 1, 60))
    node.handle(WorkerChanged(2, UP, (2,), WorkerRole()), 0.0)
    assert node.handle(WorkerChanged(1, DRAINING), 0.0) == [], "what the sparse worker runs is still to come"
    assert node.handle(WorkerChanged(0, DRAINING), 0.0) == []
    (other,) = starts(arrive(node, 2, 10))
    assert other.worker_id == 2
    handed, released = node.handle(BatchFinished(0, start.batch.batch_id, 0.06), 0.06)
    assert (handed.worker_id, released) == (1, ReleaseWorker(0))
    completed, released = node.handle(BatchFinished(1, handed.batch.batch_id, 0.12), 0.18)
    assert isinstance(completed, CompleteQuery)
    assert released == ReleaseWorker(1)


def test_idle_draining_lanes_go_at_once():
    node = node_of(sparse(), dense(), WorkerRole())
    assert node.handle(WorkerChanged(1, DRAINING), 0.0) == []
    assert node.handle(WorkerChanged(0, DRAINING), 0.0) == [ReleaseWorker(0), ReleaseWorker(1)]


@pytest.mark.parametrize("withdrawn", [(), (0,), (0, 1)])
def test_what_a_lost_dense_worker_ran_is_handed_on_again_while_somebody_awaits_it(withdrawn):
    node = node_of(sparse(), dense(), dense())
    for query_id in (0, 1):
        arrive(node, query_id, 40)
    (first,) = starts(node.handle(BatchFinished(0, 0, 0.04), 0.04))[-1:]
    assert first.worker_id == 0
    for query_id in withdrawn:
        node.handle(QueryWithdrawn(query_id), 0.05)
    again = starts(node.handle(WorkerChanged(1, LOST), 0.06))
    assert [start.handed for start in again] == ([] if 0 in withdrawn else [(0,)])
    node.handle(BatchFinished(0, first.batch.batch_id, 0.04), 0.08)
    assert node.handed_on == (set() if 0 in withdrawn else {first.batch.batch_id})


def test_without_a_dense_worker_nothing_starts_and_what_waits_is_refused():
    node = node_of(sparse(), dense())
    (start,) = starts(arrive(node, 1, 60))
    arrive(node, 2, 60)
    refused = node.handle(WorkerChanged(1, LOST), 0.01)
    assert [(type(action), action.query.query_id) for action in refused] == [(RejectQuery, 2)]
    (refused,) = node.handle(BatchFinished(0, start.batch.batch_id, 0.06), 0.06)
    assert (refused.query.query_id, refused.reason) == (1, RejectReason.NO_WORKER)
    assert node.idle
    (refused,) = arrive(node, 3, 10, 0.1)
    assert refused.reason is RejectReason.NO_WORKER


def test_a_failed_sparse_batch_fails_its_queries_and_leaves_room():
    node = node_of(sparse(most_handed=1), dense())
    for query_id in range(3):
        (start,) = starts(arrive(node, query_id, 10))
        (failed,) = node.handle(BatchFinished(0, start.batch.batch_id, 0.0, failed=True), 0.0)
        assert isinstance(failed, FailQuery)


@settings(max_examples=150, deadline=None)
@given(
    arrivals=st.lists(st.tuples(st.floats(0, 0.5), st.integers(1, 350)), max_size=30),
    first=st.sampled_from([(1, 1), (2, 1), (1, 2)]),
    second=st.sampled_from([None, (1, 1), (2, 2)]),
    change_s=st.floats(0, 0.6),
    batch_sizes=st.tuples(st.integers(5, 120), st.integers(5, 120)),
    fuse=st.booleans(),
    faults=st.sets(st.integers(0, 30), max_size=4),
    lost=st.sets(st.sampled_from(["sparse", "dense"]), max_size=1),
)
def test_every_query_is_answered_once_while_workers_change(
    arrivals, first, second, change_s, batch_sizes, fuse, faults, lost
):
    """A pipeline that gives way to another, or to whole workers (None), under any load; some of it is lost."""
    roles = [sparse(batch_sizes[0], 3)] * first[0] + [dense(200, fuse=fuse)] * first[1]
    node = node_of(*roles, fuse=fuse, admission=False)
    size = batch_sizes[1]
    later = [WorkerRole(Stage.WHOLE, size)] * 2
    if second is not None:
        later = [sparse(size, 2, lane=1)] * second[0] + [dense(200, lane=1, fuse=fuse)] * second[1]
    order = itertools.count()
    heap: list[tuple[float, int, object]] = []
    for query_id, (at_s, items) in enumerate(arrivals):
        heapq.heappush(heap, (at_s, next(order), QueryArrived(Query(query_id, items, at_s))))
    for worker_id, role in enumerate(later, len(roles)):
        heapq.heappush(heap, (change_s, next(order), WorkerChanged(worker_id, UP, (worker_id,), role)))
    for worker_id, role in enumerate(roles):
        state = LOST if role.stage in lost else DRAINING
        heapq.heappush(heap, (change_s, next(order), WorkerChanged(worker_id, state)))
    known = set(range(len(roles)))
    running: dict[int, Batch] = {}
    handed_on: set[int] = set()
    answers: Counter[int] = Counter()
    while heap:
        now, _, event = heapq.heappop(heap)
        if isinstance(event, BatchFinished):
            if running.pop(event.worker_id, None) is None:
                continue
            role = (roles + later)[event.worker_id]
            if role.stage is Stage.SPARSE and not event.failed:
                handed_on.add(event.batch_id)
        if isinstance(event, WorkerChanged) and event.state is UP:
            known.add(event.worker_id)
        if isinstance(event, WorkerChanged) and event.state is LOST:
            known.discard(event.worker_id)
            running.pop(event.worker_id, None)
        for action in node.handle(event, now):
            match action:
                case StartBatch(worker_id, batch, handed):
                    role = (roles + later)[worker_id]
                    assert worker_id in known
                    assert worker_id not in running
                    assert (role.stage is Stage.DENSE) == bool(handed)
                    assert role.stage is Stage.DENSE or batch.items <= role.batch_size
                    if role.stage is Stage.DENSE and "dense" not in lost:
                        assert handed_on.issuperset(handed)
                        handed_on.difference_update(handed)
                    running[worker_id] = batch
                    service_s = batch.items * (DENSE_S if handed else SPARSE_S)
                    done = BatchFinished(worker_id, batch.batch_id, service_s, batch.batch_id in faults)
                    heapq.heappush(heap, (now + service_s, next(order), done))
                case CompleteQuery(query) | FailQuery(query):
                    answers[query.query_id] += 1
                case RejectQuery(query):
                    assert lost, "no query is refused while workers only change"
                    answers[query.query_id] += 1
                case ReleaseWorker(worker_id):
                    assert worker_id not in running
                    known.remove(worker_id)
    assert answers == Counter(range(len(arrivals)))
    assert node.idle
    assert known == set(range(len(roles), len(roles) + len(later)))
