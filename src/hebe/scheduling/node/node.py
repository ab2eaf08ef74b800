"""One server's scheduler for one model: events in, actions out.

    QueryArrived   -> refuse, or split and queue; start batches on idle workers
    BatchFinished  -> learn; complete the queries it ended; start the next batch
    WorkerChanged  -> take it in or out; a lost worker's batch is run again by another, a draining one's is finished
                      (live, where workers are threads, a batch that raises fails its queries, and its worker goes on)
    QueryWithdrawn -> forget it
    TimerFired     -> start what waited for company
    ShutdownBegan  -> refuse what comes, finish what is here

Workers run the whole model, or form lanes in which sparse ones hand on to dense ones (Hercules' S-D pipeline).
Every query that arrived gets exactly one of CompleteQuery, RejectQuery, FailQuery, unless it was withdrawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hebe.profile import LatencyProfile
from hebe.query import Batch, Query, SubQuery
from hebe.scheduling.events import (
    Action,
    Availability,
    BatchFinished,
    CompleteQuery,
    Event,
    FailQuery,
    QueryArrived,
    QueryWithdrawn,
    RejectQuery,
    RejectReason,
    ReleaseWorker,
    SetTimer,
    ShutdownBegan,
    Stage,
    StartBatch,
    TimerFired,
    WorkerChanged,
    WorkerRole,
)
from hebe.scheduling.node.admission import DeadlineAdmission
from hebe.scheduling.node.batching import Fusing, Handling
from hebe.scheduling.node.core_slots import Place, PlacedWorker, PlacedWorkers
from hebe.scheduling.node.lane_choice import FreeWay, PassingOver
from hebe.scheduling.node.scattering import Spreading
from hebe.scheduling.node.service_times import ServiceTimes
from hebe.scheduling.node.stage_queue import HandOver
from hebe.scheduling.node.waiting_queue import WaitingQueue, cut, split


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """How a server runs one model.

    `batch_size`: most items in a batch, of workers whose role does not say; larger queries are split, and smaller ones
    fused up to it if `fuse`, as far as that saves those that wait more than it delays those in the batch. `spread`: a
    query that finds several places idle is split over them if that answers it sooner at little more work, or at more
    while the server has little to do.
    `max_wait_s`: how long a query may wait for company on an idle worker before that starts a part-filled batch; only
    if several may share one.
    `max_queue`: most queries waiting. `sla_s`: deadline of a query that names none (`inf`: none).
    `percentile`: share of admitted queries that should make their deadline. `admission`: refuse early or not.
    Raises ValueError naming the field that is out of range.
    """

    batch_size: int
    fuse: bool = True
    spread: bool = True
    max_wait_s: float = 0.0
    max_queue: int = 1024
    sla_s: float = float("inf")
    percentile: float = 95.0
    admission: bool = True

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size}: must be at least 1 item")
        if self.max_queue < 1:
            raise ValueError(f"max_queue is {self.max_queue}: must be at least 1 query")
        if self.max_wait_s < 0 or self.sla_s <= 0:
            raise ValueError("max_wait_s must not be negative and sla_s must be positive")


_PATIENT_BATCHES = 4.0
"""A query with time for so many full batches may share its place with others. With less, more are in time if they run
one after the other: in simulation, where sharing gains nothing, 8% more at 3 batches, 3% at 4, none from 6 on."""


@dataclass(slots=True)
class _Admitted:
    query: Query
    admission: DeadlineAdmission
    unfinished_items: int
    arrived_s: float
    predicted_s: float
    items_before: int
    """What the queue will have let go of when this one's turn comes, if nothing overtakes it."""
    finds_no_work: bool
    spread: bool
    started: bool = False
    overtaken: bool = False


