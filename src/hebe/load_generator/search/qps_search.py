"""The search for the latency-bounded throughput over any sender: the open loop probes, `rate_search` says what next."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hebe.load_generator.error import LoadError, LoadUsageError
from hebe.load_generator.load_report import Limit, LoadReport
from hebe.load_generator.open_loop.open_loop import OnProgress, RunPlan, garbage_set_aside, run_open_loop
from hebe.load_generator.queries.model_inputs import ModelInputs
from hebe.load_generator.queries.query_pool import POOL_BYTES, QueryPool
from hebe.load_generator.search.rate_search import Crossing, Phase, RateSearch
from hebe.load_generator.senders.sender import Sender
from hebe.load_generator.single_query import ask_one
from hebe.load_generator.target import answer_timeout_s
from hebe.spec import SlaTarget
from hebe.workload.arrivals import ArrivalProcess, PoissonArrivals, over_window, whole_periods_s
from hebe.workload.key_skew import KeySkew, UniformKeys
from hebe.workload.query_sizes import ProductionSizes, QuerySizes

QUERIES_TO_MISS = 10
"""A probe lasts until so many queries may miss the SLA: the percentile of fewer is chance."""

LONGEST_PROBE = 4
"""How many times as long as asked for a probe may last for that."""

LIGHTER_LOAD = 0.8
"""Of the rate found: the server's time at up to that is what its time with all connections in use is held against."""

LEAST_GAIN = 2 / 3
"""A server takes more if asked for more at once, where its throughput has grown at least as this power of how much was
asked of it at once. That of an overloaded one has grown as a power of 0.5 at most, unless there are fewer than two
connections for each query that it works on at once, and mostly of 0.3."""

MOST_CHANCE = 1.25
"""By so much the server's time may differ from probe to probe."""

