"""Seconds that a batch takes on a host's cores and on an accelerator: rooflines of a `ServerSpec` and a `ModelWork`.

Everything is computed at once for the batch sizes of `GRID`; costs are piecewise linear in items, so what lies between
is interpolated.

Host    A worker's ops run one after another on a core; with several cores, chains that do not depend on each other run
        side by side, one op a core: a stage takes max(all / cores, longest chain). An op takes its overhead plus the
        larger of its FLOPs at the core's peak and its bytes at the cache's rate. Rows are gathered at what a core's
        outstanding misses allow. All workers together move no more than memory's random-access bandwidth (or the
        near-memory ranks'): then a batch takes bytes / bandwidth.
Device  An op takes its launches plus the larger of FLOPs / peak and bytes / bandwidth.

Memory answers the slower the more of it is asked for at once (`MemoryContention`). Cores that wait for memory ask for
`demand` bytes/s, what they would move were memory unloaded. Under load each of them is slower by the same factor, its
latency over the idle one, and that depends on what is moved:

    factor = 1 + RISE * (moved / bandwidth) ** STEEPNESS      while      moved = demand / factor <= bandwidth

and beyond that demand / bandwidth: the memory gives all it has, and everybody waits in proportion.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hebe.planning.error import PlanningError
from hebe.simulation.analytic.calibration import Calibration
from hebe.simulation.analytic.dense_ops import DenseOp
from hebe.simulation.analytic.model_work import Gather, ModelWork
from hebe.spec import AcceleratorSpec, ServerSpec

Floats = npt.NDArray[np.float64]

GRID: Floats = np.unique(np.rint(np.geomspace(1, 65_536, 65))).astype(np.float64)
"""Batch sizes at which costs are computed."""


def at_items(costs: Floats, items: npt.ArrayLike) -> Floats:
    """Costs at `items` of a batch, from `costs` at `GRID`: 0 for no items, linear beyond the grid's end."""
    counts = np.asarray(items, dtype=np.float64)
    between = np.where(counts <= 0, 0.0, np.interp(counts, GRID, costs))
    if counts.size and counts.max() > GRID[-1]:
        slope = (costs[-1] - costs[-2]) / (GRID[-1] - GRID[-2])
        between = np.where(counts > GRID[-1], costs[-1] + slope * (counts - GRID[-1]), between)
    return between


@dataclass(frozen=True, slots=True)
class BatchCost:
    """What one batch costs a worker, by batch size (`GRID`).

    `alone_s`: seconds from start to end with memory to itself; `core_s`: seconds of cores at work;
    `memory_bytes`: out of memory; `near_bytes`: gathered within the memory by near-memory ranks.
    """

    alone_s: Floats
    core_s: Floats
    memory_bytes: Floats
    near_bytes: Floats


def _left(gather: Gather, elsewhere: float) -> float:
    """Bytes an item that are left of a gather of which a share is done elsewhere: a partial sum, or the rows."""
    share = float(elsewhere < 1.0) if gather.reduces else 1.0 - elsewhere
    return share * gather.output_bytes


