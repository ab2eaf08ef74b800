"""Which waiting query goes to which idle worker of a fleet: the contract of distribution policies, and the baselines.

The baselines are those that Kairos compares with (section 7): FCFS (Ribbon), a size threshold (DeepRecSys), and
queues per instance filled by predicted finish (Clockwork). Kairos' own matching is `scheduling.matching`.

A part of a query that a lost instance had comes back as it was; policies treat it as a smaller query.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hebe.query import Query, SubQuery
from hebe.scheduling.fleet.fleet import Fleet, FleetWorker
from hebe.scheduling.fleet.windows import is_overdue, without

Placements = list[tuple[SubQuery, FleetWorker]]


class DistributionPolicy(Protocol):
    """Holds what waits, and places it. Deterministic, no clock; `now` is seconds on the driver's clock.

    A policy takes workers from the fleet with `Fleet.take` or `take_worker` for each placement that it returns, and
    leaves no worker taken that it does not return.
    """

    predicts: bool
    """Whether it wants service times learned, and `busy_until_s` of workers kept."""

    @property
    def waiting(self) -> int:
        """Sub-queries that wait for a worker."""
        ...

    def arrived(self, sub_query: SubQuery, fleet: Fleet, now: float) -> None:
        """Take in a query, whole, or a part that must be sent again."""
        ...

    def place(self, fleet: Fleet, now: float) -> Placements:
        """What goes to which worker now. Called when something waits and a worker is idle."""
        ...

    def give_up(self, now: float) -> Query | None:
        """Forget the query that cannot be in time any more and has waited longest, and return it; None if there is
        none. It makes room for another where as many wait as may."""
        ...

    def withdraw(self, query_id: int) -> None:
        """Forget all parts of a query that wait."""
        ...

    def withdraw_all(self) -> list[SubQuery]:
        """Forget all that waits, and return it."""
        ...

    def fleet_changed(self, fleet: Fleet, now: float) -> None:
        """Workers came or went."""
        ...


class FirstComeFirstServed:
    """In order of arrival, to the first server type in the fleet's order that has an idle worker (Ribbon)."""

    predicts = False

    def __init__(self) -> None:
        self._queue: deque[SubQuery] = deque()

    @property
    def waiting(self) -> int:
        """Sub-queries that wait."""
        return len(self._queue)

    def arrived(self, sub_query: SubQuery, fleet: Fleet, now: float) -> None:  # noqa: ARG002
        """Queue it."""
        self._queue.append(sub_query)

    def place(self, fleet: Fleet, now: float) -> Placements:  # noqa: ARG002
        """The longest waiting to the best idle worker, as often as there are both."""
        return _in_order(self._queue, fleet, range(len(fleet.types)))

    def give_up(self, now: float) -> Query | None:
        """The first that arrived, if it is overdue."""
        return _overdue([self._queue], now)

    def withdraw(self, query_id: int) -> None:
        """Forget it."""
        self._queue = without(self._queue, query_id)

    def withdraw_all(self) -> list[SubQuery]:
        """Forget all."""
        gone, self._queue = list(self._queue), deque()
        return gone

    def fleet_changed(self, fleet: Fleet, now: float) -> None:
        """Nothing to do."""


class SizeThreshold:
    """Queries of more than `threshold` items to the base type, the fleet's first; the others to the rest (DeepRecSys).

    Each of the two queues is first come, first served. In a fleet with workers of one kind only, all go there.
    Raises ValueError for a negative threshold.
    """

    predicts = False

    def __init__(self, threshold: int) -> None:
        if threshold < 0:
            raise ValueError(f"threshold is {threshold}: must be at least 0 items")
        self.threshold = threshold
        self._large: deque[SubQuery] = deque()
        self._small: deque[SubQuery] = deque()
        self._has_base = self._has_auxiliary = True

    @property
    def waiting(self) -> int:
        """Sub-queries that wait."""
        return len(self._large) + len(self._small)

    def arrived(self, sub_query: SubQuery, fleet: Fleet, now: float) -> None:  # noqa: ARG002
        """Queue it by size."""
        (self._large if sub_query.items > self.threshold else self._small).append(sub_query)

    def place(self, fleet: Fleet, now: float) -> Placements:  # noqa: ARG002
        """Each queue to its own workers."""
        base, auxiliary = range(1), range(1, len(fleet.types))
        placed = _in_order(self._large, fleet, base if self._has_base else auxiliary)
        placed += _in_order(self._small, fleet, auxiliary if self._has_auxiliary else base)
        return placed

    def give_up(self, now: float) -> Query | None:
        """The first that arrived, if it is overdue."""
        return _overdue([self._large, self._small], now)

    def withdraw(self, query_id: int) -> None:
        """Forget it."""
        self._large = without(self._large, query_id)
        self._small = without(self._small, query_id)

    def withdraw_all(self) -> list[SubQuery]:
        """Forget all."""
        gone = [*self._large, *self._small]
        self._large.clear()
        self._small.clear()
        return gone

    def fleet_changed(self, fleet: Fleet, now: float) -> None:  # noqa: ARG002
        """See which kinds are left."""
        self._has_base = any(worker.server_type == 0 for worker in fleet.workers)
        self._has_auxiliary = any(worker.server_type != 0 for worker in fleet.workers)


