"""Which models share which servers, so that all demand is met with few of them: Hera's Section VI-B and its rivals.

    one_model_a_server   every server serves one model (DeepRecSys)
    random_pairs         two models drawn at random a server
    hera_random          two models drawn at random a server, at least one of them of low worker scalability
    hera                 each model of low worker scalability with the one of high that suits it best (Algorithm 2)

Two faults of Algorithm 2 as printed are not kept: it gives a partner whose own demand is met already, and it pairs
models that do worse together than apart. `hebe.planning.colocation.optimum` has the best assignment.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hebe.planning.colocation.affinity import (
    LEAST_SLOPE,
    WorkerScalability,
    check_shareable,
    contended_affinity,
    worker_scalability,
)
from hebe.planning.colocation.shared_server import ScalabilityTables, best_splits
from hebe.planning.error import PlanningError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]

MeasuredRates = Mapping[frozenset[str], Mapping[str, float]]
"""For sets of models what each was measured to serve (queries/s) while they shared a server at their best split."""

_ROUNDING = 1e-9
"""A demand is met when this share of it, at most, is missing: sums of rates are not exact."""

_MOST_SERVERS = 1_000_000
"""No plan is made for a demand beyond this: it is a mistaken unit, and the baselines work server after server."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One model's part of a shared server: its workers, its cache ways, the rate that it serves there, and how many
    cores each worker has."""

    model: str
    workers: int
    cache_ways: int
    qps: float
    cores_per_worker: int = 1

    @property
    def cores(self) -> int:
        """Those of all its workers."""
        return self.workers * self.cores_per_worker


@dataclass(frozen=True, slots=True)
class ServerGroup:
    """`servers` servers that all look alike. `utilization` is the EMU of one: the sum of qps over qps alone."""

    tenants: tuple[Tenant, ...]
    servers: int
    utilization: float


@dataclass(frozen=True, slots=True)
class ColocationPlan:
    """What runs on every server, and the demand that it was made for (queries/s by model).

    `least_servers` is a proven lower bound on the servers of any plan, where the policy gives one.
    """

    policy: str
    demand_qps: Mapping[str, float]
    groups: tuple[ServerGroup, ...]
    least_servers: int | None = None

    @property
    def servers(self) -> int:
        """All servers."""
        return sum(group.servers for group in self.groups)

    @property
    def utilization(self) -> float:
        """Effective machine utilization, the mean over all servers."""
        return sum(group.servers * group.utilization for group in self.groups) / self.servers

    @property
    def capacity_qps(self) -> dict[str, float]:
        """What all servers together can serve of each model in demand."""
        capacity = dict.fromkeys(self.demand_qps, 0.0)
        for group in self.groups:
            for tenant in group.tenants:
                capacity[tenant.model] += group.servers * tenant.qps
        return capacity


def share_server(tables: ScalabilityTables, models: Sequence[str]) -> ServerGroup:
    """One server with all of these models at the split of largest EMU: the predicted throughput of a set.

    Raises `PlanningError` for unknown or repeated models, and where the server has too little memory, too few cores
    or too few cache ways for all of them.
    """
    if not models or len(set(models)) < len(models):
        raise PlanningError(f"models is {list(models)}: name at least one, and none twice")
    rows = [tables.index_of(model) for model in models]
    best = best_splits(tables, np.array([rows], dtype=np.intp), utilization_weights(tables))
    if best.value[0] == -math.inf:
        raise PlanningError(f"models {', '.join(models)}: do not fit on one server together; take one of them away")
    tenants = tenants_of(tables, rows, best.cores[0], best.cache_ways[0], best.qps[0])
    return ServerGroup(tenants, 1, float(best.value[0]))


def one_model_a_server(
    tables: ScalabilityTables, demand_qps: Mapping[str, float], *, measured: MeasuredRates | None = None
) -> ColocationPlan:
    """DeepRecSys: every server has all its workers on one model. Raises `PlanningError` as `Fleet` does."""
    fleet = Fleet(tables, demand_qps, measured)
    fleet.serve_alone()
    return fleet.plan("one_model_a_server")


def random_pairs(
    tables: ScalabilityTables,
    demand_qps: Mapping[str, float],
    rng: np.random.Generator,
    *,
    measured: MeasuredRates | None = None,
) -> ColocationPlan:
    """Server after server gets two models drawn from those with unmet demand; the last one left stays alone."""
    check_shareable(tables.server)
    fleet = Fleet(tables, demand_qps, measured)
    while len(unmet := fleet.unmet()) > 1:
        first, second = sorted(rng.choice(len(unmet), 2, replace=False))
        fleet.add((unmet[first], unmet[second]), 1)
    fleet.serve_alone()
    return fleet.plan("random_pairs")


def hera_random(
    tables: ScalabilityTables,
    demand_qps: Mapping[str, float],
    rng: np.random.Generator,
    least_slope: float = LEAST_SLOPE,
    *,
    measured: MeasuredRates | None = None,
) -> ColocationPlan:
    """`random_pairs` without those of two models of high worker scalability; what such pairs leave is served alone."""
    check_shareable(tables.server)
    fleet = Fleet(tables, demand_qps, measured)
    scalability = worker_scalability(tables, least_slope)
    while len(unmet := fleet.unmet()) > 1:
        low = [model for model in unmet if scalability[model] is WorkerScalability.LOW]
        if not low:
            break
        row = low + [model for model in unmet if scalability[model] is WorkerScalability.HIGH]
        # A pair has its first member in `low` and the other anywhere behind it: each pair once, all equally likely.
        behind = np.arange(len(row) - 1, len(row) - 1 - len(low), -1)
        first = int(rng.choice(len(low), p=behind / behind.sum()))
        second = int(rng.integers(first + 1, len(row)))
        fleet.add((min(row[first], row[second]), max(row[first], row[second])), 1)
    fleet.serve_alone()
    return fleet.plan("hera_random")


def hera(
    tables: ScalabilityTables,
    demand_qps: Mapping[str, float],
    least_slope: float = LEAST_SLOPE,
    *,
    affinity: FloatArray | None = None,
    measured: MeasuredRates | None = None,
) -> ColocationPlan:
    """Algorithm 2: each model of low worker scalability with its best partners first, then the rest alone.

    `affinity` (float64 `[models, models]`) is `contended_affinity` unless it is given; Algorithm 1's does worse, for it
    sees no contention until bandwidth is used up. A pair whose EMU is not above 1 is not formed. Servers are allotted
    in blocks of equal ones, so the time does not depend on their number. Raises `PlanningError` as `Fleet` does.
    """
    check_shareable(tables.server)
    fleet = Fleet(tables, demand_qps, measured)
    scalability = worker_scalability(tables, least_slope)
    affinity = contended_affinity(tables) if affinity is None else affinity
    for model in fleet.unmet():
        if scalability[model] is WorkerScalability.HIGH:
            continue
        partners = [other for other in fleet.unmet() if scalability[other] is WorkerScalability.HIGH]
        for partner in sorted(partners, key=lambda other: (-affinity[model, other], other)):
            if not fleet.needs(model):
                break
            if fleet.utilization((model, partner)) > 1:
                fleet.meet((model, partner))
    fleet.serve_alone()
    return fleet.plan("hera")


class Fleet:
    """Servers allotted so far, and the demand that is left; models are rows of the tables.

    Sets of models that were measured serve what was measured, all others what is predicted.

    Raises `PlanningError` for an empty or negative demand, a model without a profile, and a model in demand that the
    server cannot serve within its SLA target.
    """

    def __init__(
        self, tables: ScalabilityTables, demand_qps: Mapping[str, float], measured: MeasuredRates | None = None
    ) -> None:
        self.tables = tables
        self._measured = measured or {}
        self._demand_qps = dict(demand_qps)
        self._left = demand_array(tables, demand_qps)
        self._met = self._left * _ROUNDING
        self._splits: dict[tuple[int, ...], tuple[tuple[Tenant, ...], FloatArray, float]] = {}
        self._counts: dict[tuple[int, ...], int] = {}
        self._weights = utilization_weights(tables)
        self._alone = tables.alone.copy()
        for models, served in self._measured.items():
            for name in models:
                row, qps = tables.index_of(name), served.get(name, -1.0)
                if not (math.isfinite(qps) and (qps > 0 if len(models) == 1 else qps >= 0)):
                    raise PlanningError(
                        f"measured: {' with '.join(sorted(models))}: {name} is {qps!r}: must be queries/s"
                    )
                if len(models) == 1:
                    self._alone[row] = qps

    def needs(self, model: int) -> bool:
        """Whether demand for `model` is left."""
        return bool(self._left[model] > self._met[model])

    def unmet(self) -> list[int]:
        """The models with demand left, in the order of the tables."""
        return np.flatnonzero(self._left > self._met).tolist()

    def utilization(self, models: tuple[int, ...]) -> float:
        """The EMU of a server that these models share at their best split; -inf if they do not fit."""
        return self._split(models)[2]

    def meet(self, models: tuple[int, ...]) -> None:
        """Allot servers with these models until the demand for the first of them to be satisfied is met."""
        rates = self._split(models)[1]
        needed: list[int] = [
            math.ceil(float((self._left[model] - self._met[model]) / rate))
            for model, rate in zip(models, rates, strict=True)
            if rate > 0
        ]
        self.add(models, max(1, min(needed)))

    def serve_alone(self) -> None:
        """Allot servers of one model each until all demand is met."""
        for model in self.unmet():
            self.meet((model,))

    def add(self, models: tuple[int, ...], servers: int) -> None:
        """Allot `servers` servers that these models share at their best split; alone where they do not fit."""
        if self.utilization(models) <= 0:
            for model in models:
                self.add((model,), servers)
            return
        self._left[list(models)] -= servers * self._split(models)[1]
        self._counts[models] = self._counts.get(models, 0) + servers

    def plan(self, policy: str) -> ColocationPlan:
        """The plan so far."""
        groups = []
        for models, servers in self._counts.items():
            tenants, _, utilization = self._split(models)
            groups.append(ServerGroup(tenants, servers, utilization))
        return ColocationPlan(policy, self._demand_qps, tuple(groups))

    def _split(self, models: tuple[int, ...]) -> tuple[tuple[Tenant, ...], FloatArray, float]:
        found = self._splits.get(models)
        if found is None:
            best = best_splits(self.tables, np.array([models], dtype=np.intp), self._weights)
            qps, value = best.qps[0], float(best.value[0])
            names = [self.tables.models[model] for model in models]
            served = self._measured.get(frozenset(names))
            if served is not None:
                qps = np.array([served[name] for name in names])
                value = float((qps / self._alone[list(models)]).sum())
            tenants = tenants_of(self.tables, models, best.cores[0], best.cache_ways[0], qps)
            found = self._splits[models] = (tenants, qps, value)
        return found


def tenants_of(
    tables: ScalabilityTables, models: Iterable[int], cores: Iterable[int], ways: Iterable[int], qps: Iterable[float]
) -> tuple[Tenant, ...]:
    """The members of a shared server, with the workers that each of them really has on its cores."""
    return tuple(
        Tenant(
            tables.models[model],
            int(tables.workers[model, share]),
            int(part),
            float(rate),
            int(tables.cores_per_worker[model]),
        )
        for model, share, part, rate in zip(models, cores, ways, qps, strict=True)
    )


def utilization_weights(tables: ScalabilityTables) -> FloatArray:
    """What one query/s of each model adds to a server's EMU, float64 `[models]`: 1 / (queries/s alone)."""
    return np.divide(1.0, tables.alone, out=np.zeros_like(tables.alone), where=tables.alone > 0)


