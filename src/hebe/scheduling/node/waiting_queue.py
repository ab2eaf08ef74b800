"""Splitting and fusion: from query sizes to batch sizes (DeepRecSys; Hercules III.B, data-parallelism).

A CPU worker is fastest on batches that fit its caches, so a query larger than the batch size is split; so is one
that several idle workers answer sooner than one does. An accelerator wants large batches, and any worker saves fixed
cost when small queries share one, so they are fused.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect, insort
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from hebe.query import Query, SubQuery


def split(query: Query, parts: int) -> tuple[SubQuery, ...]:
    """The query in so many parts, of sizes that differ by at most one."""
    if parts == 1:
        return (SubQuery(query, 0, query.items),)
    bounds = [query.items * part // parts for part in range(parts + 1)]
    return tuple(SubQuery(query, start, stop) for start, stop in pairwise(bounds))


def cut(part: SubQuery, items: int) -> tuple[SubQuery, SubQuery]:
    """The first `items` of a part that has more, and the rest."""
    at = part.start + items
    return SubQuery(part.query, part.start, at), SubQuery(part.query, at, part.stop)


@dataclass(eq=False, slots=True)
class _Waiting:
    """A part that waits. It equals itself only: what is cut off one part, time and again, has the same order."""

    deadline_s: float
    order: float
    level: tuple[int, int]
    """Where its items are counted."""
    sub_query: SubQuery | None
    """None once it was dropped: its place in the heap is found later, its tensors go at once."""

    def __lt__(self, other: _Waiting) -> bool:
        if self.deadline_s != other.deadline_s:
            return self.deadline_s < other.deadline_s
        return self.order < other.order


_MOST_DROPPED = 64
"""Places of dropped parts that are left where they are, however few parts wait."""
_LEAST_USUAL = 0.99
_TIME_BOUNDS = (0.25, 0.5, _LEAST_USUAL, 1.01, 2.0, 4.0, 8.0, 16.0)
"""Between classes of queries by the time that they were given, as shares of the usual time, which is one of its own."""


class WaitingQueue:
    """Sub-queries in the order in which they will run: priority, then deadline, then arrival.

    `usual_s`: how long after its arrival a query's deadline usually is.
    """

    def __init__(self, usual_s: float = math.inf) -> None:
        self._bounds_s = [share * usual_s for share in _TIME_BOUNDS]
        self._least_usual_s = _LEAST_USUAL * usual_s
        self._heaps: dict[int, list[_Waiting]] = {}
        """By priority; none is empty."""
        self._priorities: list[int] = []
        """Of the heaps, ascending."""
        self._parts: dict[int, list[_Waiting]] = {}
        """By query."""
        self._order = 0
        self._dropped = 0
        """Places in heaps of parts that were dropped."""
        self._aside: list[_Waiting] = []
        """Passed over, and still waiting."""
        self._items: dict[tuple[int, int], int] = {}
        """Items waiting by priority, and by the class of what time their queries were given."""
        self.popped_items = 0
        """Items that ever left it to be run."""

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def items(self) -> int:
        """Items waiting."""
        return sum(self._items.values())

    @property
    def queries(self) -> int:
        """Queries of which at least one part waits."""
        return len(self._parts)

    @property
    def query_ids(self) -> list[int]:
        """Queries of which at least one part waits, by id."""
        return list(self._parts)

    @property
    def longest_waiting_id(self) -> int:
        """Of the query that was added first, by its id; the queue must not be empty."""
        return next(iter(self._parts))

    @property
    def earliest_deadline_s(self) -> float:
        """Of all that wait; inf if nothing does."""
        heads = [self._head(priority) for priority in tuple(self._priorities)]
        return min((head.deadline_s for head in heads if head is not None), default=math.inf)

    def is_hurried(self, allowed_s: float) -> bool:
        """Whether so long from a query's arrival to its deadline is less than usual, so that it overtakes most."""
        return allowed_s < self._least_usual_s

    def items_ahead(self, priority: int, allowed_s: float) -> int:
        """About how many items would run before a query that arrives now and has `allowed_s` until its deadline: of its
        own priority those that were given about as much time or less.
        """
        if not self._items:
            return 0
        own = self._level(priority, allowed_s)
        return sum(items for level, items in self._items.items() if level <= own)

    def push(self, sub_query: SubQuery) -> None:
        """Add a part to the queue."""
        query = sub_query.query
        level = self._level(query.priority, query.deadline_s - query.arrival_s)
        waiting = _Waiting(query.deadline_s, self._order, level, sub_query)
        self._order += 1
        self._add(waiting, query.priority)
        self._parts.setdefault(query.query_id, []).append(waiting)
        self._count(level, sub_query.items)

    def drop(self, query: Query) -> None:
        """Forget all waiting parts of a query."""
        for waiting in self._parts.pop(query.query_id, ()):
            assert waiting.sub_query is not None
            self._count(waiting.level, -waiting.sub_query.items)
            waiting.sub_query = None
            self._dropped += 1
        if self._dropped > _MOST_DROPPED and 2 * self._dropped > sum(map(len, self._heaps.values())):
            self._close_up()

    def peek(self) -> SubQuery | None:
        """The part that is next, or None."""
        while self._priorities:
            if (head := self._head(self._priorities[0])) is not None:
                return head.sub_query
        return None

    def pop(self) -> SubQuery:
        """Take the part that is next. Raises IndexError if there is none."""
        sub_query = self.peek()
        if sub_query is None:
            raise IndexError("pop from an empty waiting queue")
        query = sub_query.query
        waiting = self._pop_head(query.priority)
        parts = self._parts[query.query_id]
        parts.remove(waiting)
        if not parts:
            del self._parts[query.query_id]
        self._count(waiting.level, -sub_query.items)
        self.popped_items += sub_query.items
        return sub_query

    def pass_over(self) -> None:
        """Let what stands behind the part that is next be next, until `stand_again`. There must be one."""
        self._aside.append(self._pop_head(self._priorities[0]))

    def stand_again(self) -> None:
        """What was passed over has its turn again."""
        for waiting in self._aside:
            if waiting.sub_query is None:  # dropped meanwhile
                self._dropped = max(self._dropped - 1, 0)
            else:
                self._add(waiting, waiting.sub_query.query.priority)
        self._aside.clear()

    def cut(self, items: int) -> None:
        """Let the part that is next have so many items; the rest of it stands next to it.

        Raises ValueError unless it is larger.
        """
        part = self.peek()
        if part is None or part.items <= items:
            raise ValueError(f"no part of more than {items} items is next")
        heap = self._heaps[part.query.priority]
        head = heap[0]
        head.sub_query, remainder = cut(part, items)
        # Of what is equally urgent it is the next one: a fraction behind what it was cut from, before all others.
        rest = _Waiting(head.deadline_s, math.nextafter(head.order, math.inf), head.level, remainder)
        heapq.heappush(heap, rest)
        self._parts[part.query.query_id].append(rest)

    def late_behind(self, now: float) -> list[Query]:
        """Of each priority but the most urgent one, the query that is next, if its deadline has passed."""
        if len(self._priorities) < 2:
            return []
        heads = [self._head(priority) for priority in self._priorities[1:]]
        return [head.sub_query.query for head in heads if head and head.sub_query and head.deadline_s < now]

    def least_urgent_first(self) -> Iterator[Query]:
        """The query of each part that waits, from the least urgent priority on, those with much time rather first."""
        for priority in reversed(self._priorities):
            for waiting in reversed(self._heaps[priority]):
                if waiting.sub_query is not None:
                    yield waiting.sub_query.query

    def _head(self, priority: int) -> _Waiting | None:
        """What is next of a priority; None, and the priority is gone, if all of it was dropped."""
        heap = self._heaps[priority]
        while heap[0].sub_query is None:
            self._dropped -= 1
            self._pop_head(priority)
            if not heap:
                return None
        return heap[0]

    def _add(self, waiting: _Waiting, priority: int) -> None:
        heap = self._heaps.get(priority)
        if heap is None:
            self._heaps[priority] = [waiting]
            insort(self._priorities, priority)
        else:
            heapq.heappush(heap, waiting)

    def _pop_head(self, priority: int) -> _Waiting:
        heap = self._heaps[priority]
        waiting = heapq.heappop(heap)
        if not heap:
            del self._heaps[priority]
            self._priorities.remove(priority)
        return waiting

    def _close_up(self) -> None:
        """Take the places of dropped parts out."""
        heaps = {level: [one for one in heap if one.sub_query is not None] for level, heap in self._heaps.items()}
        self._heaps = {level: heap for level, heap in heaps.items() if heap}
        for heap in self._heaps.values():
            heapq.heapify(heap)
        self._priorities = sorted(self._heaps)
        self._dropped = 0

    def _count(self, level: tuple[int, int], items: int) -> None:
        left = self._items.get(level, 0) + items
        if left:
            self._items[level] = left
        else:
            self._items.pop(level, None)

    def _level(self, priority: int, allowed_s: float) -> tuple[int, int]:
        return priority, bisect(self._bounds_s, allowed_s)
