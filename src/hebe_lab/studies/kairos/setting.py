"""Kairos' models, instance types and queries: what all kairos studies share.

Models and QoS of the paper's Table 3, types and prices of its Table 4, 2.5 dollars an hour. Query sizes are those of
the artifact's sampler. Queries come as a Poisson process, as the paper says (its artifact draws whole milliseconds).

`published_pick` is the pool that Kairos' rule picks from the figures that its artifact publishes, rather than from
measurements. It shows whether a pick is the paper's or comes of our reading of Eq. 9-15, which `planning.pool` computes
from service times and query sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from zlib import crc32

import numpy as np
from scipy.special import ndtri

from hebe.planning.pool.pool import pools_within, ranking, similarity_pick
from hebe.planning.pool.pool_problem import PoolProblem
from hebe.planning.pool.query_size_monitor import size_weights
from hebe.scheduling.fleet.fleet import Fleet
from hebe.scheduling.node.latency_prediction import LatencyPredictor
from hebe.simulation.analytic.server_types import EC2
from hebe.simulation.fleet.fleet_run import QueryTrace, ServiceModel, TableServers
from hebe.simulation.measured.service_samples import read_service_tables
from hebe.simulation.measured.service_table import ServiceTable, ServiceTableError
from hebe.spec import SlaTarget
from hebe.workload.query_sizes import NormalSizes, ProductionSizes, QuerySizes
from hebe_lab.study import StudyError, StudyOptions

PRICES: Mapping[str, float] = {name: server.price_per_hour for name, server in EC2.items()}
"""Dollars an hour, base type first."""

TYPES = tuple(PRICES)
GRID = (6, 7, 18, 16)
"""Counts of each type, from none, in the artifact's whole grid of configurations."""

BUDGET_PER_HOUR = 2.5
PERCENTILE = 99.0
SLA_MS: Mapping[str, float] = {"ncf": 5.0, "rm2": 350.0, "wnd": 25.0, "mtwnd": 25.0, "dien": 35.0}
MODELS = tuple(SLA_MS)

FILES = ("exec_ms.csv", "load_ms.csv")
"""The artifact's measurements, which add up: execution and loading."""

PRODUCTION = ProductionSizes()

GAUSSIAN = NormalSizes(256, 32, 1000)
"""The paper does not say which normal distribution it takes; this is one that DeepRecSys publishes."""

MEASURED_ITEMS = (10, 100, 250, 500, 750, 1000)
MEASURED_MS: Mapping[str, Mapping[str, tuple[tuple[float, ...], float]]] = {
    "ncf": {
        "g4dn.xlarge": ((0.6107, 0.8757, 1.145, 1.659, 2.066, 2.455), 0.035),
        "c5n.2xlarge": ((0.3123, 0.8088, 1.661, 2.896, 4.275, 6.509), 0.029),
        "r5n.large": ((0.39, 1.137, 2.209, 3.623, 5.176, 6.763), 0.041),
        "t3.xlarge": ((0.8158, 1.608, 3.048, 5.971, 9.72, 12.78), 0.241),
    },
    "rm2": {
        "g4dn.xlarge": ((5.398, 29.21, 68.34, 132.8, 196.8, 260.8), 0.002),
        "c5n.2xlarge": ((4.964, 39.52, 100.0, 196.8, 292.8, 387.6), 0.002),
        "r5n.large": ((5.704, 43.22, 104.6, 205.2, 305.2, 404.2), 0.002),
        "t3.xlarge": ((14.28, 92.38, 221.6, 440.2, 660.8, 885.7), 0.006),
    },
    "wnd": {
        "g4dn.xlarge": ((2.425, 3.067, 4.03, 5.887, 7.601, 9.436), 0.013),
        "c5n.2xlarge": ((1.972, 4.142, 8.599, 16.63, 24.62, 32.65), 0.013),
        "r5n.large": ((2.18, 5.248, 10.39, 19.97, 28.6, 36.95), 0.021),
        "t3.xlarge": ((3.882, 10.0, 20.43, 37.16, 52.93, 64.63), 0.231),
    },
    "mtwnd": {
        "g4dn.xlarge": ((3.62, 4.548, 5.955, 8.639, 11.17, 13.76), 0.010),
        "c5n.2xlarge": ((2.64, 5.54, 11.59, 22.7, 32.82, 44.78), 0.011),
        "r5n.large": ((2.99, 6.923, 14.47, 26.05, 39.63, 50.16), 0.020),
        "t3.xlarge": ((6.1, 13.63, 27.36, 50.57, 60.67, 79.3), 0.210),
    },
    "dien": {
        "g4dn.xlarge": ((6.278, 7.85, 9.543, 12.6, 16.23, 18.59), 0.008),
        "c5n.2xlarge": ((2.442, 8.236, 18.88, 38.93, 57.85, 77.36), 0.004),
        "r5n.large": ((2.964, 9.483, 21.09, 41.19, 61.3, 83.58), 0.009),
        "t3.xlarge": ((5.507, 18.57, 37.8, 76.79, 108.9, 125.2), 0.204),
    },
}
"""By model and type: mean milliseconds (execution and loading) of queries of `MEASURED_ITEMS` items, and the standard
deviation over the mean. Cited from the measurements of the Kairos artifact (B. Li et al., HPDC 2023, MIT licence,
https://doi.org/10.5281/zenodo.7888058); the slowest of each hundred samples, the first call, is left out as there."""

