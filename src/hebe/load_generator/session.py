"""`run_load` and `find_qps`: the load generator as a library.

target = Target(parse_endpoint("http://127.0.0.1:8000"), "dlrm")
report = run_load(target, Workload(), rate_qps=100, duration_s=10)
found = find_qps(target, Workload(), SlaTarget(100, 95))
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from hebe.load_generator.discovery import discover
from hebe.load_generator.error import LoadError
from hebe.load_generator.grpc_sender import GrpcSender
from hebe.load_generator.http_sender import HttpSender
from hebe.load_generator.load_report import LoadReport
from hebe.load_generator.open_loop import OnProgress, RunPlan, run_open_loop
from hebe.load_generator.query_pool import QueryPool
from hebe.load_generator.rate_search import Crossing, Phase, RateSearch
from hebe.load_generator.request_body import request_body
from hebe.load_generator.sender import Outcome, Sender
from hebe.load_generator.target import Target
from hebe.spec import SlaTarget
from hebe.workload.arrivals import ArrivalProcess, PoissonArrivals
from hebe.workload.key_skew import KeySkew, UniformKeys
from hebe.workload.query_sizes import ProductionSizes, QuerySizes

JSON_POOL_BYTES = 8 << 20
FIRST_QUERIES = 20
QUERIES_TO_MISS = 10
"""A probe lasts until so many queries may miss the SLA: the percentile of fewer is chance."""

LONGEST_PROBE = 4
"""How many times as long as asked for a probe may last for that."""

FEWEST_ARRIVALS = 20
"""Rates at which not even so many queries arrive in the longest probe are not tried."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Workload:
    """What the queries are like, and the seed from which all of it is drawn."""

    sizes: QuerySizes = field(default_factory=ProductionSizes)
    arrivals: ArrivalProcess = field(default_factory=PoissonArrivals)
    keys: KeySkew = field(default_factory=UniformKeys)
    seed: int = 0


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


def run_load(
    target: Target,
    workload: Workload,
    rate_qps: float,
    duration_s: float,
    warm_up_s: float = 1.0,
    sla: SlaTarget | None = None,
    on_progress: OnProgress | None = None,
    catch_interrupt: bool = False,
) -> LoadReport:
    """Send queries at a mean rate of `rate_qps` for `duration_s` after `warm_up_s`, and report.

    `sla` defaults to what the server says is the model's. With `catch_interrupt`, Ctrl-C ends the run and what was
    measured so far is returned. Raises `LoadError` if the server cannot be driven as `target` says.
    """

    async def run(stop: asyncio.Event) -> LoadReport:
        async with _session(target, workload) as session:
            plan = session.plan(rate_qps, duration_s, warm_up_s, sla or session.sla)
            return await run_open_loop(plan, session.pool, session.sender, stop, on_progress)

    return _run(run, catch_interrupt)


def find_qps(
    target: Target,
    workload: Workload,
    sla: SlaTarget | None = None,
    probe_s: float = 5.0,
    warm_up_s: float = 0.5,
    rounds: int = 5,
    resolution: float = 0.03,
    highest_qps: float = 1e6,
    on_probe: OnProbe | None = None,
    on_progress: OnProgress | None = None,
    catch_interrupt: bool = False,
) -> LatencyBoundedThroughput:
    """Search the largest arrival rate at which the SLA holds; see `rate_search` for how.

    Each probe is a run of its own with its own arrivals, of `probe_s` (up to `LONGEST_PROBE` times that at low rates,
    so that the percentile means something); it ends early once the SLA is out of reach. `sla` defaults to what the
    server says is the model's. Raises `LoadError` if there is none, or if the server cannot be driven.
    """

    async def run(stop: asyncio.Event) -> LatencyBoundedThroughput:
        async with _session(target, workload) as session:
            bound = sla or session.sla
            if bound is None:
                raise LoadError(f"the server does not tell an SLA for {target.model}: give --sla-ms")
            start_qps = 0.5 / await session.one_at_a_time_s()
            lowest_qps = min(FEWEST_ARRIVALS / (LONGEST_PROBE * probe_s), highest_qps)
            search = RateSearch(start_qps, lowest_qps, highest_qps, resolution, rounds)
            probes: list[Probe] = []
            while (rate := search.next_rate()) is not None and not stop.is_set():
                enough_s = QUERIES_TO_MISS / (1 - bound.percentile / 100) / rate
                duration_s = min(max(probe_s, enough_s), LONGEST_PROBE * probe_s)
                plan = session.plan(rate, duration_s, warm_up_s, bound)
                plan = replace(plan, seed=workload.seed + 1 + len(probes), stop_when_failing=True)
                phase = search.phase
                report = await run_open_loop(plan, session.pool, session.sender, stop, on_progress)
                if stop.is_set():
                    break
                probe = Probe(phase, rate, bool(report.sla_met), report)
                probes.append(probe)
                search.record(probe.passed)
                if on_probe is not None:
                    on_probe(probe, search.result())
            return LatencyBoundedThroughput(bound, search.result(), tuple(probes), stop.is_set())

    return _run(run, catch_interrupt)


