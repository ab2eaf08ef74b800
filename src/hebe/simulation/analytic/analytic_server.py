"""A server type that nobody here owns, as a roofline: service times, latency-bounded throughput and power of a model
on it in any configuration. docs/analytic-servers.md says what is modelled, with which constants, and how far off it is.

server = AnalyticServer(SERVER_TYPES["T2"], catalog.entry("dlrm-rmc1"), sizes, PRODUCTION_2021)
server.evaluate([Lane(Placement.MODEL_ON_HOST, workers=20, batch_size=256)], SlaTarget(20.0))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from hebe.planning.error import PlanningError
from hebe.profile import LatencyProfile
from hebe.server_configuration import Lane, Placement
from hebe.simulation.analytic.calibration import CAFFE2, Calibration
from hebe.simulation.analytic.lane_timing import LaneTiming, Stage
from hebe.simulation.analytic.model_work import model_work
from hebe.simulation.analytic.roofline import GRID, BatchCost, DeviceCost, HostRoofline, at_items, device_batch
from hebe.simulation.analytic.row_caching import RowPopularity
from hebe.simulation.queueing.waiting import FusedService, largest_rate, size_classes
from hebe.spec import AcceleratorSpec, ModelSpec, ServerSpec, SlaTarget
from hebe.workload.reuse_profile import ReuseProfile

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Use:
    """What a load uses of a server: cores at work, shares of the memory's and of the accelerator's time."""

    cores: float = 0.0
    memory_share: float = 0.0
    accelerator_share: float = 0.0

    def __add__(self, other: Use) -> Use:
        return Use(
            self.cores + other.cores,
            min(self.memory_share + other.memory_share, 1.0),
            min(self.accelerator_share + other.accelerator_share, 1.0),
        )


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a configuration reaches: latency-bounded throughput (0: the SLA target is out of reach), power at it."""

    lanes: tuple[Lane, ...]
    qps: float
    power_watts: float
    use: Use


@dataclass(frozen=True, slots=True, eq=False)
class _Costs:
    """A lane's batches: its host stage (absent where everything is on the accelerator) and its second stage."""

    host: BatchCost | None
    host_s: Floats | None
    dense: BatchCost | None = None
    device: DeviceCost | None = None
    second_s: Floats | None = None


