from __future__ import annotations

import math
import weakref
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.query import Query, SubQuery
from hebe.scheduling.node.waiting_queue import WaitingQueue, split


@given(items=st.integers(1, 5000), count=st.integers(1, 600))
def test_parts_cover_the_query_in_order_and_are_as_even_as_can_be(items, count):
    count = min(count, items)
    parts = split(Query(1, items, 0.0), count)
    assert parts[0].start == 0
    assert parts[-1].stop == items
    assert all(a.stop == b.start for a, b in pairwise(parts))
    sizes = [part.items for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert len(parts) == count


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0, 10), st.integers(1, 50)), max_size=30),
    st.sets(st.integers(0, 29)),
)
def test_the_queue_keeps_order_and_counts_through_drops(entries, dropped):
    queue = WaitingQueue()
    queries = [Query(i, items, 0.0, deadline_s=at, priority=p) for i, (p, at, items) in enumerate(entries)]
    for query in queries:
        for part in split(query, -(-query.items // 20)):
            queue.push(part)
    for query in queries:
        if query.query_id in dropped:
            queue.drop(query)
    left = [query for query in queries if query.query_id not in dropped]
    assert queue.queries == len(left)
    assert queue.items == sum(query.items for query in left)
    assert queue.items_ahead(1, math.inf) == sum(query.items for query in left if query.priority <= 1)
    popped = []
    while queue:
        popped.append(queue.pop())
    assert sum(part.items for part in popped) == sum(query.items for query in left)
    keys = [(part.query.priority, part.query.deadline_s, part.query.query_id, part.start) for part in popped]
    assert keys == sorted(keys)
    assert queue.peek() is None
    assert queue.items == 0


def test_popping_an_empty_queue_is_an_error():
    with pytest.raises(IndexError):
        WaitingQueue().pop()


def test_a_part_is_cut_and_the_rest_of_it_is_next():
    queue = WaitingQueue()
    first, second = Query(1, 100, 0.0), Query(2, 10, 0.0)
    for one in (first, second):
        for part in split(one, 1):
            queue.push(part)
    queue.cut(30)
    queue.peek()
    assert queue.items == 110
    assert (queue.queries, queue.query_ids) == (2, [1, 2])
    assert queue.pop() == SubQuery(first, 0, 30)
    queue.cut(30)
    assert [queue.pop() for _ in range(3)] == [
        SubQuery(first, 30, 60),
        SubQuery(first, 60, 100),
        SubQuery(second, 0, 10),
    ]
    assert not queue
    with pytest.raises(ValueError, match="more than 30 items"):
        queue.cut(30)


def test_what_several_workers_have_cut_off_one_part_is_told_apart():
    """Each rest stands as close behind the part as the others do, and a query that is dropped takes all of them."""
    queue = WaitingQueue()
    first, second = Query(1, 1024, 0.0), Query(2, 10, 0.0)
    queue.push(SubQuery(first, 0, 1024))
    for items in (512, 256, 64):
        queue.cut(items)
        queue.pass_over()  # it is too large yet
        queue.stand_again()
    queue.push(SubQuery(second, 0, 10))
    popped = [queue.pop(), queue.pop()]
    assert popped[0] == SubQuery(first, 0, 64)
    assert [part.query for part in popped] == [first, first]
    queue.drop(first)
    assert queue.items == 10
    assert queue.pop() == SubQuery(second, 0, 10)
    assert not queue
    assert queue.peek() is None


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0, 10), st.booleans(), st.booleans()), min_size=1, max_size=300),
)
def test_what_was_dropped_is_let_go_of_wherever_it_stood(entries):
    queue, held, gone = WaitingQueue(), {}, []
    for number, (priority, deadline_s, dropped, popped) in enumerate(entries):
        keys = np.zeros((10, 1), np.int64)
        query = Query(number, 10, 0.0, deadline_s, priority, {"user": keys})
        held[number] = weakref.ref(keys)
        for part in split(query, 2):
            queue.push(part)
        if dropped:
            queue.drop(query)
            queue.drop(query)
            gone.append(held.pop(number))
        del keys, query, part
        if popped and queue:
            before = queue.popped_items
            part = queue.pop()
            assert queue.popped_items == before + part.items
            queue.drop(part.query)
            gone.append(held.pop(part.query.query_id))
            del part
    assert sorted(queue.query_ids) == sorted(held)
    assert all(keys() is not None for keys in held.values())
    assert not any(keys() is not None for keys in gone)


def test_places_of_what_was_dropped_do_not_pile_up():
    queue = WaitingQueue()
    queue.push(SubQuery(Query(0, 1, 0.0, priority=0), 0, 1))
    for number in range(1, 10_000):
        query = Query(number, 1, 0.0, priority=9)
        queue.push(SubQuery(query, 0, 1))
        queue.drop(query)
        assert sum(map(len, queue._heaps.values())) < 100
    assert queue.peek().query.query_id == 0