FEWEST_ARRIVALS = 20
"""Rates at which not even so many queries arrive in the longest probe are not tried."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What the queries are like, and the seed from which all of it is drawn."""

    sizes: QuerySizes = field(default_factory=ProductionSizes)
    arrivals: ArrivalProcess = field(default_factory=PoissonArrivals)
    keys: KeySkew = field(default_factory=UniformKeys)
    seed: int = 0

    def pool(self, model: ModelInputs, pool_bytes: int = POOL_BYTES) -> QueryPool:
        """Queries to a model, drawn; runs with arrivals and sizes from the same seed take them from a third stream."""
        rng = np.random.default_rng(np.random.SeedSequence(self.seed).spawn(3)[2])
        return QueryPool(model, self.keys, self.sizes.largest, rng, pool_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """One run of a search."""

    phase: Phase
    rate_qps: float
    passed: bool
    report: LoadReport


@dataclass(frozen=True, slots=True, eq=False)
class LatencyBoundedThroughput:
    """What `find_qps` found: `crossing` is None if it was interrupted, or out of time, before there was an estimate;
    `rounds` are those that it was found by, of which there may be none where the rates that can be tried all hold, or
    all do not. `remarks`: what else to know about the result.
    """

    sla: SlaTarget
    crossing: Crossing | None
    probes: tuple[Probe, ...]
    interrupted: bool
    rounds: int = 0
    remarks: tuple[str, ...] = ()

    @property
    def lowest_qps(self) -> float:
        """The least rate that was tried: below it, nothing is known. NaN where none was."""
        return min((probe.rate_qps for probe in self.probes), default=math.nan)

    @property
    def bottlenecks(self) -> tuple[str, ...]:
        """The generator's own limits in runs that failed near the result: the server may take more than was found."""
        if self.crossing is None:
            return ()
        near = self._failed_near(self.crossing.qps)
        found: dict[str, list[Limit]] = {}
        for limit in (limit for probe in near for limit in probe.report.limits):
            found.setdefault(limit.kind, []).append(limit)
        if limits := self._connection_limits(self.crossing.qps):
            found["connections"] = limits
        return tuple(_worst(limits) for limits in found.values())

    def _failed_near(self, qps: float) -> list[Probe]:
        """Where no rate held, those near the lowest one."""
        qps = qps or self.lowest_qps
        return [probe for probe in self.probes if not probe.passed and probe.rate_qps < 1.5 * qps]

    def _connection_limits(self, found_qps: float) -> list[Limit]:
        """Of the runs that failed near the result, where most did for the bound on connections.

        All connections are in use where there are too few of them, and where the server is overloaded. But only in the
        second case does it take the longer for a query the more of them it has. It answers x = n / s queries a second,
        of n at once that take s seconds each, and x = n ** gain makes s = x ** (1 / gain - 1): so much, at most, s may
        have grown since the load was lighter. Where no rate held there is none to compare with, and no server that
        answers in time is overloaded.
        """
        near = self._failed_near(found_qps)
        held_up = [(limit, p.report.server_s) for p in near if (limit := p.report.connection_limit) is not None]
        if not held_up or 2 * len(held_up) < len(near):
            return []
        limits = [limit for limit, _ in held_up]
        passed = sorted((probe for probe in self.probes if probe.passed), key=lambda probe: probe.rate_qps)
        if not passed:
            return limits
        lighter = [probe for probe in passed if probe.rate_qps <= LIGHTER_LOAD * found_qps] or passed[:1]
        most_s = min(
            p.report.server_s * max((found_qps / p.rate_qps) ** (1 / LEAST_GAIN - 1), MOST_CHANCE) for p in lighter
        )
        return limits if np.median([server_s for _, server_s in held_up]) <= most_s else []

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        found = self.crossing
        return {
            "sla_ms": self.sla.latency_ms,
            "sla_percentile": self.sla.percentile,
            "qps": None if found is None else found.qps,
            "low_qps": None if found is None else found.low_qps,
            "high_qps": None if found is None else found.high_qps,
            "capped": found is not None and found.capped,
            "lowest_qps": self.lowest_qps if self.probes else None,
            "interrupted": self.interrupted,
            "bottlenecks": list(self.bottlenecks),
            "remarks": list(self.remarks),
            "probes": [
                {"phase": p.phase.value, "rate_qps": p.rate_qps, "passed": p.passed, **p.report.to_dict()}
                for p in self.probes
            ],
        }


def _worst(limits: Sequence[Limit]) -> str:
    text = max(limits, key=lambda limit: limit.weight).text
    return text if len(limits) == 1 else f"{text}, at worst of {len(limits)} probes"


OnProbe = Callable[[Probe, Crossing | None], None]


@dataclass(frozen=True, slots=True)
class QpsSearch:
    """Searches the largest arrival rate at which `sla` holds; see `rate_search` for how.

    Each probe is a run of its own with its own arrivals, of `probe_s` (up to `LONGEST_PROBE` times that at low rates,
    so that the percentile means something), and of whole periods of the arrivals; it ends early once the SLA is out of
    reach. No probe begins once the search has taken `longest_s`.
    """

    sla: SlaTarget
    probe_s: float = 5.0
    warm_up_s: float = 0.5
    rounds: int = 5
    resolution: float = 0.03
    highest_qps: float = 1e6
    longest_s: float = math.inf

    @property
    def lowest_qps(self) -> float:
        """The least rate that is tried."""
        return min(FEWEST_ARRIVALS / (LONGEST_PROBE * self.probe_s), self.highest_qps)

    async def run(
        self,
        workload: Workload,
        pool: QueryPool,
        sender: Sender,
        start_qps: float,
        stop: asyncio.Event,
        on_probe: OnProbe | None = None,
        on_progress: OnProgress | None = None,
        patience_s: float | None = None,
    ) -> LatencyBoundedThroughput:
        """What it finds from `start_qps` on; `stop` interrupts it, and so does the end of its time. A query is given
        up after `patience_s`, by default what `answer_timeout_s` says.

        Raises `LoadError` where a probe cannot hold a whole period of the arrivals, or none arrive in it, and when the
        server does not answer any more: a rate at which nothing is answered would look like one that is too high.
        """
        check_periods(workload.arrivals, self.probe_s)
        sla = self.sla
        patience_s = answer_timeout_s(sla) if patience_s is None else patience_s
        search = RateSearch(start_qps, self.lowest_qps, self.highest_qps, self.resolution, self.rounds)
        probes: list[Probe] = []
        with garbage_set_aside():
            end_s = time.monotonic() + self.longest_s
            while (rate := search.next_rate()) is not None and not stop.is_set() and time.monotonic() < end_s:
                plan = RunPlan(
                    rate_qps=rate,
                    duration_s=self._duration_s(workload.arrivals, rate),
                    warm_up_s=self.warm_up_s,
                    arrivals=workload.arrivals,
                    sizes=workload.sizes,
                    seed=workload.seed + 1 + len(probes),
                    sla=sla,
                    answer_timeout_s=patience_s,
                    stop_when_failing=True,
                )
                phase = search.phase
                report = await run_open_loop(plan, pool, sender, stop, on_progress)
                if stop.is_set():
                    break
                if not report.latencies.arrivals:
                    raise LoadError(f"no query arrived in a probe of {plan.duration_s:g} s at {rate:.4g} queries/s")
                probe = Probe(phase, rate, bool(report.sla_met), report)
                probes.append(probe)
                if not probe.passed and report.failures:
                    rng = np.random.default_rng((workload.seed, len(probes)))
                    answer = await ask_one(sender, pool, workload.sizes, rng, patience_s, stop)
                    if answer.fault and not stop.is_set():
                        raise LoadError(_died(probes, answer.fault))
                search.record(probe.passed)
                if on_probe is not None:
                    on_probe(probe, search.result())
        crossing, interrupted = search.result(), stop.is_set() or search.next_rate() is not None
        remarks = () if crossing is None else self.remarks(workload.arrivals, crossing.qps)
        return LatencyBoundedThroughput(sla, crossing, tuple(probes), interrupted, search.rounds_done, remarks)

    def remarks(self, arrivals: ArrivalProcess, found_qps: float) -> tuple[str, ...]:
        """That so few queries of a probe at the rate found may miss the SLA that most hold by chance, if so.

        Queries are late together, those behind a long one: where 5 of 100 may miss, half of the probes to a queue hold
        at a rate at which in the long run over four times as many do, and where 20 of 400 may, 1.4 times as many.
        """
        missing = 1 - self.sla.percentile / 100
        queries = self._duration_s(arrivals, found_qps) * found_qps if found_qps > 0 else 0.0
        if not queries or round(queries * missing) >= QUERIES_TO_MISS:
            return ()
        enough_s = whole_periods_s(arrivals, QUERIES_TO_MISS / missing / found_qps) / LONGEST_PROBE
        return (
            f"probes were too short for p{self.sla.percentile:g}: of the {queries:,.0f} queries of one at this rate"
            f" {queries * missing:.2g} may miss it, and with fewer than {QUERIES_TO_MISS} the rate found is mostly too"
            f" high; --duration {_rounded_up(enough_s):g} or more would be long enough",
        )

    def _duration_s(self, arrivals: ArrivalProcess, rate_qps: float) -> float:
        """How long a probe at this rate lasts."""
        enough_s = QUERIES_TO_MISS / (1 - self.sla.percentile / 100) / rate_qps
        longest_s = LONGEST_PROBE * self.probe_s
        window_s = min(max(self.probe_s, enough_s), longest_s)
        whole_s = whole_periods_s(arrivals, window_s)
        if whole_s <= longest_s:
            return whole_s
        period_s = over_window(arrivals, window_s).period_s or whole_s
        return math.floor(longest_s / period_s) * period_s


def _rounded_up(seconds: float) -> float:
    """To two digits."""
    step = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return float(f"{math.ceil(seconds / step - 1e-9) * step:.6g}")


def check_periods(arrivals: ArrivalProcess, probe_s: float) -> None:
    """Raise `LoadUsageError` if the arrivals repeat more slowly than the longest probe that `probe_s` allows lasts."""
    longest_s = LONGEST_PROBE * probe_s
    if arrivals.period_s is not None and arrivals.period_s > longest_s:
        raise LoadUsageError(
            f"arrivals repeat every {arrivals.period_s:g} s, but a probe lasts {longest_s:g} s at most, and only over"
            " whole periods is their mean the rate: ask for longer probes, or faster arrivals"
        )


def _died(probes: Sequence[Probe], fault: str) -> str:
    """What to say of a search whose server answers no more, not even one query alone after the last probe."""
    held = max((probe.rate_qps for probe in probes if probe.passed), default=None)
    missed = min((probe.rate_qps for probe in probes if not probe.passed and not probe.report.failures), default=None)
    known = [
        *([f"the SLA held at {held:.4g} queries/s"] if held is not None else []),
        *([f"the SLA was missed at {missed:.4g} queries/s"] if missed is not None else []),
    ]
    return (
        f"the server answers no more, not even one query alone after probe {len(probes)} of the search: {fault};"
        f" until then {' and '.join(known) or 'no probe met the SLA'}"
    )