@dataclass(slots=True)
class _Backlog:
    """What waits for one worker, and how long that is predicted to take."""

    queue: deque[tuple[SubQuery, float]]
    service_s: float = 0.0

    def pop(self) -> SubQuery:
        """The head, which waits no longer."""
        sub_query, service_s = self.queue.popleft()
        self.service_s = self.service_s - service_s if self.queue else 0.0
        return sub_query


class EarliestFinish:
    """Each worker has its own queue; a query joins, on arrival, the one that is predicted to answer it first.

    Clockwork as Kairos compares with it (section 7): the controller knows when every worker will be free and how long
    each query takes, so a query meets its deadline if it can anywhere. Of equal ones the fleet's first type wins.
    """

    predicts = True

    def __init__(self) -> None:
        self._backlogs: dict[FleetWorker, _Backlog] = {}
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """Sub-queries that wait."""
        return self._waiting

    def arrived(self, sub_query: SubQuery, fleet: Fleet, now: float) -> None:
        """Join the queue with the earliest predicted finish."""
        service_s = [fleet.service_time_s(kind, sub_query.items) for kind in range(len(fleet.types))]
        best, best_s = None, float("inf")
        for worker, backlog in self._backlogs.items():
            free_s = max(worker.busy_until_s, now) if worker.taken else now
            finish_s = free_s + backlog.service_s + service_s[worker.server_type]
            if finish_s < best_s:
                best, best_s = worker, finish_s
        assert best is not None, "the router refuses queries that find no worker"
        own_s = service_s[best.server_type]
        self._backlogs[best].queue.append((sub_query, own_s))
        self._backlogs[best].service_s += own_s
        self._waiting += 1

    def place(self, fleet: Fleet, now: float) -> Placements:  # noqa: ARG002
        """The head of each idle worker's queue."""
        placed: Placements = []
        for worker, backlog in self._backlogs.items():
            if backlog.queue and not worker.taken:
                fleet.take_worker(worker)
                placed.append((backlog.pop(), worker))
        self._waiting -= len(placed)
        return placed

    def give_up(self, now: float) -> Query | None:
        """The first that arrived, if it is overdue."""
        overdue = [
            backlog for backlog in self._backlogs.values() if backlog.queue and is_overdue(backlog.queue[0][0], now)
        ]
        if not overdue:
            return None
        backlog = min(overdue, key=lambda backlog: backlog.queue[0][0].query.arrival_s)
        self._waiting -= 1
        return backlog.pop().query

    def withdraw(self, query_id: int) -> None:
        """Forget it."""
        for backlog in self._backlogs.values():
            kept = deque(entry for entry in backlog.queue if entry[0].query.query_id != query_id)
            self._waiting -= len(backlog.queue) - len(kept)
            backlog.queue, backlog.service_s = kept, sum(service_s for _, service_s in kept)

    def withdraw_all(self) -> list[SubQuery]:
        """Forget all."""
        gone = [sub_query for backlog in self._backlogs.values() for sub_query, _ in backlog.queue]
        for backlog in self._backlogs.values():
            backlog.queue.clear()
            backlog.service_s = 0.0
        self._waiting = 0
        return gone

    def fleet_changed(self, fleet: Fleet, now: float) -> None:
        """What waited for workers that went joins other queues, if there are any."""
        if not fleet.workers:
            return
        there = set(fleet.workers)
        gone = {worker: backlog for worker, backlog in self._backlogs.items() if worker not in there}
        homeless = [sub_query for backlog in gone.values() for sub_query, _ in backlog.queue]
        order = sorted(fleet.workers, key=lambda worker: worker.server_type)
        self._backlogs = {worker: self._backlogs.get(worker, _Backlog(deque())) for worker in order}
        self._waiting -= len(homeless)
        for sub_query in homeless:
            self.arrived(sub_query, fleet, now)


def _overdue(queues: Sequence[deque[SubQuery]], now: float) -> Query | None:
    """Forget the first that arrived of the heads of the queues that are overdue, and return its query."""
    overdue = [queue for queue in queues if queue and is_overdue(queue[0], now)]
    return min(overdue, key=lambda queue: queue[0].query.arrival_s).popleft().query if overdue else None


def _in_order(queue: deque[SubQuery], fleet: Fleet, types: range) -> Placements:
    """The queue's head to the first of `types` with an idle worker, as often as there are both."""
    placed: Placements = []
    for server_type in types:
        while queue and fleet.idle(server_type):
            placed.append((queue.popleft(), fleet.take(server_type)))
    return placed
