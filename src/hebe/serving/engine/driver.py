"""The live driver: carries out the node scheduler's actions on this machine's workers.

Events come from the event loop (arrivals, withdrawals, timers, batches run without the interpreter lock) and from other
workers' threads (their batches), and are given to the scheduler one at a time, in `combining_queue`. A worker
whose report it is the turn of at once takes its next batch from the same call.

Every query is answered: what raises in a batch, or while its scores are taken in, fails the batch's queries, and the
worker goes on. Should the scheduler itself raise then, for want of memory, say, these fail as well, and the worker is
lost: others go on, and the server is not ready any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean

import numpy as np
import structlog

from hebe.machine.gpu import is_gpu
from hebe.machine.pinning import PlacedLane
from hebe.profile import LatencyProfile
from hebe.query import MOST_ITEMS, Batch, FloatArray, KeyCounts, Query, QueryResult
from hebe.runtime.accelerator import Accelerator
from hebe.runtime.executors.batch_outcome import BatchOutcome, DenseInputs, copy_scores, told_to_clients
from hebe.runtime.loaded_model import LoadedModel
from hebe.runtime.workers.gil_free_worker import Reports
from hebe.runtime.workers.lane_workers import LaneWorker, start_lane
from hebe.runtime.workers.worker import Work
from hebe.scheduling.events import (
    Action,
    Availability,
    BatchFinished,
    CompleteQuery,
    Event,
    FailQuery,
    Observer,
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
)
from hebe.scheduling.node.node import NodeConfig, NodeScheduler
from hebe.server_configuration import Placement
from hebe.serving.engine.combining_queue import AnswerPost, Turns, WorkedTime, settle
from hebe.serving.engine.refusals import refusal
from hebe.serving.requests.errors import QueryFailed, QueryRefused

log = structlog.get_logger("hebe.driver")

clock = time.monotonic
"""The driver's clock, seconds; the event loop's as well, so timers agree with it."""

_OF_LATE_S = 1.0
"""Who has refused nothing for so long will hardly refuse the next query."""


@dataclass(slots=True, eq=False)
class _Pending:
    query: Query
    scores: FloatArray
    future: asyncio.Future[QueryResult]
    post: AnswerPost
    has_timeout: bool
    started_s: float = 0.0
    sparse_s: float = 0.0
    loading_s: float = 0.0
    dense_s: float = 0.0
    keys: KeyCounts = field(default_factory=KeyCounts)
    fault: Exception | None = None


Answer = tuple[_Pending, QueryResult | Exception]
ScoredPart = tuple[_Pending, float, KeyCounts]
BatchObserver = Callable[[int, float, float], None]
"""Told of each batch on the worker's thread: items, seconds in the sparse part, seconds in the dense part."""


@dataclass(slots=True)
class _Effects:
    answers: list[Answer] = field(default_factory=list)
    next_work: Work | None = None
    released: list[LaneWorker] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Report:
    """A batch that a thread has run, what came of it, and its next one, if the thread that tells of it, `by`, decides
    about that meanwhile. `by` is None once it has told: the event loop may come to it in a later call, too late for it.

    `parts`: of each part that was scored, the seconds of its lookup and how its keys were answered.
    """

    thread_id: int
    batch: Batch
    outcome: BatchOutcome | Exception
    parts: Sequence[ScoredPart] = ()
    by: int | None = field(default_factory=threading.get_ident)
    next_work: Work | None = None


