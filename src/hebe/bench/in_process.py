"""The executor in a loop on one core, with nothing around it: what serving is measured against.

    python -m hebe.bench.in_process REPOSITORY MODEL ITEMS SECONDS CORE

Prints one JSON line with the throughput and p50 of queries of ITEMS items, one after the other.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch

import hebe
from hebe.query import Batch, SubQuery
from hebe.runtime.pinning import pin_thread

_QUERIES = 64


def main() -> None:
    """Measure as the command line says and print one JSON line."""
    directory, name = sys.argv[1:3]
    items, seconds, core = int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
    pin_thread([core])
    torch.set_num_threads(1)
    model = hebe.load(directory, name)
    executor = model.new_executor(items)
    model.warm_up(executor, items)
    queries = [model.random_query(items, seed) for seed in range(_QUERIES)]
    batches = [Batch(0, (SubQuery(query, 0, items),), items) for query in queries]
    for batch in batches:
        executor.run(batch)
    times: list[float] = []
    end_s = time.perf_counter() + seconds
    started_s = now = time.perf_counter()
    while now < end_s:
        executor.run(batches[len(times) % _QUERIES])
        before, now = now, time.perf_counter()
        times.append(now - before)
    throughput = len(times) / (now - started_s)
    print(json.dumps({"throughput_qps": throughput, "p50_ms": float(np.median(times)) * 1e3}))


if __name__ == "__main__":
    main()
