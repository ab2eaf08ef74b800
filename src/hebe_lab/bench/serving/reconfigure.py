"""Splitting a running server anew: whether a query is lost, and how soon the SLA holds again.

One model under an open load of a third of what the slowest configuration could do at most; every few seconds the server
is split in another way: other workers, cores, batch sizes, and all placements, with a second CPU device as accelerator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from rich.progress import Progress

from hebe.embeddings.batches import hot_tables
from hebe.embeddings.memory.table_memory import RowFormat
from hebe.load_generator.search.qps_search import Workload
from hebe.machine.meters.processor import ProcessorMeter
from hebe.machine.pinning import available_cores, pinned
from hebe.planning.server_split.search import Configuration
from hebe.profile import LatencyProfile
from hebe.profiling.live_evaluation import LiveEvaluator, live_evaluator
from hebe.report.configuration_words import configuration_words
from hebe.report.figures import Figure
from hebe.scheduling.events import RejectReason
from hebe.server_configuration import Lane, Placement
from hebe.serving.engine.driver import clock
from hebe.serving.hosting.profile_in_use import LoadWindow
from hebe.serving.requests.errors import QueryFailed, QueryRefused
from hebe.spec import SlaTarget
from hebe.workload.key_skew import ReuseKeys
from hebe.workload.query_sizes import FixedSizes
from hebe_lab.bench.serving.bench_model import bench_repository
from hebe_lab.studies.hercules.live import longer_target, query_ms

DESCRIPTION = "Splitting a running server anew: queries lost, and seconds until the SLA holds again."

MODEL, SCALE = "dlrm-rmc1", 0.01
ITEMS = 64
"""Of every query: small ones, so that each second has enough of them for a percentile to mean something."""
OWN_SLA = SlaTarget(20.0, 95.0)
"""The model's. Where a query alone takes too long for it in one of the configurations, the target is a longer one: what
is looked for is what changing costs, not what they reach."""
_LOAD = 0.3
"""Of the items that the workers of the slowest configuration could score."""
_WINDOW_S = 1.0
_HOLDS = 3
"""Such windows, each half a second after the other, are two seconds."""
_PERIOD_S, _QUICK_PERIOD_S = 6.0, 4.0
_ROUNDS = 3


@dataclass(slots=True)
class _Queries:
    """What became of all queries: when they arrived, and their latency, infinite for one that was not answered; and the
    SLA target that they are to keep."""

    sla: SlaTarget = OWN_SLA
    arrivals_s: list[float] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    lost: int = 0
    refused: int = 0


def configurations(cores: int) -> list[Configuration]:
    """One after the other: each placement that fits, with other workers, cores and batch sizes."""
    most, half = max(cores, 1), max(cores // 2, 1)
    found: list[Configuration] = [(Lane(Placement.MODEL_ON_HOST, most, 1, size),) for size in (256, 64)]
    if cores > 1:
        found += [
            (Lane(Placement.PIPELINE_ON_HOST, half, 1, 128, cores - half),),
            (Lane(Placement.MODEL_ON_HOST, half, 2, 256),),
            (Lane(Placement.SPARSE_ON_HOST, cores - 1, 1, 64, 1, 1024),),
            (Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, cores - 1, 1, 128, 1, 512),),
            (Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, 0, 1, 256, 2, 0),),
        ]
    return [*found, found[0]]


def run(quick: bool, progress: Progress) -> list[Figure]:
    """Measure `reconfigure.*`. With `quick` once through all changes, for a shorter while each."""
    repository = bench_repository(MODEL, "small", progress, SCALE)
    cores = available_cores()
    ways = configurations(len(cores))
    rounds, period_s = (1, _QUICK_PERIOD_S) if quick else (_ROUNDS, _PERIOD_S)
    workload = Workload(FixedSizes(ITEMS), keys=ReuseKeys())
    with live_evaluator(repository, MODEL, None, workload, OWN_SLA, quick=True, admission=False) as evaluator:
        evaluator.configure(ways[0])
        hot_tables.warm_up(RowFormat.FP32)  # as a server with an accelerator does when it starts
        rate_qps = _LOAD * min(_highest_qps(way, evaluator.latency_profiles(way)) for way in ways)
        sla = longer_target(OWN_SLA, max(query_ms(evaluator, way, ITEMS) for way in ways))
        task = progress.add_task("splitting the server anew", total=rounds * len(ways[1:]))
        meter = ProcessorMeter()
        with pinned(cores):
            queries, changes = asyncio.run(
                _load(evaluator, rate_qps, rounds * ways[1:], period_s, lambda: progress.advance(task))
            )
        denied = meter.read().steal
    queries.sla = sla
    before = [kept for _, kept in _seconds(queries, changes[0][0] - period_s, period_s)]
    seconds = [list(_seconds(queries, began_s, period_s)) for began_s, _ in changes]
    recoveries_s = [_recovery_s(own, took_s) for own, (_, took_s) in zip(seconds, changes, strict=True)]
    after = [kept for own in seconds for _, kept in own]
    note = (
        f"{len(queries.arrivals_s):,} queries at {rate_qps:,.0f}/s, {len(changes)} changes through all placements, "
        f"{MODEL} at {SCALE:g} of its rows, queries of {ITEMS} items, {len(cores)} cores; {queries.refused} were "
        "refused, the queue being full"
    )
    return [
        Figure(
            "reconfigure.lost_queries",
            queries.lost,
            "queries",
            target="<= 0",
            note=f"not answered though the queue had room, of {note}",
        ),
        _recovery_figure(
            recoveries_s,
            ways[1:],
            period_s,
            sla,
            f"Of all overlapping seconds {after.count(False)} of {len(after)} missed that, and {before.count(False)} "
            f"of {len(before)} before the first change; meanwhile the host gave {denied:.0%} of the cores' time to "
            "others",
        ),
        Figure(
            "reconfigure.takes_s",
            float(np.median([took_s for _, took_s in changes])),
            "s",
            low=min(took_s for _, took_s in changes),
            high=max(took_s for _, took_s in changes),
            runs=len(changes),
            note="until the old workers are gone, the new ones' warm-up included",
        ),
    ]


def _recovery_figure(
    recoveries_s: Sequence[float | None], ways: Sequence[Configuration], period_s: float, sla: SlaTarget, note: str
) -> Figure:
    """What `_recovery_s` found of the changes to each of `ways`, round after round. How long those took that had not
    recovered when the next was made is not known: they count as the period, and are told.
    """
    counted_s = [period_s if recovery_s is None else recovery_s for recovery_s in recoveries_s]
    by_round = np.reshape(counted_s, (-1, len(ways)))
    typical = np.median(by_round, axis=0)
    return Figure(
        "reconfigure.recovery_s",
        float(typical.max()),
        "s",
        low=min(counted_s),
        high=max(counted_s),
        runs=len(counted_s),
        target="<= 2",
        note=f"of each change the median of {len(by_round)} rounds, and of these the longest, to "
        f"{configuration_words(ways[int(np.argmax(typical))])}: from asking for the change until the new workers "
        f"have taken over and p{sla.percentile:g} is within {sla.latency_ms:g} ms for two seconds on end; "
        f"{recoveries_s.count(None)} of {len(recoveries_s)} changes had not recovered when the next was made, "
        f"{period_s:g} s later, and count as that. {note}",
    )


def _highest_qps(way: Configuration, profiles: Mapping[str, LatencyProfile]) -> float:
    """What the workers of a configuration of one lane could answer one by one, nothing being in each other's way."""
    (lane,) = way
    workers = {"whole": lane.workers or lane.dense_workers, "sparse": lane.workers, "dense": lane.dense_workers}
    return min(workers[stage] / profile.service_time_s(ITEMS) for stage, profile in profiles.items())


