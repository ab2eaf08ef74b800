"""Splitting and fusion: from query sizes to batch sizes (DeepRecSys; Hercules III.B, data-parallelism).

A CPU worker is fastest on batches that fit its caches, so a query larger than the batch size is split; so is one
that several idle workers answer sooner than one does. An accelerator wants large batches, and any worker saves fixed
cost when small queries share one, so they are fused.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from itertools import pairwise

from hebe.query import Query, SubQuery


def split(query: Query, parts: int) -> tuple[SubQuery, ...]:
    """The query in so many parts, of sizes that differ by at most one."""
    bounds = [query.items * part // parts for part in range(parts + 1)]
    return tuple(SubQuery(query, start, stop) for start, stop in pairwise(bounds))


def cut(part: SubQuery, items: int) -> tuple[SubQuery, SubQuery]:
    """The first `items` of a part that has more, and the rest."""
    at = part.start + items
    return SubQuery(part.query, part.start, at), SubQuery(part.query, at, part.stop)


@dataclass(order=True, slots=True)
class _Waiting:
    priority: int
    deadline_s: float
    order: float
    sub_query: SubQuery = field(compare=False)


class WaitingQueue:
    """Sub-queries in the order in which they will run: priority, then deadline, then arrival.

    Withdrawn queries are dropped when they come up.
    """

    def __init__(self) -> None:
        self._heap: list[_Waiting] = []
        self._order = 0
        self._dropped: dict[int, int] = {}
        self._waiting: dict[int, int] = {}
        self.items_by_priority: dict[int, int] = {}
        """Items waiting at each priority."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def items(self) -> int:
        """Items waiting."""
        return sum(self.items_by_priority.values())

    @property
    def queries(self) -> int:
        """Queries of which at least one part waits."""
        return len(self._waiting)

    @property
    def query_ids(self) -> list[int]:
        """Queries of which at least one part waits, by id."""
        return list(self._waiting)

    def items_ahead(self, priority: int) -> int:
        """Items that would run before a query of this priority that arrives now with the usual deadline."""
        return sum(items for level, items in self.items_by_priority.items() if level <= priority)

    def push(self, sub_query: SubQuery) -> None:
        """Add a part to the queue."""
        query = sub_query.query
        heapq.heappush(self._heap, _Waiting(query.priority, query.deadline_s, self._order, sub_query))
        self._order += 1
        self._waiting[query.query_id] = self._waiting.get(query.query_id, 0) + 1
        self._count(query.priority, sub_query.items)

    def drop(self, query: Query) -> None:
        """Forget all waiting parts of a query."""
        parts = self._waiting.pop(query.query_id, 0)
        if not parts:
            return
        self._dropped[query.query_id] = parts
        for waiting in self._heap:  # rare: a withdrawn or expired query
            if waiting.sub_query.query is query:
                self._count(query.priority, -waiting.sub_query.items)

    def peek(self) -> SubQuery | None:
        """The part that is next, or None."""
        while self._heap:
            query_id = self._heap[0].sub_query.query.query_id
            if query_id not in self._dropped:
                return self._heap[0].sub_query
            heapq.heappop(self._heap)
            self._dropped[query_id] -= 1
            if not self._dropped[query_id]:
                del self._dropped[query_id]
        return None

    def pop(self) -> SubQuery:
        """Take the part that is next; the queue must not be empty."""
        sub_query = self.peek()
        if sub_query is None:
            raise IndexError("pop from an empty waiting queue")
        heapq.heappop(self._heap)
        query = sub_query.query
        self._waiting[query.query_id] -= 1
        if not self._waiting[query.query_id]:
            del self._waiting[query.query_id]
        self._count(query.priority, -sub_query.items)
        return sub_query

    def cut(self, items: int) -> None:
        """Let the part that is next, which is larger, have so many items; the rest of it stands next to it."""
        part = self.peek()
        if part is None or part.items <= items:
            raise ValueError(f"no part of more than {items} items is next")
        head = self._heap[0]
        head.sub_query, rest = cut(part, items)
        # Of what is equally urgent it is the next one: a fraction behind what it was cut from, before all others.
        heapq.heappush(self._heap, _Waiting(head.priority, head.deadline_s, math.nextafter(head.order, math.inf), rest))
        self._waiting[part.query.query_id] += 1

    def _count(self, priority: int, items: int) -> None:
        left = self.items_by_priority.get(priority, 0) + items
        if left:
            self.items_by_priority[priority] = left
        else:
            self.items_by_priority.pop(priority, None)