class _Session:
    """A connected sender and the queries that it can send."""

    def __init__(self, target: Target, workload: Workload, pool: QueryPool, sender: Sender, sla: SlaTarget | None):
        self.target, self.workload, self.pool, self.sender, self.sla = target, workload, pool, sender, sla

    def plan(self, rate_qps: float, duration_s: float, warm_up_s: float, sla: SlaTarget | None) -> RunPlan:
        workload = self.workload
        return RunPlan(
            rate_qps=rate_qps,
            duration_s=duration_s,
            warm_up_s=warm_up_s,
            arrivals=workload.arrivals,
            sizes=workload.sizes,
            seed=workload.seed,
            sla=sla,
            answer_timeout_s=self.target.answer_timeout_s,
        )

    async def first_query(self) -> None:
        """Send one query. Raises `LoadError` with the server's message if it is not answered."""
        outcome, kind, message = await self._ask(np.random.default_rng(self.workload.seed), index=0)
        if outcome is Outcome.FAILED:
            raise LoadError(
                f"{self.target.endpoint.url} does not answer a query to {self.target.model}: {kind} {message}".rstrip()
            )

    async def one_at_a_time_s(self) -> float:
        """Median time of a few queries sent one after the other."""
        rng = np.random.default_rng(self.workload.seed)
        times = []
        for index in range(FIRST_QUERIES):
            started_s = time.monotonic()
            await self._ask(rng, index)
            times.append(time.monotonic() - started_s)
        return max(float(np.median(times)), 1e-5)

    async def _ask(self, rng: np.random.Generator, index: int) -> tuple[Outcome, str, str]:
        answer: asyncio.Future[tuple[Outcome, str, str]] = asyncio.get_running_loop().create_future()

        def done(_: int, outcome: Outcome, kind: str, message: str) -> None:
            if not answer.done():
                answer.set_result((outcome, kind, message))

        self.sender.on_sent, self.sender.on_done = lambda _: None, done
        sizes = self.workload.sizes.draw(1, rng)
        self.sender.send(index, int(sizes[0]), int(self.pool.offsets(sizes, rng)[0]))
        try:
            return await asyncio.wait_for(answer, self.target.answer_timeout_s)
        except TimeoutError:
            self.sender.give_up(index)
            return Outcome.FAILED, f"no answer in {self.target.answer_timeout_s:g} s", ""


@asynccontextmanager
async def _session(target: Target, workload: Workload) -> AsyncIterator[_Session]:
    model = await asyncio.to_thread(discover, target)
    rng = np.random.default_rng(np.random.SeedSequence(workload.seed).spawn(3)[2])
    json_text = target.endpoint.protocol == "http" and target.encoding == "json"
    pool_bytes = {"pool_bytes": JSON_POOL_BYTES} if json_text else {}
    pool = QueryPool(model, workload.keys, workload.sizes.largest, rng, **pool_bytes)
    body = request_body(target, pool)
    sender: Sender = (GrpcSender if target.endpoint.protocol == "grpc" else HttpSender)(target, body)
    try:
        await sender.open()
        session = _Session(target, workload, pool, sender, model.sla)
        await session.first_query()
        yield session
    finally:
        await sender.close()


def _run(main: Callable[[asyncio.Event], Awaitable[Result]], catch_interrupt: bool) -> Result:
    """Run `main` in a new, fast event loop; Ctrl-C sets its event if it is to be caught."""

    async def guarded() -> Result:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        catch = catch_interrupt and threading.current_thread() is threading.main_thread()
        if catch:
            loop.add_signal_handler(signal.SIGINT, stop.set)
        try:
            return await main(stop)
        finally:
            if catch:
                loop.remove_signal_handler(signal.SIGINT)

    with asyncio.Runner(loop_factory=_fast_loop()) as runner:
        return runner.run(guarded())


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it exists (everywhere but on Windows)."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
