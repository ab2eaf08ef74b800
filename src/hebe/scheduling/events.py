"""The words that schedulers and drivers exchange: events in, actions out.

A driver, live or simulated, calls `actions = scheduler.handle(event, now)` and carries the actions out, in order.
`now` and every `_s` time are seconds on the driver's own clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from hebe.query import Batch, Query, SubQuery


class Availability(StrEnum):
    """Of a worker or an instance. UP takes work; DRAINING finishes what it has; LOST will never finish it."""

    UP = "up"
    DRAINING = "draining"
    LOST = "lost"


class RejectReason(StrEnum):
    """Why a query is not answered."""

    DEADLINE = "deadline"
    """Refused on arrival: by the learned service times it could not meet its deadline."""
    QUEUE_FULL = "queue_full"
    """Refused on arrival: the queue is at its bound."""
    EXPIRED = "expired"
    """Dropped from the queue: its deadline can no longer be met."""
    NO_WORKER = "no_worker"
    """No worker is up."""
    SHUTTING_DOWN = "shutting_down"
    """The model is being unloaded or the server stopped."""


class Stage(StrEnum):
    """What a worker runs of the model."""

    WHOLE = "whole"
    """All of it."""
    SPARSE = "sparse"
    """The SparseNet; what comes of it is handed on to the dense workers of the same lane."""
    DENSE = "dense"
    """The DenseNet, on what sparse workers have handed on."""


@dataclass(frozen=True, slots=True)
class WorkerRole:
    """What a worker does (Hercules, section IV.B: model-based scheduling, or the S-D pipeline).

    `batch_size`: most items of its batches, 0 for the server's. `fuse`: whether several queries, or several batches
    that were handed on, may share one; None for what the server does. `lane`: to which pipeline it belongs.
    `most_handed`: so many batches of its lane may be under way from sparse to dense workers; sparse workers wait then.
    """

    stage: Stage = Stage.WHOLE
    batch_size: int = 0
    fuse: bool | None = None
    lane: int = 0
    most_handed: int = 1


@dataclass(frozen=True, slots=True)
class QueryArrived:
    """A query came in; it is answered by exactly one CompleteQuery, RejectQuery or FailQuery."""

    query: Query


@dataclass(frozen=True, slots=True)
class QueryWithdrawn:
    """Nobody waits for this query any more. No action about it follows."""

    query_id: int


@dataclass(frozen=True, slots=True)
class BatchFinished:
    """A worker is done with a batch; `failed` if it has no scores.

    `service_s`: the seconds that it took, without those for which it waited for a store that did not answer: they say
    nothing about the next batch.
    """

    worker_id: int
    batch_id: int
    service_s: float
    failed: bool = False


@dataclass(frozen=True, slots=True)
class WorkerChanged:
    """A worker appeared or changed state.

    `cores`: where it stands, told when it appears. Workers on the same cores take turns, as do the threads of a worker,
    each of which counts as one here; () are cores that no other has. `role`: what it does, told when it appears. A
    worker that is DRAINING is let go by `ReleaseWorker`: a dense one when no sparse worker of its lane is left, and
    nothing that was handed on.
    """

    worker_id: int
    state: Availability
    cores: tuple[int, ...] = ()
    role: WorkerRole = WorkerRole()


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time of an earlier SetTimer has come."""


@dataclass(frozen=True, slots=True)
class ShutdownBegan:
    """Take no further query; finish those admitted."""


Event = QueryArrived | QueryWithdrawn | BatchFinished | WorkerChanged | TimerFired | ShutdownBegan


@dataclass(frozen=True, slots=True)
class StartBatch:
    """Run `batch` on this worker now; report with BatchFinished.

    `handed`: for a dense worker, the ids of the sparse workers' batches of which `batch` is made, in order.
    """

    worker_id: int
    batch: Batch
    handed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Report TimerFired at `at_s`; replaces an earlier timer."""

    at_s: float


@dataclass(frozen=True, slots=True)
class CompleteQuery:
    """All parts of the query are done: answer it."""

    query: Query


@dataclass(frozen=True, slots=True)
class RejectQuery:
    """Answer with a refusal; `retry_after_s` is when the queue will have drained, as far as is known: in how long the
    query was predicted to be done, where it was refused on arrival. `likely_within_s`: of `DEADLINE`, that time with
    the margin learned from how late queries were, which is what did not fit.
    """

    query: Query
    reason: RejectReason
    retry_after_s: float = 0.0
    likely_within_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FailQuery:
    """Answer with an internal error: a batch that held a part of it failed."""

    query: Query


@dataclass(frozen=True, slots=True)
class ReleaseWorker:
    """A worker that was draining runs nothing any more, and is forgotten."""

    worker_id: int


Action = StartBatch | SetTimer | CompleteQuery | RejectQuery | FailQuery | ReleaseWorker

Observer = Callable[[float, Event, list[Action]], object]
"""Told by a driver of every event: when it was, what it was, and what the scheduler made of it."""


@dataclass(frozen=True, slots=True)
class InstanceChanged:
    """An instance of a server type appeared or changed state; it runs `workers` sub-queries at a time.

    One that drains may come UP again, with as many workers as before.
    """

    instance_id: int
    server_type: str
    state: Availability
    workers: int = 1


@dataclass(frozen=True, slots=True)
class SubQueryFinished:
    """An instance is done with a sub-query, `service_s` seconds after it was sent; `failed` if it has no scores."""

    instance_id: int
    sub_query: SubQuery
    service_s: float
    failed: bool = False


RouterEvent = QueryArrived | QueryWithdrawn | SubQueryFinished | InstanceChanged | ShutdownBegan


@dataclass(frozen=True, slots=True)
class SendSubQuery:
    """Have this instance score the sub-query now; report with SubQueryFinished."""

    instance_id: int
    sub_query: SubQuery


RouterAction = SendSubQuery | CompleteQuery | RejectQuery | FailQuery
