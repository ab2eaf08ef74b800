"""The node scheduler's order by priority and deadline, and what it refuses or drops to keep deadlines."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from hebe.scheduling.events import (
    BatchFinished,
    CompleteQuery,
    QueryArrived,
    RejectQuery,
    RejectReason,
    StartBatch,
)
from tests.scheduling.node.one_node import batch_ids, query, scheduler, started


def test_a_query_that_cannot_meet_its_deadline_is_refused_at_once():
    node = scheduler(sla_s=0.120)
    node.handle(QueryArrived(query(1, 100)), 0.0)
    late = query(2, 50)
    (action,) = node.handle(QueryArrived(late), 0.0)
    assert isinstance(action, RejectQuery)
    assert action.reason is RejectReason.DEADLINE
    assert action.retry_after_s == pytest.approx(0.150, rel=0.05)


def test_a_refusal_tells_the_time_with_the_margin_that_did_not_fit():
    node = scheduler(sla_s=0.220)
    node._admission.margin_s = 0.1
    node.handle(QueryArrived(query(1, 100)), 0.0)
    late = query(2, 100)
    assert node.refusal(late, 0.0).likely_within_s == pytest.approx(0.3)
    (action,) = node.handle(QueryArrived(late), 0.0)
    assert (action.reason, action.retry_after_s) == (RejectReason.DEADLINE, pytest.approx(0.2))
    assert action.likely_within_s == pytest.approx(0.3)


def test_a_refusal_can_be_foreseen_and_changes_nothing():
    node = scheduler(sla_s=0.120)
    late = query(2, 50)
    assert node.refusal(late, 0.0) is None
    node.handle(QueryArrived(query(1, 100)), 0.0)
    foreseen = node.refusal(late, 0.0)
    assert late.deadline_s == float("inf")
    assert node.handle(QueryArrived(late), 0.0) == [foreseen]
    assert foreseen.reason is RejectReason.DEADLINE
    assert node.refusal(query(3, 50, deadline_s=1.0), 0.0) is None


def test_its_own_deadline_goes_before_the_sla():
    node = scheduler(sla_s=0.120)
    node.handle(QueryArrived(query(1, 100)), 0.0)
    assert node.handle(QueryArrived(query(2, 50, deadline_s=1.0)), 0.0) == []


def test_without_admission_everything_is_queued():
    node = scheduler(sla_s=0.001, admission=False)
    for query_id in range(5):
        assert not any(isinstance(a, RejectQuery) for a in node.handle(QueryArrived(query(query_id, 100)), 0.0))


def test_a_query_that_waited_too_long_is_dropped_before_it_costs_a_worker():
    node = scheduler(sla_s=0.250)
    actions = node.handle(QueryArrived(query(1, 100)), 0.0)
    node.handle(QueryArrived(query(2, 100)), 0.0)
    actions = node.handle(BatchFinished(0, batch_ids(actions)[0], 0.2), 0.2)
    assert [type(a) for a in actions] == [CompleteQuery, RejectQuery]
    assert actions[1].reason is RejectReason.EXPIRED
    assert node.idle


def test_urgent_priority_goes_first():
    node = scheduler()
    actions = node.handle(QueryArrived(query(1, 100)), 0.0)
    node.handle(QueryArrived(query(2, 100, priority=5)), 0.0)
    node.handle(QueryArrived(query(3, 100, priority=1)), 0.0)
    actions = node.handle(BatchFinished(0, batch_ids(actions)[0], 0.1), 0.1)
    assert started(actions) == [(0, [(3, 0, 100)])]


def test_work_of_lower_priority_does_not_count_as_ahead():
    node = scheduler(sla_s=1.2)
    node.handle(QueryArrived(query(1, 100)), 0.0)
    for query_id in range(2, 12):
        node.handle(QueryArrived(query(query_id, 100, priority=9)), 0.0)
    assert node.handle(QueryArrived(query(50, 100, deadline_s=0.3)), 0.0) == []
    (action,) = node.handle(QueryArrived(query(51, 100, priority=9)), 0.0)
    assert isinstance(action, RejectQuery)


def test_work_with_more_time_does_not_count_as_ahead():
    """It has it still, and so waits. 100 ms are left of what runs, and 100 ms are the query's own."""
    node = scheduler(sla_s=1.0)
    for query_id in range(1, 6):
        node.handle(QueryArrived(query(query_id, 100)), 0.0)
    assert node.refusal(query(50, 100, deadline_s=0.19), 0.0).retry_after_s == pytest.approx(0.2)
    assert node.handle(QueryArrived(query(51, 100, deadline_s=0.21)), 0.0) == []
    actions = node.handle(BatchFinished(0, 0, 0.1), 0.1)
    assert started(actions) == [(0, [(51, 0, 100)])]


