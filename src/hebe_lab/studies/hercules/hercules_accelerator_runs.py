"""hercules-accelerator: one model on this machine's second device, by policy, and where its queries' time goes."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from rich.progress import Progress

from hebe.machine.gpu import device_name, find_accelerator
from hebe.machine.pinning import available_cores
from hebe.profiling.evaluator import Effort
from hebe.profiling.measurements.query_times import QueryTimes, mean_times, times_alone, times_under_load
from hebe.profiling.steady_machine import SteadyMachine
from hebe.server_configuration import Lane, Placement
from hebe_lab.studies.hercules.accelerator import Breakdown, Measured, lane, policies
from hebe_lab.studies.hercules.accelerator import Effort as StudyEffort
from hebe_lab.studies.hercules.live import (
    FIRST_LOOK,
    WORKLOAD,
    LiveServer,
    best_in_turns,
    live_server,
    make_model,
    target_within_reach,
)

_ROOM = 1.25
"""Memory of the accelerator over the tables' bytes, for each co-located worker: all rows fit."""


def measured_here(
    entry: str, effort: StudyEffort, quick: bool, machine: SteadyMachine, directory: Path, progress: Progress
) -> Measured:
    """Catalog model `entry`, by policy; then alone by query size, and under load with and without fusion."""
    machine.forget()
    repository = make_model(entry, effort.table_bytes, directory, progress)
    cores = len(available_cores())
    counts = [count for count in effort.co_located if count <= cores]
    memory_bytes = round(_ROOM * max(counts) * effort.table_bytes)
    lanes_of = policies(counts, effort.fused_items)
    every = {policy: [(each,) for each in lanes] for policy, lanes in lanes_of.items()}
    task = progress.add_task(f"measuring {entry} (measurements)", total=None)
    try:
        sla = target_within_reach(repository, entry, (lane(1),), memory_bytes, machine)
        with live_server(
            repository,
            entry,
            sla,
            FIRST_LOOK if quick else Effort(),
            accelerator_bytes=memory_bytes,
            advance=lambda: progress.advance(task),
            machine=machine,
        ) as server:
            points = best_in_turns(server, every, effort.repeats)
            alone = _alone(server, effort, cores)
            loaded = {
                f"{words}, {share:.0%} load": breakdown
                for words, fused in (("single", 0), ("fused", effort.fused_items))
                for share, breakdown in _loaded(server, lane(1, fused), effort).items()
            }
            gpu = device_name(find_accelerator())
            return Measured(sla.latency_ms, points, alone, loaded, server.machine_words, gpu)
    finally:
        progress.remove_task(task)
        shutil.rmtree(repository)


def _alone(server: LiveServer, effort: StudyEffort, cores: int) -> dict[str, Breakdown]:
    """Queries one after another: the whole model on the accelerator, and its DenseNet alone."""
    lanes = {"whole model": lane(1)}
    if cores > 1:
        lanes["DenseNet alone"] = Lane(Placement.SPARSE_ON_HOST, 1, 1, WORKLOAD.sizes.largest, 1)
    found = {}
    for words, each in lanes.items():
        server.live.configure((each,))
        for items in effort.sizes:
            ask = partial(times_alone, server.live.driver, server.live.queries(items))
            times = server.live.machine.measure(ask)
            found[f"{words}, {items:,}"] = breakdown_of(times)
    return found


def _loaded(server: LiveServer, each: Lane, effort: StudyEffort) -> dict[float, Breakdown]:
    """By share of the latency-bounded throughput; empty where there is none."""
    point, live = server.point((each,)), server.live
    if point is None or point.qps <= 0:
        return {}
    found = {}
    for share in effort.loads:
        ask = partial(times_under_load, live.driver, WORKLOAD, share * point.qps, effort.load_s, live.sla)
        found[share] = breakdown_of(live.machine.measure(ask))
    return found


def breakdown_of(times: list[QueryTimes]) -> Breakdown:
    """The mean of several queries, in milliseconds."""
    mean = mean_times(times)
    return Breakdown(1e3 * mean.queueing_s, 1e3 * mean.sparse_s, 1e3 * mean.loading_s, 1e3 * mean.inference_s)
