"""The node scheduler: sequences of events and the exact actions they call for; invariants under any sequence."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.profile import LatencyProfile
from hebe.query import Batch
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
    SetTimer,
    ShutdownBegan,
    StartBatch,
    TimerFired,
    WorkerChanged,
)
from hebe.scheduling.node.node import NodeConfig, NodeScheduler
from tests.scheduling.node.one_node import COSTLY_BATCHES, PROFILE, batch_ids, query, scheduler, started


def test_a_query_starts_at_once_on_an_idle_worker_and_completes():
    node = scheduler()
    one = query(1, 10)
    actions = node.handle(QueryArrived(one), 0.0)
    assert started(actions) == [(0, [(1, 0, 10)])]
    assert node.handle(BatchFinished(0, batch_ids(actions)[0], 0.01), 0.01) == [CompleteQuery(one)]
    assert node.idle


def test_a_large_query_is_split_over_the_workers_and_completes_with_its_last_part():
    node = scheduler(workers=2)
    large = query(1, 250)
    actions = node.handle(QueryArrived(large), 0.0)
    assert started(actions) == [(0, [(1, 0, 83)]), (1, [(1, 83, 166)])]
    first, second = batch_ids(actions)
    actions = node.handle(BatchFinished(1, second, 0.083), 0.083)
    assert started(actions) == [(1, [(1, 166, 250)])]
    assert node.handle(BatchFinished(0, first, 0.083), 0.084) == []
    assert node.handle(BatchFinished(1, batch_ids(actions)[0], 0.083), 0.17) == [CompleteQuery(large)]


def test_a_query_that_finds_workers_idle_is_spread_over_them():
    node = scheduler(workers=3)
    node.handle(QueryArrived(query(1, 1)), 0.0)
    actions = node.handle(QueryArrived(query(2, 40)), 0.0)
    assert started(actions) == [(1, [(2, 0, 20)]), (2, [(2, 20, 40)])]
    # No worker is idle any more: what comes now is whole.
    node.handle(QueryArrived(query(3, 40)), 0.0)
    actions = node.handle(BatchFinished(1, batch_ids(actions)[0], 0.020), 0.020)
    assert started(actions) == [(1, [(3, 0, 40)])]


@pytest.mark.parametrize(
    ("profile", "config"),
    [
        (LatencyProfile((1, 100), (0.010, 0.011), (0.0, 0.0)), {}),  # a batch costs the same whatever its size
        (LatencyProfile((1, 100), (0.000001, 0.0001), (0.0, 0.0)), {}),  # too quick to be worth it
        (PROFILE, {"spread": False}),
        (PROFILE, {"max_wait_s": 0.001}),
    ],
)
def test_a_query_is_not_spread_where_that_would_not_pay(profile, config):
    node = scheduler(workers=2, profile=profile, **config)
    node.handle(QueryArrived(query(1, 100)), 0.0)
    assert [worker.batch.items for worker in node._workers.running] == [100]


def batches_of_queries(profile: LatencyProfile, took_s, queries: int = 400) -> list[list[int]]:
    """Of queries of 32 items that come one at a time to two workers; `took_s` of the items of a query's batches."""
    node, now, sizes = scheduler(workers=2, profile=profile), 0.0, []
    for number in range(queries):
        actions = node.handle(QueryArrived(query(number, 32, now)), now)
        begun = [(action.worker_id, action.batch) for action in actions if isinstance(action, StartBatch)]
        sizes.append([batch.items for _, batch in begun])
        service_s, late_s = took_s(sizes[-1])
        for worker_id, batch in begun:
            node.handle(BatchFinished(worker_id, batch.batch_id, service_s), now + service_s + late_s)
        now += 0.01
    return sizes


def test_what_spreading_is_wrongly_thought_to_cost_is_found_out():
    """As after a warm-up in which small batches were held up."""
    sizes = batches_of_queries(LatencyProfile((16, 32), (0.001, 0.001), (0.0, 0.0)), lambda of: (of[0] * 30e-6, 0.0))
    assert sizes[:32] == [[32]] * 31 + [[16, 16]]
    assert sizes[-100:].count([16, 16]) >= 99, "but for one that is tried"


