"""What a batch costs a worker that shares its server: seconds of computing and seconds of waiting for memory.

A worker runs a batch, a query or a part of one, on one core, op after op. Its seconds, put in three phases:

    gather    rows that its part of the cache does not hold come from memory, row by row
    spill     weights and intermediate results that its part of the cache does not hold come from memory as a stream
    compute   everything else, with all bytes from caches: the roofline of `hebe.simulation.analytic.roofline`

Cache: a worker has its core's second-level cache and its part of the last-level cache. Of a set of bytes that is used
over and over, a cache that is smaller holds its size's share. One launch of an op has its inputs, outputs and weights
to hold. Between two uses of a weight, and between two batches' results in the same place, lies all that a batch
touches. Rows have what is left over. Every worker has its own copy of tables and weights and keeps the memory of its
results from batch to batch, as Caffe2's workers of the papers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hebe.planning.error import PlanningError
from hebe.simulation.analytic.calibration import CAFFE2, Calibration
from hebe.simulation.analytic.dense_ops import FLOAT_BYTES
from hebe.simulation.analytic.model_work import model_work
from hebe.simulation.analytic.roofline import HostRoofline, MemoryContention, at_items
from hebe.simulation.analytic.row_caching import RowPopularity
from hebe.spec import ModelSpec, ServerSpec
from hebe.workload.reuse_profile import ReuseProfile

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SharedServerModel:
    """A server whose cores run a worker each, with a last-level cache that is given out by ways.

    A query is split into parts of at most `batch_size` items, which workers run side by side, as DeepRecSys does: on
    one core alone Wide&Deep's larger queries take longer than its SLA target. A row of r bytes takes `row_start_s` +
    r / `row_bytes_per_s` when memory is idle, a stream r / `row_bytes_per_s`.
    """

    server: ServerSpec
    cache_ways: int
    batch_size: int = 256
    core_cache_bytes: float = 1 << 20
    """Second-level cache of a core: 1 MiB on Skylake and Cascade Lake servers."""

    row_start_s: float = 28e-9
    row_bytes_per_s: float = 12e9
    """Together: 5.2 GB/s for rows of 256 bytes, which `hebe bench sparse` measured on one core, and 9.0 for rows of
    1 KiB, with which the memory of Hera's node is used up by about as many workers of DLRM (D) as it states (V-B:
    beyond 12). One core streams at 16 GB/s on the machine of that benchmark."""

    calibration: Calibration = CAFFE2

    def __post_init__(self) -> None:
        for name, value in (
            ("cache_ways", self.cache_ways),
            ("batch_size", self.batch_size),
            ("core_cache_bytes", self.core_cache_bytes),
            ("row_bytes_per_s", self.row_bytes_per_s),
            ("server's llc_bytes", self.server.llc_bytes),
        ):
            if not value > 0:
                raise PlanningError(f"shared server {self.server.name}: {name} is {value!r}: must be above 0")
        if not self.row_start_s >= 0:
            raise PlanningError(
                f"shared server {self.server.name}: row_start_s is {self.row_start_s!r}: must not be < 0"
            )

    @property
    def way_bytes(self) -> float:
        """One way of the last-level cache."""
        return self.server.llc_bytes / self.cache_ways

    @property
    def memory(self) -> MemoryContention:
        """Memory at the bandwidth that random rows reach."""
        share = self.calibration.random_access_share
        return MemoryContention(self.server.memory_bandwidth_bytes_per_s * share)


@dataclass(frozen=True, slots=True, eq=False)
class PhaseTimes:
    """Batches of some sizes, float64 `[sizes]` each: seconds with memory unloaded, and bytes moved."""

    gather_s: Floats
    gather_bytes: Floats
    spill_s: Floats
    spill_bytes: Floats
    compute_s: Floats

    @property
    def memory_s(self) -> Floats:
        """Seconds of waiting for memory."""
        return self.gather_s + self.spill_s

    @property
    def memory_bytes(self) -> Floats:
        """Bytes out of memory."""
        return self.gather_bytes + self.spill_bytes


class BatchPhases:
    """One model's batches on a shared server; raises `PlanningError` as `model_work` and `HostRoofline` do.

    `reuse` says how skewed lookups are; without it all rows are alike, as DeepRecInfra draws them.
    """

    def __init__(self, shared: SharedServerModel, model: ModelSpec, reuse: ReuseProfile | None = None) -> None:
        self.shared, self.model = shared, model
        self._work = work = model_work(model)
        host = HostRoofline(shared.server, work, shared.calibration)
        # One worker and every row at hand: what is left is computing.
        self._cached_s = host.model_batch(1, 1, np.ones(len(work.gathers))).alone_s
        self._popularity = RowPopularity(work, reuse)
        self._row_s = np.array(
            [shared.row_start_s + gather.line_bytes_per_row / shared.row_bytes_per_s for gather in work.gathers]
        )
        self._lookups = np.array([gather.lookups for gather in work.gathers], dtype=np.float64)
        self._row_bytes = np.array([gather.line_bytes_per_row for gather in work.gathers])
        self._moved = np.array([op.moved_bytes for op in work.ops])
        self._moved_at_once = self._moved / np.array([op.kernels for op in work.ops])
        self._made = np.array(
            [FLOAT_BYTES * op.rows * op.columns if op.flops else 0.5 * op.moved_bytes for op in work.ops]
        )
        self._weights = np.array([op.weight_bytes for op in work.ops], dtype=np.float64)

    def times(self, sizes: npt.ArrayLike, cache_bytes: float) -> PhaseTimes:
        """The phases of batches of `sizes` items on a worker with `cache_bytes` of its own, second level included."""
        items = np.asarray(sizes, dtype=np.float64)
        calibration = self.shared.calibration
        working_sets = items[:, None] * self._moved_at_once + self._weights
        reread = (items[:, None] * self._moved * (1.0 - _held(working_sets, cache_bytes))).sum(axis=1)
        weights, made = self._weights.sum(), items * (self._made.sum() + self._work.pooled_bytes)
        touched = weights + made + items * self._work.gather_bytes
        # A result's place is read before it is written, and written back when something else needs the cache.
        spilled = reread + (weights + 2.0 * made) * (1.0 - _held(touched, cache_bytes))
        left_over = max(cache_bytes - float(working_sets.max(axis=1).mean()), 0.0)
        missed = self._lookups * (1.0 - self._popularity.lru_shares(left_over))
        gathered = items * float(missed @ self._row_bytes)
        compute = at_items(self._cached_s, items) - (gathered + reread) / calibration.core_cache_bytes_per_s
        return PhaseTimes(
            gather_s=items * float(missed @ self._row_s),
            gather_bytes=gathered,
            spill_s=spilled / self.shared.row_bytes_per_s,
            spill_bytes=spilled,
            compute_s=np.maximum(compute, 0.0),
        )


def _held(sizes: Floats, cache_bytes: float) -> Floats:
    """The share of each set of bytes that such a cache holds while the set is used over and over."""
    return np.minimum(1.0, cache_bytes / np.maximum(sizes, 1.0))
