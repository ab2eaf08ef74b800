"""Hera's node and its eight models, alone by formula and together by simulation: what all hera studies share.

A server is one socket of Hera's Table II; models are those of Table I. Two things are not as the catalog has them:
the socket does 64 FLOPs a cycle and core (a Xeon Gold 6242 has two AVX-512 units), and its 192 GB of memory are GiB,
in which eight workers of DLRM (B) fit, as the paper says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
from rich.progress import Progress

from hebe.models import catalog
from hebe.planning.colocation.affinity import WorkerScalability, worker_scalability
from hebe.planning.colocation.colocation import MeasuredRates, ServerGroup, Tenant
from hebe.planning.colocation.shared_server import ScalabilityTables
from hebe.report.progress_bar import bar_of
from hebe.simulation.analytic.batch_phases import BatchPhases, SharedServerModel
from hebe.simulation.analytic.scalability_model import resources_of, scalability_profile
from hebe.simulation.analytic.server_types import GIB, HERA_SOCKET
from hebe.simulation.fleet.fleet_run import QueryTrace
from hebe.simulation.node.co_run import BatchCosts, SharedServerSimulation, TenantLoad
from hebe.simulation.sweep import sweep
from hebe.spec import ModelSpec
from hebe.workload.query_sizes import ProductionSizes

ENTRIES: Mapping[str, str] = {
    "DLRM (A)": "hera-dlrm-a",
    "DLRM (B)": "hera-dlrm-b",
    "DLRM (C)": "hera-dlrm-c",
    "DLRM (D)": "hera-dlrm-d",
    "NCF": "hera-ncf",
    "DIEN": "hera-dien",
    "DIN": "hera-din",
    "WnD": "hera-wnd",
}
"""Hera's names, and the catalog's."""

OTHER_WAYS: Mapping[str, str] = {
    "one model a server": "deeprecsys",
    "random": "random",
    "Hera (random)": "hera_random",
}
"""Ways of choosing who shares a server that Hera is compared with, and what figures call them."""

SIZES = ProductionSizes()
"""DeepRecInfra's production sizes are not published; this is the nearest heavy-tailed mixture that is (mean 238 items,
where Hera states 220)."""

TARGETS_QPS = (1_000.0, 2_000.0, 4_000.0, 8_000.0, 16_000.0)
"""Of each model in Fig. 15. The paper's axis is in its figure alone; these take from a dozen to some hundreds of
servers."""

LOW_SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
SKEWED_QPS = 32_000.0
"""The sum over all models in Fig. 16's setting."""

Demand = dict[str, float]
"""Queries/s by model."""

_CACHE_WAYS = 11
"""Of the socket's last-level cache, 2 MB each."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long co-runs last: `least_queries` of the rarest model, but at most `most_queries` of the most frequent."""

    least_queries: int
    most_queries: int
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Measured:
    """One set of models on one server: queries/s sustained together, and by each alone on the whole server."""

    together_qps: tuple[float, ...]
    alone_qps: tuple[float, ...]

    @property
    def utilization(self) -> float:
        """Effective machine utilization."""
        return sum(own / alone for own, alone in zip(self.together_qps, self.alone_qps, strict=True))


