import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.query import QueryResult
from hebe.scheduling.events import Stage
from hebe.serving.hosting.profile_in_use import LoadWindow, WindowCounter
from hebe.serving.statistics import ModelStatistics


def answer(counted, latency_s, times=1):
    for _ in range(times):
        counted.query_answered(8, QueryResult(1, np.zeros((8, 1), np.float32), latency_s, 0.0, 0.0, 0.0), 0.0, 0.0)


def test_a_window_counts_what_came_while_it_was_open():
    counted = ModelStatistics("ranker", 1, 0.05)
    answer(counted, 0.5, 7)
    counted.query_refused("deadline", 0.0)
    counter = WindowCounter(counted, 95.0, 100.0)
    assert counter.window(110.0) == LoadWindow(10.0, 0, 0, 95.0)
    answer(counted, 0.01, 30)
    answer(counted, 0.06, 4)
    for reason in ("deadline", "queue_full", "expired", "invalid", "cancelled", "failed"):
        counted.query_refused(reason, 0.0)
    counter.drew(20.0, estimated=False)
    counter.drew(15.0, estimated=True)
    window = counter.window(110.0)
    assert window == LoadWindow(10.0, 37, 7, 95.0, 20.0, True, refused=3)
    assert (window.qps, window.answered) == (3.7, 34)


def test_the_busiest_stage_counts():
    counted = ModelStatistics("ranker", 1, 0.05)
    sparse, dense = (0, Stage.SPARSE), (0, Stage.DENSE)
    counter = WindowCounter(counted, 95.0, 100.0, {sparse: 3.0, dense: 5.0})
    assert counter.window(110.0, {sparse: 12.0, dense: 6.0}).busy_share == pytest.approx(0.9)
    beside = (1, Stage.WHOLE)
    assert counter.window(110.0, {sparse: 12.0, dense: 6.0, beside: 2.0}).busy_share == pytest.approx(0.2)
    assert counter.window(110.0).busy_share is None
    assert counter.window(100.0, {sparse: 3.0}).busy_share is None
    assert not counter.window(110.0).disturbed
    counter.disturbed = True
    assert counter.window(110.0).disturbed


def test_a_request_that_gives_less_time_than_the_bound_says_nothing_of_it():
    counted = ModelStatistics("ranker", 1, 0.05)
    counter = WindowCounter(counted, 95.0, 0.0)
    counted.query_refused("deadline", 0.0, 0.049)
    counted.query_refused("deadline", 0.0, 0.05)
    assert counter.window(1.0).queries == 1


def test_what_a_client_gave_up_after_the_bound_was_late():
    counted = ModelStatistics("ranker", 1, 0.05)
    counter = WindowCounter(counted, 95.0, 0.0)
    counted.query_refused("cancelled", 0.051)
    counted.query_refused("cancelled", 0.05)
    window = counter.window(1.0)
    assert (window.queries, window.late, window.answered) == (1, 1, 0)


@pytest.mark.parametrize(("failures", "late", "kept"), [(21, 0, True), (22, 0, None), (22, 400, None), (400, 0, None)])
def test_where_more_fail_than_may_be_late_the_window_says_nothing(failures, late, kept):
    counted = ModelStatistics("ranker", 1, 0.05)
    counter = WindowCounter(counted, 95.0, 0.0)
    answer(counted, 0.01, 400 - late)
    answer(counted, 0.1, late)
    for _ in range(failures):
        counted.query_refused("failed", 0.001, failed=True)
    window = counter.window(10.0)
    assert (window.queries, window.late, window.failures) == (400, late, failures)
    assert window.kept is kept


@pytest.mark.parametrize(
    ("percentile", "queries", "tells"), [(95.0, 399, False), (95.0, 400, True), (99.0, 400, False), (99.0, 2000, True)]
)
def test_a_percentile_needs_queries(percentile, queries, tells):
    assert LoadWindow(10.0, queries, 0, percentile).tells == tells


@pytest.mark.parametrize(("late", "kept"), [(0, True), (20, True), (21, None), (33, None), (34, False), (400, False)])
def test_a_target_is_missed_when_it_cannot_be_chance(late, kept):
    assert LoadWindow(10.0, 400, late, 95.0).kept is kept


@given(st.integers(1, 10**6), st.floats(0, 1), st.floats(50, 99.9))
def test_more_late_queries_never_look_better(queries, share, percentile):
    order = {False: 0, None: 1, True: 2}
    late = int(queries * share)
    fewer, more = (LoadWindow(10.0, queries, each, percentile).kept for each in (late, min(late + 1, queries)))
    assert order[fewer] >= order[more]