def test_what_spreading_is_wrongly_thought_to_save_is_found_out():
    """As after a warm-up in which large batches were held up."""
    profile = LatencyProfile((16, 32), (0.0008, 0.0016), (0.0, 0.0))
    sizes = batches_of_queries(profile, lambda of: (0.0008 + (of[0] - 16) * 3e-6, 0.0), 2000)
    assert sizes[:31] == [[16, 16]] * 31
    assert sizes[-500:].count([32]) >= 480


@pytest.mark.parametrize(("late_s", "spread"), [(0.0, True), (0.0001, True), (0.0006, False)])
def test_what_spreading_costs_beside_its_batches_counts(late_s, spread):
    """Two batches take 0.8 ms each for one of 1.2 ms, but are heard of so much later; and any of them 0.1 ms later than
    it ends."""
    profile = LatencyProfile((16, 32), (0.0008, 0.0012), (0.0, 0.0))

    def took_s(of: list[int]) -> tuple[float, float]:
        return (0.0008, 0.0001 + late_s) if len(of) == 2 else (0.0012, 0.0001)

    sizes = batches_of_queries(profile, took_s, 2000)
    assert sizes[-500:].count([16, 16] if spread else [32]) >= 480


def test_a_query_is_spread_over_places_not_over_the_workers_of_one():
    node = scheduler(threads=2)
    assert started(node.handle(QueryArrived(query(1, 100)), 0.0)) == [(0, [(1, 0, 100)])]
    node = scheduler(workers=3, threads=2)
    node.handle(QueryArrived(query(1, 1)), 0.0)
    assert started(node.handle(QueryArrived(query(2, 40)), 0.0)) == [(1, [(2, 0, 20)]), (2, [(2, 20, 40)])]


def test_batches_start_first_where_nothing_runs_then_beside_another():
    node = scheduler(workers=2, threads=2)
    node.handle(QueryArrived(query(1, 1)), 0.0)
    actions = [node.handle(QueryArrived(query(query_id, 60)), 0.0) for query_id in (2, 3, 4, 5)]
    assert [started(a) for a in actions] == [[(1, [(2, 0, 60)])], [(2, [(3, 0, 60)])], [(3, [(4, 0, 60)])], []]
    node.handle(BatchFinished(1, batch_ids(actions[0])[0], 0.06), 0.06)
    actions = node.handle(BatchFinished(3, batch_ids(actions[2])[0], 0.06), 0.06)
    assert started(node.handle(QueryArrived(query(6, 1)), 0.06)) == []
    assert started(node.handle(BatchFinished(1, 4, 0.06), 0.06)) == [(1, [(6, 0, 1)])]


def test_small_queries_wait_for_company_while_their_place_is_busy():
    node = scheduler(profile=COSTLY_BATCHES, threads=2)
    first = node.handle(QueryArrived(query(1, 20)), 0.0)
    for query_id in (2, 3, 4, 5):
        assert node.handle(QueryArrived(query(query_id, 20)), 0.0) == []
    actions = node.handle(BatchFinished(0, batch_ids(first)[0], 0.12), 0.12)
    assert [(worker_id, len(parts)) for worker_id, parts in started(actions)] == [(0, 4)]
    node = scheduler(threads=2, fuse=False)
    assert [len(batch_ids(node.handle(QueryArrived(query(i, 20)), 0.0))) for i in (1, 2, 3)] == [1, 1, 0]


def test_batches_that_ran_beside_another_teach_what_their_place_needed():
    node = scheduler(threads=2)
    first, second = (batch_ids(node.handle(QueryArrived(query(query_id, 100)), 0.0))[0] for query_id in (1, 2))
    for step in range(50):
        now = 0.2 * (step + 1)
        node.handle(QueryArrived(query(3 + 2 * step, 100, now)), now - 0.001)
        node.handle(QueryArrived(query(4 + 2 * step, 100, now)), now - 0.001)
        (first,) = batch_ids(node.handle(BatchFinished(0, first, 0.2), now))
        (second,) = batch_ids(node.handle(BatchFinished(1, second, 0.2), now))
        assert node.service_times.ways.first_s(100) == pytest.approx(0.1)


