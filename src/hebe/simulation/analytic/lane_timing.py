"""Latency and capacity of one lane of an analytic server, from how long each of its stages takes for each query."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hebe.simulation.queueing.waiting import NO_WAIT, FusedService, parallel_wait, share_beyond
from hebe.spec import SlaTarget

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """Queries' parts run side by side on `workers`; by size class: seconds of a worker in all, and from start to end
    with all workers idle."""

    workers: int
    work_s: Floats
    own_s: Floats

    @property
    def queries_at_once(self) -> float:
        """How many queries find room at once on average, as in `waiting.parallel_wait`; at least 1."""
        return max(self.workers * float(self.own_s.mean()) / float(self.work_s.mean()), 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class LaneTiming:
    """One lane: at most two stages, then perhaps a fused one.

    `sizes` are equally likely query sizes; `own_s` is what each takes with all workers idle, the fused stage apart.
    """

    sizes: Floats
    own_s: Floats
    stages: tuple[Stage, ...]
    fused: FusedService | None

    @property
    def mean_items(self) -> float:
        """Items of a query."""
        return float(self.sizes.mean())

    @property
    def saturation_qps(self) -> float:
        """Queries/s that no latency bound lets the lane exceed."""
        rates = [stage.workers / float(stage.work_s.mean()) for stage in self.stages]
        if self.fused is not None:
            largest = self.fused.largest_items
            rates.append(self.fused.workers * largest / (self.fused.service_s(largest) * self.mean_items))
        return min(rates)

    def share_late(self, rate_qps: float, bound_s: float, percentile: float) -> float:
        """Share of queries that take longer than `bound_s`; of a fused stage, its tail at `percentile` is taken."""
        if self.fused is not None:
            mean_square = float((self.sizes**2).mean())
            bound_s -= self.fused.latency_s(rate_qps, self.mean_items, mean_square, percentile)
        if bound_s < 0:
            return 1.0
        waits = [NO_WAIT, NO_WAIT]
        for i, stage in enumerate(self.stages):
            wait = parallel_wait(rate_qps, stage.work_s, stage.own_s, stage.workers)
            if wait is None:
                return 1.0
            waits[i] = wait
        return share_beyond(bound_s, self.own_s, *waits)

    def keeps(self, sla: SlaTarget, rate_qps: float) -> bool:
        """Whether the SLA target holds at that load."""
        return self.share_late(rate_qps, sla.latency_s, sla.percentile) <= 1.0 - sla.percentile / 100.0