ABOUT_BUILT_IN = (
    "Service times are the built-in figures cited from the Kairos artifact (Zenodo 7888058, MIT): means at "
    f"{', '.join(map(str, MEASURED_ITEMS))} items, and one relative spread for each model and type, log-normal. "
    "With --data, all of its measurements are used."
)
ABOUT_DATA = "Service times are drawn from all measurements of the Kairos artifact: 99 at each of 100 query sizes."

_LEVELS = 40
_SIZE_DRAWS = 200_000
_LEAST_FACTOR = 0.1
"""Of what is predicted, whatever the noise: no service time is negative."""


@dataclass(frozen=True)
class Setting:
    """One model's problem: whose measurements (`data` is the artifact's folder, None the built-in figures), the
    budget, the QoS times `sla_factor`, the query sizes, and the standard deviation by which predicted service times are
    off, over what is predicted (`noise`). `steady`: every service time is its mean. `gap_ms`: gaps as the artifact
    draws them, whole milliseconds of a Poisson variate of this mean; 0 for exponential ones. `known_times`: service
    times are known beforehand; else policies that predict learn them from nothing in each run. Plain data: what it
    stands for is worked out once per process."""

    model: str
    data: Path | None = None
    budget_per_hour: float = BUDGET_PER_HOUR
    sla_factor: float = 1.0
    sizes: QuerySizes = PRODUCTION
    noise: float = 0.0
    steady: bool = False
    gap_ms: float = 0.0
    known_times: bool = False

    @property
    def sla(self) -> SlaTarget:
        """The QoS."""
        return SlaTarget(SLA_MS[self.model] * self.sla_factor, PERCENTILE)

    @property
    def table(self) -> ServiceTable:
        """Measured service times on `TYPES`."""
        return service_table(self.data, self.model)

    @property
    def servers(self) -> ServiceModel:
        """The modelled servers."""
        table = self.table
        if self.steady:
            table = ServiceTable(table.types, table.quantiles_s.mean(axis=2, keepdims=True))
        if self.noise:
            return NoisilyPredicted(table, self.noise, known=self.known_times)
        return TableServers(table, known=self.known_times)

    @property
    def problem(self) -> PoolProblem:
        """What planning sees: mean service times, prices, the sizes' distribution."""
        return _problem(self)

    def trace(self, queries: int, seed: int) -> QueryTrace:
        """Queries of this setting's sizes and gaps."""
        trace = QueryTrace.draw(queries, self.sizes, seed)
        if not self.gap_ms:
            return trace
        gaps_ms = np.random.default_rng(seed).poisson(self.gap_ms, queries)
        return replace(trace, gaps=gaps_ms / self.gap_ms)


def settings(options: StudyOptions, models: tuple[str, ...] = MODELS) -> dict[str, Setting]:
    """Each model's setting, with the options' measurements, which are read and checked now. Raises `StudyError`."""
    data = measurements(options)
    found = {model: Setting(model, data) for model in models}
    for setting in found.values():
        _ = setting.table
    return found


def measurements(options: StudyOptions) -> Path | None:
    """Where the artifact's measurements lie; None: the built-in figures. Raises `StudyError` if they are not there."""
    if options.data is None:
        return None
    directory, *others = (options.data_file(f"kairos/{name}").parent for name in FILES)
    if any(other != directory for other in others):
        raise StudyError(f"{options.data}: {' and '.join(FILES)} must lie in the same directory")
    return directory


