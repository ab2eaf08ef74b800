"""One server in virtual time: the live server's `scheduling.node`, over modelled workers that run the whole model, or
form pipelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hebe.latency import attainment
from hebe.profile import LatencyProfile
from hebe.query import Query
from hebe.scheduling.events import (
    Availability,
    BatchFinished,
    CompleteQuery,
    Event,
    Observer,
    QueryArrived,
    RejectQuery,
    RejectReason,
    SetTimer,
    StartBatch,
    TimerFired,
    WorkerChanged,
    WorkerRole,
)
from hebe.scheduling.node.node import NodeConfig, NodeScheduler
from hebe.simulation.event_queue import EventQueue

Floats = npt.NDArray[np.float64]
ServiceTime = Callable[[int, float], float]
"""Seconds that a batch takes, of its items and when it starts. Called once a batch, in the order of their starts."""

_SIGMA_PER_DEVIATION = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation, which profiles hold."""


def profiled_service(profile: LatencyProfile, rng: np.random.Generator) -> ServiceTime:
    """Service times around the profile's medians with the spread measured there: normal, within a third and three
    times of the median."""

    def service_s(items: int, now: float) -> float:  # noqa: ARG001
        median_s = profile.service_time_s(items)
        spread_s = float(np.interp(items, profile.batch_sizes, profile.spread_s))
        drawn_s = median_s + _SIGMA_PER_DEVIATION * spread_s * float(rng.standard_normal())
        return min(max(drawn_s, median_s / 3), 3 * median_s)

    return service_s


@dataclass(frozen=True, slots=True)
class NodeRun:
    """What became of the queries: `latency_s` float64 [queries], nan where a query was not answered.

    `refusals` are the reasons by query, None for one that was not refused. `busy_share` is the share of the workers'
    time that went to batches, until the last of them ended at `end_s`; `batches` how many there were.
    """

    latency_s: Floats
    refusals: tuple[RejectReason | None, ...]
    busy_share: float
    batches: int
    end_s: float

    def attainment(self, sla_s: float) -> float:
        """The share of all queries that were answered within `sla_s`."""
        return attainment(self.latency_s, sla_s)

    def refused(self, *reasons: RejectReason) -> int:
        """How many queries were refused for one of these reasons, or for any."""
        return sum(reason is not None and (not reasons or reason in reasons) for reason in self.refusals)


def run_node(
    arrivals_s: Floats,
    sizes: npt.NDArray[np.int64],
    config: NodeConfig,
    service_s: ServiceTime | Mapping[WorkerRole, ServiceTime],
    *,
    workers: int | Sequence[WorkerRole] = 1,
    profile: LatencyProfile | None = None,
    changes: Sequence[tuple[float, WorkerChanged]] = (),
    observer: Observer | None = None,
    give_up_late: int | None = None,
) -> NodeRun:
    """Queries of `sizes[i]` items that arrive at `arrivals_s[i]`, ascending, at a server of so many `workers`, or of
    workers with these roles; `service_s` is each one's, or by role.

    `profile` is what the scheduler knows of service times beforehand. `changes` are told to it at their times: workers,
    with ids from 0, that drain, are lost or come back. Of what happens at the same time, arrivals come first, then what
    was announced first. Query ids are the indices. `give_up_late`: stop once more than so many queries were refused, or
    answered after the SLA's time; the rest then count as not answered. Raises ValueError for no worker, or arrivals and
    sizes that do not match.
    """
    roles = [WorkerRole()] * workers if isinstance(workers, int) else list(workers)
    if not roles:
        raise ValueError(f"workers is {workers}: must be at least 1")
    if arrivals_s.shape != sizes.shape or (np.diff(arrivals_s) < 0).any():
        raise ValueError(f"arrivals_s {arrivals_s.shape} and sizes {sizes.shape}: give one of each, in order of time")
    node = NodeScheduler(config, profile)
    for worker_id, role in enumerate(roles):
        node.handle(WorkerChanged(worker_id, Availability.UP, role=role), 0.0)
    happenings: EventQueue[BatchFinished | WorkerChanged | _Timer] = EventQueue()
    for at_s, change in changes:
        happenings.push(at_s, change)
    latency_s = np.full(arrivals_s.size, np.nan)
    refusals: list[RejectReason | None] = [None] * arrivals_s.size
    started_s: dict[int, dict[int, float]] = {worker_id: {} for worker_id in range(len(roles))}
    takes = {worker_id: _service_of(role, service_s) for worker_id, role in enumerate(roles)}
    timer = _Timer()
    busy_s = now = end_s = 0.0
    batches = upcoming = late = 0
    most_late = arrivals_s.size if give_up_late is None else give_up_late
    while late <= most_late and (upcoming < arrivals_s.size or happenings):
        if upcoming < arrivals_s.size and arrivals_s[upcoming] <= happenings.next_s:
            now = float(arrivals_s[upcoming])
            event: Event = QueryArrived(Query(upcoming, int(sizes[upcoming]), now))
            upcoming += 1
        else:
            now, happening = happenings.pop()
            if isinstance(happening, _Timer):
                if happening is not timer:  # another took its place
                    continue
                event = TimerFired()
            else:
                event = happening
        if isinstance(event, BatchFinished):
            began_s = started_s.get(event.worker_id, {}).pop(event.batch_id, None)
            if began_s is None:  # lost with its worker
                continue
            busy_s += now - began_s
            end_s = now
        elif isinstance(event, WorkerChanged):
            if event.state is Availability.LOST:
                busy_s += sum(now - one for one in started_s.pop(event.worker_id, {}).values())
            else:
                if event.worker_id not in started_s:
                    started_s[event.worker_id] = {}
                    takes[event.worker_id] = _service_of(event.role, service_s)
        actions = node.handle(event, now)
        if observer is not None:
            observer(now, event, actions)
        for action in actions:
            match action:
                case StartBatch(worker_id, batch):
                    takes_s = takes[worker_id](batch.items, now)
                    started_s[worker_id][batch.batch_id] = now
                    happenings.push(now + takes_s, BatchFinished(worker_id, batch.batch_id, takes_s))
                    batches += 1
                case SetTimer(at_s):
                    timer = _Timer()
                    happenings.push(at_s, timer)
                case CompleteQuery(query):
                    latency_s[query.query_id] = now - query.arrival_s
                    late += now - query.arrival_s > config.sla_s
                case RejectQuery(query, reason):
                    refusals[query.query_id] = reason
                    late += 1
    busy_share = busy_s / (len(roles) * end_s) if end_s else 0.0
    return NodeRun(latency_s, tuple(refusals), busy_share, batches, end_s)


def _service_of(role: WorkerRole, service_s: ServiceTime | Mapping[WorkerRole, ServiceTime]) -> ServiceTime:
    return service_s[role] if isinstance(service_s, Mapping) else service_s


class _Timer:
    """A timer that was set; only the last one set counts."""

    __slots__ = ()
