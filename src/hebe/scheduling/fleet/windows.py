"""What distribution policies share that decide about the first queries at once, and let those yield that are late.

The queries that a policy decides about at once are the first that arrived, prepared for it (`ArrivalWindow`). Those
that cannot be in time any more yield to all others, and are served while workers would be idle (`LateQueries`). One
that took the last idle worker would make the next query late in turn, and so on: beyond its capacity, a fleet that
serves in order of arrival serves late queries only. Those that wait here hold nobody up. Where the queue is full, the
one that has been late longest gives up its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from hebe.query import Query, SubQuery
from hebe.scheduling.fleet.fleet import Fleet


class Entry(Protocol):
    """What a policy keeps for a sub-query in its window."""

    @property
    def sub_query(self) -> SubQuery:
        """The sub-query that it is for."""
        ...


T = TypeVar("T", bound=Entry)


class ArrivalWindow(Generic[T]):
    """`entries` are in the window, `per_worker` for each worker of the fleet; `prepare` makes one of a sub-query.

    A policy takes out of `entries` what it sends, and calls `refill` before it decides.
    """

    def __init__(self, per_worker: int, prepare: Callable[[SubQuery, Fleet], T]) -> None:
        self.entries: list[T] = []
        self._behind: deque[SubQuery] = deque()
        self._per_worker = per_worker
        self._prepare = prepare
        self._size = per_worker

    def __len__(self) -> int:
        return len(self.entries) + len(self._behind)

    def add(self, sub_query: SubQuery, fleet: Fleet) -> None:
        """Into the window, or behind it."""
        if len(self.entries) < self._size and not self._behind:
            self.entries.append(self._prepare(sub_query, fleet))
        else:
            self._behind.append(sub_query)

    def refill(self, fleet: Fleet) -> None:
        """Let those behind follow into the room that there is."""
        while self._behind and len(self.entries) < self._size:
            self.entries.append(self._prepare(self._behind.popleft(), fleet))

    def resize(self, fleet: Fleet) -> None:
        """Follow the number of the fleet's workers."""
        self._size = max(self._per_worker * len(fleet.workers), 1)

    def give_up(self, now: float) -> Query | None:
        """Forget the first that arrived, and return it, if it is overdue."""
        first = self.entries[0].sub_query if self.entries else None
        if first is None or not is_overdue(first, now):
            return None
        self.withdraw(first.query.query_id)
        return first.query

    def withdraw(self, query_id: int) -> None:
        """Forget all parts of a query."""
        self.entries = [entry for entry in self.entries if entry.sub_query.query.query_id != query_id]
        self._behind = without(self._behind, query_id)

    def withdraw_all(self) -> list[SubQuery]:
        """Forget all that waits, and return it."""
        gone = [*(entry.sub_query for entry in self.entries), *self._behind]
        self.entries = []
        self._behind.clear()
        return gone


def is_overdue(sub_query: SubQuery, now: float) -> bool:
    """Whether its query's deadline has passed."""
    return sub_query.query.deadline_s < now


def without(queue: deque[SubQuery], query_id: int) -> deque[SubQuery]:
    """The queue but for the parts of one query."""
    return deque(sub_query for sub_query in queue if sub_query.query.query_id != query_id)


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


class WindowPolicy(Generic[T]):
    """Holds what waits: in the `_window`, or among the `_late` once it cannot be in time any more.

    `per_worker`, `prepare`: of the window. `idle_share`: of the workers, beyond which late queries are served.
    """

    predicts = True

    def __init__(self, per_worker: int, prepare: Callable[[SubQuery, Fleet], T], idle_share: float) -> None:
        self._window = ArrivalWindow(per_worker, prepare)
        self._late = LateQueries(idle_share)

    @property
    def waiting(self) -> int:
        """Sub-queries that wait."""
        return len(self._window) + len(self._late)

    def arrived(self, sub_query: SubQuery, fleet: Fleet, now: float) -> None:  # noqa: ARG002
        """Into the window, or behind it."""
        self._window.add(sub_query, fleet)

    def give_up(self, now: float) -> Query | None:
        """The one that has been late longest; else the first that arrived, if it is overdue."""
        return self._late.give_up(self._window, now)

    def withdraw(self, query_id: int) -> None:
        """Forget it."""
        self._window.withdraw(query_id)
        self._late.withdraw(query_id)

    def withdraw_all(self) -> list[SubQuery]:
        """Forget all."""
        return [*self._window.withdraw_all(), *self._late.withdraw_all()]
