"""The scalability profile of a model on a server that nobody here owns: no simulation, only means and formulas.

Queries of one model come to w workers with k cache ways. Their parts take computing and waiting for memory
(`batch_phases`), the latter longer by what all workers together move on average (`MemoryContention`). The
latency-bounded throughput is the largest rate at which waiting, as in M/G/c, and service stay within the SLA target
(`waiting`). The query-level simulation of `co_run` knows more: that contention comes and goes with the batches that
happen to be under way, and that only workers at work share the cache.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hebe.planning.colocation.shared_server import ServerResources
from hebe.planning.error import PlanningError
from hebe.profile import ScalabilityProfile
from hebe.simulation.analytic.batch_phases import BatchPhases, SharedServerModel
from hebe.simulation.queueing.waiting import largest_rate, parallel_wait, share_beyond, size_classes
from hebe.spec import ModelSpec, SlaTarget
from hebe.workload.reuse_profile import ReuseProfile

Floats = npt.NDArray[np.float64]


def resources_of(shared: SharedServerModel) -> ServerResources:
    """What the models on such a server share, as co-location planning sees it: the bandwidth is the sustained one."""
    return ServerResources(
        shared.server.cores,
        shared.cache_ways,
        shared.memory.bandwidth_bytes_per_s,
        float(shared.server.memory_bytes),
    )


def scalability_profile(
    shared: SharedServerModel,
    model: ModelSpec,
    sizes: npt.NDArray[np.int64],
    sla: SlaTarget | None = None,
    reuse: ReuseProfile | None = None,
    name: str | None = None,
) -> ScalabilityProfile:
    """The profile of `model` under Poisson arrivals of queries of `sizes` (a sample, int64 `[n]`), marked `estimated`.

    Every worker count that memory holds (each worker has its own tables), with every count of cache ways. `sla` is
    the model's own unless it is given. Raises `PlanningError` where not even one worker fits.
    """
    classes = size_classes(sizes)
    sla = model.sla if sla is None else sla
    most = min(shared.server.cores, int(shared.server.memory_bytes // model.table_bytes))
    if most < 1:
        raise PlanningError(
            f"model {model.name}: one worker's tables take {model.table_bytes / 1e9:.1f} GB but server type"
            f" {shared.server.name} has {shared.server.memory_bytes / 1e9:.1f} GB"
        )
    phases = BatchPhases(shared, model, reuse)
    rows, traffic = [], []
    for workers in range(1, most + 1):
        row = []
        for ways in range(1, shared.cache_ways + 1):
            cache = shared.core_cache_bytes + ways * shared.way_bytes / workers
            parts = _Parts(phases, classes, cache, workers)
            row.append(parts.bounded_qps(sla))
        rows.append(tuple(row))
        traffic.append(row[-1] * parts.moved_bytes)
    return ScalabilityProfile(
        model=name or model.name,
        workers=tuple(range(1, most + 1)),
        qps=tuple(row[-1] for row in rows),
        bandwidth_bytes_per_s=tuple(traffic),
        cache_ways=tuple(range(1, shared.cache_ways + 1)),
        qps_by_cache_ways=tuple(rows),
        memory_bytes=tuple(float(workers * model.table_bytes) for workers in range(1, most + 1)),
        estimated=True,
    )


class _Parts:
    """Queries of `sizes`, split, on so many workers with so much cache each."""

    def __init__(self, phases: BatchPhases, sizes: Floats, cache_bytes: float, workers: int) -> None:
        shared = phases.shared
        self._memory, self._workers = shared.memory, workers
        self._whole = np.floor(sizes / shared.batch_size)
        rest = sizes - self._whole * shared.batch_size
        self._full, self._rest = phases.times([shared.batch_size], cache_bytes), phases.times(rest, cache_bytes)
        self._has_rest = rest > 0
        self.moved_bytes = float((self._whole * self._full.memory_bytes + self._rests(self._rest.memory_bytes)).mean())

    def bounded_qps(self, sla: SlaTarget) -> float:
        """Latency-bounded throughput."""

        def within(rate_qps: float) -> bool:
            work, own = self._service(self._memory.slowdown_at(rate_qps * self.moved_bytes))
            wait = parallel_wait(rate_qps, work, own, self._workers)
            return wait is not None and share_beyond(sla.latency_s, own, wait) <= 1 - sla.percentile / 100

        bound = self._workers / float(self._service(1.0)[0].mean())
        if self.moved_bytes > 0:
            bound = min(bound, self._memory.bandwidth_bytes_per_s / self.moved_bytes)
        return largest_rate(within, bound)

    def _service(self, slowdown: float) -> tuple[Floats, Floats]:
        """Seconds of workers in all, and from start to end with all workers idle, of a query of each size."""
        full = float((self._full.compute_s + slowdown * self._full.memory_s)[0])
        rest = self._rests(self._rest.compute_s + slowdown * self._rest.memory_s)
        work = self._whole * full + rest
        return work, np.maximum(work / self._workers, np.where(self._whole > 0, full, rest))

    def _rests(self, values: Floats) -> Floats:
        return np.where(self._has_rest, values, 0.0)