def test_what_starts_beside_a_batch_is_expected_to_take_twice_as_long():
    node = scheduler(threads=2, sla_s=0.450)
    node.handle(QueryArrived(query(1, 10)), 0.0)
    (late,) = node.handle(QueryArrived(query(2, 100, -0.246)), 0.005)
    assert late.reason is RejectReason.DEADLINE
    assert late.retry_after_s == pytest.approx(0.200)
    assert started(node.handle(QueryArrived(query(3, 100, -0.244)), 0.005)) == [(1, [(3, 0, 100)])]


@pytest.mark.parametrize("admission", [True, False])
def test_a_query_in_a_hurry_does_not_share_a_place(admission):
    """Neither with one that came before, nor with one that comes after."""
    for first_s, second_s in ((0.390, 1.0), (1.0, 0.390)):
        node = scheduler(threads=2, admission=admission)
        node.handle(QueryArrived(query(1, 100, deadline_s=first_s)), 0.0)
        actions = node.handle(QueryArrived(query(2, 100, deadline_s=second_s)), 0.0)
        assert started(actions) == ([] if admission else [(1, [(2, 0, 100)])])


def test_what_waits_for_a_place_to_itself_is_expected_to_take_its_time():
    node = scheduler(threads=2)
    node.handle(QueryArrived(query(1, 100)), 0.0)
    (late,) = node.handle(QueryArrived(query(2, 50, deadline_s=0.149)), 0.0)
    assert late.retry_after_s == pytest.approx(0.150)
    assert node.handle(QueryArrived(query(3, 50, deadline_s=0.151)), 0.0) == []


def test_waiting_queries_are_fused_up_to_the_batch_size():
    node = scheduler(profile=COSTLY_BATCHES)
    actions = node.handle(QueryArrived(query(1, 50)), 0.0)
    for query_id, items in ((2, 40), (3, 50), (4, 20)):
        assert node.handle(QueryArrived(query(query_id, items)), 0.0) == []
    assert node.queue_depth == 3
    actions = node.handle(BatchFinished(0, batch_ids(actions)[0], 0.05), 0.05)
    assert started(actions) == [(0, [(2, 0, 40), (3, 0, 50)])]


def test_queries_are_fused_as_far_as_that_saves_more_than_it_delays():
    """A batch costs 10 ms; the second of four that wait delays one by 20, the third would delay two by 50."""
    node = scheduler(profile=LatencyProfile((1, 100), (0.011, 0.110), (0.0, 0.0)))
    actions = node.handle(QueryArrived(query(1, 50)), 0.0)
    for query_id, items in ((2, 10), (3, 20), (4, 50), (5, 50)):
        assert node.handle(QueryArrived(query(query_id, items)), 0.0) == []
    actions = node.handle(BatchFinished(0, batch_ids(actions)[0], 0.06), 0.06)
    assert started(actions) == [(0, [(2, 0, 10), (3, 0, 20)])]


def test_without_fusion_each_batch_holds_one_query():
    node = scheduler(profile=COSTLY_BATCHES, fuse=False)
    actions = node.handle(QueryArrived(query(1, 5)), 0.0)
    node.handle(QueryArrived(query(2, 5)), 0.0)
    node.handle(QueryArrived(query(3, 5)), 0.0)
    actions = node.handle(BatchFinished(0, batch_ids(actions)[0], 0.005), 0.005)
    assert started(actions) == [(0, [(2, 0, 5)])]


def test_the_queue_is_bounded():
    node = scheduler(max_queue=2)
    for query_id in range(3):
        node.handle(QueryArrived(query(query_id, 100)), 0.0)
    (action,) = node.handle(QueryArrived(query(9, 1)), 0.0)
    assert action.reason is RejectReason.QUEUE_FULL


def test_a_small_batch_waits_for_company_until_its_bound():
    node = scheduler(max_wait_s=0.005)
    assert node.handle(QueryArrived(query(1, 10)), 1.0) == [SetTimer(1.005)]
    actions = node.handle(QueryArrived(query(2, 10)), 1.002)
    assert started(actions) == []
    assert started(node.handle(TimerFired(), 1.005)) == [(0, [(1, 0, 10), (2, 0, 10)])]