class NodeDriver:
    """Workers of one loaded model, driven by one `NodeScheduler`; to this, each of a worker's `threads` is a worker, so
    that the `worker_id` of its events and actions is a thread's.

    `lanes`: how they are split, and their cores. `max_items`: the largest query, which an accelerator takes whole.
    `accelerator`: where some lanes may run. `rehearsed`: as `start_lane` has it, of the first workers; later ones are
    started beside them.
    """

    def __init__(
        self,
        model: LoadedModel,
        config: NodeConfig,
        lanes: Sequence[PlacedLane],
        profile: LatencyProfile | None = None,
        *,
        threads: int = 1,
        gives_way: bool = False,
        max_items: int = MOST_ITEMS,
        accelerator: Accelerator | None = None,
        rehearsed: bool = False,
    ) -> None:
        self.model = model
        self.config = config
        self.on_batch: BatchObserver | None = None
        self.observer: Observer | None = None
        """Called in the midst of a decision: it must be quick, and ask nothing of this driver."""
        self.lanes: tuple[PlacedLane, ...] = ()
        self.threads = threads
        """Of each worker that runs the whole model on the host."""
        self.gives_way = gives_way
        self.splits = 0
        """How often the server was split for this model."""
        self._max_items, self._accelerator = max_items, accelerator
        self._scheduler = NodeScheduler(config, profile)
        self._turns = Turns(_Effects, _deliver)
        self._reports = Reports(self._batch_finished)
        self._post: AnswerPost | None = None
        self._reconfiguring = threading.Lock()
        self._pending: dict[int, _Pending] = {}
        self._handed: dict[int, DenseInputs] = {}
        self._taken: dict[int, tuple[int, dict[int, DenseInputs]]] = {}
        """What each dense worker has taken of what was handed on, by its batch, and for which batch of its own."""
        self._ids = itertools.count(1)
        self._thread_ids = itertools.count()
        self._lane_numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._failures_in_a_row = 0
        self._failing_since_s = -math.inf
        self._refused_s = -math.inf
        """When the last query was refused, or would have been."""
        self._stopping = False
        """No batch is started any more."""
        self._worked: defaultdict[tuple[int, int], WorkedTime] = defaultdict(WorkedTime)
        """By worker."""
        self._threads: dict[int, LaneWorker] = {}
        """Of all workers, those that drain among them, by the id that the scheduler knows them by."""
        self._rehearsed = rehearsed
        try:
            self.reconfigure(lanes, threads=threads, gives_way=gives_way)
        except BaseException:
            self._reports.close()
            raise

    def reconfigure(self, lanes: Sequence[PlacedLane], *, threads: int = 1, gives_way: bool = False) -> None:
        """Split the server in another way while it serves: new workers are started and warmed up, then take over, and
        the old ones finish what they have. No query is lost. Blocks until the old ones are gone.

        Raises what a warm-up raised, and as `start_lane`; then all is as it was.
        """
        with self._reconfiguring:
            starting: list[LaneWorker] = []
            try:
                for placed in lanes:
                    starting += start_lane(
                        self.model, placed, next(self._lane_numbers), self._thread_ids, self._reports,
                        max_items=self._max_items, threads=threads, gives_way=gives_way, accelerator=self._accelerator,
                        rehearsed=self._rehearsed or self.splits > 0,
                    )  # fmt: skip
            except BaseException:
                for each in starting:
                    each.thread.stop()
                self._keep_hot_rows()
                raise
            with self._turns.alone() as effects:
                before = list(self._threads.values())
                self._threads.update((each.thread.worker_id, each) for each in starting)
                for each in starting:
                    for items, outcome in each.thread.started.result():
                        self._scheduler.service_times.observe(each.role, items, outcome.usual_s)
                    self._change(each, Availability.UP, effects)
                for each in before:
                    self._change(each, Availability.DRAINING, effects)
                self.lanes, self.threads, self.gives_way = tuple(lanes), threads, gives_way
                self.splits += 1
            for each in before:
                each.thread.join()
            with self._turns.alone():
                for each in before:  # one that was lost is not let go of by the scheduler
                    self._threads.pop(each.thread.worker_id, None)
                for worker in self._worked.keys() - {each.worker for each in self._threads.values()}:
                    del self._worked[worker]
            self._keep_hot_rows()

    def _keep_hot_rows(self) -> None:
        """Give back those that none of the lanes reads."""
        if self._accelerator is not None:
            hot = (placed.lane for placed in self.lanes if placed.lane.placement is Placement.HOT_SPARSE_ON_ACCELERATOR)
            self._accelerator.keep({lane.dense_workers for lane in hot})

    def _change(self, each: LaneWorker, state: Availability, effects: _Effects) -> None:
        """Tell the scheduler of a thread, in a turn."""
        self._handle(WorkerChanged(each.thread.worker_id, state, each.thread.cores, each.role), effects)

    @property
    def queue_depth(self) -> int:
        """Queries waiting for a worker."""
        return self._scheduler.queue_depth

    @property
    def idle(self) -> bool:
        """Whether every query that was admitted has been answered, and no batch runs."""
        self._reports.hear()
        with self._turns.alone():
            return self._scheduler.idle

    @property
    def workers(self) -> int:
        """Workers of which every thread runs."""
        runs: dict[tuple[int, int], bool] = {}
        for each in list(self._threads.values()):
            runs[each.worker] = runs.get(each.worker, True) and each.thread.alive
        return sum(runs.values())

    @property
    def worked_s(self) -> dict[tuple[int, Stage], float]:
        """Seconds that a worker has been at work so far, by lane and stage: the mean of those of one kind. It counts on
        from 0 with each way that the server is split.
        """
        worked_s: defaultdict[tuple[int, Stage], list[float]] = defaultdict(list)
        with self._turns.alone():
            now = clock()
            for worker, role in {each.worker: each.role for each in self._threads.values()}.items():
                worked_s[role.lane, role.stage].append(self._worked[worker].until(now))
        return {kind: fmean(of_kind) for kind, of_kind in worked_s.items()}

    @property
    def on_gpu(self) -> bool:
        """Whether a lane runs on one."""
        return self._accelerator is not None and any(
            placed.lane.placement.on_accelerator and is_gpu(self._accelerator.device) for placed in self.lanes
        )

    @property
    def configured_workers(self) -> int:
        """Workers that should run."""
        return sum(len(placed.all_workers) for placed in self.lanes)

    @property
    def healthy(self) -> bool:
        """Whether every worker runs and the last batches did not all fail."""
        return self.workers >= self.configured_workers and not self.fails

    @property
    def fails(self) -> bool:
        """Whether the last batches all failed."""
        return self._failures_in_a_row >= 3

    @property
    def failing_s(self) -> float | None:
        """How long ago the first of the last batches failed that all did; None while they do not."""
        return clock() - self._failing_since_s if self.fails else None

    def new_query_id(self) -> int:
        """An id that no other query of this driver has."""
        return next(self._ids)

    @property
    def refuses_of_late(self) -> bool:
        """Whether a query was refused in the last second, so that it pays to ask of the next one before it is read."""
        return clock() < self._refused_s + _OF_LATE_S

    def refusal(self, query: Query) -> QueryRefused | None:
        """How `query`, of which only size and deadline need be known, would be refused now; None if it might run."""
        with self._turns.alone():
            now = clock()
            rejected = self._scheduler.refusal(query, now)
        if rejected is None:
            return None
        has_timeout = query.deadline_s != float("inf")
        return self._refusal(rejected, now, has_timeout=has_timeout)

    async def infer(self, query: Query) -> QueryResult:
        """Score a checked query. Cancelling the task withdraws it.

        Raises `QueryRefused`, and `QueryFailed` if the worker could not run it.
        """
        loop = asyncio.get_running_loop()
        scores = np.empty((query.items, self.model.spec.outputs), dtype=np.float32)
        post = self._post
        if post is None or post.loop is not loop:
            post = self._post = AnswerPost(loop)
            self._reports.hear_on(loop)
        self._reports.hear()  # a worker that waits for its next batch goes before a query
        pending = _Pending(query, scores, loop.create_future(), post, query.deadline_s != float("inf"))
        self._turns.tell(partial(self._arrived, pending))
        try:
            return await pending.future
        except asyncio.CancelledError:
            self._turns.tell(partial(self._withdrawn, query.query_id))
            raise
        finally:
            del pending  # a refusal's traceback holds this frame, which would hold the refusal and the query's buffers

    def begin_shutdown(self) -> None:
        """Refuse queries from now on; those admitted are still answered."""
        with self._turns.alone() as effects:
            self._handle(ShutdownBegan(), effects)

    def close(self, patience_s: float = 10.0) -> None:
        """Stop the workers once the admitted queries are answered, and give the accelerator's memory back. Blocks.

        After `patience_s` no batch is started any more: what waits is refused, and what runs is finished.
        """
        self.begin_shutdown()
        give_up_s = clock() + patience_s
        while clock() < give_up_s and not (self._stopping or self.idle):
            time.sleep(0.005)
        with self._turns.alone():
            self._stopping = True
            waiting = [pending for pending in self._pending.values() if not pending.started_s]
            for pending in waiting:
                del self._pending[pending.query.query_id]
        self._refuse(waiting)
        for each in list(self._threads.values()):
            each.thread.stop()
        self._reports.close()
        if self._accelerator is not None:
            self._accelerator.keep(set())
        with self._turns.alone():
            begun = list(self._pending.values())
            self._pending.clear()
        self._refuse(begun)

    def _refuse(self, admitted: Sequence[_Pending]) -> None:
        """Answer queries that no worker is left for."""
        reason, now = RejectReason.SHUTTING_DOWN, clock()
        refusals = [
            self._refusal(RejectQuery(each.query, reason), now, has_timeout=each.has_timeout) for each in admitted
        ]
        _deliver(_Effects(list(zip(admitted, refusals, strict=True))))

    # Events

    def _arrived(self, pending: _Pending, effects: _Effects) -> None:
        self._pending[pending.query.query_id] = pending
        try:
            self._handle(QueryArrived(pending.query), effects)
        except Exception as fault:
            if self._pending.pop(pending.query.query_id, None) is not None:
                effects.answers.append((pending, fault))

    def _withdrawn(self, query_id: int, effects: _Effects) -> None:
        if self._pending.pop(query_id, None) is not None:
            with _logged("a query was not withdrawn"):
                self._handle(QueryWithdrawn(query_id), effects)

    def _batch_finished(self, thread_id: int, batch: Batch, outcome: BatchOutcome | Exception) -> Work | None:
        """On the thread that hears of it first: what the worker runs next, if that could be decided at once."""
        report = _Report(thread_id, batch, outcome)
        if not isinstance(outcome, Exception) and self._threads[thread_id].role.stage is not Stage.SPARSE:
            try:
                report.parts = self._collect(batch, outcome)
            except Exception as fault:  # scores of another shape than the model says, for one
                report.outcome = fault
            else:
                self._tell_observer(batch, outcome)  # counted before anybody hears of it
        self._turns.tell(partial(self._reported, report))
        report.by = None
        return report.next_work

    def _reported(self, report: _Report, effects: _Effects) -> None:
        """Take in what a thread reports, and give it the next batch. The thread ends if this fails."""
        thread_id, batch, outcome = report.thread_id, report.batch, report.outcome
        try:
            thread = self._threads[thread_id]
            failed = isinstance(outcome, Exception)
            if isinstance(outcome, Exception):
                self._blame(batch, outcome)
                self._failing_since_s = self._failing_since_s if self._failures_in_a_row else clock()
                self._failures_in_a_row += 1
            elif thread.role.stage is Stage.SPARSE:  # what is handed on may fail yet
                (self._handed[batch.batch_id],) = outcome.handed
            else:
                self._take_in(report.parts, outcome)
                self._failures_in_a_row = 0
            service_s = 0.0 if isinstance(outcome, Exception) else outcome.usual_s
            self._handle(BatchFinished(thread_id, batch.batch_id, service_s, failed), effects, thread_id)
            if effects.next_work is None:
                self._worked[thread.worker].end(thread_id, clock())
        except Exception as fault:
            self._lose(thread_id, batch, fault, effects)
        else:
            if threading.get_ident() == report.by:
                report.next_work = effects.next_work
            elif effects.next_work is not None:
                thread.thread.submit(effects.next_work)

    def _tell_observer(self, batch: Batch, outcome: BatchOutcome) -> None:
        if self.on_batch is None:
            return
        sparse_s = outcome.sparse_s + sum(inputs.sparse_s for inputs in outcome.handed)
        try:
            self.on_batch(batch.items, sparse_s, outcome.loading_s + outcome.dense_s)
        except Exception:
            log.exception("a batch was not counted")

    def _lose(self, thread_id: int, batch: Batch, fault: Exception, effects: _Effects) -> None:
        """A worker cannot go on: the queries of its batch fail, and what it was given next is run by others."""
        log.error("worker lost: load the model again, or restart the server", worker=thread_id, exc_info=fault)
        with _logged("what a lost worker ran was not given to others"):
            if (lost := self._threads.get(thread_id)) is not None:
                lost.thread.end()
                self._worked[lost.worker].end(thread_id, clock())
            taken_for, taken = self._taken.pop(thread_id, (None, {}))
            if taken_for != batch.batch_id:  # else it gives them back itself, and others run them no more
                self._handed.update(taken)
            for query_id in dict.fromkeys(part.query.query_id for part in batch.sub_queries):
                if (pending := self._pending.pop(query_id, None)) is not None:
                    effects.answers.append((pending, QueryFailed("the worker that ran it was lost")))
                self._handle(QueryWithdrawn(query_id), effects)
            self._handle(WorkerChanged(thread_id, Availability.LOST), effects)
            for batch_id in self._handed.keys() - self._scheduler.handed_on:
                self._handed.pop(batch_id).put_back()

    def _blame(self, batch: Batch, fault: Exception) -> None:
        """Note why the queries of a batch fail."""
        for part in batch.sub_queries:
            if (pending := self._pending.get(part.query.query_id)) is not None:
                pending.fault = fault

    def _collect(self, batch: Batch, outcome: BatchOutcome) -> list[ScoredPart]:
        """Copy a batch's scores to the queries whose parts it held, of which no other batch has the same items."""
        row, parts = 0, []
        for part in batch.sub_queries:
            pending = self._pending.get(part.query.query_id)
            end = row + part.items
            if pending is not None:
                copy_scores(outcome.scores[row:end], pending.scores[part.start : part.stop])
                parts.append((pending, outcome.sparse_s_at(row), outcome.keys_of(row, end)))
            row = end
        return parts

    @staticmethod
    def _take_in(parts: Sequence[ScoredPart], outcome: BatchOutcome) -> None:
        """Add up what the parts of a query took."""
        for pending, sparse_s, keys in parts:
            pending.sparse_s += sparse_s
            pending.loading_s += outcome.loading_s
            pending.dense_s += outcome.dense_s
            pending.keys.add(keys)

    def _fire_timer(self) -> None:
        self._turns.tell(self._timer_fired)

    def _timer_fired(self, effects: _Effects) -> None:
        with _logged("what was to be done by now was not"):
            self._handle(TimerFired(), effects)

    # Actions

    def _handle(self, event: Event, effects: _Effects, thread_id: int | None = None) -> None:
        """Give an event to the scheduler and carry out its actions, in a turn.

        A batch for `thread_id` is returned rather than sent to its inbox.
        """
        now = clock()
        try:
            actions = self._scheduler.handle(event, now)
        except Exception:
            undone, self._scheduler.undone = self._scheduler.undone, []
            for action in undone:
                self._apply(action, now, thread_id, effects)
            raise
        for action in actions:
            self._apply(action, now, thread_id, effects)
        if self.observer is not None:
            self.observer(now, event, actions)

    def _apply(self, action: Action, now: float, thread_id: int | None, effects: _Effects) -> None:
        match action:
            case StartBatch() if self._stopping:
                pass
            case StartBatch(target, batch, handed):
                for part in batch.sub_queries:
                    pending = self._pending.get(part.query.query_id)
                    if pending is not None and not pending.started_s:
                        pending.started_s = now
                taken = {each: self._handed.pop(each) for each in handed}
                if taken:
                    self._taken[target] = batch.batch_id, taken
                work = Work(batch, tuple(taken.values()))
                self._worked[self._threads[target].worker].begin(target, now)
                if target == thread_id:
                    effects.next_work = work
                else:
                    self._threads[target].thread.submit(work)
            case ReleaseWorker(target):
                effects.released.append(self._threads.pop(target))
                self._taken.pop(target, None)
            case CompleteQuery(query):
                pending = self._pending.pop(query.query_id, None)
                if pending is not None:
                    effects.answers.append((pending, self._result(pending, now)))
            case RejectQuery(query):
                pending = self._pending.pop(query.query_id, None)
                if pending is not None:
                    effects.answers.append((pending, self._refusal(action, now, has_timeout=pending.has_timeout)))
            case FailQuery(query):
                pending = self._pending.pop(query.query_id, None)
                if pending is not None:
                    failure = QueryFailed(f"the batch failed on its worker: {told_to_clients(pending.fault)}")
                    failure.__cause__ = pending.fault  # for the log: where on the worker
                    effects.answers.append((pending, failure))
            case SetTimer(at_s):
                loops = (each.post.loop for each in reversed(self._pending.values()))
                loop = next((each for each in loops if not each.is_closed()), None)
                if loop is not None:
                    loop.call_soon_threadsafe(self._set_timer, loop, at_s)

    def _set_timer(self, loop: asyncio.AbstractEventLoop, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(loop.time() + at_s - clock(), self._fire_timer)

    def _result(self, pending: _Pending, now: float) -> QueryResult | Exception:
        query = pending.query
        if pending.has_timeout and now > query.deadline_s:
            return self._refusal(RejectQuery(query, RejectReason.EXPIRED), now, has_timeout=True)
        return QueryResult(
            query.query_id,
            pending.scores,
            latency_s=now - query.arrival_s,
            queue_s=max(pending.started_s - query.arrival_s, 0.0),
            sparse_s=pending.sparse_s,
            dense_s=pending.dense_s,
            keys=pending.keys,
            loading_s=pending.loading_s,
        )

    def _refusal(self, rejected: RejectQuery, now: float, *, has_timeout: bool) -> QueryRefused:
        self._refused_s = now
        return refusal(rejected, now, self.config, has_timeout=has_timeout)


def _deliver(effects: _Effects) -> None:
    """Wake the waiting tasks, on a worker's thread through the event loop; end the workers that were let go."""
    for each in effects.released:
        each.thread.end()
    if not effects.answers:  # mostly
        return
    try:
        running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    for pending, answer in effects.answers:
        if pending.post.loop is running:
            settle(pending.future, answer)
        else:
            pending.post.give(pending.future, answer)


@contextlib.contextmanager
def _logged(failed: str) -> Iterator[None]:
    """The scheduler should not raise; should it, for want of memory, say, the others' turns go on."""
    try:
        yield
    except Exception:
        log.exception(failed)
