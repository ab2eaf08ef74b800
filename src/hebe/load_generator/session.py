"""`run_load` and `find_qps`: the load generator as a library.

target = Target(parse_endpoint("http://127.0.0.1:8000"), "dlrm")
report = run_load(target, Workload(), rate_qps=100, duration_s=10)
found = find_qps(target, Workload(), SlaTarget(100, 95))
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np

from hebe.load_generator.discovery import discover
from hebe.load_generator.error import LoadError
from hebe.load_generator.grpc_sender import GrpcSender
from hebe.load_generator.http_sender import HttpSender
from hebe.load_generator.interruptible import run_interruptible
from hebe.load_generator.load_report import LoadReport
from hebe.load_generator.open_loop import OnProgress, RunPlan, run_open_loop
from hebe.load_generator.qps_search import LatencyBoundedThroughput, OnProbe, QpsSearch, Workload
from hebe.load_generator.query_pool import POOL_BYTES, QueryPool
from hebe.load_generator.request_body import request_body
from hebe.load_generator.sender import Outcome, Sender
from hebe.load_generator.target import Target
from hebe.spec import SlaTarget

JSON_POOL_BYTES = 8 << 20
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
) -> LoadReport:
    """Send queries at a mean rate of `rate_qps` for `duration_s` after `warm_up_s`, and report.

    `sla` defaults to what the server says is the model's. With `catch_interrupt`, Ctrl-C ends the run and what was
    measured so far is returned. Raises `LoadError` if the server cannot be driven as `target` says.
    """

    async def run(stop: asyncio.Event) -> LoadReport:
        async with _session(target, workload) as session:
            plan = session.plan(rate_qps, duration_s, warm_up_s, sla or session.sla)
            return await run_open_loop(plan, session.pool, session.sender, stop, on_progress)

    return run_interruptible(run, catch_interrupt)


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

    Each probe is as `QpsSearch` says. `sla` defaults to what the server says is the model's. Raises `LoadError` if it
    says none, or if the server cannot be driven.
    """

    async def run(stop: asyncio.Event) -> LatencyBoundedThroughput:
        async with _session(target, workload) as session:
            bound = sla or session.sla
            if bound is None:
                raise LoadError(f"the server does not tell an SLA for {target.model}: give --sla-ms")
            start_qps = 0.5 / await session.one_at_a_time_s()
            search = QpsSearch(bound, probe_s, warm_up_s, rounds, resolution, highest_qps)
            timeout_s = session.target.answer_timeout_s
            return await search.run(
                workload, session.pool, session.sender, start_qps, stop, on_probe, on_progress, timeout_s
            )

    return run_interruptible(run, catch_interrupt)


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
    json_text = target.endpoint.protocol == "http" and target.encoding == "json"
    pool = workload.pool(model, JSON_POOL_BYTES if json_text else POOL_BYTES)
    body = request_body(target, pool)
    sender: Sender = (GrpcSender if target.endpoint.protocol == "grpc" else HttpSender)(target, body)
    try:
        await sender.open()
        session = _Session(target, workload, pool, sender, model.sla)
        await session.first_query()
        yield session
    finally:
        await sender.close()
