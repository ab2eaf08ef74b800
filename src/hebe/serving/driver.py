"""The live driver: carries out the node scheduler's actions on this machine's workers.

Events come from the event loop (arrivals, withdrawals, timers) and from worker threads (finished batches); a lock
hands them to the scheduler one at a time. A worker that reports a batch takes its next one from the same call, so
it does not idle while the event loop is busy decoding.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from hebe.profile import LatencyProfile
from hebe.query import Batch, FloatArray, KeyCounts, Query, QueryResult
from hebe.runtime.executor import BatchOutcome, ModelExecutor, told_to_clients
from hebe.runtime.loaded_model import LoadedModel
from hebe.runtime.worker import Measured, Worker
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
    SetTimer,
    ShutdownBegan,
    StartBatch,
    TimerFired,
    WorkerChanged,
)
from hebe.scheduling.node import NodeConfig, NodeScheduler
from hebe.serving.errors import QueryFailed, QueryRefused

clock = time.monotonic
"""The driver's clock, seconds; the event loop's as well, so timers agree with it."""

_MESSAGES = {
    RejectReason.DEADLINE: "refused: at the present load it could not be answered within its deadline",
    RejectReason.QUEUE_FULL: "refused: the queue is full",
    RejectReason.EXPIRED: "its deadline passed before it could be answered",
    RejectReason.NO_WORKER: "refused: no worker is up",
    RejectReason.SHUTTING_DOWN: "refused: the model is being unloaded",
}
_TOO_LATE = "refused: after waiting it could not be answered within the latency bound any more"


@dataclass(slots=True, eq=False)
class _Pending:
    query: Query
    scores: FloatArray
    future: asyncio.Future[QueryResult]
    loop: asyncio.AbstractEventLoop
    has_timeout: bool
    started_s: float = 0.0
    sparse_s: float = 0.0
    dense_s: float = 0.0
    keys: KeyCounts = field(default_factory=KeyCounts)
    fault: Exception | None = None


Answer = tuple[_Pending, QueryResult | Exception]
BatchObserver = Callable[[int, float, float], None]
"""Told of each batch on the worker's thread: items, seconds in the sparse part, seconds in the dense part."""


@dataclass(slots=True)
class _Effects:
    answers: list[Answer] = field(default_factory=list)
    next_batch: Batch | None = None


