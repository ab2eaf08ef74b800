"""The router of a fleet for one model: which query goes to which instance. Events in, actions out.

    QueryArrived      -> refuse, or hand to the distribution policy; in a full queue it takes the place of one that
                         cannot be in time any more
    SubQueryFinished  -> learn; complete the query if that was its last part
    InstanceChanged   -> take it in or out; what a lost instance had is sent to another, what a draining one has it
                         finishes, and nobody waits for it
    QueryWithdrawn    -> forget it
    ShutdownBegan     -> refuse what comes, finish what is here

After each of them the policy places what it can on idle workers (Kairos section 6: the central controller). Every
query that arrived gets exactly one of CompleteQuery, RejectQuery, FailQuery, unless it was withdrawn.
"""

from __future__ import annotations

from dataclasses import dataclass

from hebe.query import Query, SubQuery
from hebe.scheduling.events import (
    Availability,
    CompleteQuery,
    FailQuery,
    InstanceChanged,
    QueryArrived,
    QueryWithdrawn,
    RejectQuery,
    RejectReason,
    RouterAction,
    RouterEvent,
    SendSubQuery,
    ShutdownBegan,
    SubQueryFinished,
)
from hebe.scheduling.fleet.distribution import DistributionPolicy
from hebe.scheduling.fleet.fleet import Fleet, FleetWorker

_FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """`sla_s`: deadline of a query that names none (`inf`: none); `max_queue`: most queries that wait for a worker.

    Raises ValueError for an SLA that is not positive, or no queue.
    """

    sla_s: float = _FOREVER
    max_queue: int = 1 << 20

    def __post_init__(self) -> None:
        if not self.sla_s > 0:
            raise ValueError(f"sla_s is {self.sla_s}: must be positive")
        if self.max_queue < 1:
            raise ValueError(f"max_queue is {self.max_queue}: must be at least 1 query")


