"""The search for the latency-bounded throughput over any sender: the open loop probes, `rate_search` says what next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hebe.load_generator.load_report import LoadReport
from hebe.load_generator.model_inputs import ModelInputs
from hebe.load_generator.open_loop import OnProgress, RunPlan, run_open_loop
from hebe.load_generator.query_pool import POOL_BYTES, QueryPool
from hebe.load_generator.rate_search import Crossing, Phase, RateSearch
from hebe.load_generator.sender import Sender
from hebe.spec import SlaTarget
from hebe.workload.arrivals import ArrivalProcess, PoissonArrivals
from hebe.workload.key_skew import KeySkew, UniformKeys
from hebe.workload.query_sizes import ProductionSizes, QuerySizes

QUERIES_TO_MISS = 10
"""A probe lasts until so many queries may miss the SLA: the percentile of fewer is chance."""

LONGEST_PROBE = 4
"""How many times as long as asked for a probe may last for that."""

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
    """What `find_qps` found: `crossing` is None if it was interrupted before there was an estimate."""

    sla: SlaTarget
    crossing: Crossing | None
    probes: tuple[Probe, ...]
    interrupted: bool

    @property
    def bottlenecks(self) -> tuple[str, ...]:
        """The generator's own limits in runs that failed near the result: the server may take more than was found."""
        if self.crossing is None:
            return ()
        near = [p for p in self.probes if not p.passed and p.rate_qps < 1.5 * self.crossing.qps]
        return tuple(dict.fromkeys(reason for probe in near for reason in probe.report.generator_limits))

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
            "interrupted": self.interrupted,
            "bottlenecks": list(self.bottlenecks),
            "probes": [
                {"phase": p.phase.value, "rate_qps": p.rate_qps, "passed": p.passed, **p.report.to_dict()}
                for p in self.probes
            ],
        }


OnProbe = Callable[[Probe, Crossing | None], None]


@dataclass(frozen=True, slots=True)
class QpsSearch:
    """Searches the largest arrival rate at which `sla` holds; see `rate_search` for how.

    Each probe is a run of its own with its own arrivals, of `probe_s` (up to `LONGEST_PROBE` times that at low rates,
    so that the percentile means something); it ends early once the SLA is out of reach.
    """

    sla: SlaTarget
    probe_s: float = 5.0
    warm_up_s: float = 0.5
    rounds: int = 5
    resolution: float = 0.03
    highest_qps: float = 1e6

    async def run(
        self,
        workload: Workload,
        pool: QueryPool,
        sender: Sender,
        start_qps: float,
        stop: asyncio.Event,
        on_probe: OnProbe | None = None,
        on_progress: OnProgress | None = None,
        answer_timeout_s: float = 30.0,
    ) -> LatencyBoundedThroughput:
        """What it finds from `start_qps` on; `stop` interrupts it."""
        sla = self.sla
        lowest_qps = min(FEWEST_ARRIVALS / (LONGEST_PROBE * self.probe_s), self.highest_qps)
        search = RateSearch(start_qps, lowest_qps, self.highest_qps, self.resolution, self.rounds)
        probes: list[Probe] = []
        while (rate := search.next_rate()) is not None and not stop.is_set():
            enough_s = QUERIES_TO_MISS / (1 - sla.percentile / 100) / rate
            plan = RunPlan(
                rate_qps=rate,
                duration_s=min(max(self.probe_s, enough_s), LONGEST_PROBE * self.probe_s),
                warm_up_s=self.warm_up_s,
                arrivals=workload.arrivals,
                sizes=workload.sizes,
                seed=workload.seed + 1 + len(probes),
                sla=sla,
                answer_timeout_s=answer_timeout_s,
                stop_when_failing=True,
            )
            phase = search.phase
            report = await run_open_loop(plan, pool, sender, stop, on_progress)
            if stop.is_set():
                break
            probe = Probe(phase, rate, bool(report.sla_met), report)
            probes.append(probe)
            search.record(probe.passed)
            if on_probe is not None:
                on_probe(probe, search.result())
        return LatencyBoundedThroughput(sla, search.result(), tuple(probes), stop.is_set())
