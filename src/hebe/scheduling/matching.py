"""Kairos' distribution (section 5.1): waiting queries are matched with workers so that the least time is used up.

At each event the first queries that wait and all workers, busy ones with the time that they still need, form the cost
matrix C_j * L_ij of Eq. 4, in which a late answer costs ten SLAs (Eq. 8). What is matched with an idle worker is sent;
what is matched with a busy one waits and is matched anew at the next event.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from hebe.query import SubQuery
from hebe.scheduling.assignment import SAFEGUARD, Floats, match_queries, matching_cost
from hebe.scheduling.distribution import Placements
from hebe.scheduling.fleet import Fleet

WINDOW_PER_WORKER = 2
"""Queries that take part in a matching, per worker: those beyond wait in order of arrival."""


class CostMatching:
    """Kairos' matching, for queries of at most `largest` items and an SLA of `sla_s` seconds.

    The heterogeneity coefficient of a type is the base type's predicted time for the largest query over its own
    (Definition 1), the base being the fastest there; or give `coefficients` [types], positive, to fix them.
    `safeguard` is the paper's xi.
    """

    predicts = True

    def __init__(
        self, sla_s: float, largest: int, coefficients: Floats | None = None, safeguard: float = SAFEGUARD
    ) -> None:
        if not sla_s > 0 or largest < 1:
            raise ValueError(f"sla_s {sla_s}, largest {largest}: both must be positive")
        self._sla_s = sla_s
        self._largest = largest
        self._fixed = coefficients
        self._safeguard = safeguard
        self._window: list[SubQuery] = []
        self._service_s: list[tuple[float, ...]] = []
        self._behind: deque[SubQuery] = deque()
        self._window_size = WINDOW_PER_WORKER

    @property
    def waiting(self) -> int:
        """Sub-queries that wait."""
        return len(self._window) + len(self._behind)

    def arrived(self, sub_query: SubQuery, fleet: Fleet, now: float) -> None:  # noqa: ARG002
        """Into the window, or behind it."""
        if len(self._window) < self._window_size:
            self._admit(sub_query, fleet)
        else:
            self._behind.append(sub_query)

    def place(self, fleet: Fleet, now: float) -> Placements:
        """Match, and send what is matched with an idle worker, until no such match is left."""
        placed: Placements = []
        while self._window and fleet.idle_workers:
            sent = self._match(fleet, now)
            if not sent:
                break
            placed += sent
            while self._behind and len(self._window) < self._window_size:
                self._admit(self._behind.popleft(), fleet)
        return placed

    def _admit(self, sub_query: SubQuery, fleet: Fleet) -> None:
        self._window.append(sub_query)
        self._service_s.append(tuple(predictor.service_time_s(sub_query.items) for predictor in fleet.predictors))

    def _match(self, fleet: Fleet, now: float) -> Placements:
        types = range(len(fleet.types))
        busy = [worker for worker in fleet.workers if worker.taken]
        remaining_s = np.array([max(worker.busy_until_s - now, 0.0) for worker in busy])
        service_s = np.array(self._service_s)
        # A deadline of its own counts as if the query had waited so much longer, or shorter.
        waited_s = np.array([self._sla_s - (part.query.deadline_s - now) for part in self._window])
        cost = matching_cost(
            service_s, waited_s, self._coefficients(fleet), self._sla_s,
            busy_types=np.array([worker.server_type for worker in busy], dtype=np.int64),
            busy_remaining_s=remaining_s, safeguard=self._safeguard,
        )  # fmt: skip
        counts = np.array([*(fleet.idle(kind) for kind in types), *(1 for _ in busy)], dtype=np.int64)
        columns = match_queries(cost, counts).tolist()
        late_s = self._safeguard * self._sla_s - waited_s
        placed: Placements = []
        for row, column in enumerate(columns):
            if not 0 <= column < len(fleet.types):
                continue
            # Late here, but in time on another type that is busy: better to wait for that one.
            if service_s[row, column] > late_s[row] and service_s[row].min() <= late_s[row]:
                continue
            placed.append((self._window[row], fleet.take(column)))
        if placed:
            gone = {id(part) for part, _ in placed}
            kept = [row for row, part in enumerate(self._window) if id(part) not in gone]
            self._window = [self._window[row] for row in kept]
            self._service_s = [self._service_s[row] for row in kept]
        return placed

    def _coefficients(self, fleet: Fleet) -> Floats:
        if self._fixed is not None:
            return self._fixed
        largest_s = np.array([predictor.service_time_s(self._largest) for predictor in fleet.predictors])
        return np.asarray(largest_s.min() / largest_s)

    def withdraw(self, query_id: int) -> None:
        """Forget it."""
        kept = [row for row, part in enumerate(self._window) if part.query.query_id != query_id]
        self._window = [self._window[row] for row in kept]
        self._service_s = [self._service_s[row] for row in kept]
        self._behind = deque(part for part in self._behind if part.query.query_id != query_id)

    def withdraw_all(self) -> list[SubQuery]:
        """Forget all."""
        gone = [*self._window, *self._behind]
        self._window, self._service_s, self._behind = [], [], deque()
        return gone

    def fleet_changed(self, fleet: Fleet, now: float) -> None:  # noqa: ARG002
        """The window follows the number of workers."""
        self._window_size = max(WINDOW_PER_WORKER * len(fleet.workers), 1)
