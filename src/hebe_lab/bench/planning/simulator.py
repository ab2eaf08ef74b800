"""How fast the simulator is, and how right: queries per second on one core, a whole day of a cluster, closed forms.

Of one server nearly all of the time is its scheduler's, which the live server spends as well.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from rich.progress import Progress
from scipy import stats

from hebe.planning.pool.query_size_monitor import size_weights
from hebe.planning.provisioning.day import plan_day
from hebe.planning.provisioning.provisioning import FleetOptions
from hebe.profile import LatencyProfile
from hebe.report.figures import Figure, median_and_spread
from hebe.report.progress_bar import bar_of
from hebe.scheduling.fleet.distribution import FirstComeFirstServed
from hebe.scheduling.fleet.matching import CostMatching
from hebe.scheduling.node.node import NodeConfig
from hebe.simulation.fleet.capacity import fleet_capacity
from hebe.simulation.fleet.capacity_race import PolicyMaker
from hebe.simulation.fleet.fleet_run import FleetRun, QueryTrace, TableServers, run_fleet
from hebe.simulation.fleet.provisioned_day import PlannedServers, run_interval
from hebe.simulation.measured.service_table import ServiceTable
from hebe.simulation.node.node_run import profiled_service, run_node
from hebe.simulation.sweep import sweep
from hebe.spec import SlaTarget
from hebe.workload.query_sizes import FixedSizes, ProductionSizes
from hebe_lab.baselines.closed_forms import mdc_latency_s, mm1_latency_s
from hebe_lab.bench.planning.tables import LARGEST, SLA_MS, service_table

_POOL = (1, 0, 13, 0)
_RATE_QPS = 400.0
"""Matching sustains 429 queries/s on the pool."""
_NODE_WORKERS = (2, 16)
_RATE_PER_WORKER_QPS = 180.0
_NODE_SLA_S = 0.02
_BATCHES = LatencyProfile((1, 256), (0.12e-3, 4e-3), (0.01e-3, 0.3e-3))
"""Of one worker: about those of `dlrm-rmc1` here."""
_CLOSED_RUNS = 4
_INTERVAL_S = 600.0
_SERVERS = 1_000
_SERVICES = 10
_DAY_SLA = SlaTarget(60.0, 95.0)
_DAY_PACES = np.geomspace(0.25, 1.0, _SERVICES)
_OVER_PROVISION_RATE = 0.05
_WATTS = (220.0, 160.0, 90.0, 100.0)


def simulator_figures(quick: bool, progress: Progress) -> list[Figure]:
    """`simulator.*`."""
    speeds = _speeds(quick, progress)
    return [*speeds, *_closed_forms(quick, progress), *_day(quick, progress)]


def _speeds(quick: bool, progress: Progress) -> list[Figure]:
    repeats, queries = (3, 5_000) if quick else (7, 20_000)
    trace = QueryTrace.draw(queries, ProductionSizes(), 0)
    servers = TableServers(service_table())

    def fleet(make: PolicyMaker) -> object:
        return run_fleet(trace, _RATE_QPS, _POOL, servers, make(), SLA_MS / 1e3)

    def node(workers: int) -> object:
        service_s = profiled_service(_BATCHES, np.random.default_rng(0))
        config = NodeConfig(_BATCHES.batch_sizes[-1], sla_s=_NODE_SLA_S)
        arrivals_s = np.cumsum(trace.gaps) / (workers * _RATE_PER_WORKER_QPS)
        return run_node(arrivals_s, trace.sizes, config, service_s, workers=workers, profile=_BATCHES)

    on_fleet = f"on {sum(_POOL)} instances of two types at {_RATE_QPS:g} queries/s"
    on_node = f"workers of one server, which split, spread and fuse them, at {_RATE_PER_WORKER_QPS:g} queries/s each"
    cases: tuple[tuple[str, Callable[[], object], str | None, str], ...] = (
        ("fcfs", partial(fleet, FirstComeFirstServed), ">= 80000", on_fleet),
        ("matching14", partial(fleet, lambda: CostMatching(SLA_MS / 1e3, LARGEST)), ">= 12000", on_fleet),
        *((f"node{workers}", partial(node, workers), None, f"on {workers} {on_node}") for workers in _NODE_WORKERS),
    )
    task = progress.add_task("queries simulated per second", total=repeats * len(cases))
    figures = []
    for name, run, target, where in cases:
        samples = []
        for _ in range(repeats):
            began_s = time.thread_time()
            run()
            samples.append(queries / (time.thread_time() - began_s))
            progress.advance(task)
        value, low, high = median_and_spread(samples)
        note = f"{queries:,} queries {where}; thread's own time"
        figures.append(
            Figure(f"simulator.queries_per_s.{name}", value, "queries/s", low, high, repeats, target, note=note)
        )
    return figures


# Closed forms


@dataclass(frozen=True, slots=True)
class _Queue:
    """A queue that theory solves."""

    kind: str
    load: float
    workers: int
    queries: int
    seed: int


def _closed_forms(quick: bool, progress: Progress) -> list[Figure]:
    queries = 50_000 if quick else 250_000
    queues = {"mm1": (0.6, 1), "mdc": (0.8, 4), "little": (0.8, 4)}
    cases = [
        _Queue(kind, load, workers, queries, seed)
        for kind, (load, workers) in queues.items()
        for seed in range(_CLOSED_RUNS)
    ]
    answers = dict(zip(cases, sweep(relative_error, cases, bar_of(progress, "closed forms")), strict=True))
    notes = {
        "mm1": "mean latency of M/M/1 at load 0.6",
        "mdc": "mean latency of M/D/4 at load 0.8, by Crommelin's chain",
        "little": "queries present, seen at even times, against rate times mean latency of M/M/4 at load 0.8",
    }
    figures = []
    for kind, note in notes.items():
        errors = np.array([error for case, error in answers.items() if case.kind == kind])
        half = float(stats.sem(errors))
        value = abs(float(errors.mean()))
        note = f"{note}; mean of {len(errors)} runs of {queries:,} queries; spread: standard error"
        figures.append(
            Figure(
                f"simulator.error.{kind}", value, "share", max(value - half, 0.0), value + half, len(errors),
                "<= 0.01", note=note,
            )
        )  # fmt: skip
    return figures


def relative_error(queue: _Queue) -> float:
    """The simulated value over the exact one, less 1."""
    trace = QueryTrace.draw(queue.queries, FixedSizes(1), queue.seed)
    table = deterministic_servers() if queue.kind == "mdc" else exponential_servers()
    rate_qps = queue.load * queue.workers
    run = run_fleet(trace, rate_qps, (queue.workers,), TableServers(table), FirstComeFirstServed(), 1e9)
    latency_s = float(run.latency_s.mean())
    if queue.kind == "mm1":
        return latency_s / mm1_latency_s(rate_qps, 1.0) - 1
    if queue.kind == "mdc":
        return latency_s / mdc_latency_s(rate_qps, 1.0, queue.workers) - 1
    return little_error(trace, rate_qps, run)


def exponential_servers(samples: int = 100_000) -> ServiceTable:
    """One item takes an exponential time of mean 1 s."""
    levels = (np.arange(samples) + 0.5) / samples
    seconds = -np.log1p(-levels)
    return ServiceTable(("exponential",), np.broadcast_to(seconds / seconds.mean(), (1, 2, samples)))


def deterministic_servers() -> ServiceTable:
    """One item takes exactly 1 s."""
    return ServiceTable(("deterministic",), np.ones((1, 2, 1)))


def little_error(trace: QueryTrace, rate_qps: float, run: FleetRun) -> float:
    """Little's law in the steady middle: queries present, seen at even times, over rate times mean latency, less 1."""
    arrived_s = np.cumsum(trace.gaps) / rate_qps
    left_s = np.sort(arrived_s + run.latency_s)
    seen_s = np.linspace(0.05, 0.95, len(trace)) * arrived_s[-1]
    present = np.searchsorted(arrived_s, seen_s, "right") - np.searchsorted(left_s, seen_s, "right")
    middle = (arrived_s >= seen_s[0]) & (arrived_s <= seen_s[-1])
    rate = middle.sum() / (seen_s[-1] - seen_s[0])
    return float(present.mean() / (rate * run.latency_s[middle].mean())) - 1


