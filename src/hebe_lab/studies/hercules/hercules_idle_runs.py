"""hercules-idle: a catalog model made with small tables, its op times, and what sharing its batches out gains."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import torch
from rich.progress import Progress

from hebe.machine.pinning import available_cores, pin_thread
from hebe.models.repository.repository import ModelRepository
from hebe.profiling.measurements.op_times import OpTimes, measure_op_times
from hebe.query import Batch, SubQuery
from hebe.runtime.executors.gil_free_executor import UnlockedExecutor
from hebe.runtime.loaded_model import LoadedModel
from hebe_lab.studies.hercules.live import make_model

_IN_A_ROW = 3
"""Runs with as many threads, before it is the other's turn: the first one may wait for threads."""


def timed_ops(
    entry: str, table_bytes: int, items: int, repeats: int, directory: Path, progress: Progress
) -> tuple[OpTimes, float | None]:
    """Op times of catalog model `entry` for batches of `items`, and by what factor two op workers of this server are
    faster than one, None with one core; the model is gone afterwards."""
    repository = make_model(entry, table_bytes, directory, progress)
    try:
        model = LoadedModel.load(repository, entry)
        try:
            times = measure_op_times(model, ModelRepository(repository).open(entry).dense_net(), items, repeats)
            return times, speedup_of_two(model, items, repeats)
        finally:
            model.close()
    finally:
        shutil.rmtree(repository)


def speedup_of_two(model: LoadedModel, items: int, repeats: int) -> float | None:
    """What a batch takes a worker of one core, over what it takes one of two cores; medians, measured in turns."""
    cores = available_cores()[-2:]
    if len(cores) < 2:
        return None
    batch = Batch(0, (SubQuery(model.random_query(items), 0, items),), items)

    def measured() -> float:
        executors = [model.new_unlocked_executor(items, count) for count in (1, 2)]
        taken: list[list[float]] = [[], []]
        for _ in range(1 + repeats):
            for count, (executor, seconds) in enumerate(zip(executors, taken, strict=True), 1):
                seconds.append(_typical_s(executor, batch, cores[:count]))
        for executor in executors:
            executor.close()
        return median(taken[0][1:]) / median(taken[1][1:])

    with ThreadPoolExecutor(1) as thread:  # of its own: a thread keeps its cores
        return thread.submit(measured).result()


def _typical_s(executor: UnlockedExecutor, batch: Batch, cores: tuple[int, ...]) -> float:
    pin_thread(cores)
    torch.set_num_threads(1)
    return median(executor.run(batch).service_s for _ in range(_IN_A_ROW))
