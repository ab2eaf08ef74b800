"""How late queries are under Poisson arrivals: estimates of queueing theory, not simulation.

`tests/simulation/queueing/test_waiting.py` holds them to simulated queues.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import gammaincinv

from hebe.planning.error import PlanningError

Floats = npt.NDArray[np.float64]

_SIZE_CLASSES = 200


def size_classes(sizes: npt.NDArray[np.int64]) -> Floats:
    """200 equally likely sizes, float64, which represent those of a sample, int64 `[n]`. Raises `PlanningError`."""
    if len(sizes) == 0 or sizes.min() < 1:
        raise PlanningError("query sizes: give at least one, each at least 1 item")
    levels = (np.arange(_SIZE_CLASSES) + 0.5) / _SIZE_CLASSES
    return np.rint(np.quantile(sizes, levels)).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait that is 0 except with `probability`, and then exponential with mean `mean_s`."""

    probability: float
    mean_s: float

    def beyond(self, bound_s: Floats) -> Floats:
        """P(wait > bound); 1 for a negative bound."""
        tail = self.probability * np.exp(-np.maximum(bound_s, 0.0) / max(self.mean_s, 1e-12))
        return np.where(bound_s < 0, 1.0, tail)


NO_WAIT = Wait(0.0, 0.0)


def parallel_wait(rate_qps: float, work_s: Floats, own_s: Floats, workers: int) -> Wait | None:
    """The wait of queries whose parts run side by side on `workers` alike; None if they cannot keep up.

    A query of class i (all equally likely) is `work_s[i]` seconds of a worker in all, and takes `own_s[i]` from start
    to end when all workers are idle. On average it so occupies work/own workers, which leaves room for
    c = workers * own/work queries at once. There is a wait with M/G/c's probability (Sakasegawa 1977); if so it is
    exponential, with the mean that work arriving in such portions has under heavy load.
    """
    mean_work, mean_own = float(work_s.mean()), float(own_s.mean())
    load = rate_qps * mean_work / workers
    if load >= 1.0:
        return None
    if load <= 0.0 or mean_own <= 0.0:
        return NO_WAIT
    at_once = max(workers * mean_own / mean_work, 1.0)
    probability = load ** (math.sqrt(2.0 * (at_once + 1.0)) - 1.0)
    return Wait(probability, float((work_s**2).mean()) / (2.0 * mean_work * workers * (1.0 - load)))


def share_beyond(bound_s: float, own_s: Floats, first: Wait, second: Wait = NO_WAIT) -> float:
    """P(latency > bound) of own time plus one or two independent waits."""
    left = bound_s - own_s
    if second.probability <= 0.0:
        return float(first.beyond(left).mean())
    if first.probability <= 0.0:
        return float(second.beyond(left).mean())
    a, b = max(first.mean_s, 1e-12), max(second.mean_s, 1e-12)
    if abs(a - b) < 1e-6 * a:
        b = a * (1.0 + 1e-6)
    room = np.maximum(left, 0.0)
    one, two = np.exp(-room / a), np.exp(-room / b)
    both = (a * one - b * two) / (a - b)
    p, q = first.probability, second.probability
    tail = p * (1 - q) * one + (1 - p) * q * two + p * q * both
    return float(np.where(left < 0, 1.0, tail).mean())


@dataclass(frozen=True, slots=True, eq=False)
class FusedService:
    """Workers that, when idle, take all that waits as one batch, at most `largest_items` (unless one query has more).

    `seconds` is the service time of batches of `items`, both float64 and ascending; straight between them.
    """

    workers: int
    largest_items: float
    items: Floats
    seconds: Floats

    def service_s(self, items: float) -> float:
        """Seconds of one batch."""
        return float(np.interp(items, self.items, self.seconds))

    def batch_items(self, arriving: float, mean_items: float) -> float:
        """Items of a batch where `arriving` items/s come for one worker, in queries of `mean_items`.

        Batches grow with the load until they are served as fast as items arrive; none is smaller than a query.
        Infinite if even the largest ones are too slow.
        """
        least = min(mean_items, self.largest_items)
        if least > arriving * self.service_s(least):
            return least
        ahead = self.items - arriving * self.seconds
        enough = np.flatnonzero((ahead > 0) & (self.items > least))
        if len(enough) == 0:
            return math.inf
        last = int(enough[0])
        low = max(float(self.items[last - 1]), least) if last else least
        behind = arriving * self.service_s(low) - low
        batch = low + (float(self.items[last]) - low) * behind / (behind + float(ahead[last]))
        return batch if batch < self.largest_items else math.inf

    def latency_s(self, rate_qps: float, mean_items: float, mean_square_items: float, percentile: float) -> float:
        """Tail latency of queries that come at `rate_qps`, dealt evenly to the workers.

        Round a batch of b items, service takes a + c b seconds, and the next batch is what comes meanwhile. So batch
        times C follow C' = a + c items(C): their mean and variance are those of a gated queue with Poisson arrivals.
        A query waits for the rest of a batch and is served in the next one; batch times and the sum of the two are
        taken as gamma distributed. Infinite if batches, at `percentile` of their size, outgrow `largest_items`.
        """
        arriving = rate_qps * mean_items / self.workers
        batch = self.batch_items(arriving, mean_items)
        if math.isinf(batch):
            return math.inf
        share = percentile / 100.0
        mean = self.service_s(batch)
        slope = (self.service_s(1.05 * batch) - mean) / (0.05 * batch)
        load = min(arriving * slope, 0.999)
        # The items that come in a second, in seconds of their service, vary by this.
        noise = slope**2 * rate_qps / self.workers * mean_square_items
        variance = noise * mean / (1.0 - load**2)
        if slope > 0 and _gamma_quantile(mean, variance, share) > self.service_s(self.largest_items):
            return math.inf
        # Arrivals see long batches more often than short ones.
        seen = mean + variance / mean
        seen_variance = variance + (variance / mean) ** 2
        expected = 0.5 * seen + mean + load * (seen - mean)
        spread = (0.5 + load) ** 2 * seen_variance + (seen**2 + seen_variance) / 12.0 + noise * seen
        return _gamma_quantile(expected, spread, share)


def _gamma_quantile(mean: float, variance: float, share: float) -> float:
    if variance <= 0:
        return mean
    return float(gammaincinv(mean**2 / variance, share)) * variance / mean


def largest_rate(within: Callable[[float], bool], bound_qps: float, steps: int = 24) -> float:
    """The largest rate below `bound_qps` at which `within` holds, to a relative 2^-`steps`; 0 if at none."""
    low, high = 0.0, bound_qps
    if not within(bound_qps * 1e-6):
        return 0.0
    for _ in range(steps):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if within(middle) else (low, middle)
    return low
