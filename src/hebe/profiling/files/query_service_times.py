"""Service times of a query on one server, of a profile that `hebe profile` wrote: what pools are planned from.

Workers that are all at work hinder each other: they compete for memory and the interpreter lock. So those times count
that were measured while all were busy; what else a query costs a server is not in them, and where that is much, as of
small models, it is said. Profiles of before have only times of a worker that nothing runs beside; these are stretched
until the server's workers keep the SLA target at no more than the throughput that was measured.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

import numpy as np

from hebe.planning.pool.query_size_monitor import size_weights
from hebe.profile import LatencyProfile
from hebe.profiling.files.server_profile import ServerProfile
from hebe.server_configuration import Placement
from hebe.simulation.measured.service_table import ServiceTable
from hebe.simulation.queueing.shared_slowdown import WorkersAtLimit, longest_stretch, service_classes
from hebe.workload import forms
from hebe.workload.text_errors import WorkloadError

_LARGEST_SPLIT = 4096
"""Items up to which a query is told as the parts that a server splits it into."""
_SIZE_DRAWS = 50_000
_TOLD_STRETCH, _TOLD_BUSY_STRETCH = 1.05, 1.5
"""By less, nothing is said: of times that are stretched, and of times that were measured while all were busy."""


@dataclass(frozen=True, slots=True)
class TimesOfQueries:
    """Service time of a query on one worker by its size; how many `workers` a server has; and what must be said of how
    the times were come by, empty where they are as measured."""

    latency: LatencyProfile
    workers: int
    remark: str


def why_no_times(profile: ServerProfile, where: str) -> str:
    """Why the service time of a query on this server is not that of one batch on one worker; empty where it is.

    `where` begins the message: the file, or what else names the profile.
    """
    (lane, *beside), where = profile.configuration, f"{where}: {_pair(profile)}"
    what = ""
    if beside:
        what = "runs in two lanes, with service times of their own"
    elif lane.placement is not Placement.MODEL_ON_HOST:
        what = f"runs as {lane.placement}, in stages that work side by side or fuse queries"
    elif "whole" not in profile.latency:
        return f"{where}: latency: whole is missing: it was not measured how long a batch takes"
    if not what:
        return ""
    return (
        f"{where} {what}: how long a query takes there is not one number by its size; profile it with --placement"
        f" {Placement.MODEL_ON_HOST}, or plan by its throughput: hebe plan provision"
    )


def times_of_queries(profile: ServerProfile, where: str) -> TimesOfQueries:
    """Of a profile that has such times (`why_no_times`); `where` begins what must be said of them."""
    (lane,) = profile.configuration
    busy = profile.busy_latency.get("whole")
    if busy is not None:
        return _while_busy(profile, _by_query_size(busy), lane.workers, where)
    alone = _by_query_size(profile.latency["whole"])
    if lane.workers == 1:
        return TimesOfQueries(alone, lane.workers, "")  # none hinders it
    where = f"{where}: {_pair(profile)}: the service times are of one worker alone"
    again = f"profile {profile.subject.model} again, and they are measured while all {lane.workers} are busy"
    stretch = _stretch(profile, alone, lane.workers)
    if stretch is None:
        remark = f"{where}, and how the workers hinder each other cannot be told from its load: {again}."
        return TimesOfQueries(alone, lane.workers, remark)
    stretched = replace(
        alone,
        service_s=tuple(stretch * time_s for time_s in alone.service_s),
        spread_s=tuple(stretch * time_s for time_s in alone.spread_s),
    )
    remark = (
        f"{where}. They are taken {stretch:.2f} times as long, by which one server serves about the"
        f" {profile.efficiency.qps:,.4g} queries/s that were measured: {again}."
    )
    return TimesOfQueries(stretched, lane.workers, remark if stretch >= _TOLD_STRETCH else "")


def _while_busy(profile: ServerProfile, busy: LatencyProfile, workers: int, where: str) -> TimesOfQueries:
    """As they were measured, and how hopeful that is."""
    stretch = _stretch(profile, busy, workers)
    if stretch is None or stretch < _TOLD_BUSY_STRETCH:
        return TimesOfQueries(busy, workers, "")
    remark = (
        f"{where}: {_pair(profile)}: {profile.efficiency.qps:,.4g} queries/s were measured, where by its service times"
        f" one server keeps the SLA target at more, as if these were {stretch:.2f} times as long: what a query costs"
        " beside its batches is not in them. What is planned by them is as hopeful."
    )
    return TimesOfQueries(busy, workers, remark)


def _pair(profile: ServerProfile) -> str:
    return f"{profile.subject.model} on {profile.server.name}"


def _stretch(profile: ServerProfile, alone: LatencyProfile, workers: int) -> float | None:
    """By how much times must grow for the server to serve what was measured, 1 where it serves no more anyway; None if
    it cannot be told what queries were sent."""
    subject = profile.subject
    form = subject.sizes
    if form is None:
        return None
    try:
        drawn = forms.query_sizes(form).draw(_SIZE_DRAWS, np.random.default_rng(0))
    except (WorkloadError, OSError):  # of a file that is elsewhere
        return None
    largest = min(int(drawn.max()), alone.batch_sizes[-1])
    weights = size_weights(np.minimum(drawn, largest), largest)
    table = ServiceTable.from_profiles({"": alone}, largest)
    service_s = service_classes(table.quantiles_s[0], weights)
    return max(longest_stretch(service_s, subject.sla, WorkersAtLimit(workers, profile.efficiency.qps)), 1.0)


def _by_query_size(measured: LatencyProfile) -> LatencyProfile:
    """Of a query by its size, from times of batches.

    A query above the batch size is split. Its parts are told one after another on one worker: as much work as there is,
    and the latest that it can be done, since parts run side by side where workers are idle.
    """
    sizes, service_s, spread_s = list(measured.batch_sizes), list(measured.service_s), list(measured.spread_s)
    part, part_s, part_spread_s = sizes[-1], service_s[-1], spread_s[-1]
    within = [1, *(size for size in sizes if size > 1)]
    for whole in range(1, _LARGEST_SPLIT // part):
        # Spreads of parts that are slow or fast by chance add up as deviations do.
        sizes += [whole * part + size for size in within]
        service_s += [whole * part_s + measured.service_time_s(size) for size in within]
        spread_s += [(whole * part_spread_s**2 + _spread_s(measured, size) ** 2) ** 0.5 for size in within]
    return LatencyProfile(tuple(sizes), tuple(service_s), tuple(spread_s))


def _spread_s(measured: LatencyProfile, items: int) -> float:
    return measured.spread_s[max(bisect_right(measured.batch_sizes, items) - 1, 0)]