class HostRoofline:
    """A model's batches on a server's cores. Raises `PlanningError` where the server type states too little."""

    def __init__(self, server: ServerSpec, work: ModelWork, calibration: Calibration) -> None:
        for field in ("clock_hz", "flops_per_cycle_per_core", "memory_bandwidth_bytes_per_s"):
            if not getattr(server, field) > 0:
                raise PlanningError(f"server type {server.name}: {field} is 0: an analytic server needs it stated")
        self._server, self._work, self._calibration = server, work, calibration
        self._core_flops_per_s = server.clock_hz * server.flops_per_cycle_per_core
        self.bandwidth_bytes_per_s = server.memory_bandwidth_bytes_per_s * calibration.random_access_share
        self.near_bandwidth_bytes_per_s = self.bandwidth_bytes_per_s * max(server.near_memory_ranks, 1)
        self._chains = [[self._chain_s(chain) for chain in stage] for stage in work.stages]

    def model_batch(self, cores: int, workers: int, hits: Floats) -> BatchCost:
        """The whole model on a worker of `cores`, beside `workers` - 1 others; `hits` by gather, in the LLC."""
        gathers = self._gathers_s(hits, np.zeros_like(hits))
        stages = [[*gathers, *self._chains[0]], *self._chains[1:]]
        cost = self._cost(stages, cores, workers, hits, np.zeros_like(hits))
        return replace(cost, memory_bytes=cost.memory_bytes + self._spilled_weight_bytes(workers))

    def sparse_batch(self, cores: int, workers: int, hits: Floats, elsewhere: Floats) -> BatchCost:
        """The SparseNet alone, and handing its output on; of each gather's lookups `elsewhere` are another's."""
        hand_over = 2 * self._calibration.op_overhead_s + self._moved_s(GRID * 2 * self._work.pooled_bytes)
        return self._cost([self._gathers_s(hits, elsewhere), [hand_over]], cores, workers, hits, elsewhere)

    def dense_batch(self, workers: int, copies: int) -> BatchCost:
        """The DenseNet alone, on one core, beside `workers` - 1 others, `copies` of all of them with its weights."""
        everything = np.ones(len(self._work.gathers))
        cost = self._cost(self._chains, 1, workers, everything, everything)
        spilled = self._spilled_weight_bytes(copies)
        return replace(cost, memory_bytes=np.full_like(GRID, spilled), near_bytes=np.zeros_like(GRID))

    def contended_s(self, cost: BatchCost, workers: int, bandwidth_share: float = 1.0) -> Floats:
        """Seconds of a batch while `workers` such run at once and may use `bandwidth_share` of the memory."""
        memory = workers * cost.memory_bytes / (self.bandwidth_bytes_per_s * bandwidth_share)
        near = workers * cost.near_bytes / (self.near_bandwidth_bytes_per_s * bandwidth_share)
        return np.maximum(cost.alone_s, np.maximum(memory, near))

    def _cost(self, stages: list[list[Floats]], cores: int, workers: int, hits: Floats, elsewhere: Floats) -> BatchCost:
        slowdown = 1.0 + self._calibration.co_residence * (workers - 1)
        alone, busy = np.zeros_like(GRID), np.zeros_like(GRID)
        for stage in stages:
            if stage:
                total = np.sum(stage, axis=0)
                alone += np.maximum(total / cores, np.max(stage, axis=0))
                busy += total
        memory, near = self._bytes_per_item(hits, elsewhere)
        return BatchCost(slowdown * alone, slowdown * busy, GRID * memory, GRID * near)

    def _chain_s(self, chain: tuple[DenseOp, ...]) -> Floats:
        total = np.zeros_like(GRID)
        calibration = self._calibration
        peak = self._core_flops_per_s * calibration.matrix_peak_share
        for op in chain:
            flops = op.flops * (GRID + (calibration.matrix_half_rows / op.rows if op.rows else 0.0)) / peak
            moved = self._moved_s(GRID * op.moved_bytes + op.weight_bytes)
            total += op.kernels * calibration.op_overhead_s + np.maximum(flops, moved)
        return total

    def _moved_s(self, size: Floats) -> Floats:
        return np.asarray(size / self._calibration.core_cache_bytes_per_s)

    def _near(self, reduces: bool) -> bool:
        return reduces and self._server.near_memory_ranks > 0

    def _gathers_s(self, hits: Floats, elsewhere: Floats) -> list[Floats]:
        calibration = self._calibration
        rate, cache_rate = calibration.core_gather_bytes_per_s, calibration.core_cache_bytes_per_s
        tables = []
        for gather, hit, other in zip(self._work.gathers, hits, elsewhere, strict=True):
            left = _left(gather, other)
            if self._near(gather.reduces):
                # As Hercules emulates it (section V): to the host it is a lookup of one row, the sum.
                seconds = (gather.line_bytes_per_row + left) / rate
            else:
                seconds = (1.0 - other) * gather.bytes_per_item * ((1.0 - hit) / rate + hit / cache_rate)
                seconds += left / cache_rate
            tables.append(GRID * seconds)
        if calibration.table_per_op:
            return [table + calibration.op_overhead_s for table in tables]
        return [np.sum(tables, axis=0) + calibration.op_overhead_s]

    def _bytes_per_item(self, hits: Floats, elsewhere: Floats) -> tuple[float, float]:
        """Bytes out of memory, and gathered within it."""
        memory = near = 0.0
        for gather, hit, other in zip(self._work.gathers, hits, elsewhere, strict=True):
            here = (1.0 - other) * gather.bytes_per_item
            if self._near(gather.reduces):
                near += here
                memory += _left(gather, other)
            else:
                memory += (1.0 - hit) * here
        return memory, near

    def resident_weight_bytes(self, workers: int) -> float:
        """Weights that stay in the last-level cache, at most half of it: they are read for every batch."""
        copies = workers if self._calibration.weights_per_worker else 1
        return min(float(copies * self._work.weight_bytes), 0.5 * self._server.llc_bytes)

    def _spilled_weight_bytes(self, workers: int) -> float:
        """Of one worker's weights, what every batch reads from memory."""
        copies = workers if self._calibration.weights_per_worker else 1
        return float(self._work.weight_bytes) - self.resident_weight_bytes(workers) / copies


