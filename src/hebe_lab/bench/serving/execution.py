"""Threads or processes, eager, scripted or compiled: the measurements behind how workers run.

Queries per second of `peers-dlrm` (32 items) with one worker, two worker threads, and two worker processes, for each
form of the DenseNet. The forms take turns, round by round. The processes are started anew for each round and have
their tables each for itself, so they stand for the most that processes could do, at twice the memory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from rich.progress import Progress

from hebe.machine.pinning import available_cores, pin_thread
from hebe.query import Batch, SubQuery
from hebe.report.figures import Figure, median_and_spread
from hebe.runtime.executors.dense_graph import GraphMode
from hebe.runtime.loaded_model import LoadedModel, LoadOptions
from hebe_lab.bench.serving.bench_model import bench_repository
from hebe_lab.bench.serving.in_process import in_process

DESCRIPTION = "How workers should run: threads or processes, eager, scripted or compiled DenseNet."

_MODEL, _ITEMS, _QUERIES = "peers-dlrm", 32, 64
_ARRANGEMENTS = {"one": (1, "threads"), "two_threads": (2, "threads"), "two_processes": (2, "processes")}


def run(quick: bool, progress: Progress) -> list[Figure]:
    """Measure every arrangement of every form; without `quick` the compiled form too (needs a C++ compiler)."""
    rounds, seconds = (2, 0.5) if quick else (5, 1.5)
    modes = [GraphMode.EAGER, GraphMode.SCRIPTED] + ([] if quick else [GraphMode.COMPILED])
    repository = bench_repository(_MODEL, None, progress)
    task = progress.add_task("loading", total=len(modes))
    models = {}
    for mode in modes:
        models[mode] = LoadedModel.load(repository, _MODEL, options=LoadOptions(mode), threads=2)
        progress.advance(task)
    measured: dict[tuple[GraphMode, str], list[float]] = {}
    task = progress.add_task("running workers", total=rounds * len(modes) * len(_ARRANGEMENTS))
    for _ in range(rounds):
        for mode, model in models.items():
            for name, (workers, kind) in _ARRANGEMENTS.items():
                progress.advance(task)
                if kind == "threads":
                    throughput = _in_threads(model, workers, seconds)
                elif mode is not GraphMode.COMPILED:  # each process would compile for itself
                    throughput = _in_processes(repository, mode, workers, 2 * seconds)
                else:
                    continue
                measured.setdefault((mode, name), []).append(throughput)
    figures = []
    for (mode, name), throughputs in measured.items():
        value, low, high = median_and_spread(throughputs)
        figures.append(Figure(f"execution.{mode}.{name}", value, "queries/s", low, high, rounds))
    for model in models.values():
        model.close()
    return figures


def _loop(model: LoadedModel, core: int, seconds: float, wait: Callable[[], object]) -> float:
    """Queries per second of one worker on `core`, from when `wait` returns."""
    pin_thread([core])
    torch.set_num_threads(1)
    executor = model.new_executor(_ITEMS)
    queries = [model.random_query(_ITEMS, seed) for seed in range(_QUERIES)]
    batches = [Batch(0, (SubQuery(query, 0, _ITEMS),), _ITEMS) for query in queries]
    for batch in batches:
        executor.run(batch)
    wait()
    done, started_s = 0, time.perf_counter()
    while (now := time.perf_counter()) < started_s + seconds:
        executor.run(batches[done % _QUERIES])
        done += 1
    return done / (now - started_s)


def _in_threads(model: LoadedModel, workers: int, seconds: float) -> float:
    cores = available_cores()
    barrier = threading.Barrier(workers)

    def loop(core: int) -> float:
        try:
            return _loop(model, core, seconds, barrier.wait)
        except BaseException:
            barrier.abort()  # or the others would wait for this one for ever
            raise

    with ThreadPoolExecutor(workers) as pool:
        loops = [pool.submit(loop, cores[worker % len(cores)]) for worker in range(workers)]
    faults = [fault for each in loops if (fault := each.exception()) is not None]
    if faults:  # the others' barriers were broken by the first one
        raise min(faults, key=lambda fault: isinstance(fault, threading.BrokenBarrierError))
    return sum(each.result() for each in loops)


def _in_processes(repository: Path, mode: GraphMode, workers: int, seconds: float) -> float:
    cores = available_cores()
    with ThreadPoolExecutor(workers) as pool:
        results = pool.map(
            lambda worker: in_process(repository, _MODEL, _ITEMS, seconds, cores[worker % len(cores)], mode),
            range(workers),
        )
        return sum(result.throughput_qps for result in results)
