"""The executor in a loop on one core, with nothing around it: what serving is measured against.

    python -m hebe_lab.bench.serving.in_process REPOSITORY MODEL ITEMS SECONDS CORE GRAPH

Prints one JSON line with the throughput and p50 of queries of ITEMS items, one after the other.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from hebe.machine.pinning import pin_thread
from hebe.query import Batch, SubQuery
from hebe.runtime.executors.dense_graph import GraphMode
from hebe.runtime.loaded_model import LoadedModel, LoadOptions
from hebe_lab.bench.serving.bench_model import measured_in_child

_QUERIES = 64


@dataclass(frozen=True, slots=True)
class InProcessResult:
    """Queries per second and the median milliseconds of one."""

    throughput_qps: float
    p50_ms: float


def in_process(
    repository: Path, name: str, items: int, seconds: float, core: int, mode: GraphMode = GraphMode.SCRIPTED
) -> InProcessResult:
    """Run this module as a child process on `core`. Raises RuntimeError if it fails or does not end."""
    arguments = [str(repository), name, str(items), str(seconds), str(core), str(mode)]
    return InProcessResult(
        **measured_in_child("hebe_lab.bench.serving.in_process", arguments, seconds, "in-process loop")
    )


def main() -> None:
    """Measure as the command line says and print one JSON line."""
    directory, name = sys.argv[1:3]
    items, seconds, core, mode = int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]), GraphMode(sys.argv[6])
    pin_thread([core])
    torch.set_num_threads(1)
    model = LoadedModel.load(directory, name, options=LoadOptions(mode))
    executor = model.new_executor(items)
    model.warm_up(executor.run, items)
    queries = [model.random_query(items, seed) for seed in range(_QUERIES)]
    batches = [Batch(0, (SubQuery(query, 0, items),), items) for query in queries]
    for batch in batches:
        executor.run(batch)
    times: list[float] = []
    started_s = now = time.perf_counter()
    end_s = started_s + seconds
    while now < end_s:
        executor.run(batches[len(times) % _QUERIES])
        before, now = now, time.perf_counter()
        times.append(now - before)
    result = InProcessResult(len(times) / (now - started_s), float(np.median(times)) * 1e3)
    print(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