def about(options: StudyOptions) -> str:
    """Where the service times are from."""
    return ABOUT_BUILT_IN if options.data is None else ABOUT_DATA


def traces_text(count: int) -> str:
    """How many traces, in words."""
    return "one trace" if count == 1 else f"{count} traces"


def spread_text(count: int) -> str:
    """What stands beside a figure measured on so many traces."""
    return "one trace, which has no interval" if count == 1 else f"mean of {count} traces, Student's 95% interval"


@cache
def service_table(data: Path | None, model: str) -> ServiceTable:
    """The model's service times on `TYPES`. Raises `StudyError` where the measurements lack something."""
    if data is None:
        return _built_in(model)
    tables = _measured(data)
    if model not in tables:
        raise StudyError(f"{data}: there are no measurements of model {model}, only of {', '.join(tables)}")
    largest = max(PRODUCTION.largest, GAUSSIAN.largest)
    if tables[model].largest < largest:
        raise StudyError(f"{data}: {model} was measured up to {tables[model].largest} items; queries have {largest}")
    try:
        return tables[model].of_types(TYPES)
    except ServiceTableError as fault:
        raise StudyError(f"{data}, model {model}: {fault}") from None


@cache
def _measured(data: Path) -> dict[str, ServiceTable]:
    try:
        return read_service_tables([data / name for name in FILES])
    except ServiceTableError as fault:
        raise StudyError(str(fault)) from None


def _built_in(model: str) -> ServiceTable:
    """Log-normal samples around the cited means."""
    normal = ndtri((np.arange(_LEVELS) + 0.5) / _LEVELS)
    samples: dict[str, dict[int, list[float]]] = {}
    for server_type, (means_ms, spread) in MEASURED_MS[model].items():
        drawn = np.exp(math.sqrt(math.log1p(spread**2)) * normal)
        drawn /= drawn.mean()
        samples[server_type] = {
            items: (mean_ms / 1e3 * drawn).tolist() for items, mean_ms in zip(MEASURED_ITEMS, means_ms, strict=True)
        }
    return ServiceTable.from_samples(samples)


@cache
def _problem(setting: Setting) -> PoolProblem:
    table = setting.table
    weights = size_weights(setting.sizes.draw(_SIZE_DRAWS, np.random.default_rng(0)), table.largest)
    return PoolProblem(TYPES, np.array(list(PRICES.values())), table.mean_s, weights, setting.sla.latency_s)


class NoisyPredictor(LatencyPredictor):
    """Says what `exact` predicts, off by `factor()` anew each time that it is asked. What it learns is not off."""

    def __init__(self, exact: LatencyPredictor, factor: Callable[[], float]) -> None:
        super().__init__()
        self._exact = exact
        self._factor = factor

    def observe(self, items: int, service_s: float) -> None:
        """As `exact` does."""
        self._exact.observe(items, service_s)

    def service_time_s(self, items: int) -> float:
        """With noise."""
        return self._exact.service_time_s(items) * self._factor()

    def tail_time_s(self, items: int, safeguard: float = 1.0) -> float:
        """With noise."""
        return self._exact.tail_time_s(items, safeguard) * self._factor()


class NoisilyPredicted(TableServers):
    """Servers that take as long as others, but whose routers predict that with Gaussian white noise added to each
    prediction: `noise` is its deviation over what is predicted. A policy that predicts nothing sees no difference."""

    def __init__(self, table: ServiceTable, noise: float, *, known: bool = False) -> None:
        super().__init__(table, known=known)
        self._noise = noise
        self._rng = np.random.default_rng()

    def begin(self, trace: QueryTrace) -> None:
        """The noise begins anew: the same for the same queries, of its own for others."""
        super().begin(trace)
        self._rng = np.random.default_rng(crc32(trace.gaps.tobytes(), crc32(trace.luck.tobytes())))

    def fleet(self) -> Fleet:
        """Whose predictors say what they predict with noise."""
        fleet = super().fleet()
        fleet.predictors = [NoisyPredictor(exact, self._factor) for exact in fleet.predictors]
        return fleet

    def _factor(self) -> float:
        return max(1 + self._noise * float(self._rng.standard_normal()), _LEAST_FACTOR)


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