def test_a_more_urgent_query_does_not_prolong_the_wait_of_another():
    node = scheduler(max_wait_s=0.010)
    assert node.handle(QueryArrived(query(1, 10, 1.0, priority=1)), 1.0) == [SetTimer(1.010)]
    assert node.handle(QueryArrived(query(2, 10, 1.009)), 1.009) == [SetTimer(1.010)]
    assert started(node.handle(TimerFired(), 1.010)) == [(0, [(2, 0, 10), (1, 0, 10)])]


def test_a_wait_leaves_time_for_the_earliest_deadline():
    """Though another query goes first. A full batch takes 100 ms."""
    node = scheduler(max_wait_s=0.050)
    assert node.handle(QueryArrived(query(1, 10, 1.0, priority=1, deadline_s=1.130)), 1.0) == [
        SetTimer(pytest.approx(1.030))
    ]
    [timer] = node.handle(QueryArrived(query(2, 10, 1.020)), 1.020)
    assert timer.at_s == pytest.approx(1.030)
    assert started(node.handle(TimerFired(), timer.at_s)) == [(0, [(2, 0, 10), (1, 0, 10)])]


def test_where_queries_share_no_batch_none_waits_for_company():
    node = scheduler(max_wait_s=0.005, fuse=False)
    assert started(node.handle(QueryArrived(query(1, 10)), 1.0)) == [(0, [(1, 0, 10)])]


def test_where_queries_share_no_batch_a_wait_for_company_keeps_none_whole():
    node = scheduler(workers=2, max_wait_s=0.005, fuse=False)
    assert started(node.handle(QueryArrived(query(1, 100)), 1.0)) == [(0, [(1, 0, 50)]), (1, [(1, 50, 100)])]


def test_a_full_batch_does_not_wait():
    node = scheduler(max_wait_s=0.005)
    node.handle(QueryArrived(query(1, 60)), 1.0)
    assert started(node.handle(QueryArrived(query(2, 40)), 1.001)) == [(0, [(1, 0, 60), (2, 0, 40)])]


def test_a_withdrawn_query_is_never_started_nor_answered():
    node = scheduler()
    actions = node.handle(QueryArrived(query(1, 100)), 0.0)
    node.handle(QueryArrived(query(2, 300)), 0.0)
    assert node.handle(QueryWithdrawn(2), 0.01) == []
    assert node.queue_depth == 0
    node.handle(QueryWithdrawn(1), 0.02)
    assert node.handle(BatchFinished(0, batch_ids(actions)[0], 0.1), 0.1) == []
    assert node.idle


def test_a_failed_batch_fails_its_queries_once_and_the_next_one_runs():
    node = scheduler(workers=2)
    split = query(1, 200)
    actions = node.handle(QueryArrived(split), 0.0)
    first, second = batch_ids(actions)
    node.handle(QueryArrived(query(2, 10)), 0.0)
    actions = node.handle(BatchFinished(0, first, 0.0, failed=True), 0.01)
    assert actions[0] == FailQuery(split)
    assert started(actions) == [(0, [(2, 0, 10)])]
    assert node.handle(BatchFinished(1, second, 0.1), 0.1) == []


def test_a_lost_workers_batch_is_run_by_another():
    node = scheduler(workers=2, spread=False)
    node.handle(QueryArrived(query(1, 60)), 0.0)
    actions = node.handle(QueryArrived(query(2, 60)), 0.0)
    assert node.handle(WorkerChanged(0, Availability.LOST), 0.01) == []
    actions = node.handle(BatchFinished(1, batch_ids(actions)[0], 0.06), 0.06)
    assert started(actions) == [(1, [(1, 0, 60)])]


def test_a_worker_that_lost_its_fellow_goes_on_and_has_the_place_to_itself():
    node = scheduler(threads=2)
    node.handle(QueryArrived(query(1, 100)), 0.0)
    (beside,) = batch_ids(node.handle(QueryArrived(query(2, 100)), 0.0))
    assert node.handle(WorkerChanged(0, Availability.LOST), 0.1) == []
    actions = node.handle(BatchFinished(1, beside, 0.15), 0.15)
    assert started(actions) == [(1, [(1, 0, 100)])]
    assert node.service_times.ways.first_s(100) == pytest.approx(0.1)
    assert node.handle(QueryArrived(query(3, 100, deadline_s=0.448)), 0.2) == []
    (late,) = node.handle(QueryArrived(query(4, 100, deadline_s=0.449)), 0.2)
    assert late.reason is RejectReason.DEADLINE
    assert late.retry_after_s == pytest.approx(0.25)