class NodeDriver:
    """Workers of one loaded model, driven by one `NodeScheduler`; to this, each of a worker's `threads` is a worker."""

    def __init__(
        self,
        model: LoadedModel,
        config: NodeConfig,
        worker_cores: list[tuple[int, ...]],
        profile: LatencyProfile | None = None,
        *,
        threads: int = 1,
        gives_way: bool = False,
    ) -> None:
        self.model = model
        self.config = config
        self.on_batch: BatchObserver | None = None
        self._scheduler = NodeScheduler(config, profile)
        self._lock = threading.Lock()
        self._pending: dict[int, _Pending] = {}
        self._ids = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_loop: asyncio.AbstractEventLoop | None = None
        self._failures_in_a_row = 0
        self._worker_count = len(worker_cores)
        self._workers: list[Worker] = []
        """First one thread of each, then, if there are two, the other of each."""
        try:
            for _ in range(threads):  # one after the other: warm-ups tell how long a batch takes with none beside it
                self._start_workers(worker_cores, gives_way)
        except Exception:
            for worker in self._workers:
                worker.stop()
            raise

    def _start_workers(self, worker_cores: list[tuple[int, ...]], gives_way: bool) -> None:
        """A thread of each worker, warmed up."""
        starting = []
        for cores in worker_cores:
            executor = self.model.new_executor(self.config.batch_size)
            worker = Worker(
                len(self._workers), executor, cores, self._warm_up, self._batch_finished, gives_way=gives_way
            )
            starting.append(worker)
            self._workers.append(worker)
        for worker in starting:
            for items, outcome in worker.started.result():
                self._scheduler.predictor.observe(items, outcome.service_s)
            self._scheduler.handle(WorkerChanged(worker.worker_id, Availability.UP, worker.cores), clock())

    def _warm_up(self, executor: ModelExecutor) -> Measured:
        return self.model.warm_up(executor, self.config.batch_size)

    @property
    def queue_depth(self) -> int:
        """Queries waiting for a worker."""
        return self._scheduler.queue_depth

    @property
    def workers(self) -> int:
        """Workers of which every thread runs."""
        count = self._worker_count
        return sum(all(thread.alive for thread in self._workers[first::count]) for first in range(count))

    @property
    def configured_workers(self) -> int:
        """Workers that should run."""
        return self._worker_count

    @property
    def healthy(self) -> bool:
        """Whether every worker runs and the last batches did not all fail."""
        return self.workers == self._worker_count and self._failures_in_a_row < 3

    def new_query_id(self) -> int:
        """An id that no other query of this driver has."""
        return next(self._ids)

    def refusal(self, query: Query) -> QueryRefused | None:
        """How `query`, of which only size and deadline need be known, would be refused now; None if it might run."""
        with self._lock:
            rejected = self._scheduler.refusal(query, clock())
        if rejected is None:
            return None
        return QueryRefused(rejected.reason, _MESSAGES[rejected.reason], rejected.retry_after_s)

    async def infer(self, query: Query) -> QueryResult:
        """Score a checked query. Cancelling the task withdraws it.

        Raises `QueryRefused`, and `QueryFailed` if the worker could not run it.
        """
        loop = asyncio.get_running_loop()
        scores = np.empty((query.items, self.model.spec.outputs), dtype=np.float32)
        pending = _Pending(query, scores, loop.create_future(), loop, query.deadline_s != float("inf"))
        with self._lock:
            self._pending[query.query_id] = pending
            self._timer_loop = loop
            effects = self._handle(QueryArrived(query))
        self._deliver(effects.answers)
        try:
            return await pending.future
        except asyncio.CancelledError:
            with self._lock:
                if self._pending.pop(query.query_id, None) is not None:
                    effects = self._handle(QueryWithdrawn(query.query_id))
            self._deliver(effects.answers)
            raise
        finally:
            del pending  # a refusal's traceback holds this frame, which would hold the refusal and the query's buffers

    def begin_shutdown(self) -> None:
        """Refuse queries from now on; those admitted are still answered."""
        with self._lock:
            effects = self._handle(ShutdownBegan())
        self._deliver(effects.answers)

    def close(self, patience_s: float = 10.0) -> None:
        """Stop the workers once the admitted queries are answered, after `patience_s` at the latest. Blocks."""
        self.begin_shutdown()
        give_up_s = clock() + patience_s
        while clock() < give_up_s and not self._is_idle():
            time.sleep(0.005)
        for worker in self._workers:
            worker.stop()
        with self._lock:
            left = list(self._pending.values())
            self._pending.clear()
        reason = RejectReason.SHUTTING_DOWN
        self._deliver([(pending, _refusal(pending, reason)) for pending in left])

    def _is_idle(self) -> bool:
        with self._lock:
            return self._scheduler.idle

    # Events

    def _batch_finished(self, worker_id: int, batch: Batch, outcome: BatchOutcome | Exception) -> Batch | None:
        """On the worker's thread."""
        failed = isinstance(outcome, Exception)
        self._failures_in_a_row = self._failures_in_a_row + 1 if failed else 0
        service_s = 0.0 if isinstance(outcome, Exception) else outcome.service_s
        with self._lock:
            self._collect(batch, outcome)
            effects = self._handle(BatchFinished(worker_id, batch.batch_id, service_s, failed), worker_id)
        if self.on_batch is not None and not isinstance(outcome, Exception):  # counted before anybody hears of it
            self.on_batch(batch.items, outcome.sparse_s, outcome.dense_s)
        self._deliver(effects.answers)
        return effects.next_batch

    def _collect(self, batch: Batch, outcome: BatchOutcome | Exception) -> None:
        """Copy a batch's scores to the queries whose parts it held. The lock is held."""
        row = 0
        for part in batch.sub_queries:
            pending = self._pending.get(part.query.query_id)
            end = row + part.items
            if pending is not None:
                if isinstance(outcome, Exception):
                    pending.fault = outcome
                else:
                    pending.scores[part.start : part.stop] = outcome.scores[row:end]
                    pending.sparse_s += outcome.sparse_s
                    pending.dense_s += outcome.dense_s
                    pending.keys.add(outcome.keys_of(row, end))
            row = end

    def _fire_timer(self) -> None:
        with self._lock:
            effects = self._handle(TimerFired())
        self._deliver(effects.answers)

    # Actions

    def _handle(self, event: Event, worker_id: int | None = None) -> _Effects:
        """Give an event to the scheduler and carry out its actions. The lock is held.

        A batch for `worker_id`, which is calling, is returned rather than sent to its inbox.
        """
        now = clock()
        effects = _Effects()
        for action in self._scheduler.handle(event, now):
            self._apply(action, now, worker_id, effects)
        return effects

    def _apply(self, action: Action, now: float, worker_id: int | None, effects: _Effects) -> None:
        match action:
            case StartBatch(target, batch):
                for part in batch.sub_queries:
                    pending = self._pending.get(part.query.query_id)
                    if pending is not None and not pending.started_s:
                        pending.started_s = now
                if target == worker_id:
                    effects.next_batch = batch
                else:
                    self._workers[target].submit(batch)
            case CompleteQuery(query):
                pending = self._pending.pop(query.query_id, None)
                if pending is not None:
                    effects.answers.append((pending, self._result(pending, now)))
            case RejectQuery(query, reason, retry_after_s):
                pending = self._pending.pop(query.query_id, None)
                if pending is not None:
                    effects.answers.append((pending, _refusal(pending, reason, retry_after_s)))
            case FailQuery(query):
                pending = self._pending.pop(query.query_id, None)
                if pending is not None:
                    failure = QueryFailed(f"the batch failed on its worker: {told_to_clients(pending.fault)}")
                    failure.__cause__ = pending.fault  # for the log: where on the worker
                    effects.answers.append((pending, failure))
            case SetTimer(at_s):
                loop = self._timer_loop
                if loop is not None:
                    loop.call_soon_threadsafe(self._set_timer, loop, at_s)

    def _set_timer(self, loop: asyncio.AbstractEventLoop, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(loop.time() + at_s - clock(), self._fire_timer)

    def _result(self, pending: _Pending, now: float) -> QueryResult | Exception:
        query = pending.query
        if pending.has_timeout and now > query.deadline_s:
            return _refusal(pending, RejectReason.EXPIRED)
        return QueryResult(
            query.query_id,
            pending.scores,
            latency_s=now - query.arrival_s,
            queue_s=max(pending.started_s - query.arrival_s, 0.0),
            sparse_s=pending.sparse_s,
            dense_s=pending.dense_s,
            keys=pending.keys,
        )

    def _deliver(self, answers: list[Answer]) -> None:
        """Wake the waiting tasks; on a worker's thread, through the event loop."""
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        for pending, answer in answers:
            if pending.loop is running:
                _settle(pending.future, answer)
            elif not pending.loop.is_closed():
                pending.loop.call_soon_threadsafe(_settle, pending.future, answer)


def _refusal(pending: _Pending, reason: RejectReason, retry_after_s: float = 0.0) -> QueryRefused:
    timed_out = reason is RejectReason.EXPIRED and pending.has_timeout
    message = _MESSAGES[reason] if timed_out or reason is not RejectReason.EXPIRED else _TOO_LATE
    return QueryRefused(reason, message, retry_after_s, timed_out=timed_out)


def _settle(future: asyncio.Future[QueryResult], answer: QueryResult | Exception) -> None:
    if future.done():  # cancelled meanwhile
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