def test_those_that_overtake_learn_a_margin_of_their_own():
    """How late they make the others says nothing of them."""
    node = scheduler(sla_s=1.0)
    node._admission.margin_s = 0.9
    now = 0.0
    for query_id in range(100):
        first = node.handle(QueryArrived(query(query_id, 50, now, deadline_s=now + 0.5)), now)
        node.handle(QueryArrived(query(1000 + query_id, 50, now, deadline_s=now + 0.5)), now)
        assert node.queue_depth == 1, "the second is admitted though it finds work ahead"
        assert node.refusal(query(9, 50, now), now).reason is RejectReason.DEADLINE
        second = node.handle(BatchFinished(0, batch_ids(first)[0], 0.05), now + 0.3)
        node.handle(BatchFinished(0, batch_ids(second)[0], 0.05), now + 0.4)
        now += 1.0
        if node._hurried_admission.margin_s > 0.2:
            break
    assert node._admission.margin_s == 0.9
    assert 0.2 < node._hurried_admission.margin_s < 0.4


def test_a_query_behind_more_urgent_ones_is_rejected_when_its_time_has_run_out():
    """However long these keep coming: its own turn never comes."""
    node = scheduler(sla_s=5.0)
    actions, now, answers = node.handle(QueryArrived(query(1, 100)), 0.0), 0.0, []
    node.handle(QueryArrived(query(2, 100)), 0.0)
    patient, hurried = query(3, 100, priority=9), query(4, 10, priority=9, deadline_s=0.5)
    assert node.handle(QueryArrived(patient), 0.0) + node.handle(QueryArrived(hurried), 0.0) == []
    for number in range(5, 30):
        now += 0.1
        actions = node.handle(BatchFinished(0, batch_ids(actions)[0], 0.1), now)
        answers += [(now, a) for a in actions if isinstance(a, RejectQuery)]
        node.handle(QueryArrived(query(number, 100, now)), now)
    [(at_s, rejected)] = answers
    assert (rejected.query, rejected.reason) == (hurried, RejectReason.EXPIRED)
    assert at_s == pytest.approx(0.5)
    assert node.queue_depth == 2, "the patient one waits on"


def test_a_query_that_has_begun_behind_more_urgent_ones_is_rejected_too_and_holds_up_no_other():
    """It would be late, and its rest stands at the head of its priority for as long as those keep coming."""
    node = scheduler(sla_s=1.0)
    begun, behind = query(1, 200, priority=1), query(2, 100, priority=1)
    actions = node.handle(QueryArrived(begun), 0.0)
    assert started(actions) == [(0, [(1, 0, 100)])]
    assert node.handle(QueryArrived(behind), 0.0) == []
    answers = []
    for number in range(3, 16):
        now = 0.1 * (number - 3)
        answers += [(now, action) for action in node.handle(QueryArrived(query(number, 100, now)), now)]
        actions = node.handle(BatchFinished(0, batch_ids(actions)[0], 0.1), now + 0.09)
    assert answers == [(1.1, RejectQuery(one, RejectReason.EXPIRED)) for one in (begun, behind)]


