"""How much plans and simulations run: queries of a run, on how many processes, and what is refused before it begins."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from hebe.capacity.errors import MisfitError
from hebe.capacity.files.service_times import ServiceTimes
from hebe.capacity.progress import OnProgress, Progress
from hebe.planning.error import Parameter
from hebe.simulation.fleet.query_stream import arrival_process
from hebe.simulation.sweep import sweep
from hebe.spec import SAFEGUARD, SlaTarget

MOST_INSTANCES = 10_000
"""Servers of a fleet, and workers of all of them."""
LEAST_QUERIES = 10_000
MOST_QUERIES = 2_000_000
RUNS_OF_A_SEARCH = 16
"""About how often a search for the latency-bounded throughput runs a case."""
_LEAST_SLAS = 5
_SLAS, _FEW_SLAS = 100, 50
"""A run should last so many times the SLA over the percentile's share: overload by a hundredth then shows, as a queue
of one SLA before that share of the queries has come. Of one that lasts few the result says so."""
_PERIODS = 5
_WORTH_PROCESSES = 50_000
"""Queries below which starting processes takes longer than running them here."""

_Case = TypeVar("_Case")
_Answer = TypeVar("_Answer")


def check_sla(sla: SlaTarget, times: ServiceTimes, largest: int) -> None:
    """Raises `MisfitError` if no server type serves any query of at most `largest` items in time."""
    mean_s = times.table.mean_s[:, :largest]
    kind, at = np.unravel_index(int(mean_s.argmin()), mean_s.shape)
    if mean_s.min() > SAFEGUARD * sla.latency_s:
        raise MisfitError(
            Parameter("sla_ms"),
            f" is {sla.latency_ms:g}: below the fastest service time of {times.model} in {times.named_files},"
            f" {mean_s.min() * 1e3:.4g} ms (of {times.table.types[kind]} at {at + 1} items, with 2% to spare):"
            " nothing can be served in time",
        )


def queries_needed(asked: int | None, sla: SlaTarget, rate_qps: float, arrivals: str, *, search: bool) -> int:
    """How many queries a run takes: as asked, or enough for the SLA's percentile, for overload to show, and for the
    arrivals to go through some of their periods.

    `rate_qps` is about the highest rate to be run at. Raises `MisfitError` if what was asked for is too little for
    the percentile, for a period of the arrivals, or for a search of the rate.
    """
    for_percentile = math.ceil(1 / (1 - sla.percentile / 100) - 1e-6)
    period_s = arrival_process(arrivals).period_s or 0.0
    if asked is None:
        lasting_s = max(_SLAS * _over_share_s(sla), _PERIODS * period_s)
        wanted = max(LEAST_QUERIES, 10 * for_percentile, math.ceil(min(lasting_s * rate_qps, 1e15)))
        if wanted > MOST_QUERIES and (search or period_s):
            raise MisfitError(
                f"{rate_qps:g} queries/s, p{sla.percentile:g} within {sla.latency_ms:g} ms, and {arrivals} arrivals"
                f" need {wanted:,} queries a run, more than {MOST_QUERIES:,}: set ",
                Parameter("queries"),
                ", or change one of them",
            )
        return min(wanted, MOST_QUERIES)
    lasting_s = max(_LEAST_SLAS * _over_share_s(sla) if search else 0.0, period_s)
    least = max(for_percentile, math.ceil(min(lasting_s * rate_qps, 1e15)))
    if not least <= asked <= 5 * MOST_QUERIES:
        why: list[str] = [f": a run must show p{sla.percentile:g}"]
        if lasting_s:
            why.append(f", and last {lasting_s:g} s: ")
            if search:
                why += ["a few times the SLA, longer where ", Parameter("percentile"), " is low, and "]
            why.append("a period of the arrivals")
        limits = f"{least:,}..{5 * MOST_QUERIES:,}"
        raise MisfitError(Parameter("queries"), f" is {asked}: must lie in {limits}", *why)
    return asked


def _over_share_s(sla: SlaTarget) -> float:
    """The SLA over the percentile's share. If servers need less time than that for all queries of a run, enough of them
    are in time even if all arrive at once: no rate is too high."""
    return sla.latency_s / (sla.percentile / 100)


def lasts_briefly(queries: int, rate_qps: float, sla: SlaTarget) -> tuple[str, ...]:
    """What to say, in parts, of a run of so many queries in which a slight overload does not show; nothing of a longer
    one."""
    slas = queries / rate_qps / _over_share_s(sla) if rate_qps else math.inf
    if slas >= _FEW_SLAS:
        return ()
    wanted = math.ceil(queries * _SLAS / slas / 1000) * 1000
    lasting = queries / rate_qps / sla.latency_s
    return (
        f"A run lasts {lasting:.3g} times the SLA, so that a rate may seem to hold that servers cannot serve for long,"
        f" about {1 / slas:.0%} too high at most: for {1 / _SLAS:.0%} give ",
        Parameter("queries"),
        f" {wanted}.",
    )


def in_words(queries: Sequence[int]) -> str:
    """How many queries each of some runs sent."""
    least, most = min(queries), max(queries)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def on_all_cores(
    stage: str,
    function: Callable[[_Case], _Answer],
    cases: Sequence[_Case],
    queries: int,
    on_progress: OnProgress,
) -> list[_Answer]:
    """As `sweep`; in this process if all cases together have fewer than some `queries`."""

    def report(done: int, total: int) -> None:
        on_progress(Progress(stage, done, total, queries))

    return sweep(function, cases, report, in_process=queries < _WORTH_PROCESSES)