def test_a_draining_worker_finishes_and_takes_nothing_more():
    node = scheduler(workers=2, spread=False)
    actions = node.handle(QueryArrived(query(1, 10)), 0.0)
    node.handle(WorkerChanged(0, Availability.DRAINING), 0.0)
    assert started(node.handle(QueryArrived(query(2, 10)), 0.0)) == [(1, [(2, 0, 10)])]
    actions = node.handle(BatchFinished(0, batch_ids(actions)[0], 0.01), 0.01)
    assert [type(a) for a in actions] == [CompleteQuery, ReleaseWorker]


def test_a_place_drains_worker_by_worker():
    node = scheduler(threads=2)
    first = node.handle(QueryArrived(query(1, 10)), 0.0)
    node.handle(WorkerChanged(0, Availability.DRAINING), 0.0)
    second = node.handle(QueryArrived(query(2, 60)), 0.0)
    assert started(second) == [(1, [(2, 0, 60)])]
    waiting = query(3, 10)
    assert node.handle(QueryArrived(waiting), 0.0) == []
    ended = node.handle(BatchFinished(0, batch_ids(first)[0], 0.02), 0.02)
    assert [type(a) for a in ended] == [CompleteQuery, ReleaseWorker]
    node.handle(WorkerChanged(1, Availability.DRAINING), 0.02)
    completed, released, refused = node.handle(BatchFinished(1, batch_ids(second)[0], 0.02), 0.02)
    assert released == ReleaseWorker(1)
    assert completed.query.query_id == 2
    assert refused == RejectQuery(waiting, RejectReason.NO_WORKER)


def test_without_workers_queries_are_refused():
    node = NodeScheduler(NodeConfig(batch_size=10))
    (action,) = node.handle(QueryArrived(query(1, 1)), 0.0)
    assert action.reason is RejectReason.NO_WORKER


def test_when_the_last_worker_is_lost_what_waits_is_refused():
    node = scheduler()
    node.handle(QueryArrived(query(1, 10)), 0.0)
    node.handle(QueryArrived(query(2, 10)), 0.0)
    actions = node.handle(WorkerChanged(0, Availability.LOST), 0.0)
    assert {a.query.query_id: a.reason for a in actions} == {1: RejectReason.NO_WORKER, 2: RejectReason.NO_WORKER}


def test_shutdown_refuses_new_queries_and_finishes_the_admitted():
    node = scheduler()
    one = query(1, 10)
    actions = node.handle(QueryArrived(one), 0.0)
    node.handle(ShutdownBegan(), 0.0)
    (refusal,) = node.handle(QueryArrived(query(2, 10)), 0.0)
    assert refusal.reason is RejectReason.SHUTTING_DOWN
    assert node.handle(BatchFinished(0, batch_ids(actions)[0], 0.01), 0.01) == [CompleteQuery(one)]


def test_finishing_a_batch_that_does_not_run_is_an_error():
    node = scheduler()
    with pytest.raises(ValueError, match="does not run batch"):
        node.handle(BatchFinished(0, 7, 0.1), 0.0)


def test_a_server_whose_prediction_was_spoilt_heals():
    """After a stall every prediction exceeds the SLA; single probes let it learn again."""
    node = scheduler(sla_s=0.050, profile=LatencyProfile((10, 20), (1.0, 2.0), (0.0, 0.0)))
    answered = 0
    for step in range(400):
        now = float(step)
        actions = node.handle(QueryArrived(query(step, 10, now)), now)
        for batch_id in batch_ids(actions):
            answered += len(node.handle(BatchFinished(0, batch_id, 0.010), now + 0.010))
    assert answered > 200


@pytest.mark.parametrize("field", ["batch_size", "max_queue"])
def test_configuration_is_checked(field):
    with pytest.raises(ValueError, match=field):
        NodeConfig(**{"batch_size": 1, field: 0})


