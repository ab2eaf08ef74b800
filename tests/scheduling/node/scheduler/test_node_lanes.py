"""The node scheduler with lanes that take unlike long for a query: who takes which."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.query import Query
from hebe.scheduling.events import (
    Availability,
    BatchFinished,
    CompleteQuery,
    QueryArrived,
    RejectQuery,
    RejectReason,
    SetTimer,
    Stage,
    StartBatch,
    TimerFired,
    WorkerChanged,
    WorkerRole,
)
from hebe.scheduling.node.node import NodeConfig, NodeScheduler
from hebe.simulation.node.node_run import run_node

FAST, SLOW = WorkerRole(Stage.WHOLE, 100), WorkerRole(Stage.WHOLE, 100, lane=1)
SPARSE, DENSE = WorkerRole(Stage.SPARSE, 100, lane=2), WorkerRole(Stage.DENSE, 100, lane=2)
ITEM_S = {FAST: 0.001, SLOW: 0.010, SPARSE: 0.0001, DENSE: 0.0001}
ACCELERATOR = WorkerRole(Stage.WHOLE, 1024, fuse=True)
HOST = WorkerRole(Stage.WHOLE, 256, lane=1)


def node_of(*roles: WorkerRole, **config) -> NodeScheduler:
    """Worker i has role i; all have learned what an item takes."""
    node = NodeScheduler(NodeConfig(**{"batch_size": 100, "fuse": False, "spread": False, **config}))
    for role in dict.fromkeys(roles):
        for items in (1, 10, 100, 100, 100, 100):
            node.service_times.observe(role, items, items * ITEM_S[role])
    for worker_id, role in enumerate(roles):
        node.handle(WorkerChanged(worker_id, Availability.UP, (worker_id,), role), 0.0)
    return node


def arrive(node: NodeScheduler, query_id: int, items: int, now: float = 0.0):
    return node.handle(QueryArrived(Query(query_id, items, now)), now)


def started(actions) -> list[tuple[int, int]]:
    """(worker, query) of each batch that begins."""
    starts = (action for action in actions if isinstance(action, StartBatch))
    return [(start.worker_id, part.query.query_id) for start in starts for part in start.batch.sub_queries]


def test_the_faster_of_two_idle_workers_takes_a_query():
    assert started(arrive(node_of(SLOW, FAST, sla_s=1.0), 0, 50)) == [(1, 0)]


def test_a_slow_worker_takes_only_what_the_fast_one_would_be_done_with_later():
    node = node_of(SLOW, FAST, sla_s=1.0)
    (first,) = arrive(node, 0, 90)
    assert started(arrive(node, 1, 50)) == [], "in 90 + 50 ms there, in 500 ms here"
    assert started(arrive(node, 2, 60)) == [], "behind it in 90 + 50 + 60 ms"
    assert started(arrive(node, 3, 10)) == [(0, 3)], "in 210 ms or in 100"
    done = node.handle(BatchFinished(1, first.batch.batch_id, 0.09), 0.09)
    assert started(done) == [(1, 1)], "what was passed over kept its place"


def test_while_a_fast_worker_waits_for_company_a_slow_one_looks_no_sooner_again():
    node = node_of(SLOW, FAST, fuse=True, max_wait_s=0.05)
    (timer,) = arrive(node, 0, 5)
    assert timer == SetTimer(0.05)
    (start,) = node.handle(TimerFired(), 0.05)
    assert started([start]) == [(1, 0)]


def test_a_slow_worker_leaves_what_it_would_be_late_with_to_the_fast_one_and_does_not_expire_it():
    node = node_of(SLOW, FAST, sla_s=0.3)
    (first,) = arrive(node, 0, 100)
    (small,) = arrive(node, 1, 5)
    assert started([small]) == [(0, 1)]
    assert started(arrive(node, 2, 40)) == []
    completed = node.handle(BatchFinished(0, small.batch.batch_id, 0.05), 0.05)
    assert [type(action) for action in completed] == [CompleteQuery, SetTimer]
    assert node.queue_depth == 1
    after = node.handle(BatchFinished(1, first.batch.batch_id, 0.1), 0.1)
    assert started(after) == [(1, 2)]


def test_nothing_waits_for_a_fast_worker_that_hangs():
    node = node_of(SLOW, FAST, sla_s=10.0)
    arrive(node, 0, 90)
    (timer,) = arrive(node, 1, 50, 0.05)  # in 40 + 50 ms there, in 500 ms here
    now, looks = 0.05, 0
    while isinstance(timer, SetTimer):
        assert now < timer.at_s <= now + 0.5
        now, looks = timer.at_s, looks + 1
        (timer,) = node.handle(TimerFired(), now)
    assert started([timer]) == [(0, 1)], "nothing else need happen"
    assert 0.09 + 0.45 <= now < 0.09 + 0.45 + 0.1, "where it is as much late as it would take here, but for its 50 ms"
    assert looks < 12


def test_a_hung_dense_worker_does_not_keep_the_other_lane_from_its_queries():
    node = node_of(SLOW, SPARSE, DENSE, sla_s=3.0)
    (first,) = arrive(node, 0, 100)
    assert started([first]) == [(1, 0)]
    (second,) = node.handle(BatchFinished(1, first.batch.batch_id, 0.01), 0.01)
    assert second.worker_id == 2
    (third, *_) = arrive(node, 1, 100, 0.02)
    assert started([third]) == [(1, 1)], "there is room for one"
    node.handle(BatchFinished(1, third.batch.batch_id, 0.01), 0.03)
    assert started(arrive(node, 2, 10, 0.04)) == [], "the dense worker is free soon"
    assert started(node.handle(TimerFired(), 0.5)) == [(0, 2)], "or not"


def test_a_lane_that_lost_its_dense_workers_is_no_way():
    node = node_of(SLOW, SPARSE, DENSE, sla_s=3.0)
    node.handle(WorkerChanged(2, Availability.LOST), 0.0)
    assert started(arrive(node, 0, 10)) == [(0, 0)]
    refused = [action for action in arrive(node, 1, 350) if isinstance(action, RejectQuery)]
    assert refused, "0.1 + 3.5 s"


def test_a_batch_is_not_made_longer_than_what_is_in_it_would_take_elsewhere():
    node = node_of(SLOW, FAST, sla_s=10.0, fuse=True)
    arrive(node, 0, 100)
    (busy,) = arrive(node, 1, 5)
    assert started([busy]) == [(0, 1)]
    for query_id in range(2, 8):
        assert started(arrive(node, query_id, 10)) == []
    actions = node.handle(BatchFinished(0, busy.batch.batch_id, 0.05), 0.0)
    assert started(actions) == [(0, 2)], "in 100 ms, as elsewhere; with another one in 200"


def test_what_was_looked_at_in_vain_is_not_looked_at_with_every_event():
    node = node_of(SLOW, FAST, sla_s=100.0)
    arrive(node, 0, 100)
    for query_id in range(1, 12):
        arrive(node, query_id, 100)
    looked = []
    node.service_times.rest_s = lambda role, items, whole=node.service_times.rest_s: (
        looked.append(role),
        whole(role, items),
    )[1]
    for query_id in range(20, 40):
        arrive(node, query_id, 1, 0.001)
    assert looked.count(SLOW) < 60, "each event looked at a dozen parts"


def test_an_idle_host_that_would_be_late_does_not_make_the_server_idle():
    node = node_of(SLOW, FAST, sla_s=0.15)
    assert node.refusal(Query(9, 100, 0.0), 0.0) is None
    arrive(node, 0, 90)
    refusals = [node.refusal(Query(9, 100, 0.0), 0.0) for _ in range(3)]
    assert all(refusals), "the fast worker is busy for 90 ms, the slow one takes a second"


def test_what_is_late_with_all_of_them_expires():
    node = node_of(SLOW, FAST, sla_s=0.3)
    arrive(node, 0, 100)
    (small,) = arrive(node, 1, 5)
    arrive(node, 2, 40)
    actions = node.handle(BatchFinished(0, small.batch.batch_id, 0.05), 0.28)
    assert [(a.query.query_id, a.reason) for a in actions if isinstance(a, RejectQuery)] == [(2, RejectReason.EXPIRED)]


def test_what_only_the_fast_lane_can_do_in_time_is_admitted_by_that():
    node = node_of(FAST, SLOW, SLOW, SLOW, sla_s=0.15)
    for query_id in range(3):
        assert not any(isinstance(action, RejectQuery) for action in arrive(node, query_id, 40))
    refusal = node.refusal(Query(9, 40, 0.0), 0.0)
    assert refusal is not None, "three before it on the one fast worker, and none of the slow ones would be in time"
    assert refusal.retry_after_s == pytest.approx(0.16)


def test_a_query_is_not_spread_over_workers_that_are_slower_with_a_part_than_one_with_all():
    assert started(arrive(node_of(FAST, SLOW, SLOW, spread=True), 0, 100)) == [(0, 0)]
    spread = started(arrive(node_of(FAST, FAST, SLOW, SLOW, spread=True), 0, 100))
    assert {worker for worker, _ in spread} == {0, 1}


def lanes_run(hosts: int, share: float, host_item_s: float):
    """Queries that come at so great a share of what an accelerator that fuses can do, with so many host workers."""
    rng = np.random.default_rng(0)
    sizes = np.clip(rng.lognormal(4.5, 0.9, 3000), 1, 1000).astype(np.int64)
    rate_qps = share * 1024 / 3.02e-3 / float(sizes.mean())
    takes = {
        ACCELERATOR: lambda items, _now: 2e-3 + 1e-6 * items,
        HOST: lambda items, _now: 2e-4 + host_item_s * items,
    }
    workers = [ACCELERATOR] + [HOST] * hosts
    config = NodeConfig(256, sla_s=0.02)
    return run_node(np.cumsum(rng.exponential(1 / rate_qps, 3000)), sizes, config, takes, workers=workers)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_slow_hosts_beside_an_accelerator_do_no_harm(share):
    """Each is in time with the smallest queries only."""
    alone, beside = lanes_run(0, share, 4e-4).attainment(0.02), lanes_run(4, share, 4e-4).attainment(0.02)
    assert beside > alone - 0.01


def test_hosts_that_can_help_do():
    alone, beside = lanes_run(0, 1.2, 4e-5).attainment(0.02), lanes_run(4, 1.2, 4e-5).attainment(0.02)
    assert beside > alone + 0.1


@settings(max_examples=60, deadline=None)
@given(
    gaps=st.lists(st.floats(0, 0.2), min_size=1, max_size=40),
    sizes=st.lists(st.integers(1, 250), min_size=40, max_size=40),
    counts=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(0, 1)),
    sla_s=st.sampled_from([0.05, 0.3, float("inf")]),
    fuse=st.booleans(),
    admission=st.booleans(),
)
def test_every_query_is_answered_or_refused_once(gaps, sizes, counts, sla_s, fuse, admission):
    sparse, dense = WorkerRole(Stage.SPARSE, 80, lane=2, most_handed=2), WorkerRole(Stage.DENSE, 80, lane=2)
    workers = [FAST] * counts[0] + [SLOW] * counts[1] + [sparse, dense] * counts[2]
    item_s = {**ITEM_S, sparse: 0.002, dense: 0.003}
    takes = {role: lambda items, _now, each=item_s[role]: each * items for role in workers}
    config = NodeConfig(100, fuse=fuse, sla_s=sla_s, admission=admission)
    arrivals = np.cumsum(gaps)
    run = run_node(arrivals, np.array(sizes[: len(gaps)]), config, takes, workers=workers)
    for latency_s, refusal in zip(run.latency_s, run.refusals, strict=True):
        assert np.isnan(latency_s) == (refusal is not None)
    if not admission:
        assert run.refused() == 0


def test_what_is_passed_over_keeps_its_order():
    node = node_of(SLOW, FAST, sla_s=10.0)
    begun = arrive(node, 0, 100)
    for query_id in range(1, 6):
        assert started(arrive(node, query_id, 20)) == []
    order, now = [], 0.0
    while begun:
        start = begun[0]
        now += 0.001 * start.batch.items
        begun = [
            action
            for action in node.handle(BatchFinished(1, start.batch.batch_id, 0.001 * start.batch.items), now)
            if isinstance(action, StartBatch) and action.worker_id == 1
        ]
        order += [query_id for _, query_id in started(begun)]
    assert all(before < after for before, after in pairwise(order))