def test_what_still_runs_of_a_query_that_ran_out_of_time_is_of_no_consequence():
    node = scheduler(sla_s=1.0)
    late = query(1, 200, priority=1)
    first = node.handle(QueryArrived(late), 0.0)
    node.handle(QueryArrived(query(2, 100, 1.0)), 1.0)
    rejected = node.handle(QueryArrived(query(3, 100, 1.01)), 1.01)
    assert rejected == [RejectQuery(late, RejectReason.EXPIRED)]
    actions = node.handle(BatchFinished(0, batch_ids(first)[0], 1.02), 1.02)
    assert [type(action) for action in actions] == [StartBatch]


def test_less_urgent_queries_give_their_places_in_a_full_queue_to_more_urgent_ones():
    node = scheduler(max_queue=3, sla_s=1000.0)
    node.handle(QueryArrived(query(1, 100)), 0.0)
    waiting = [query(number, 100, priority=5) for number in (2, 3, 4)]
    for one in waiting:
        assert node.handle(QueryArrived(one), 0.0) == []
    assert node.refusal(query(9, 1, priority=5), 0.0).reason is RejectReason.QUEUE_FULL
    assert node.refusal(query(9, 1, priority=4), 0.0) is None
    [given_up] = node.handle(QueryArrived(query(5, 100, priority=4)), 0.0)
    assert given_up.reason is RejectReason.QUEUE_FULL
    assert given_up.query in waiting
    [given_up] = node.handle(QueryArrived(query(6, 100, priority=9)), 0.0)
    assert given_up.query.query_id == 6
    assert node.queue_depth == 3


def test_a_query_that_has_begun_keeps_its_place_in_a_full_queue_and_another_gives_way():
    node = scheduler(max_queue=2, sla_s=1000.0)
    node.handle(QueryArrived(query(1, 200, priority=5, deadline_s=2000.0)), 0.0)
    other = query(2, 100, priority=5)
    node.handle(QueryArrived(other), 0.0)
    assert node.handle(QueryArrived(query(3, 100)), 0.0) == [RejectQuery(other, RejectReason.QUEUE_FULL)]
    assert node.refusal(query(4, 100), 0.0).reason is RejectReason.QUEUE_FULL


def _urgent_in_time(batch_rate_qps: float, **batch_class) -> float:
    """The share of queries with 0.2 s that are answered in time, in virtual time: 40 a second arrive, one worker takes
    50, and others that have 10 s arrive beside them.
    """
    random = np.random.default_rng(7)
    node = scheduler(sla_s=0.2, batch_size=20)
    now, free_s, running, urgent, in_time = 0.0, math.inf, None, 0, 0
    while urgent < 4000:
        at_s = now + random.exponential(1 / (40.0 + batch_rate_qps))
        while free_s <= at_s:
            now, ended = free_s, running
            actions = node.handle(BatchFinished(0, ended.batch_id, ended.items * 1e-3), now)
            done = (a.query for a in actions if isinstance(a, CompleteQuery))
            in_time += sum(one.deadline_s - one.arrival_s < 1.0 and now <= one.deadline_s for one in done)
            running = next((a.batch for a in actions if isinstance(a, StartBatch)), None)
            free_s = math.inf if running is None else now + running.items * 1e-3
        now, of_batch = at_s, random.random() * (40.0 + batch_rate_qps) > 40.0
        urgent += not of_batch
        more = {**batch_class, "deadline_s": now + 10.0} if of_batch else {}
        for action in node.handle(QueryArrived(query(next(_IDS), 20, now, **more)), now):
            if isinstance(action, StartBatch):
                running, free_s = action.batch, now + action.batch.items * 1e-3
    return in_time / urgent


_IDS = itertools.count()


@pytest.mark.parametrize(("batch_class", "least"), [({"priority": 5}, 0.98), ({}, 0.8)])
def test_queries_with_much_time_that_are_overtaken_take_no_chance_from_those_with_little(batch_class, least):
    """Their latency would be learned as how far off predictions are, and half of the others refused. At the same
    priority they are as urgent as any when their own time runs out: a fifth more arrives than can be served.
    """
    assert _urgent_in_time(0.0) > 0.98
    assert _urgent_in_time(20.0, **batch_class) > least
