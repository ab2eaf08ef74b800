"""The queries that a policy decides about at once: the first that arrived, prepared for it, and those behind them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

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