@dataclass(frozen=True, slots=True)
class DeviceCost:
    """What one batch costs a worker on an accelerator, by batch size (`GRID`).

    `alone_s`: copies, then ops, with the accelerator to itself; `copy_s`: the PCIe link's part of it; `full_s`: the
    least seconds of the accelerator itself, its compute units being filled by others' batches besides.
    """

    alone_s: Floats
    copy_s: Floats
    full_s: Floats

    def contended_s(self, workers: int) -> Floats:
        """Seconds of a batch while `workers` such are co-located: they share the link and the accelerator."""
        shared: Floats = workers * np.maximum(self.copy_s, self.full_s)
        return np.maximum(self.alone_s, shared)


def device_batch(
    accelerator: AcceleratorSpec, work: ModelWork, calibration: Calibration, hits: Floats | None
) -> DeviceCost:
    """The DenseNet on an accelerator, and with `hits` (a share of each gather) the Hot-SparseNet too.

    Copied are the dense input and, without `hits`, the pooled rows; with them the keys, and of what is not hot the
    partial sums or the rows. Launches do not overlap: co-location speeds up MT-WnD, all small kernels, 1.03 times only
    (Hercules, Figure 6).
    """
    launch_s = accelerator.launch_overhead_s + calibration.op_overhead_s
    peak = accelerator.peak_flops_per_s * calibration.accelerator_matrix_share
    bandwidth = accelerator.memory_bandwidth_bytes_per_s * calibration.accelerator_access_share
    half = calibration.accelerator_outputs_per_unit * accelerator.compute_units
    alone, full, launches = np.zeros_like(GRID), np.zeros_like(GRID), 0
    for op in work.ops:
        moved = (GRID * op.moved_bytes + op.weight_bytes) / bandwidth
        filling = half / (op.rows * op.columns) if op.flops else 0.0
        launches += op.kernels
        alone += np.maximum(op.flops * (GRID + filling) / peak, moved)
        full += np.maximum(op.flops * GRID / peak, moved)
    tables = len(work.gathers) if calibration.table_per_op else 1
    if hits is None:
        copies, copied = 2, float(work.dense_input_bytes + work.pooled_bytes)
    else:
        pairs = list(zip(work.gathers, hits.tolist(), strict=True))
        gathered = sum(hit * gather.bytes_per_item for gather, hit in pairs) + work.pooled_bytes
        alone += GRID * gathered / bandwidth
        full += GRID * gathered / bandwidth
        launches += tables
        cold = sum(_left(gather, hit) for gather, hit in pairs)
        copies = 2 * tables + 1 + (cold > 0)  # keys and their lengths by table, dense input, sums
        copied = work.dense_input_bytes + work.key_bytes + cold
    copy_s = copies * calibration.copy_overhead_s + GRID * copied / accelerator.pcie_bandwidth_bytes_per_s
    return DeviceCost(copy_s + launches * launch_s + alone, copy_s, launches * launch_s + full)


RISE = 0.8
STEEPNESS = 8
"""Hardly any rise up to two thirds of the bandwidth, a third at nine tenths, nearly twice at its end: the usual shape
of loaded latency on server processors. Assumed, not measured on the machines that are modelled here."""

_STEPS = 2000
_MOST_DEMAND = 16.0


class MemoryContention:
    """The slowdown of memory that sustains `bandwidth_bytes_per_s`; raises `PlanningError` if that is not above 0."""

    def __init__(self, bandwidth_bytes_per_s: float) -> None:
        if not bandwidth_bytes_per_s > 0:
            raise PlanningError(f"bandwidth_bytes_per_s is {bandwidth_bytes_per_s!r}: must be a positive number")
        self.bandwidth_bytes_per_s = bandwidth_bytes_per_s
        # Along the curve both demand and factor are known for each amount moved; what is asked for is in between.
        moved = np.linspace(0.0, 1.0, _STEPS)
        factor = 1.0 + RISE * moved**STEEPNESS
        self._demands = np.append(moved * factor, _MOST_DEMAND)
        self._factors = np.append(factor, _MOST_DEMAND)

    def slowdown(self, demand_bytes_per_s: float) -> float:
        """By how much everybody who waits for memory is slowed down when together they ask for so much; at least 1."""
        asked = demand_bytes_per_s / self.bandwidth_bytes_per_s
        return float(np.interp(asked, self._demands, self._factors)) if asked < _MOST_DEMAND else asked

    def slowdown_at(self, moved_bytes_per_s: float) -> float:
        """The same where what is really moved is known, at most the bandwidth."""
        return 1.0 + RISE * min(moved_bytes_per_s / self.bandwidth_bytes_per_s, 1.0) ** STEEPNESS
