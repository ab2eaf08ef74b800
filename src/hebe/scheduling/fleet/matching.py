"""Kairos' distribution (section 5.1): waiting queries are matched with workers so that the least time is used up.

At each event the first queries that wait and all workers, busy ones with the time that they still need, form the cost
matrix C_j * L_ij of Eq. 4, in which a late answer costs ten SLAs (Eq. 8). What is matched with a busy worker waits and
is matched anew at the next event. In large fleets the busy workers of one type are taken together
(`assignment.busy_columns`).

What is matched with an idle worker is sent, as by section 5.1, but for one case: its answer would come after the
deadline, while on some type it would still be in time, had that type's busy workers been idle. The paper sends it, and
holds a worker for long that others could be in time on. What waits so waits for a busy worker, whose answer has it
matched anew: nothing waits while all are idle.

Nor is a query matched any more that is late on all types (`LateQueries`). By Eq. 8 alone, a fleet that is offered more
than it can serve soon serves late queries only; so, of 1.3 times its capacity nine in ten are in time
(`pytest tests/simulation/fleet/test_fleet_run.py -k overloaded`).

L_ij is not the predicted time, as in the paper, but the tail's (`latency_prediction`): a burstable type is not handed
what it serves in time only on average.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hebe.query import SubQuery
from hebe.scheduling.fleet.assignment import LATE_PENALTY, Floats, busy_columns, match_queries, matching_cost
from hebe.scheduling.fleet.distribution import Placements
from hebe.scheduling.fleet.fleet import Fleet
from hebe.scheduling.fleet.windows import WindowPolicy
from hebe.spec import SAFEGUARD

WINDOW_PER_WORKER = 2
"""Queries that take part in a matching, per worker: those beyond wait in order of arrival."""
IDLE_FOR_LATE = 0.4
"""Late queries are served while more than this share of the workers is idle: whole, they hold one for long."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """What waits, its tail time on each type, and its predicted time on the fastest that there is: seconds."""

    sub_query: SubQuery
    service_s: tuple[float, ...]
    fastest_s: float


class CostMatching(WindowPolicy[_Waiting]):
    """Kairos' matching, for queries of at most `largest` items and an SLA of `sla_s` seconds.

    The heterogeneity coefficient of a type is the base type's predicted time for the largest query over its own
    (Definition 1), the base being the fastest there; or give `coefficients` [types], positive, to fix them.
    Raises ValueError for an SLA or a largest query that is not positive.
    """

    def __init__(self, sla_s: float, largest: int, coefficients: Floats | None = None) -> None:
        if not sla_s > 0 or largest < 1:
            raise ValueError(f"sla_s {sla_s}, largest {largest}: both must be positive")
        super().__init__(WINDOW_PER_WORKER, self._with_service_times, IDLE_FOR_LATE)
        self._sla_s = sla_s
        self._largest = largest
        self._fixed = None if coefficients is None else coefficients.tolist()
        self._types_there: list[int] = []

    def place(self, fleet: Fleet, now: float) -> Placements:
        """Match, and send what is matched with an idle worker and does not wait all the same, until no such is left."""
        placed: Placements = []
        self._window.refill(fleet)
        while self._window.entries and fleet.idle_workers:
            late = len(self._late)
            sent = self._match(fleet, now)
            if not sent and len(self._late) == late:
                break
            placed += sent
            self._window.refill(fleet)
            if fleet.idle_workers:  # the next round must not take these workers for free at once
                for sub_query, worker in sent:
                    worker.busy_until_s = now + fleet.service_time_s(worker.server_type, sub_query.items)
        while self._late.may_go(fleet):
            self._send_late(fleet, placed)
        return placed

    def _match(self, fleet: Fleet, now: float) -> Placements:
        entries = self._window.entries = [entry for entry in self._window.entries if not self._set_aside(entry, now)]
        if len(entries) != 1:
            return self._match_together(entries, fleet, now) if entries else []
        (lone,) = entries
        kind = self._best_idle(lone, fleet, now)
        if kind is None:
            return []
        self._window.entries = []
        return [(lone.sub_query, fleet.take(kind))]

    def _best_idle(self, entry: _Waiting, fleet: Fleet, now: float) -> int | None:
        """The idle type that a query gets by `_match_together` where no other waits, as mostly none does: that of the
        least cost, found without building a matrix. None where it is to wait.
        """
        coefficients = self._coefficients(fleet)
        waited_s = self._sla_s - (entry.sub_query.query.deadline_s - now)
        in_time_s = SAFEGUARD * self._sla_s - waited_s
        busy = [worker for worker in fleet.workers if worker.taken]
        busy_types = {worker.server_type for worker in busy}
        idle_types = [kind for kind in range(len(fleet.types)) if fleet.idle(kind)]
        late_cost = [LATE_PENALTY * self._sla_s * coefficient for coefficient in coefficients]
        late_at_least = max(coefficients[kind] for kind in {*idle_types, *busy_types})
        if late_at_least > LATE_PENALTY * min(coefficients):
            late_cost = [max(cost, late_at_least * self._sla_s) for cost in late_cost]

        best, least = -1, np.inf
        for kind in idle_types:
            ends_s = entry.service_s[kind]
            cost = late_cost[kind] if ends_s > in_time_s else ends_s * coefficients[kind]
            if cost < least:
                best, least = kind, cost
        for worker in busy:
            kind = worker.server_type
            ends_s = entry.service_s[kind] + max(worker.busy_until_s - now, 0.0)
            if (late_cost[kind] if ends_s > in_time_s else ends_s * coefficients[kind]) < least:
                return None
        if entry.service_s[best] > self._sla_s - waited_s:
            soonest_s = min((entry.service_s[kind] for kind in busy_types), default=np.inf)
            return None if soonest_s <= in_time_s else best
        return best

    def _match_together(self, entries: list[_Waiting], fleet: Fleet, now: float) -> Placements:
        types = len(fleet.types)
        busy = [worker for worker in fleet.workers if worker.taken]
        types_of_busy = np.array([worker.server_type for worker in busy], dtype=np.int64)
        busy_s = np.array([max(worker.busy_until_s - now, 0.0) for worker in busy])
        busy_types, remaining_s, busy_counts = busy_columns(len(entries), fleet.idle_workers, types_of_busy, busy_s)
        counts = np.array([*(fleet.idle(kind) for kind in range(types)), *busy_counts], dtype=np.int64)
        service_s = np.array([entry.service_s for entry in entries])
        # A deadline of its own counts as if the query had waited so much longer, or shorter.
        waited_s = np.array([self._sla_s - (entry.sub_query.query.deadline_s - now) for entry in entries])
        coefficients = np.array(self._coefficients(fleet))
        there = counts[:types] > 0
        there[types_of_busy] = True
        cost = matching_cost(
            service_s, waited_s, coefficients, self._sla_s, busy_types=busy_types, busy_remaining_s=remaining_s,
            late_at_least=float(coefficients[there].max()),
        )  # fmt: skip
        columns = match_queries(cost, counts).tolist()
        placed: Placements = []
        stays: list[int] = []
        late: list[int] = []
        for row, column in enumerate(columns):
            if not 0 <= column < types:
                stays.append(row)
            elif service_s[row, column] > self._sla_s - waited_s[row]:
                late.append(row)
            else:
                placed.append((entries[row].sub_query, fleet.take(column)))
        if late:
            awaited = {*types_of_busy.tolist(), *(worker.server_type for _, worker in placed)}
            soonest_s = service_s[:, sorted(awaited)].min(axis=1, initial=np.inf)
            for row in late:
                if soonest_s[row] <= SAFEGUARD * self._sla_s - waited_s[row]:
                    stays.append(row)
                else:
                    placed.append((entries[row].sub_query, fleet.take(columns[row])))
            stays.sort()
        self._window.entries = [entries[row] for row in stays]
        return placed

    def _set_aside(self, entry: _Waiting, now: float) -> bool:
        """Whether it cannot be in time any more, wherever it goes."""
        if now + entry.fastest_s <= entry.sub_query.query.deadline_s:
            return False
        self._late.add(entry.sub_query)
        return True

    def _send_late(self, fleet: Fleet, placed: Placements) -> None:
        """The one that has been late longest, to the idle type where it costs least."""
        late, coefficients = self._late.take(), self._coefficients(fleet)
        idle = [kind for kind in self._types_there if fleet.idle(kind)]
        kind = min(idle, key=lambda kind: coefficients[kind] * fleet.service_time_s(kind, late.items))
        placed.append((late, fleet.take(kind)))

    def _with_service_times(self, sub_query: SubQuery, fleet: Fleet) -> _Waiting:
        items = sub_query.items
        tail_s = tuple(predictor.tail_time_s(items, SAFEGUARD) for predictor in fleet.predictors)
        fastest_s = min((fleet.service_time_s(kind, items) for kind in self._types_there), default=0.0)
        return _Waiting(sub_query, tail_s, fastest_s)

    def _coefficients(self, fleet: Fleet) -> list[float]:
        return fleet.coefficients(self._largest) if self._fixed is None else self._fixed

    def fleet_changed(self, fleet: Fleet, now: float) -> None:  # noqa: ARG002
        """The window follows the number of workers, what waits in it their types."""
        self._types_there = sorted({worker.server_type for worker in fleet.workers})
        self._window.resize(fleet)
        self._window.entries = [self._with_service_times(entry.sub_query, fleet) for entry in self._window.entries]
