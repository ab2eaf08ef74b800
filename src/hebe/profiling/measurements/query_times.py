"""Where queries' time goes in a running driver: waiting, lookups, loading, inference (Hercules, Figure 7)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import fmean

from hebe.load_generator.open_loop.open_loop import RunPlan, run_open_loop
from hebe.load_generator.search.qps_search import Workload
from hebe.profiling.error import ProfilingError
from hebe.profiling.measurements.driver_sender import DriverSender, inputs_of
from hebe.query import Query, QueryResult
from hebe.serving.engine.driver import NodeDriver, clock
from hebe.spec import SlaTarget

_PATIENCE_S = 60.0
_WARM_UP_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class QueryTimes:
    """One query's latency in seconds, or the mean of several: `queueing` is all that is none of the others, between
    stages too; `sparse` lookups on the host; `loading` of inputs to an accelerator; `inference` of the DenseNet.
    """

    queueing_s: float
    sparse_s: float
    loading_s: float
    inference_s: float

    @property
    def latency_s(self) -> float:
        """The sum."""
        return self.queueing_s + self.sparse_s + self.loading_s + self.inference_s


def query_times(result: QueryResult) -> QueryTimes:
    """Of one answer. Parts of a split query run side by side, their times then count as shares of the latency."""
    share = result.share_of_latency
    work_s = result.sparse_s + result.loading_s + result.dense_s
    return QueryTimes(
        max(result.latency_s - share * work_s, 0.0),
        share * result.sparse_s,
        share * result.loading_s,
        share * result.dense_s,
    )


def mean_times(times: Sequence[QueryTimes]) -> QueryTimes:
    """The mean of each. Raises ValueError for none."""
    if not times:
        raise ValueError("no query was answered: there is no mean")
    return QueryTimes(*(fmean(getattr(each, field.name) for each in times) for field in fields(QueryTimes)))


def times_alone(driver: NodeDriver, queries: Sequence[Query]) -> list[QueryTimes]:
    """`queries` one after another with nothing beside them; the first one, which warms up, is left out."""

    async def ask() -> list[QueryTimes]:
        return [query_times(await ask_alone(driver, query)) for query in queries]

    return asyncio.run(ask())[1:]


async def ask_alone(driver: NodeDriver, query: Query) -> QueryResult:
    """The answer to a query that has all the time it needs."""
    query.query_id, query.arrival_s = driver.new_query_id(), clock()
    query.deadline_s = query.arrival_s + _PATIENCE_S
    return await driver.infer(query)


def times_under_load(
    driver: NodeDriver, workload: Workload, rate_qps: float, duration_s: float, sla: SlaTarget
) -> list[QueryTimes]:
    """All queries that an open loop of `workload` at `rate_qps` has answered in `duration_s`, after a warm-up.

    Raises `ProfilingError` where none was.
    """
    pool = workload.pool(inputs_of(driver.model.spec, sla))
    warm_up_s = _WARM_UP_SHARE * duration_s
    plan = RunPlan(rate_qps, duration_s, warm_up_s, workload.arrivals, workload.sizes, workload.seed)
    times: list[QueryTimes] = []

    async def run() -> None:
        begins_s = clock() + warm_up_s

        def note(result: QueryResult) -> None:
            if clock() >= begins_s:
                times.append(query_times(result))

        sender = DriverSender(driver, pool, note)
        try:
            await run_open_loop(plan, pool, sender)
        finally:
            await sender.close()

    asyncio.run(run())
    if not times:
        raise ProfilingError(f"none of the queries at {rate_qps:g} queries/s was answered within {duration_s:g} s")
    return times
