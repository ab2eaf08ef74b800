"""The queries that cannot be in time any more: they yield to all others, and are served while workers would be idle.

One that took the last idle worker would make the next query late in turn, and so on: beyond its capacity, a fleet that
serves in order of arrival serves late queries only. Those that wait here hold nobody up. Where the queue is full, the
one that has been late longest gives up its place.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from hebe.query import Query, SubQuery
from hebe.scheduling.fleet.fleet import Fleet
from hebe.scheduling.fleet.windows import ArrivalWindow, without


class LateQueries:
    """The one that has been late longest is taken first, once more than the `idle_share` of the workers is idle."""

    def __init__(self, idle_share: float) -> None:
        self._waiting: deque[SubQuery] = deque()
        self._idle_share = idle_share

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, sub_query: SubQuery) -> None:
        """It is late from now on."""
        self._waiting.append(sub_query)

    def may_go(self, fleet: Fleet) -> bool:
        """Whether there is one, and enough workers are idle for it."""
        return bool(self._waiting) and fleet.idle_workers > self._idle_share * len(fleet.workers)

    def take(self) -> SubQuery:
        """The one to serve now; there must be one."""
        return self._waiting.popleft()

    def put_back(self, rest: SubQuery) -> None:
        """What is left of the one that was taken."""
        self._waiting.appendleft(rest)

    def give_up(self, window: ArrivalWindow[Any], now: float) -> Query | None:
        """Forget the one that has been late longest, all parts of it, and return it; else the window's first, if it is
        overdue."""
        if not self._waiting:
            return window.give_up(now)
        query = self._waiting[0].query
        self.withdraw(query.query_id)
        window.withdraw(query.query_id)
        return query

    def withdraw(self, query_id: int) -> None:
        """Forget all parts of a query."""
        self._waiting = without(self._waiting, query_id)

    def withdraw_all(self) -> list[SubQuery]:
        """Forget all, and return them."""
        gone, self._waiting = list(self._waiting), deque()
        return gone