@dataclass(frozen=True)
class HeraNode:
    """One kind of socket: cores, cache ways of 2 MB, peak memory bandwidth, each core's second-level cache."""

    cores: int = HERA_SOCKET.cores
    cache_ways: int = _CACHE_WAYS
    bandwidth_bytes_per_s: float = HERA_SOCKET.memory_bandwidth_bytes_per_s
    core_cache_bytes: float = float(1 << 20)

    @cached_property
    def shared(self) -> SharedServerModel:
        """The socket."""
        server = replace(
            HERA_SOCKET,
            cores=self.cores,
            llc_bytes=self.cache_ways * (HERA_SOCKET.llc_bytes // _CACHE_WAYS),
            memory_bandwidth_bytes_per_s=self.bandwidth_bytes_per_s,
            memory_bytes=192 * GIB,
            flops_per_cycle_per_core=64.0,
        )
        return SharedServerModel(server, self.cache_ways, core_cache_bytes=self.core_cache_bytes)

    @cached_property
    def tables(self) -> ScalabilityTables:
        """All models' estimated profiles, what planning sees."""
        return _tables(self)

    @cache  # noqa: B019  (a node lives as long as its study)
    def costs(self, name: str) -> BatchCosts:
        """What one model's batches cost here."""
        return BatchCosts(BatchPhases(self.shared, model(name)))

    def measure(
        self,
        tenants: Sequence[Tenant],
        effort: Effort,
        *,
        alone: Sequence[Tenant] | None = None,
        partitioned: bool = True,
    ) -> Measured:
        """Simulate `tenants` together, asked for in proportion to their `qps`, and each as in `alone` by itself.

        Without `alone`: with the whole server. All runs of one call last equally long and see the same queries.
        """
        alone = [self.by_itself(tenant.model) for tenant in tenants] if alone is None else alone
        rates = [tenant.qps for tenant in alone]
        duration_s = min(effort.least_queries / min(rates), effort.most_queries / max(rates))
        # Twice what the rates need: a tenant may turn out to sustain more than was predicted.
        traces = {
            tenant.model: QueryTrace.draw(int(2 * tenant.qps * duration_s) + 200, SIZES, effort.seed + place)
            for place, tenant in enumerate(alone)
        }

        def load(tenant: Tenant, ways: int | None) -> TenantLoad:
            return TenantLoad(
                self.costs(tenant.model), tenant.workers, ways, model(tenant.model).sla, traces[tenant.model]
            )

        by_themselves = [
            SharedServerSimulation([load(tenant, tenant.cache_ways)], duration_s).sustained([tenant.qps]).qps[0]
            for tenant in alone
        ]
        together = SharedServerSimulation(
            [load(tenant, tenant.cache_ways if partitioned else None) for tenant in tenants], duration_s
        ).sustained([tenant.qps for tenant in tenants])
        return Measured(together.qps, tuple(by_themselves))

    def by_itself(self, name: str) -> Tenant:
        """A model with the whole server, at its predicted throughput."""
        tables = self.tables
        row = tables.index_of(name)
        return Tenant(name, int(tables.workers[row, -1]), self.cache_ways, float(tables.alone[row]))

    def on_half(self, name: str, cache_ways: int) -> Tenant:
        """A model on half of the cores with so many ways, at its predicted throughput."""
        tables = self.tables
        row, half = tables.index_of(name), self.cores // 2
        return Tenant(name, int(tables.workers[row, half]), cache_ways, float(tables.qps[row, half, cache_ways]))


@cache
def _tables(node: HeraNode) -> ScalabilityTables:
    """Worked out once for all nodes that are alike: it takes seconds."""
    sizes = SIZES.draw(20_000, np.random.default_rng(0))
    profiles = [scalability_profile(node.shared, model(name), sizes, name=name) for name in ENTRIES]
    return ScalabilityTables.of(profiles, resources_of(node.shared))


@cache
def model(name: str) -> ModelSpec:
    """One of Hera's models."""
    return catalog.entry(ENTRIES[name])


@dataclass(frozen=True)
class CoRunCase:
    """One call of `HeraNode.measure`."""

    node: HeraNode
    tenants: tuple[Tenant, ...]
    effort: Effort
    alone: tuple[Tenant, ...] | None = None
    partitioned: bool = True


def measure_all(title: str, cases: Sequence[CoRunCase], progress: Progress) -> list[Measured]:
    """All cases, on all cores."""
    for node in {case.node for case in cases}:
        _ = node.tables  # worked out once, and sent along
    return sweep(_measure, cases, bar_of(progress, title))


def _measure(case: CoRunCase) -> Measured:
    return case.node.measure(case.tenants, case.effort, alone=case.alone, partitioned=case.partitioned)


def measured_rates(groups: Sequence[ServerGroup], answers: Sequence[Measured]) -> MeasuredRates:
    """What planning counts with: the groups' rates together, and each model's alone (the last measured one)."""
    served = [served_qps(group, answer) for group, answer in zip(groups, answers, strict=True)]
    return {frozenset(rates): rates for rates in served}


def served_qps(group: ServerGroup, answer: Measured) -> Mapping[str, float]:
    """What one server of the group sustains of each model."""
    return dict(zip([tenant.model for tenant in group.tenants], answer.together_qps, strict=True))


SMALL_CORE_CACHE = HeraNode(core_cache_bytes=float(1 << 16))
"""Hera's socket but for its cores' second-level caches: next to nothing, where 1 MiB holds most of what a batch
reuses."""


def scaling_badly(node: HeraNode) -> list[str]:
    """The models of low worker scalability."""
    scalability = worker_scalability(node.tables)
    return [name for name, kind in zip(ENTRIES, scalability, strict=True) if kind is WorkerScalability.LOW]


def even_demands() -> dict[float, Demand]:
    """Fig. 15's, by the target of every model."""
    return {target: dict.fromkeys(ENTRIES, target) for target in TARGETS_QPS}


def skewed_demands(low: Sequence[str]) -> dict[float, Demand]:
    """Fig. 16's, by the share that the models of low worker scalability have, evenly."""
    high = [name for name in ENTRIES if name not in low]
    return {
        share: {name: SKEWED_QPS * share / len(low) for name in low}
        | {name: SKEWED_QPS * (1 - share) / len(high) for name in high}
        for share in LOW_SHARES
    }