class Router:
    """Sends queries to the workers of a fleet as its policy decides. Not thread-safe: drivers call it one at a time."""

    def __init__(self, fleet: Fleet, policy: DistributionPolicy, config: RouterConfig | None = None) -> None:
        self.fleet = fleet
        self.policy = policy
        self.config = config or RouterConfig()
        self._unfinished_items: dict[int, int] = {}
        self._instances: dict[int, list[FleetWorker]] = {}
        self._draining: set[int] = set()
        self._shutting_down = False

    @property
    def unanswered(self) -> int:
        """Queries that arrived and have not been answered."""
        return len(self._unfinished_items)

    def has(self, instance_id: int) -> bool:
        """Whether the instance is there, be it to finish what it has."""
        return instance_id in self._instances

    def handle(self, event: RouterEvent, now: float) -> list[RouterAction]:
        """Take in one event at time `now` (seconds); returns what the driver must do, in order."""
        actions: list[RouterAction] = []
        kind = type(event)  # by type, not `match`: this is called twice a query, and the simulator lives by it
        if kind is QueryArrived:
            self._arrive(event.query, now, actions)  # type: ignore[union-attr]
        elif kind is SubQueryFinished:
            self._finish(event, actions)  # type: ignore[arg-type]
        elif kind is InstanceChanged:
            self._change_instance(event, now, actions)  # type: ignore[arg-type]
        elif kind is QueryWithdrawn:
            self._forget(event.query_id)  # type: ignore[union-attr]
        elif kind is ShutdownBegan:
            self._shutting_down = True
        if self.policy.waiting and self.fleet.idle_workers:
            self._place(now, actions)
        return actions

    def take_over(self, query: Query, now: float) -> list[RouterAction]:
        """Take in a query that another router had admitted and has no worker for any more; here there must be one.

        It is not refused a second time: neither where the queue is full, nor while shutting down.
        """
        actions: list[RouterAction] = []
        self._admit(query, now)
        if self.fleet.idle_workers:
            self._place(now, actions)
        return actions

    def _arrive(self, query: Query, now: float, actions: list[RouterAction]) -> None:
        while (reason := self._reason_to_refuse()) is RejectReason.QUEUE_FULL:
            late = self.policy.give_up(now)
            if late is None:
                break
            if self._unfinished_items.pop(late.query_id, None) is not None:
                actions.append(RejectQuery(late, RejectReason.EXPIRED))
        if reason is not None:
            actions.append(RejectQuery(query, reason))
            return
        self._admit(query, now)

    def _admit(self, query: Query, now: float) -> None:
        if query.deadline_s == _FOREVER:
            query.deadline_s = query.arrival_s + self.config.sla_s
        self._unfinished_items[query.query_id] = query.items
        self.policy.arrived(SubQuery(query, 0, query.items), self.fleet, now)

    def _reason_to_refuse(self) -> RejectReason | None:
        if self._shutting_down:
            return RejectReason.SHUTTING_DOWN
        if not self.fleet.workers:
            return RejectReason.NO_WORKER
        if self.policy.waiting >= self.config.max_queue:
            return RejectReason.QUEUE_FULL
        return None

    def _place(self, now: float, actions: list[RouterAction]) -> None:
        fleet, predicts = self.fleet, self.policy.predicts
        for sub_query, worker in self.policy.place(fleet, now):
            worker.sub_query = sub_query
            if predicts:
                worker.busy_until_s = now + fleet.service_time_s(worker.server_type, sub_query.items)
            actions.append(SendSubQuery(worker.instance_id, sub_query))

    def _finish(self, event: SubQueryFinished, actions: list[RouterAction]) -> None:
        sub_query = event.sub_query
        workers = self._instances.get(event.instance_id)
        worker = None
        for candidate in workers or ():
            if candidate.sub_query is sub_query:
                worker = candidate
                break
        if worker is None or workers is None:
            raise ValueError(f"instance {event.instance_id} does not run this part of query {sub_query.query.query_id}")
        if self._draining and event.instance_id in self._draining:
            workers.remove(worker)
            self._forget_if_done(event.instance_id)
        else:
            self.fleet.release(worker)
        query = sub_query.query
        if not event.failed and self.policy.predicts:
            self.fleet.predictors[worker.server_type].observe(sub_query.items, event.service_s)
        unfinished = self._unfinished_items.get(query.query_id)
        if unfinished is None:  # withdrawn, or failed by an earlier part
            return
        if event.failed:
            self._forget(query.query_id)
            actions.append(FailQuery(query))
            return
        unfinished -= sub_query.items
        if unfinished:
            self._unfinished_items[query.query_id] = unfinished
            return
        del self._unfinished_items[query.query_id]
        actions.append(CompleteQuery(query))

    def _change_instance(self, event: InstanceChanged, now: float, actions: list[RouterAction]) -> None:
        """Only workers that take work again are the fleet's: the busy ones of a draining instance are kept here."""
        instance_id, fleet = event.instance_id, self.fleet
        workers = self._instances.get(instance_id, [])
        again: list[SubQuery] = []
        if event.state is Availability.UP:
            if instance_id in self._draining:
                self._draining.remove(instance_id)
                fleet.put_back(workers)
            added = fleet.add(instance_id, event.server_type, max(event.workers - len(workers), 0))
            self._instances[instance_id] = workers + added
        elif workers:
            if instance_id not in self._draining:
                self._draining.add(instance_id)
                for worker in workers:
                    fleet.remove(worker)
            if event.state is Availability.LOST:
                again = [worker.sub_query for worker in workers if worker.sub_query is not None]
                workers = []
            self._instances[instance_id] = [worker for worker in workers if worker.sub_query is not None]
            self._forget_if_done(instance_id)
        self._fleet_changed(again, now, actions)

    def _forget_if_done(self, instance_id: int) -> None:
        """A draining instance is gone once none of its workers is left."""
        if not self._instances[instance_id]:
            del self._instances[instance_id]
            self._draining.remove(instance_id)

    def _fleet_changed(self, again: list[SubQuery], now: float, actions: list[RouterAction]) -> None:
        """Tell the policy, and hand it what lost workers had; without workers, refuse all that waits."""
        self.policy.fleet_changed(self.fleet, now)
        if self.fleet.workers:
            for sub_query in again:
                if sub_query.query.query_id in self._unfinished_items:
                    self.policy.arrived(sub_query, self.fleet, now)
            return
        for sub_query in [*again, *self.policy.withdraw_all()]:
            if self._unfinished_items.pop(sub_query.query.query_id, None) is not None:
                actions.append(RejectQuery(sub_query.query, RejectReason.NO_WORKER))

    def _forget(self, query_id: int) -> None:
        if self._unfinished_items.pop(query_id, None) is not None:
            self.policy.withdraw(query_id)
