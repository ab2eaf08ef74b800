"""How much longer a model's queries take on a server that it shares, told from throughputs.

Planning knows latency-bounded throughputs: measured ones of the model alone, a predicted one on the shared server, with
its workers, its cache ways, and its neighbours' memory traffic. Query by query one needs service times. Here they are
those that were measured on so many workers alone, all times one factor:

    stretch(w, q)   by how much service times may grow until w workers keep the SLA target at no more than q queries/s
    slowdown        stretch(shared workers, their predicted throughput) / stretch(workers alone, their measured one)

Throughput by worker alone would not do: two workers with one queue keep an SLA target at more than twice the rate of
one, and that is no matter of service times. The queue is estimated (`waiting`), and as it is in both stretches, its
errors cancel for the most part. With the workers of the measurement, alone, the slowdown is 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hebe.simulation.queueing.waiting import largest_rate, parallel_wait, share_beyond
from hebe.spec import SlaTarget

Floats = npt.NDArray[np.float64]

_CLASSES = 1000


@dataclass(frozen=True, slots=True)
class WorkersAtLimit:
    """So many workers of one server, and the throughput (queries/s) at which they just keep the SLA target."""

    workers: int
    qps: float

    def __post_init__(self) -> None:
        if not (self.workers >= 1 and self.qps > 0):
            raise ValueError(f"workers {self.workers}, qps {self.qps}: must both be more than 0")


def service_classes(quantiles_s: Floats, size_weights: Floats) -> Floats:
    """A thousand equally likely service times of a query, float64 ascending.

    `quantiles_s` float64 `[sizes + 1, samples]`, of 0, 1, ... items, each sample equally likely; `size_weights` `[n]`,
    the share of queries of 1, 2, ... items, n at most the sizes.
    """
    samples = quantiles_s.shape[1]
    service_s = quantiles_s[1 : size_weights.size + 1].ravel()
    order = np.argsort(service_s, kind="stable")
    up_to = np.cumsum(np.repeat(size_weights / samples, samples)[order])
    levels = (np.arange(_CLASSES) + 0.5) / _CLASSES * up_to[-1]
    return np.asarray(service_s[order][np.searchsorted(up_to, levels)])


def longest_stretch(service_s: Floats, sla: SlaTarget, limit: WorkersAtLimit) -> float:
    """The largest factor on all of these service times with which the workers still keep the SLA target, under Poisson
    arrivals and first come, first served."""
    late = 1 - sla.percentile / 100

    def within(factor: float) -> bool:
        stretched_s = factor * service_s
        wait = parallel_wait(limit.qps, stretched_s, stretched_s, limit.workers)
        return wait is not None and share_beyond(sla.latency_s, stretched_s, wait) <= late

    saturated = limit.workers / (limit.qps * float(service_s.mean()))
    all_late = sla.latency_s / float(service_s.min())
    return largest_rate(within, min(saturated, all_late))