# A day


@dataclass(frozen=True, slots=True)
class ServiceCase:
    """A service whose efficiency tuples are to be found, by runs that last so many times the SLA."""

    service: int
    slas: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some intervals of one service's day, from `first` on, of each of which so many queries are simulated."""

    service: int
    first: int
    intervals: tuple[PlannedServers, ...]
    queries: int


def _day(quick: bool, progress: Progress) -> list[Figure]:
    """Ten services on a thousand servers of four types: tuples by simulation, a plan every ten minutes, every plan
    simulated at query level."""
    intervals, queries, slas = (12, 1_000, 20.0) if quick else (144, 10_000, 100.0)
    began_s = time.perf_counter()
    services = [ServiceCase(number, slas) for number in range(_SERVICES)]
    tuples = np.array(sweep(service_qps, services, bar_of(progress, "efficiency tuples")))
    options = FleetOptions(
        tuple(f"service-{number}" for number in range(_SERVICES)),
        service_table().types,
        tuples,
        np.broadcast_to(np.array(_WATTS), tuples.shape).copy(),
        np.full(len(_WATTS), _SERVERS // len(_WATTS)),
    )
    demand_qps = _demand(options, intervals)
    task = progress.add_task("plans", total=intervals)
    day = plan_day(
        options, demand_qps, _INTERVAL_S, over_provision_rate=_OVER_PROVISION_RATE, target_gap=0.01, time_limit_s=0.0,
        on_interval=lambda _: progress.advance(task),
    )  # fmt: skip
    planned = [
        [PlannedServers(rate_qps, tuple(counts)) for rate_qps, counts in zip(rates, by_interval, strict=True)]
        for rates, by_interval in zip(demand_qps.T.tolist(), day.counts.swapaxes(0, 1).tolist(), strict=True)
    ]
    length = 6
    stretches = [
        Stretch(service, first, tuple(planned[service][first : first + length]), queries)
        for first in range(0, intervals, length)
        for service in range(_SERVICES)
    ]
    met = np.concatenate(sweep(intervals_met, stretches, bar_of(progress, "a day, query by query")))
    took_s = time.perf_counter() - began_s
    note = (
        f"{_SERVICES} services, up to {day.servers.max():,} of {_SERVERS:,} servers, {intervals} plans, "
        f"{met.size * queries:,} queries"
    )
    why = (
        f"share of the services' intervals that meet the SLA target at the planned load, first come, first served over"
        f" unlike servers, {_OVER_PROVISION_RATE:.0%} over-provisioned; tuples found by runs of {slas:g} times the SLA:"
        " shorter ones find more than servers sustain, and plans from these miss"
    )
    return [
        Figure("simulator.day", took_s, "s", target="<= 300", note=note),
        Figure("simulator.day.intervals_met", float(met.mean()), "share", note=why),
    ]


def _service(number: int) -> TableServers:
    return TableServers(service_table(float(_DAY_PACES[number]), seed=number))


def service_qps(case: ServiceCase) -> list[float]:
    """Queries/s that one server of each type serves of a service within the SLA target, in a fleet of twenty.

    Runs last for `case.slas` times the SLA where all servers are busy. In a run of a few SLAs queries can arrive faster
    than they are answered and still be in time, so that more would be found than servers sustain.
    """
    servers, most = _service(case.service), 20
    sizes = ProductionSizes()
    mean_s = servers.table.mean_s @ size_weights(sizes.draw(20_000, np.random.default_rng(0)), LARGEST)
    found = []
    for kind, each_s in enumerate(mean_s.tolist()):
        pool = [most if other == kind else 0 for other in range(len(servers.types))]
        busy_qps = most / each_s
        trace = QueryTrace.draw(math.ceil(case.slas * _DAY_SLA.latency_s * busy_qps), sizes, 100 + case.service)
        capacity = fleet_capacity(
            [trace], pool, servers, FirstComeFirstServed, _DAY_SLA, guess_qps=0.95 * busy_qps, tolerance=0.02
        )
        found.append(capacity.qps / most)
    return found


def _demand(options: FleetOptions, intervals: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Queries/s `[intervals, services]`: one wave a day, peaks some hours apart, which take most of the servers."""
    chance = np.random.default_rng(0)
    hours = np.arange(intervals) * 24 / intervals
    peaks = chance.uniform(17, 22, _SERVICES)
    waves = 0.6 + 0.4 * np.cos((hours[:, None] - peaks) * 2 * np.pi / 24)
    waves *= chance.normal(1.0, 0.02, waves.shape).clip(0.9, 1.1)
    even = (options.qps * options.available).sum(axis=1) / _SERVICES
    demand: np.ndarray[tuple[int, int], np.dtype[np.float64]] = 0.9 * waves / waves.max() * even
    return demand


def intervals_met(stretch: Stretch) -> list[bool]:
    """Whether the SLA target holds, for each interval of a stretch."""
    servers = _service(stretch.service)
    met = []
    for number, planned in enumerate(stretch.intervals, 1_000 * stretch.service + stretch.first):

        def draw(queries: int, rate_qps: float, seed: int = number) -> QueryTrace:  # noqa: ARG001
            return QueryTrace.draw(queries, ProductionSizes(), seed)

        run = run_interval(
            planned, _INTERVAL_S, servers, FirstComeFirstServed, _DAY_SLA, queries=stretch.queries, draws=[draw]
        )
        met.append(run is None or run.meets(_DAY_SLA))
    return met
