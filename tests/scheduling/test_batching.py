from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.query import Query, SubQuery
from hebe.scheduling.batching import WaitingQueue, split


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
    assert queue.items_ahead(1) == sum(query.items for query in left if query.priority <= 1)
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
