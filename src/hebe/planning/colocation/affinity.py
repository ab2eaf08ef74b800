"""Which models get on with each other: worker scalability and co-location affinity, Hera's Section VI-B.

Both come from profiles of each model alone; no pair is ever run. Affinity is Hera's Algorithm 1, with each model on
half of the cores:

    LLC        max over i of ( QPS_A[i] / QPS_A[all]  +  QPS_B[all - i] / QPS_B[all] ) / 2
    bandwidth  min( 1, bandwidth of the server / (bandwidth of A + bandwidth of B) )
    affinity   min( LLC, bandwidth )

The algorithm's loop lets i reach all ways; it ends at all - 1 here, as no model can have no way (Section V-C). It sees
no slowdown until bandwidth is used up; `contended_affinity` is the same with what `BandwidthContention` sees.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from hebe.planning.colocation.shared_server import ScalabilityTables, ServerResources
from hebe.planning.error import PlanningError
from hebe.profile import ScalabilityProfile

FloatArray = npt.NDArray[np.float64]

LEAST_SLOPE = 0.5
"""A model scales if its last quarter of cores brings at least this share of what a quarter brings on average."""


class WorkerScalability(StrEnum):
    """Whether a model can use all cores of a server."""

    LOW = "low"
    HIGH = "high"


def scalability_slope(tables: ScalabilityTables) -> FloatArray:
    """The slope of QPS over workers, from three quarters of the cores to all, over the mean slope: float64 `[models]`.

    1 for a model that grows in proportion, 0 where the last quarter brings nothing because bandwidth is used up or
    memory holds no more workers. Hera decides by this slope without saying where it is taken or what its bound is.
    """
    cores = tables.server.cores
    whole = tables.qps[:, :, -1]
    at = 0.75 * cores
    below = min(int(at), cores - 1)
    three_quarters = whole[:, below] + (at - below) * (whole[:, below + 1] - whole[:, below])
    alone = tables.alone
    return np.divide(4 * (alone - three_quarters), alone, out=np.zeros_like(alone), where=alone > 0)


def worker_scalability(tables: ScalabilityTables, least_slope: float = LEAST_SLOPE) -> list[WorkerScalability]:
    """LOW or HIGH for each model, by `scalability_slope`; raises `PlanningError` for a `least_slope` that is none."""
    if not math.isfinite(least_slope):
        raise PlanningError(f"least_slope is {least_slope!r}: must be a finite number")
    return [
        WorkerScalability.HIGH if slope >= least_slope else WorkerScalability.LOW for slope in scalability_slope(tables)
    ]


@dataclass(frozen=True)
class AffinityMatrix:
    """Co-location affinity of every pair: three symmetric float64 `[models, models]` with values in [0, 1].

    `system` is the smaller one of `cache` and `bandwidth`. The diagonal is a model beside a second group of its own.
    """

    models: tuple[str, ...]
    cache: FloatArray
    bandwidth: FloatArray
    system: FloatArray


def affinity_matrix(tables: ScalabilityTables) -> AffinityMatrix:
    """Algorithm 1 for every pair; raises `PlanningError` where a server is too small to be shared."""
    server = tables.server
    kept = _kept_by_ways(tables)
    cache = np.zeros((len(tables.models),) * 2)
    for ways in range(1, server.cache_ways):
        np.maximum(cache, (kept[:, ways, None] + kept[None, :, server.cache_ways - ways]) / 2, out=cache)
    traffic = tables.traffic[:, server.cores // 2]
    needed = traffic[:, None] + traffic[None, :]
    bandwidth = server.bandwidth_bytes_per_s / np.maximum(needed, server.bandwidth_bytes_per_s)
    return AffinityMatrix(tables.models, cache, bandwidth, np.minimum(cache, bandwidth))


def best_partition(tables: ScalabilityTables, first: int, second: int) -> int:
    """The cache ways that Algorithm 1 gives to the first of two models (rows of the tables)."""
    kept = _kept_by_ways(tables)
    return 1 + int((kept[first, 1:-1] + kept[second, -2:0:-1]).argmax())


def contended_affinity(tables: ScalabilityTables) -> FloatArray:
    """What every pair keeps of its throughput, on average over both, on half of the cores each and the best ways.

    Symmetric float64 `[models, models]` with values in [0, 1]; raises `PlanningError` as `affinity_matrix`.
    """
    server, count = tables.server, len(tables.models)
    kept = _kept_by_ways(tables)
    first, second = (side.ravel() for side in np.indices((count, count)))
    shares = tables.contention.kept_on(np.stack([first, second], axis=1), server.cores // 2)
    mine, other = (shares[:, place].reshape(count, count) for place in (0, 1))
    best = np.zeros((count, count))
    for ways in range(1, server.cache_ways):
        np.maximum(best, (mine * kept[:, ways, None] + other * kept[None, :, server.cache_ways - ways]) / 2, out=best)
    return np.maximum(best, best.T)  # alike but for the order of sums


def _kept_by_ways(tables: ScalabilityTables) -> FloatArray:
    """What each model keeps of its throughput on half of the cores with 0, 1, ... ways: `[models, ways + 1]`."""
    check_shareable(tables.server)
    at_half = tables.qps[:, tables.server.cores // 2, :]
    whole = at_half[:, -1:]
    return np.divide(at_half, whole, out=np.zeros_like(at_half), where=whole > 0)


def affinity_of(profiles: Sequence[ScalabilityProfile], server: ServerResources) -> AffinityMatrix:
    """The matrix straight from profiles; raises `PlanningError`."""
    return affinity_matrix(ScalabilityTables.of(profiles, server))


def check_shareable(server: ServerResources) -> None:
    """Raise `PlanningError` unless two models can have a core and a cache way each."""
    for name, count in (("cores", server.cores), ("cache_ways", server.cache_ways)):
        if count < 2:
            raise PlanningError(f"server: {name} is {count}: two models need at least 2 to share")
