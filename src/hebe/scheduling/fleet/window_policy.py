"""What distribution policies share that decide about the first queries at once, and let those yield that are late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from hebe.query import Query, SubQuery
from hebe.scheduling.fleet.fleet import Fleet
from hebe.scheduling.fleet.late_queries import LateQueries
from hebe.scheduling.fleet.windows import ArrivalWindow, T


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