@settings(max_examples=150, deadline=None)
@given(
    arrivals=st.lists(
        st.tuples(
            st.floats(0, 0.3),
            st.integers(1, 350),
            st.integers(0, 2),
            st.sampled_from([0.02, 0.2, float("inf")]),
        ),
        max_size=40,
    ),
    workers=st.integers(1, 3),
    threads=st.integers(1, 2),
    lost=st.dictionaries(st.integers(0, 5), st.floats(0, 0.3), max_size=2),
    fuse=st.booleans(),
    spread=st.booleans(),
    max_wait_s=st.sampled_from([0.0, 0.01]),
    sla_s=st.sampled_from([0.05, 0.5, float("inf")]),
    faults=st.sets(st.integers(0, 30), max_size=5),
    withdrawn=st.sets(st.integers(0, 39), max_size=5),
)
def test_every_query_is_answered_once_and_every_item_run_once(
    arrivals, workers, threads, lost, fuse, spread, max_wait_s, sla_s, faults, withdrawn
):
    """Any load, in virtual time, with batches that fail, workers that are lost and queries that are withdrawn."""
    node = scheduler(workers=workers, threads=threads, fuse=fuse, spread=spread, max_wait_s=max_wait_s, sla_s=sla_s)
    order = itertools.count()
    heap: list[tuple[float, int, object]] = []
    up = set(range(workers * threads))
    for worker_id in up & set(lost):
        at_s = lost[worker_id]
        heapq.heappush(heap, (at_s, next(order), WorkerChanged(worker_id, Availability.LOST)))
    for query_id, (at_s, items, priority, patience_s) in enumerate(arrivals):
        one = query(query_id, items, at_s, priority=priority, deadline_s=at_s + patience_s)
        heapq.heappush(heap, (at_s, next(order), QueryArrived(one)))
        if query_id in withdrawn:
            heapq.heappush(heap, (at_s + 0.01, next(order), QueryWithdrawn(query_id)))
    running: dict[int, Batch] = {}
    answers: Counter[int] = Counter()
    failed, completed, gone = set(), set(), set()
    run_items: Counter[int] = Counter()
    while heap:
        now, _, event = heapq.heappop(heap)
        if isinstance(event, QueryWithdrawn):
            gone.add(event.query_id)
        if isinstance(event, BatchFinished):
            if event.worker_id not in up:
                continue
            del running[event.worker_id]
        if isinstance(event, WorkerChanged):
            up.remove(event.worker_id)
            for part in running.pop(event.worker_id).sub_queries if event.worker_id in running else ():
                run_items[part.query.query_id] -= part.items
        foreseen = node.refusal(event.query, now) if isinstance(event, QueryArrived) else None
        actions = node.handle(event, now)
        if foreseen is not None:
            assert foreseen in actions
        taken = Counter(worker_id % workers for worker_id in running)
        if isinstance(event, QueryArrived) and event.query.items <= 100 and threads > 1:
            places = [
                worker_id % workers for worker_id, parts in started(actions) if parts[0][0] == event.query.query_id
            ]
            assert len(places) == len(set(places)), "spread over workers of one place"
        for action in actions:
            match action:
                case StartBatch(worker_id, batch):
                    assert worker_id in up
                    assert worker_id not in running
                    if taken[worker_id % workers]:
                        assert all(taken[other % workers] for other in up), "another place was idle"
                        assert batch.items > 50 or not fuse
                    taken[worker_id % workers] += 1
                    assert 0 < batch.items <= 100
                    assert batch.items == sum(part.items for part in batch.sub_queries)
                    assert fuse or len(batch.sub_queries) == 1
                    running[worker_id] = batch
                    for part in batch.sub_queries:
                        run_items[part.query.query_id] += part.items
                    service_s = batch.items / 1000
                    done = BatchFinished(worker_id, batch.batch_id, service_s, batch.batch_id in faults)
                    heapq.heappush(heap, (now + service_s, next(order), done))
                case SetTimer(at_s):
                    assert at_s > now
                    heapq.heappush(heap, (at_s, next(order), TimerFired()))
                case CompleteQuery(one):
                    answers[one.query_id] += 1
                    completed.add(one.query_id)
                case RejectQuery(one) | FailQuery(one):
                    answers[one.query_id] += 1
                    failed.add(one.query_id)
    assert node.idle
    assert node.queue_depth == 0
    for query_id, (_, items, _, _) in enumerate(arrivals):
        assert answers[query_id] == 1 or (query_id in gone and answers[query_id] == 0)
        if query_id in completed:
            assert run_items[query_id] == items