class AnalyticServer:
    """One server type running one model under Poisson arrivals of queries of `sizes` (a sample, int64 `[n]`).

    `reuse` says how skewed lookups are; without it all rows are alike. Raises `PlanningError` where the tables do not
    fit into memory, or the server type or the model's architecture state too little.
    """

    def __init__(
        self,
        server: ServerSpec,
        model: ModelSpec,
        sizes: npt.NDArray[np.int64],
        reuse: ReuseProfile | None = None,
        calibration: Calibration = CAFFE2,
    ) -> None:
        if model.table_bytes > server.memory_bytes:
            raise PlanningError(
                f"model {model.name}: its tables take {model.table_bytes / 1e9:.1f} GB but server type {server.name} "
                f"has {server.memory_bytes / 1e9:.1f} GB: scale the model down or leave the pair out"
            )
        self.server, self.model, self.calibration = server, model, calibration
        self._work = model_work(model)
        self._host = HostRoofline(server, self._work, calibration)
        self._popularity = RowPopularity(self._work, reuse)
        self._sizes = size_classes(sizes)
        self._lru: dict[float, Floats] = {}
        self._costs_of: dict[tuple[object, ...], _Costs | None] = {}

    def evaluate(self, lanes: Sequence[Lane], sla: SlaTarget) -> Evaluation:
        """Throughput and power of `lanes` side by side; a later lane has the memory bandwidth that earlier ones leave.

        Raises `PlanningError` where they need more cores than there are, or an accelerator that is not there.
        """
        cores = sum(lane.cores for lane in lanes)
        if not lanes or cores > self.server.cores:
            raise PlanningError(
                f"{len(lanes)} lanes of {cores} cores: server type {self.server.name} has {self.server.cores}: "
                "give at least one lane, and fewer workers or cores"
            )
        residents = sum(_residents(lane) for lane in lanes)
        total, use = 0.0, Use()
        for lane in lanes:
            costs = self._costs(lane, residents, 1.0 - use.memory_share)
            if costs is None:
                continue
            timing = self._timing(lane, costs)
            qps = largest_rate(partial(timing.keeps, sla), timing.saturation_qps)
            total += qps
            use += self._use(lane, costs, timing, qps)
        return Evaluation(tuple(lanes), total, self.power_watts(use), use)

    def reaches(self, lane: Lane, sla: SlaTarget, rate_qps: float) -> bool:
        """Whether one lane alone keeps the SLA target at `rate_qps`; cheaper than finding the rate where it ends."""
        timing = self._timing_alone(lane)
        return timing is not None and rate_qps < timing.saturation_qps and timing.keeps(sla, rate_qps)

    def tail_latency_s(self, lane: Lane, rate_qps: float, percentile: float) -> float:
        """Tail latency of one lane alone at a load; infinite if it cannot keep up."""
        timing = self._timing_alone(lane)
        if timing is None or rate_qps >= timing.saturation_qps:
            return math.inf
        slow = 1.0 - percentile / 100.0
        low, high = 0.0, 1e-6
        while timing.share_late(rate_qps, high, percentile) > slow:
            low, high = high, 2.0 * high
        for _ in range(30):
            middle = 0.5 * (low + high)
            late = timing.share_late(rate_qps, middle, percentile) > slow
            low, high = (middle, high) if late else (low, middle)
        return high

    def latency_profile(self, lane: Lane, batch_sizes: Sequence[int]) -> LatencyProfile:
        """Service time of a batch through the lane's stages, all of its workers being busy; without spread."""
        costs = self._costs(lane, _residents(lane), 1.0)
        if costs is None:
            raise PlanningError(f"model {self.model.name}: does not fit on the accelerator of {self.server.name}")
        items = np.array(batch_sizes, dtype=np.float64)
        seconds = np.zeros(len(items))
        for stage_s in (costs.host_s, costs.second_s):
            if stage_s is not None:
                seconds += at_items(stage_s, items)
        return LatencyProfile(tuple(batch_sizes), tuple(seconds.tolist()), (0.0,) * len(items))

    def query_stage(self, lane: Lane, sizes: npt.ArrayLike | None = None) -> Stage:
        """What queries of `sizes`, or of the server's own, take in a lane in which each has one stage.

        That is one of workers that run the whole model, on the host or a query at a time on the accelerator. Raises
        `PlanningError` for any other.
        """
        items = self._sizes if sizes is None else np.asarray(sizes, dtype=np.float64)
        costs = self._costs(lane, _residents(lane), 1.0)
        if costs is not None and costs.host_s is not None and costs.second_s is None:
            return self._split_stage(costs.host_s, lane, items)
        if costs is None or costs.host_s is not None or costs.second_s is None or lane.fused_items:
            raise PlanningError(f"lane {lane.placement}: how long a query takes there is not one number by its size")
        whole = at_items(costs.second_s, items)
        return Stage(lane.dense_workers, whole, whole)

    def idle_share(self, lane: Lane, items: int) -> float:
        """Share of a host worker's core seconds in which a core waits for another, for one batch of `items`."""
        costs = self._costs(lane, _residents(lane), 1.0)
        if costs is None or costs.host is None:
            return 0.0
        cores_s = lane.cores_per_worker * float(at_items(costs.host.alone_s, items))
        return 1.0 - float(at_items(costs.host.core_s, items)) / cores_s

    def copying_share(self, lane: Lane, items: int) -> float:
        """Share of a batch's time on an idle accelerator that goes into copies to it."""
        costs = self._costs(lane, _residents(lane), 1.0)
        if costs is None or costs.device is None:
            return 0.0
        return float(at_items(costs.device.copy_s, items) / at_items(costs.device.alone_s, items))

    def power_watts(self, use: Use) -> float:
        """Idle power, and of each part's rise to its peak the share that is used."""
        server = self.server
        memory = server.memory_peak_power_watts - server.memory_idle_power_watts
        cores = server.peak_power_watts - server.idle_power_watts - memory
        watts = server.idle_power_watts + cores * use.cores / server.cores + memory * use.memory_share
        if server.accelerator is not None:
            rise = server.accelerator.peak_power_watts - server.accelerator.idle_power_watts
            watts += server.accelerator.idle_power_watts + rise * use.accelerator_share
        return watts

    def _use(self, lane: Lane, costs: _Costs, timing: LaneTiming, qps: float) -> Use:
        core_s = memory_s = 0.0
        for cost in (costs.host, costs.dense):
            if cost is not None:
                core_s += self._per_query(cost.core_s, lane.batch_size)
                memory_s += self._per_query(cost.memory_bytes, lane.batch_size) / self._host.bandwidth_bytes_per_s
                memory_s += self._per_query(cost.near_bytes, lane.batch_size) / self._host.near_bandwidth_bytes_per_s
        device = 0.0 if costs.device is None else self._device_share(costs.device, timing, qps)
        # A core that launches on the accelerator polls it until it is done.
        launching = device * lane.dense_workers if lane.placement.on_accelerator else 0.0
        return Use(min(qps * core_s + launching, float(lane.cores)), min(qps * memory_s, 1.0), device)

    def _device_share(self, cost: DeviceCost, timing: LaneTiming, qps: float) -> float:
        """Share of the time in which the accelerator is at work."""
        busy_s = cost.alone_s - cost.copy_s
        if timing.fused is None or qps <= 0:
            return min(qps * float(at_items(busy_s, self._sizes).mean()), 1.0)
        arriving = qps * timing.mean_items
        batch = timing.fused.batch_items(arriving / timing.fused.workers, timing.mean_items)
        return 1.0 if math.isinf(batch) else min(arriving / batch * float(at_items(busy_s, batch)), 1.0)

    def _lru_hits(self, workers: int) -> Floats:
        """Share of each gather's lookups that the last-level cache serves: it holds weights first, then rows."""
        room = self.server.llc_bytes - self._host.resident_weight_bytes(workers)
        if room not in self._lru:
            self._lru[room] = self._popularity.lru_shares(room)
        return self._lru[room]

    def _costs(self, lane: Lane, residents: int, bandwidth_share: float) -> _Costs | None:
        """None where the lane cannot run: the accelerator is too small for it, or no memory bandwidth is left.

        Batch sizes make no difference, so what many lanes share is computed once.
        """
        if bandwidth_share < 1e-6:
            return None
        key = (lane.placement, lane.workers, lane.cores_per_worker, lane.dense_workers, residents, bandwidth_share)
        if key not in self._costs_of:
            self._costs_of[key] = self._compute_costs(lane, residents, bandwidth_share)
        return self._costs_of[key]

    def _compute_costs(self, lane: Lane, residents: int, bandwidth_share: float) -> _Costs | None:
        host, none = self._host, np.zeros(len(self._work.gathers))
        if lane.placement is Placement.MODEL_ON_HOST:
            cost = host.model_batch(lane.cores_per_worker, residents, self._lru_hits(residents))
            return _Costs(cost, host.contended_s(cost, lane.workers, bandwidth_share))
        if lane.placement is Placement.PIPELINE_ON_HOST:
            sparse = host.sparse_batch(lane.cores_per_worker, residents, self._lru_hits(lane.dense_workers), none)
            dense = host.dense_batch(residents, lane.dense_workers)
            # Each batch passes both stages, so what dense workers read is taken from what is left for sparse ones.
            both = BatchCost(sparse.alone_s, sparse.core_s, sparse.memory_bytes + dense.memory_bytes, sparse.near_bytes)
            return _Costs(
                sparse,
                host.contended_s(both, lane.workers, bandwidth_share),
                dense=dense,
                second_s=host.contended_s(dense, lane.dense_workers, bandwidth_share),
            )
        accelerator = self.server.accelerator
        if accelerator is None:
            raise PlanningError(f"lane {lane.placement}: server type {self.server.name} has no accelerator")
        hot = self._hot_shares(accelerator, lane.dense_workers)
        if hot is None:
            return None
        if lane.placement is Placement.SPARSE_ON_HOST:
            sparse = host.sparse_batch(lane.cores_per_worker, residents, self._lru_hits(0), none)
            device = device_batch(accelerator, self._work, self.calibration, None)
        else:
            device = device_batch(accelerator, self._work, self.calibration, hot)
            if (hot >= 1.0).all():
                return _Costs(None, None, device=device, second_s=device.contended_s(lane.dense_workers))
            if lane.workers == 0:
                return None
            sparse = host.sparse_batch(lane.cores_per_worker, residents, none, hot)
        sparse_s = host.contended_s(sparse, lane.workers, bandwidth_share)
        return _Costs(sparse, sparse_s, device=device, second_s=device.contended_s(lane.dense_workers))

    def _hot_shares(self, accelerator: AcceleratorSpec, co_located: int) -> Floats | None:
        """Share of each gather's lookups that go to rows on the accelerator, each co-located worker with its own."""
        room = accelerator.memory_bytes / co_located - self._work.weight_bytes
        return None if room <= 0 else self._popularity.hottest_shares(room)

    def _timing_alone(self, lane: Lane) -> LaneTiming | None:
        costs = self._costs(lane, _residents(lane), 1.0)
        return None if costs is None else self._timing(lane, costs)

    def _timing(self, lane: Lane, costs: _Costs) -> LaneTiming:
        stages: list[Stage] = []
        own, fused = np.zeros_like(self._sizes), None
        if costs.host_s is not None:
            stages.append(self._split_stage(costs.host_s, lane, self._sizes))
            own = stages[0].own_s
        if costs.device is not None and costs.second_s is not None:
            if lane.fused_items:
                fused = FusedService(lane.dense_workers, float(lane.fused_items), GRID, costs.second_s)
            else:
                whole = at_items(costs.second_s, self._sizes)
                stages.append(Stage(lane.dense_workers, whole, whole))
                own = own + whole
        elif costs.host_s is not None and costs.second_s is not None:
            stages.append(self._split_stage(costs.second_s, replace(lane, workers=lane.dense_workers), self._sizes))
            # Batches follow each other through both stages: the slower one sets the pace, the other adds one batch.
            batch = np.minimum(self._sizes, lane.batch_size)
            own = np.maximum(own + at_items(costs.second_s, batch), stages[1].own_s + at_items(costs.host_s, batch))
        return LaneTiming(self._sizes, own, tuple(stages), fused)

    @staticmethod
    def _split_stage(seconds: Floats, lane: Lane, sizes: Floats) -> Stage:
        """Queries split into batches of `lane.batch_size`, the last one smaller, over `lane.workers`."""
        whole, rest = np.divmod(sizes, lane.batch_size)
        batch_s = float(at_items(seconds, lane.batch_size))
        rest_s = at_items(seconds, rest)
        # The last one runs beside whole ones of the last round where that leaves a worker, else after it.
        own = np.maximum(np.ceil(whole / lane.workers) * batch_s, whole // lane.workers * batch_s + rest_s)
        return Stage(lane.workers, whole * batch_s + rest_s, own)

    def _per_query(self, cost: Floats, batch_size: int) -> float:
        whole, rest = np.divmod(self._sizes, batch_size)
        return float((whole * at_items(cost, batch_size) + at_items(cost, rest)).mean())


def _residents(lane: Lane) -> int:
    """Workers on the host that disturb each other."""
    return lane.workers + (0 if lane.placement.on_accelerator else lane.dense_workers)
