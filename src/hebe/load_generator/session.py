"""`run_load` and `find_qps`: the load generator as a library.

target = Target(parse_endpoint("http://127.0.0.1:8000"), "dlrm")
report = run_load(target, Workload(), rate_qps=100, duration_s=10)
found = find_qps(target, Workload(), SlaTarget(100, 95))
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np

from hebe.load_generator.discovery import discover
from hebe.load_generator.error import LoadError, LoadUsageError
from hebe.load_generator.load_report import LoadReport
from hebe.load_generator.open_loop.interruptible import Interrupted, OnInterrupt, run_interruptible
from hebe.load_generator.open_loop.open_loop import OnProgress, RunPlan, run_open_loop
from hebe.load_generator.queries.query_pool import POOL_BYTES, QueryPool
from hebe.load_generator.queries.request_body import request_body
from hebe.load_generator.search.qps_search import LatencyBoundedThroughput, OnProbe, QpsSearch, Workload, check_periods
from hebe.load_generator.senders.grpc.grpc_sender import GrpcSender
from hebe.load_generator.senders.http_sender import HttpSender
from hebe.load_generator.senders.sender import TOO_LARGE, Sender
from hebe.load_generator.single_query import ask_one
from hebe.load_generator.target import Target
from hebe.spec import SlaTarget
from hebe.workload.arrivals import ROUNDING, arrival_remarks, whole_periods_s
from hebe.workload.query_sizes import FixedSizes, QuerySizes, at_most
from hebe.workload.text_errors import WorkloadError

JSON_POOL_BYTES = 8 << 20
"""Unless told otherwise: text takes several times the memory."""
FIRST_QUERIES = 20


def run_load(
    target: Target,
    workload: Workload,
    rate_qps: float,
    duration_s: float,
    warm_up_s: float = 1.0,
    sla: SlaTarget | None = None,
    on_progress: OnProgress | None = None,
    catch_interrupt: bool = False,
    pool_bytes: int | None = None,
    on_interrupt: OnInterrupt | None = None,
) -> LoadReport:
    """Send queries at a mean rate of `rate_qps` for `duration_s` after `warm_up_s`, and report.

    `sla` defaults to what the server says is the model's. With `catch_interrupt`, Ctrl-C (or a signal whose handler
    raises) ends the run, `on_interrupt` is told, and what was measured so far is returned; before its first query it
    raises. `pool_bytes`: memory for drawn queries (default: `POOL_BYTES`, JSON `JSON_POOL_BYTES`).

    Raises `LoadError` if the server cannot be driven as `target` says, if no query arrives in `duration_s`, or if that
    does not hold whole periods of the arrivals.
    """
    _check_whole_periods(workload, duration_s)

    async def run(stop: asyncio.Event) -> LoadReport:
        async with _session(target, workload, sla, pool_bytes, stop) as session:
            plan = session.plan(rate_qps, duration_s, warm_up_s)
            if not plan.has_arrivals():
                raise LoadError(f"no query arrives in {duration_s:g} s at {rate_qps:g} queries/s: send for longer")
            report = await run_open_loop(plan, session.pool, session.sender, stop, on_progress)
            gone = await session.why_gone(report)
            return replace(report, remarks=session.remarks([report]), server_gone=gone)

    return run_interruptible(run, catch_interrupt, on_interrupt)


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
    pool_bytes: int | None = None,
    longest_s: float = math.inf,
    on_interrupt: OnInterrupt | None = None,
) -> LatencyBoundedThroughput:
    """Search the largest arrival rate at which the SLA holds; see `rate_search` for how.

    Each probe is as `QpsSearch` says, and so is `longest_s`. `sla` defaults to what the server says is the model's;
    `catch_interrupt`, `on_interrupt` and `pool_bytes` as for `run_load`. Raises `LoadError` if there is no SLA, if the
    server cannot be driven, if it dies, or if the arrivals repeat too slowly for the probes.
    """
    check_periods(workload.arrivals, probe_s)

    async def run(stop: asyncio.Event) -> LatencyBoundedThroughput:
        async with _session(target, workload, sla, pool_bytes, stop) as session:
            if session.sla is None:
                raise LoadError(f"the server does not tell an SLA for {target.model}: give --sla-ms")
            start_qps = 0.5 / await session.one_at_a_time_s()
            search = QpsSearch(session.sla, probe_s, warm_up_s, rounds, resolution, highest_qps, longest_s)
            patience_s = session.patience_s
            found = await search.run(
                session.workload, session.pool, session.sender, start_qps, stop, on_probe, on_progress, patience_s
            )
            return replace(found, remarks=(*found.remarks, *session.remarks([probe.report for probe in found.probes])))

    return run_interruptible(run, catch_interrupt, on_interrupt)


class _Session:
    """A connected sender and the queries that it can send."""

    def __init__(
        self,
        target: Target,
        workload: Workload,
        pool: QueryPool,
        sender: Sender,
        sla: SlaTarget | None,
        patience_s: float,
        stop: asyncio.Event,
    ) -> None:
        self.target, self.workload, self.pool, self.sender, self.sla = target, workload, pool, sender, sla
        self.patience_s, self._stop = patience_s, stop

    def plan(self, rate_qps: float, duration_s: float, warm_up_s: float) -> RunPlan:
        workload = self.workload
        return RunPlan(
            rate_qps=rate_qps,
            duration_s=duration_s,
            warm_up_s=warm_up_s,
            arrivals=workload.arrivals,
            sizes=workload.sizes,
            seed=workload.seed,
            sla=self.sla,
            answer_timeout_s=self.patience_s,
        )

    async def first_query(self) -> None:
        """Send a query as large as they get. Raises `LoadError` with the server's message if that is too large or not
        answered, `Interrupted` if somebody stops it."""
        await self._ask(FixedSizes(self.workload.sizes.largest), np.random.default_rng(self.workload.seed), 0)

    async def one_at_a_time_s(self) -> float:
        """Median time of a few queries sent one after the other. Raises as `first_query` does."""
        rng = np.random.default_rng(self.workload.seed)
        times = []
        for index in range(FIRST_QUERIES):
            started_s = time.monotonic()
            await self._ask(self.workload.sizes, rng, index)
            times.append(time.monotonic() - started_s)
        return max(float(np.median(times)), 1e-5)

    async def why_gone(self, report: LoadReport) -> str:
        """Why not even one query alone is answered after a run in which some failed; empty where that is not so."""
        if not report.failures or self._stop.is_set():
            return ""
        rng = np.random.default_rng(self.workload.seed)
        answer = await ask_one(self.sender, self.pool, self.workload.sizes, rng, self.patience_s, self._stop)
        return "" if self._stop.is_set() else answer.fault

    async def _ask(self, sizes: QuerySizes, rng: np.random.Generator, index: int) -> None:
        target = self.target
        answer = await ask_one(self.sender, self.pool, sizes, rng, self.patience_s, self._stop, index)
        if self._stop.is_set():
            raise Interrupted
        if answer.too_large:
            raise LoadError(
                f"{target.endpoint.url} does not take queries to {target.model} as large as they get, up"
                f" to {self.workload.sizes.largest:,} items: {answer.too_large}: {self._smaller}"
            )
        if answer.fault:
            raise LoadError(f"{target.endpoint.url} does not answer a query to {target.model}: {answer.fault}")

    @property
    def _smaller(self) -> str:
        """What to do about queries that are too large."""
        bound = "--max-json-bytes" if self.target.encoding == "json" else "--max-request-bytes"
        return f"give smaller --sizes, or have the server take larger ones (hebe serve {bound})"

    def remarks(self, reports: Sequence[LoadReport]) -> tuple[str, ...]:
        """What to say of a run, or of all probes of a search together: what one brings into the server's caches the
        next ones find there, and all are slices of one pool.
        """
        few_keys = self._few_keys(sum(report.items_sent for report in reports))
        return (*self._too_large(reports), *arrival_remarks(self.workload.arrivals), *few_keys)

    def _too_large(self, reports: Sequence[LoadReport]) -> tuple[str, ...]:
        count = sum(report.latencies.refused[kind] for report in reports for kind in TOO_LARGE)
        if not count:
            return ()
        arrivals = sum(report.latencies.arrivals for report in reports)
        return (
            f"{count:,} of {arrivals:,} queries were refused for their size, whatever the load, and count as outside"
            f" the SLA: {self._smaller}",
        )

    def _few_keys(self, items: int) -> tuple[str, ...]:
        shortages = self.pool.key_shortages(items)
        if not shortages:
            return ()
        worst = min(shortages, key=lambda shortage: shortage.drawn / shortage.wanted)
        others = f" (and {len(shortages) - 1} more inputs)" if len(shortages) > 1 else ""
        return (
            f"{worst.name}{others}: the queries named at most {worst.drawn:,.0f} different keys, where independent ones"
            f" would have named {worst.wanted:,.0f}: caches look warmer than they are; give queries more memory"
            f" (--pool-memory, now {self.pool.size_bytes / 2**20:,.0f} MiB)",
        )


def _check_whole_periods(workload: Workload, duration_s: float) -> None:
    whole_s = whole_periods_s(workload.arrivals, duration_s)
    if whole_s - duration_s > ROUNDING * whole_s:
        # Eight digits: what is given as it is printed must be taken.
        raise LoadUsageError(
            f"duration is {duration_s:.8g} s: arrivals repeat every {workload.arrivals.period_s:.8g} s, and only over"
            f" whole periods is their mean the rate: {whole_s:.8g} s holds them"
        )


@asynccontextmanager
async def _session(
    target: Target, workload: Workload, sla: SlaTarget | None, pool_bytes: int | None, stop: asyncio.Event
) -> AsyncIterator[_Session]:
    model = await asyncio.to_thread(discover, target)
    sla = sla or model.sla
    patience_s = target.patience_s(sla)
    if model.max_items is not None:
        try:
            workload = replace(workload, sizes=at_most(workload.sizes, model.max_items))
        except WorkloadError as fault:
            raise LoadError(
                f"{target.endpoint.url}, model {target.model}: {fault}, and an item has {model.item_bytes:,} bytes:"
                " give smaller --sizes, or have the server take larger queries (hebe serve --max-request-bytes,"
                " --max-items)"
            ) from None
    json_text = target.endpoint.protocol == "http" and target.encoding == "json"
    pool = workload.pool(model, pool_bytes or (JSON_POOL_BYTES if json_text else POOL_BYTES))
    body = request_body(target, pool)
    sender: Sender = (GrpcSender if target.endpoint.protocol == "grpc" else HttpSender)(target, body)
    try:
        await sender.open()
        session = _Session(target, workload, pool, sender, sla, patience_s, stop)
        await session.first_query()
        yield session
    finally:
        await sender.close()