async def _load(
    evaluator: LiveEvaluator, rate_qps: float, ways: list[Configuration], period_s: float, advance: Callable[[], None]
) -> tuple[_Queries, list[tuple[float, float]]]:
    """Queries at `rate_qps` while the server is split in each of `ways`; when each change began, and what it took."""
    driver, queries = evaluator.driver, _Queries()
    changes: list[tuple[float, float]] = []
    rng = np.random.default_rng(7)
    total_s = period_s * (len(ways) + 1)
    gaps = rng.exponential(1 / rate_qps, int(2 * rate_qps * total_s) + 100)
    due_s = clock() + np.cumsum(gaps)
    due_s = due_s[due_s < due_s[0] + total_s]
    prepared = [driver.model.random_query(ITEMS, seed) for seed in range(200)]

    async def ask(number: int) -> None:
        query = prepared[number % len(prepared)]
        own = replace(query, query_id=driver.new_query_id(), arrival_s=float(due_s[number]))
        try:
            result = await driver.infer(own)
            latency_s = result.latency_s
        except (QueryFailed, QueryRefused) as fault:
            # Without admission a full queue is all that turns a query away on arrival.
            if isinstance(fault, QueryRefused) and fault.reason == RejectReason.QUEUE_FULL:
                queries.refused += 1
            else:
                queries.lost += 1
            latency_s = float("inf")
        queries.arrivals_s.append(own.arrival_s)
        queries.latencies_s.append(latency_s)

    async def change() -> None:
        for way in ways:
            await asyncio.sleep(period_s)
            began_s = clock()
            await asyncio.to_thread(evaluator.configure, way)
            changes.append((began_s, clock() - began_s))
            advance()

    changing = asyncio.ensure_future(change())
    tasks = []
    for number, at_s in enumerate(due_s.tolist()):
        await asyncio.sleep(max(at_s - clock(), 0.0))
        tasks.append(asyncio.ensure_future(ask(number)))
    await asyncio.gather(changing, *tasks)
    return queries, changes


def _seconds(queries: _Queries, began_s: float, period_s: float) -> Iterator[tuple[float, bool]]:
    """Overlapping seconds of a period: where each ends, from its beginning, and whether it keeps the SLA, if but by
    chance."""
    arrivals, latencies = np.array(queries.arrivals_s), np.array(queries.latencies_s)
    for start_s in np.arange(0.0, period_s - _WINDOW_S, _WINDOW_S / 2):
        inside = (arrivals >= began_s + start_s) & (arrivals < began_s + start_s + _WINDOW_S)
        late = int((latencies[inside] > queries.sla.latency_s).sum())
        window = LoadWindow(_WINDOW_S, int(inside.sum()), late, queries.sla.percentile)
        yield float(start_s) + _WINDOW_S, window.kept is not False


def _recovery_s(seconds: Iterable[tuple[float, bool]], took_s: float) -> float | None:
    """Of a change that took so long, with the `_seconds` since: until it is made and the SLA has begun to hold for
    `_HOLDS` of them on end; None if it never does. What misses it after that is not the change's doing.
    """
    recovered_s, held = took_s, 0
    for end_s, kept in seconds:
        if kept:
            held += 1
        elif held < _HOLDS:
            recovered_s, held = max(took_s, end_s), 0
    return recovered_s if held >= _HOLDS else None