class NodeScheduler:
    """Admits, splits, fuses and places queries on workers. Not thread-safe: the driver calls it one at a time."""

    def __init__(self, config: NodeConfig, profile: LatencyProfile | None = None) -> None:
        self.config = config
        self._admission = DeadlineAdmission(config.percentile)
        self._hurried_admission = DeadlineAdmission(config.percentile)
        """Of queries with less than the usual time. They overtake the others, and how late that makes these should keep
        none of them out."""
        self._waiting = WaitingQueue(config.sla_s)
        self._admitted: dict[int, _Admitted] = {}
        self._workers = PlacedWorkers()
        self._hand_over = HandOver()
        self._batch_size = config.batch_size
        self.service_times = ServiceTimes(
            self._workers, {} if profile is None else {Stage.WHOLE: profile}, fuse=config.fuse
        )
        self._handling = Handling()
        self._spreading = Spreading(self._workers, self.service_times, self._handling)
        self._fusing = Fusing(self.service_times, self._handling)
        self.undone: list[Action] = []
        """What was decided of an event of which `handle` raised. The driver does it: all is as if it were done."""
        self._again: list[SubQuery] = []
        self._next_batch_id = 0
        self._shutting_down = False
        self._wake_s = math.inf
        """When something is to be decided anew if nothing happens before."""
        self._in_company_s = -math.inf
        """Until when a worker waits for company for all that waits."""
        self._looks_again_s: dict[WorkerRole, float] = {}
        """Until when idle workers of a role, which looked at much and took nothing, do not look at what waits."""

    @property
    def queue_depth(self) -> int:
        """Queries of which at least one part waits for a worker."""
        return self._waiting.queries

    @property
    def idle(self) -> bool:
        """Whether nothing is admitted and unanswered, and no batch runs."""
        return not self._admitted and not self._workers.running and not self._hand_over

    @property
    def handed_on(self) -> set[int]:
        """Batches of sparse workers that wait for a dense one."""
        return self._hand_over.handed

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take in one event at time `now` (seconds); returns what the driver must do, in order.

        It raises ValueError for a batch that does not run, and else nothing but what the machine does, for want of
        memory, say: what was decided by then is `undone`.
        """
        actions = self.undone = []
        self._wake_s = math.inf
        match event:
            case QueryArrived(query):
                self._arrive(query, now, actions)
            case BatchFinished():
                self._finish(event, now, actions)
            case WorkerChanged():
                self._change_worker(event, now, actions)
            case QueryWithdrawn(query_id):
                self._forget(query_id)
            case TimerFired():
                pass
            case ShutdownBegan():
                self._shutting_down = True
        self._start_dense(now, actions)
        self._start_batches(now, actions)
        self._expire_behind(now, actions)
        self._release(actions)
        if self._wake_s < math.inf:
            actions.append(SetTimer(self._wake_s))
        self.undone = []
        return actions

    # Arrival

    def refusal(self, query: Query, now: float) -> RejectQuery | None:
        """The refusal that `query` would meet if it arrived now; asking changes nothing.

        None does not promise that it will be admitted. An idle server is never sure, since it lets some of what it
        would refuse through, to learn.
        """
        deadline_s = self._deadline_s(query)
        items_ahead = self._waiting.items_ahead(query.priority, deadline_s - query.arrival_s)
        predicted_s, finds_no_work = self._predicted_completion_s(query, self._parts(query.items), items_ahead, now)
        if finds_no_work:
            return None
        return self._refused(query, deadline_s, predicted_s, now)

    def _arrive(self, query: Query, now: float, actions: list[Action]) -> None:
        query.deadline_s = self._deadline_s(query)
        parts = self._parts(query.items, arrives=True)
        items_ahead = self._waiting.items_ahead(query.priority, query.deadline_s - query.arrival_s)
        predicted_s, finds_no_work = self._predicted_completion_s(query, parts, items_ahead, now)
        refused = self._refused(query, query.deadline_s, predicted_s, now, finds_no_work=finds_no_work)
        if refused is not None:
            actions.append(refused)
            return
        waiting = self._waiting
        if waiting.queries >= self.config.max_queue and (least := self._gives_way_to(query)) is not None:
            self._forget(least.query_id)
            actions.append(RejectQuery(least, RejectReason.QUEUE_FULL))
        items_before = waiting.popped_items + items_ahead + query.items
        admission = self._admission_of(query.deadline_s - query.arrival_s)
        self._admitted[query.query_id] = _Admitted(
            query,
            admission,
            query.items,
            now,
            predicted_s,
            items_before,
            finds_no_work,
            parts > self._fewest(query.items),
        )
        for part in split(query, parts):
            self._waiting.push(part)

    def _deadline_s(self, query: Query) -> float:
        """The query's own deadline, or the SLA's if it names none."""
        return query.deadline_s if query.deadline_s != float("inf") else query.arrival_s + self.config.sla_s

    def _refused(
        self, query: Query, deadline_s: float, predicted_s: float, now: float, *, finds_no_work: bool = False
    ) -> RejectQuery | None:
        if self._shutting_down:
            return RejectQuery(query, RejectReason.SHUTTING_DOWN, predicted_s)
        if not self._workers.up or not self._workers.take_queries:
            return RejectQuery(query, RejectReason.NO_WORKER, predicted_s)
        if self._waiting.queries >= self.config.max_queue and self._gives_way_to(query) is None:
            return RejectQuery(query, RejectReason.QUEUE_FULL, predicted_s)
        admission = self._admission_of(deadline_s - query.arrival_s)
        if not self.config.admission or admission.admits(predicted_s, deadline_s - now, now, idle=finds_no_work):
            return None
        likely_within_s = admission.likely_within_s(predicted_s, idle=finds_no_work)
        return RejectQuery(query, RejectReason.DEADLINE, predicted_s, likely_within_s)

    def _admission_of(self, allowed_s: float) -> DeadlineAdmission:
        """Of queries that have so long from their arrival to their deadline."""
        return self._hurried_admission if self._waiting.is_hurried(allowed_s) else self._admission

    def _gives_way_to(self, query: Query) -> Query | None:
        """Which of the queries that wait gives its place in a full queue to a more urgent one."""
        others = self._waiting.least_urgent_first()
        least = next((other for other in others if not self._admitted[other.query_id].started), None)
        return least if least is not None and least.priority > query.priority else None

    def _predicted_completion_s(self, query: Query, parts: int, items_ahead: int, now: float) -> tuple[float, bool]:
        """Seconds from now until the query is done: work ahead shared by the places, then its own `parts`. Workers that
        would not be in time leave it to others, and do not count. And whether it finds no work ahead of it: no other
        that waits, a place that is all its own, and none either where its batches are handed on to.

        Where workers share a place, a batch that does not have it to itself is taken to share it all the time, with
        what came before and with what comes after, and so to start earlier: when what runs beside it is half done.
        """
        workers, times, size, part = self._workers, self.service_times, self._batch_size, -(-query.items // parts)
        if not workers.places:
            return 0.0, False
        ways = times.ways.able(part, self._deadline_s(query) - now)
        if not self._waiting and ways.idle_places:
            free = times.free(ways, self._hand_over, size, now)
            done_s, starts_s = min((each.done_s(part, parts), each.free_in_s) for each in free)
            return done_s, starts_s == 0.0 and not workers.pipelines_run
        mean_items = self._waiting.items // self._waiting.queries if self._waiting else size
        ahead_s = ways.ahead_s(items_ahead, mean_items, size) + ways.left_s(size, now)
        beside_s, beside = 0.0, len(workers.up) / len(workers.places) - 1
        if beside and self._may_share(query, part) and (running := workers.running):
            ahead_s -= beside * ways.places * sum(worker.expected_s for worker in running) / len(running) / 2
            beside_s = beside * ways.first_s(part)
        starts_s = max(ahead_s, 0.0) / ways.places + beside_s
        dense_ahead_s = times.dense_ahead_s(self._hand_over, items_ahead, size, now)
        behind = (FreeWay(way, starts_s, dense_ahead_s.get(way.role.lane, 0.0)) for way in ways.each)
        return min(each.done_s(part, parts) for each in behind), False

    def _may_share(self, query: Query, items: int) -> bool:
        """Whether a batch of `items`, `query` first, may run beside another: if it has time, and no room for its like.

        Small ones would lose: they would not be fused, and a batch begins and ends with the interpreter lock, which
        would be held by a thread that has to wait for its core.
        """
        return self._is_patient(query) and (2 * items > self._batch_size or not self.config.fuse)

    def _is_patient(self, query: Query) -> bool:
        """Whether it has time to share its place with another; without admission, deadlines do not count."""
        allowed_s = self._deadline_s(query) - query.arrival_s
        needed_s = _PATIENT_BATCHES * self.service_times.ways.way_s(self._batch_size)
        return not self.config.admission or allowed_s >= needed_s

    def _parts(self, items: int, *, arrives: bool = False) -> int:
        """Into how many parts a query of `items` is split that arrives now, or would if it is only asked about."""
        fewest = self._fewest(items)
        if not self.config.spread or self._may_wait:
            return fewest
        return self._spreading.parts(items, fewest, waits=bool(self._waiting), arrives=arrives)

    def _fewest(self, items: int) -> int:
        """Parts of a query, by the size of batches."""
        return -(-items // self._batch_size)

    @property
    def _may_wait(self) -> bool:
        """Whether some query may be kept waiting for company, which needs batches that several may share."""
        return self.config.max_wait_s > 0 and any(way.fuses for way in self.service_times.ways.each)

    # Start

    def _start_batches(self, now: float, actions: list[Action]) -> None:
        while (part := self._again[0] if self._again else self._waiting.peek()) is not None:
            self._in_company_s = -math.inf
            idle = [(first, count) for first, count in self._workers.idle if self._has_room(first.role)]
            asked = self._in_turn([first for first, _ in idle], part.items, now)
            if not asked:
                return
            alone, free = sum(count for _, count in idle) == 1, self._free_ways(now)
            for worker in asked:
                if not self._may_start(part, worker.place):
                    continue
                if sub_queries := self._gather(worker, free, now, actions, alone=alone):
                    break
            else:
                return
            if worker.role.stage is Stage.SPARSE:
                self._hand_over.begin(worker.role.lane)
            self._start(worker, sub_queries, (), now, actions)

    def _in_turn(self, first: list[PlacedWorker], items: int, now: float) -> list[PlacedWorker]:
        """The first idle worker of each role, in the order in which they are to be asked for a batch: where the least
        runs, then who would be done with so many `items` soonest.
        """
        if len(self._workers.roles) == 1:
            return first
        rest_s = self.service_times.rest_s
        may = [each for each in first if self._again or self._looks_again_s.get(each.role, now) <= now]
        return sorted(may, key=lambda each: (len(each.place.running), rest_s(each.role, items)))

    def _free_ways(self, now: float) -> list[FreeWay]:
        """When each way has nothing to do, if they are unlike: then one may leave to another what that does sooner."""
        if len(self._workers.roles) == 1:
            return []
        return self.service_times.free(self.service_times.ways, self._hand_over, self._batch_size, now)

    def _start_dense(self, now: float, actions: list[Action]) -> None:
        """Let idle dense workers take what was handed on."""
        for lane, workers in self._workers.dense.items():
            for worker in workers:
                if worker.batch is None and self._hand_over.waits(lane):
                    most = self._most_items(worker)
                    handed = self._hand_over.take(lane, most, fuse=bool(worker.role.fuse))
                    parts = tuple(part for batch in handed for part in batch.sub_queries)
                    self._start(worker, parts, handed, now, actions)

    def _start(
        self, worker: PlacedWorker, parts: tuple[SubQuery, ...], handed: tuple[Batch, ...], now: float,
        actions: list[Action],
    ) -> None:  # fmt: skip
        batch = Batch(self._next_batch_id, parts, sum(part.items for part in parts))
        self._next_batch_id += 1
        worker.handed = handed
        self._workers.start(worker, batch, self.service_times.batch_s(worker.role, batch.items), now)
        actions.append(StartBatch(worker.worker_id, batch, tuple(each.batch_id for each in handed)))

    def _most_items(self, worker: PlacedWorker) -> int:
        """Of a batch of this worker."""
        return worker.role.batch_size or self.config.batch_size

    def _has_room(self, role: WorkerRole) -> bool:
        """Whether what comes of a batch of this role could be handed on."""
        if role.stage is not Stage.SPARSE:
            return True
        return role.lane in self._workers.dense and self._hand_over.under_way(role.lane) < role.most_handed

    def _may_start(self, part: SubQuery, place: Place) -> bool:
        """Whether a batch with `part` first may start on `place`, with what runs there."""
        beside = [other.query for worker in place.running if worker.batch for other in worker.batch.sub_queries]
        return not beside or (self._may_share(part.query, part.items) and all(map(self._is_patient, beside)))

    def _gather(
        self, worker: PlacedWorker, free: list[FreeWay], now: float, actions: list[Action], *, alone: bool
    ) -> tuple[SubQuery, ...]:
        """The next batch of a worker, in queue order; empty if nothing waits, or what waits should wait for company or
        for a faster worker, which some of the ways may have that are `free` so soon.

        Unless this idle worker is `alone`, it takes one part of a query only: the others were cut for the others. A
        part that was cut for larger batches than its own is cut again.
        """
        role, items = worker.role, 0
        most = self._most_items(worker)
        fuse = self.config.fuse if role.fuse is None else role.fuse
        gathered: list[SubQuery] = []
        if self._again and self._again[0].items > most:
            self._again[:1] = cut(self._again[0], most)
        while self._again and items + self._again[0].items <= most:  # of lost workers: these go first
            if gathered and not fuse:
                break
            gathered.append(self._again.pop(0))
            items += gathered[-1].items
        if gathered:
            return tuple(gathered)
        others = [each for each in free if each.way.role != role]
        passing = PassingOver(others) if others else None
        while (part := self._next_live_part(role, items, passing, now, actions)) is not None:
            if part.items > most and not gathered:
                self._waiting.cut(most)
                continue
            if items + part.items > most:
                break
            if gathered and not alone and part.query is gathered[-1].query:
                break
            if self.config.max_wait_s > 0 and fuse and not gathered and self._should_wait(role, most, now):
                break
            if gathered and not self._is_to_share(role, part, gathered):
                break
            part = self._waiting.pop()
            admitted = self._admitted[part.query.query_id]
            admitted.started, admitted.overtaken = True, self._was_overtaken(admitted)
            gathered.append(part)
            items += part.items
            if not fuse:
                break
        self._waiting.stand_again()
        if passing is not None and not gathered:
            looks_again_s = max(now + passing.looks_again_s, self._in_company_s)
            self._wake_s = min(self._wake_s, looks_again_s)
            self._looks_again_s[role] = now if passing.looked_at_few else looks_again_s
        return tuple(gathered)

    def _is_to_share(self, role: WorkerRole, part: SubQuery, gathered: list[SubQuery]) -> bool:
        """Whether `part` is to share a batch; always, where queries are kept waiting for company."""
        return self.config.max_wait_s > 0 or self._fusing.is_worth_it(role, part, gathered, self._waiting.queries)

    def _next_live_part(
        self, role: WorkerRole, gathered_items: int, passing: PassingOver | None, now: float, actions: list[Action]
    ) -> SubQuery | None:
        """The part that is next for a worker of this role, in a batch that has `gathered_items`. Those are passed over
        that others would be done with sooner; queries that can no longer be in time are rejected on the way.
        """
        rest_s = self.service_times.rest_s
        while (part := self._waiting.peek()) is not None:
            query = part.query
            admitted = self._admitted[query.query_id]
            if passing is not None:
                if passing.is_over:
                    return None
                budget_s = query.deadline_s - now if self.config.admission else math.inf
                if passing.leaves(part.items, rest_s(role, gathered_items + part.items), budget_s):
                    self._waiting.pass_over()
                    continue
            may_expire = self.config.admission and now > admitted.arrived_s and not admitted.started
            if not may_expire or now + rest_s(role, part.items) <= query.deadline_s:
                return part
            self._expire(admitted, actions)
        return None

    def _expire_behind(self, now: float, actions: list[Action]) -> None:
        """Reject what has run out of time behind more urgent queries, for as long as these keep coming: its turn, when
        the others that cannot be in time are found, may never come. What has begun goes as well: the rest of it would
        stand before all others of its priority.
        """
        if not self.config.admission:
            return
        while late := self._waiting.late_behind(now):
            for query in late:
                self._expire(self._admitted[query.query_id], actions)

    def _expire(self, admitted: _Admitted, actions: list[Action]) -> None:
        """Reject a query that was admitted and cannot be in time any more."""
        query = admitted.query
        if not self._was_overtaken(admitted):
            admitted.admission.observe(admitted.predicted_s, query.deadline_s - admitted.arrived_s)
        self._forget(query.query_id)
        actions.append(RejectQuery(query, RejectReason.EXPIRED))

    def _was_overtaken(self, admitted: _Admitted) -> bool:
        """Whether more than a batch has run before it that came later, which its prediction could not know: of how far
        predictions are off, and with that of others' chances, its latency says nothing.
        """
        return self._waiting.popped_items > admitted.items_before + self._batch_size

    def _should_wait(self, role: WorkerRole, batch_size: int, now: float) -> bool:
        """Whether a worker should wait for more than what waits now, all of which goes into one batch: not only what is
        next may have waited long enough, or have no more time to.
        """
        waiting = self._waiting
        if self._shutting_down or waiting.items >= batch_size:
            return False
        start_by_s = self._admitted[waiting.longest_waiting_id].arrived_s + self.config.max_wait_s
        latest_s = waiting.earliest_deadline_s - self.service_times.rest_s(role, batch_size)
        at_s = min(start_by_s, latest_s)
        if at_s <= now:
            return False
        self._wake_s, self._in_company_s = min(self._wake_s, at_s), at_s
        return True

    # End

    def _finish(self, event: BatchFinished, now: float, actions: list[Action]) -> None:
        worker = self._workers.find(event.worker_id)
        if worker is None or (batch := worker.batch) is None or batch.batch_id != event.batch_id:
            raise ValueError(f"worker {event.worker_id} does not run batch {event.batch_id}")
        share, elapsed_s = self._workers.end(worker, now), now - worker.started_s
        stage, lane = worker.role.stage, worker.role.lane
        if not event.failed:
            self.service_times.observe(worker.role, batch.items, event.service_s * share)
            self._handling.observe(elapsed_s - event.service_s)
        if stage is Stage.SPARSE and not event.failed:
            self._hand_over.hand(lane, batch)
            if lane not in self._workers.dense:  # lost meanwhile
                self._workers_changed(actions)
            return
        if stage is Stage.SPARSE:
            self._hand_over.give_up(lane)
        for part in batch.sub_queries:
            admitted = self._admitted.get(part.query.query_id)
            if admitted is None:  # withdrawn, or failed by an earlier part
                continue
            if event.failed:
                self._forget(part.query.query_id)
                actions.append(FailQuery(part.query))
                continue
            admitted.unfinished_items -= part.items
            if admitted.unfinished_items == 0:
                del self._admitted[part.query.query_id]
                took_s = now - admitted.arrived_s
                if not admitted.overtaken:
                    admitted.admission.observe(admitted.predicted_s, took_s)
                if admitted.finds_no_work:
                    self._spreading.observe(admitted.predicted_s, took_s, spread=admitted.spread)
                actions.append(CompleteQuery(part.query))

    def _change_worker(self, event: WorkerChanged, now: float, actions: list[Action]) -> None:
        worker = self._workers.change(event)
        if worker is None:
            return
        if event.state is Availability.LOST:
            if worker.batch is not None:
                self._run_again(worker, worker.batch)
                self._workers.end(worker, now)
            self._workers.remove(worker)
        self._workers_changed(actions)

    def _run_again(self, worker: PlacedWorker, batch: Batch) -> None:
        """What a lost worker ran is next, but for batches of which nobody awaits anything any more."""
        if worker.role.stage is Stage.DENSE:
            alive = (
                each for each in worker.handed if any(p.query.query_id in self._admitted for p in each.sub_queries)
            )
            self._hand_over.put_back(worker.role.lane, tuple(alive))
            return
        if worker.role.stage is Stage.SPARSE:
            self._hand_over.give_up(worker.role.lane)
        self._again.extend(part for part in batch.sub_queries if part.query.query_id in self._admitted)

    def _release(self, actions: list[Action]) -> None:
        """Let go of draining workers that have nothing more to do."""
        released = False
        for worker in self._workers.draining:
            role = worker.role
            awaits = role.stage is Stage.DENSE and (self._hand_over.waits(role.lane) or self._workers.feeds(role.lane))
            if worker.batch is None and not awaits:
                self._workers.remove(worker)
                actions.append(ReleaseWorker(worker.worker_id))
                released = True
        if released:
            roles = self._workers.every_role
            self.service_times.forget_but(roles)
            self._looks_again_s = {role: at_s for role, at_s in self._looks_again_s.items() if role in roles}
            self._release(actions)  # dense workers, whose last sparse one may have gone
            self._workers_changed(actions)

    def _workers_changed(self, actions: list[Action]) -> None:
        self._batch_size = max(map(self._most_items, self._workers.up), default=self.config.batch_size)
        stuck = [
            part.query.query_id for batch in self._hand_over.drop_but(self._workers.dense) for part in batch.sub_queries
        ]
        if not self._workers.take_queries:
            stuck += [part.query.query_id for part in self._again] + self._waiting.query_ids
        for query_id in dict.fromkeys(stuck):
            if (admitted := self._admitted.get(query_id)) is not None:
                self._forget(query_id)
                actions.append(RejectQuery(admitted.query, RejectReason.NO_WORKER))

    def _forget(self, query_id: int) -> None:
        admitted = self._admitted.pop(query_id, None)
        if admitted is not None:
            self._waiting.drop(admitted.query)
            self._again = [part for part in self._again if part.query.query_id != query_id]
