"""The pool that Kairos' rule picks from the figures that its artifact publishes, rather than from measurements.

That tells whether a pick is the paper's or comes of our reading of Eq. 9-15, which `planning.pool` computes from
service times and query sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hebe.planning.pool.pool import pools_within, ranking, similarity_pick
from hebe.planning.pool.pool_problem import PoolProblem


@dataclass(frozen=True, slots=True)
class _Reach:
    """What an auxiliary type serves in time: `small_ratio` of all queries, in `time_ratio` of the base type's time;
    and what each auxiliary type serves of those, queries/s in the order of the problem, 0 for one never asked."""

    small_ratio: float
    time_ratio: float
    qps: tuple[float, float, float]


PUBLISHED: Mapping[str, tuple[float, tuple[_Reach, _Reach, _Reach]]] = {
    "ncf": (
        861.33,
        (
            _Reach(0.985, 0.973, (690.13, 486.14, 317.16)),
            _Reach(0.967, 0.942, (0.0, 499.0, 335.46)),
            _Reach(0.858, 0.756, (0.0, 0.0, 407.0)),
        ),
    ),
    "rm2": (
        15.04,
        (
            _Reach(0.989, 0.959, (10.73, 10.27, 4.74)),
            _Reach(0.984, 0.941, (0.0, 10.39, 4.83)),
            _Reach(0.837, 0.614, (0.0, 0.0, 6.39)),
        ),
    ),
    "wnd": (
        246.18,
        (
            _Reach(0.971, 0.94, (126.04, 102.08, 52.74)),
            _Reach(0.951, 0.903, (0.0, 106.1, 54.11)),
            _Reach(0.804, 0.7, (0.0, 0.0, 67.98)),
        ),
    ),
    "mtwnd": (
        167.36,
        (
            _Reach(0.934, 0.877, (100.18, 82.47, 41.94)),
            _Reach(0.877, 0.792, (0.0, 89.4, 45.39)),
            _Reach(0.745, 0.635, (0.0, 0.0, 57.27)),
        ),
    ),
    "dien": (
        105.56,
        (
            _Reach(0.873, 0.808, (69.52, 61.44, 32.76)),
            _Reach(0.857, 0.788, (0.0, 63.06, 33.52)),
            _Reach(0.741, 0.657, (0.0, 0.0, 41.45)),
        ),
    ),
}
"""By model: the base type's queries/s, and the reach of c5n.2xlarge, r5n.large and t3.xlarge. Cited from the Kairos
artifact's allocator_profile.json (B. Li et al., HPDC 2023, MIT licence, https://doi.org/10.5281/zenodo.7888058).
Auxiliary types reach the less far the later they stand here, so that the first one of a pool decides."""


def published_pick(model: str, problem: PoolProblem, budget_per_hour: float) -> tuple[int, ...]:
    """The pick of Eq. 15 and the similarity rule from `PUBLISHED`, at the problem's prices."""
    pools = pools_within(problem, budget_per_hour)
    bounds = np.array([published_bound_qps(model, pool) for pool in pools.tolist()])
    ranked = pools[ranking(bounds, problem.cost_per_hour(pools))]
    return tuple(ranked[similarity_pick(ranked, 0)].tolist())


def published_bound_qps(model: str, pool: Sequence[int]) -> float:
    """Eq. 15 of a pool, base type first; 0 without one."""
    one_base_qps, reaches = PUBLISHED[model]
    base, *auxiliary = pool
    base_qps = base * one_base_qps
    if not base or not any(auxiliary):
        return base_qps
    far = next(reach for reach, count in zip(reaches, auxiliary, strict=True) if count)
    auxiliary_qps = sum(count * qps for count, qps in zip(auxiliary, far.qps, strict=True))
    large_qps = base_qps * (1 - far.small_ratio) / (1 - far.time_ratio)
    offloaded_qps = auxiliary_qps * (1 - far.small_ratio) / far.small_ratio
    if large_qps <= offloaded_qps:
        return large_qps / (1 - far.small_ratio)
    return auxiliary_qps / far.small_ratio + (large_qps - offloaded_qps) / large_qps * base_qps
