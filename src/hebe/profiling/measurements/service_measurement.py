"""How long a worker takes for batches of several sizes, alone on its cores: latency profiles of its stages."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from hebe.load_generator.queries.query_pool import QueryPool
from hebe.machine.pinning import PlacedLane, pin_thread
from hebe.profile import LatencyProfile
from hebe.profiling.measurements.driver_sender import query_of
from hebe.query import Batch, SubQuery
from hebe.runtime.accelerator import Accelerator
from hebe.runtime.executors.batch_outcome import BatchOutcome
from hebe.runtime.loaded_model import LoadedModel
from hebe.runtime.workers.lane_workers import crews_of

_REPEATS = 15
_LARGEST_ITEMS = 4096


def measure_service_times(
    model: LoadedModel, placed: PlacedLane, pool: QueryPool, max_items: int, accelerator: Accelerator | None = None
) -> dict[str, LatencyProfile]:
    """Profiles by stage (`whole`, or `sparse` and `dense`) of the workers of a lane, over the keys of `pool`.

    Sizes are a factor of four apart, up to the largest batch of the stage, or what the pool holds. `max_items`: the
    largest query. Raises as `crews_of` does.
    """
    return {
        str(crew.role.stage): _profile(model, pool, crew.new_runner().rehearse, crew.role.batch_size, crew.cores[0])
        for crew in crews_of(model, placed, 0, max_items, accelerator)
    }


def _profile(
    model: LoadedModel,
    pool: QueryPool,
    run: Callable[[Batch], BatchOutcome],
    batch_size: int,
    cores: tuple[int, ...],
) -> LatencyProfile:
    largest = min(batch_size, _LARGEST_ITEMS, pool.items)
    rng = np.random.default_rng(0)
    sizes = sorted({max(largest >> shift, 1) for shift in range(0, 13, 2)})

    def measure() -> list[tuple[float, float]]:
        pin_thread(cores)
        torch.set_num_threads(1)
        found = []
        for items in sizes:
            batches = [
                Batch(0, (SubQuery(query_of(pool, model.spec, items, int(offset)), 0, items),), items)
                for offset in pool.offsets(np.full(_REPEATS, items), rng)
            ]
            run(batches[0])
            times = np.array([run(batch).service_s for batch in batches])
            median_s = float(np.median(times))
            found.append((median_s, float(np.median(np.abs(times - median_s)))))
        return found

    with ThreadPoolExecutor(1) as thread:  # of its own: a thread keeps its cores
        found = thread.submit(measure).result()
    return LatencyProfile(tuple(sizes), tuple(median for median, _ in found), tuple(spread for _, spread in found))