def test_what_is_late_behind_the_most_urgent_and_who_is_least_urgent():
    queue = WaitingQueue()
    assert (queue.late_behind(9.0), list(queue.least_urgent_first())) == ([], [])
    queries = [Query(n, 1, 0.0, deadline_s, priority) for n, (priority, deadline_s) in enumerate(
        [(0, 1.0), (0, 2.0), (3, 5.0), (3, 1.5), (7, 1.0), (7, 8.0)]
    )]  # fmt: skip
    for query in queries[:2]:
        queue.push(SubQuery(query, 0, 1))
    assert queue.late_behind(9.0) == [], "the next batch finds those"
    for query in queries[2:]:
        queue.push(SubQuery(query, 0, 1))
    assert queue.late_behind(1.0) == []
    assert queue.late_behind(1.2) == [queries[4]]
    assert queue.late_behind(9.0) == [queries[3], queries[4]], "of each priority the next one"
    least_urgent_first = list(queue.least_urgent_first())
    assert least_urgent_first[:2] == [queries[5], queries[4]]
    assert [query.priority for query in least_urgent_first] == [7, 7, 3, 3, 0, 0]
    queue.drop(queries[5])
    assert next(queue.least_urgent_first()) is queries[4]


def test_who_has_waited_longest_and_which_deadline_is_the_earliest():
    queue = WaitingQueue()
    assert queue.earliest_deadline_s == math.inf
    queries = [Query(n, 1, 0.0, deadline_s, priority) for n, (priority, deadline_s) in enumerate(
        [(5, 8.0), (0, 6.0), (5, 3.0), (3, 7.0)]
    )]  # fmt: skip
    for query in queries:
        queue.push(SubQuery(query, 0, 1))
    assert (queue.longest_waiting_id, queue.earliest_deadline_s) == (0, 3.0)
    queue.drop(queries[2])
    assert (queue.longest_waiting_id, queue.earliest_deadline_s) == (0, 6.0)
    queue.drop(queries[0])
    assert queue.pop().query is queries[1]
    assert (queue.longest_waiting_id, queue.earliest_deadline_s) == (3, 7.0)


def test_who_was_given_less_time_is_ahead_of_who_was_given_more():
    queue = WaitingQueue(usual_s=1.0)
    queue.push(SubQuery(Query(1, 30, 0.1, 1.1), 0, 30))
    queue.push(SubQuery(Query(2, 50, 0.2, 60.0), 0, 50))
    queue.push(SubQuery(Query(3, 700, 0.3, 1.0, priority=1), 0, 700))
    queue.push(SubQuery(Query(4, 5, 0.4, 0.7), 0, 5))
    assert [queue.items_ahead(0, allowed_s) for allowed_s in (0.1, 0.4, 0.98, 1.0, 1.5, 60.0)] == [0, 5, 5, 35, 35, 85]
    assert queue.items_ahead(1, 1.0) == 785
    assert (queue.is_hurried(0.98), queue.is_hurried(1.0)) == (True, False)
    queue.drop(Query(2, 50, 0.2, 60.0))
    assert queue.items_ahead(0, 60.0) == 35


def test_where_no_deadline_is_usual_any_is_ahead_of_none():
    queue = WaitingQueue()
    queue.push(SubQuery(Query(1, 30, 0.1), 0, 30))
    queue.push(SubQuery(Query(2, 50, 0.2, 60.0), 0, 50))
    assert [queue.items_ahead(0, allowed_s) for allowed_s in (0.1, math.inf)] == [50, 80]
    assert (queue.is_hurried(60.0), queue.is_hurried(math.inf)) == (True, False)


@given(
    deadlines=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5)), min_size=1, max_size=20),
    passed=st.integers(0, 20),
    dropped=st.sets(st.integers(0, 19)),
)
def test_what_is_passed_over_waits_and_has_its_old_place_again(deadlines, passed, dropped):
    def filled():
        queue = WaitingQueue()
        for number, (priority, at) in enumerate(deadlines):
            queue.push(SubQuery(Query(number, 1, 0.0, deadline_s=float(at), priority=priority), 0, 1))
        return queue

    def drained(queue):
        return [queue.pop().query.query_id for _ in range(queue.items)]

    order = drained(filled())
    queue = filled()
    passed = min(passed, len(order))
    for number in order[:passed]:
        assert queue.peek().query.query_id == number
        queue.pass_over()
    assert (queue.items, queue.queries) == (len(order), len(order)), "they wait as before"
    after = queue.peek()
    assert (after.query.query_id if after else None) == (order[passed] if passed < len(order) else None)
    for number in dropped & set(order):
        priority, at = deadlines[number]
        queue.drop(Query(number, 1, 0.0, deadline_s=float(at), priority=priority))
    queue.stand_again()
    queue.stand_again()
    assert drained(queue) == [number for number in order if number not in dropped]
    assert not queue