def demand_array(tables: ScalabilityTables, demand_qps: Mapping[str, float]) -> FloatArray:
    """The demand in the order of the tables, float64 `[models]`; raises `PlanningError` as `Fleet` says."""
    if not demand_qps:
        raise PlanningError("demand_qps: is empty; give queries/s for at least one model")
    demand = np.zeros(len(tables.models))
    for model, qps in demand_qps.items():
        at = tables.index_of(model)
        if not isinstance(qps, int | float | np.number) or isinstance(qps, bool):
            raise PlanningError(f"demand_qps: of model {model} is {qps!r}: must be a number")
        if not (math.isfinite(qps) and qps >= 0):
            raise PlanningError(f"demand_qps: of model {model} is {qps!r}: must be finite and at least 0")
        if qps > 0 and tables.alone[at] == 0:
            raise PlanningError(
                f"demand_qps: of model {model} is {qps:g}, but its profile has qps 0 throughout: no number of these"
                " servers meets its SLA target"
            )
        demand[at] = qps
    if not demand.any():
        raise PlanningError("demand_qps: is 0 for every model; there is nothing to plan")
    wanted = demand > 0
    needed = demand[wanted] / tables.alone[wanted]
    if needed.sum() > _MOST_SERVERS:
        largest = tables.models[int(np.flatnonzero(wanted)[needed.argmax()])]
        raise PlanningError(
            f"demand_qps: would take {needed.sum():.3g} servers, most of them for model {largest};"
            f" plans go up to {_MOST_SERVERS:,}: check the unit, which is queries/s"
        )
    return demand
