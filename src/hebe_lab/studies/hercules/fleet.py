"""Hercules' six models on its ten server types, and the day's load: what all hercules studies share. To find which
assumptions make a difference, models and servers are also had with one of them changed (`changed_pairs`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt
from rich.progress import Progress

from hebe.models import catalog
from hebe.planning.provisioning.over_provision import over_provision_rate
from hebe.planning.provisioning.provisioning import FleetOptions
from hebe.profile import EfficiencyTuple
from hebe.report.progress_bar import bar_of
from hebe.simulation.analytic.analytic_server import AnalyticServer
from hebe.simulation.analytic.calibration import CAFFE2, Calibration
from hebe.simulation.analytic.configuration_search import (
    COARSE,
    SearchGrid,
    baseline_configuration,
    best_configuration,
    efficiency_tuple,
)
from hebe.simulation.analytic.server_types import HERCULES, HERCULES_AVAILABLE
from hebe.simulation.sweep import sweep
from hebe.spec import ModelSpec, Pooling, ServerSpec
from hebe.workload.query_sizes import ProductionSizes
from hebe.workload.rate_trace import read_rate_trace
from hebe.workload.reuse_profile import PRODUCTION_2021
from hebe_lab.study import StudyError, StudyOptions

Floats = npt.NDArray[np.float64]

EARLY = ("RMC1", "RMC2", "RMC3")
LATE = ("DIN", "DIEN", "MT-WnD")
MODELS = (*EARLY, *LATE)
"""The paper's names; the late ones replace the early ones as models evolve."""

ENTRIES: Mapping[str, str] = {
    "RMC1": "dlrm-rmc1", "RMC2": "dlrm-rmc2", "RMC3": "dlrm-rmc3", "MT-WnD": "mt-wnd", "DIN": "din", "DIEN": "dien",
}  # fmt: skip
"""The catalog's names by the paper's."""

_ROW_SHARES = {"DIN": 0.5, "DIEN": 0.5}
"""Of the production rows, where not all: half of DIN's 84.5 GB fits T1's 64 GB, as in the paper."""

ABOUT_SERVERS = (
    "Servers are analytic ones (docs/analytic-servers.md): rooflines of data-sheet figures with a few constants, "
    "set once from this project's measurements and from single-server ratios that the paper states, never from what a "
    "cluster saves. Models are the catalog's production sizes (DIN and DIEN with half of their rows, to fit T1's "
    "64 GB), query sizes the heavy-tailed mixture of Kairos' artifact (mean 238), keys as skewed as Meta's published "
    "tables."
)

WEEKDAY = (
    0.528, 0.419, 0.333, 0.259, 0.212, 0.168, 0.138, 0.120, 0.124, 0.107, 0.113, 0.184, 0.273, 0.461, 0.576, 0.712,
    0.758, 0.785, 0.758, 0.736, 0.688, 0.697, 0.673, 0.726, 0.734, 0.722, 0.709, 0.739, 0.757, 0.774, 0.757, 0.694,
    0.623, 0.587, 0.694, 0.813, 0.910, 0.967, 1.000, 0.989, 0.961, 0.939, 0.954, 0.950, 0.933, 0.894, 0.831, 0.746,
)  # fmt: skip
"""A day's load by half hours from midnight, as a share of its peak: mean weekday of New York's taxi rides, July 2014 to
January 2015 (Numenta Anomaly Benchmark, realKnownCause/nyc_taxi.csv, MIT licence)."""

DAY_S = 86_400.0
RE_PLANNING_S = 600.0

PLAIN = {kind: HERCULES_AVAILABLE[kind] for kind in ("T1", "T2")}
"""The servers without near-memory ranks or an accelerator, and how many there are."""

LIGHT_RMC2 = "RMC2 of 20 lookups"
"""RMC2 at the low end of Table I's "20 - 160" lookups; the catalog has 120."""


def model_of(name: str) -> ModelSpec:
    """The model of the paper's name, or `LIGHT_RMC2`."""
    if name == LIGHT_RMC2:
        model = model_of("RMC2")
        return replace(model, features=tuple(replace(feature, lookups=20) for feature in model.features))
    return catalog.entry(ENTRIES[name], "production", _ROW_SHARES.get(name, 1.0))


@cache
def query_sizes() -> npt.NDArray[np.int64]:
    """A sample of query sizes."""
    return ProductionSizes().draw(20_000, np.random.default_rng(0))


def server_of(name: str, server_type: str) -> AnalyticServer:
    """One of the ten types with one of the models."""
    return AnalyticServer(HERCULES[server_type], model_of(name), query_sizes(), PRODUCTION_2021)


@dataclass(frozen=True, slots=True)
class Pair:
    """One model on one server type: the paper's scheduler, and the baseline's queries/s."""

    best: EfficiencyTuple
    baseline_qps: float

    @property
    def efficiency(self) -> float:
        """Queries/s per watt; 0 where the SLA target is out of reach."""
        return self.best.qps / self.best.power_watts

    @property
    def gain(self) -> float:
        """Throughput over the baseline's; NaN where the baseline cannot keep the SLA target at all."""
        return self.best.qps / self.baseline_qps if self.baseline_qps > 0 else float("nan")


Pairs = Mapping[tuple[str, str], Pair]
"""By model and server type, in the paper's names."""

_found: dict[tuple[str, str, bool], Pair] = {}


def all_pairs(options: StudyOptions, progress: Progress, models: Iterable[str] = MODELS) -> Pairs:
    """The models on all ten types, searched once a process; `quick` on a coarser grid."""
    cases = [(name, server_type, options.quick) for name in models for server_type in HERCULES]
    missing = [case for case in cases if case not in _found]
    if missing:
        _found.update(zip(missing, sweep(_search, missing, bar_of(progress, "server types")), strict=True))
    return {(name, server_type): _found[name, server_type, quick] for name, server_type, quick in cases}


def _search(case: tuple[str, str, bool]) -> Pair:
    name, server_type, quick = case
    return searched_pair(server_of(name, server_type), quick=quick)


def searched_pair(server: AnalyticServer, *, quick: bool) -> Pair:
    """What both schedulers find for the server's model; `quick` on a coarser grid."""
    sla, grid = server.model.sla, COARSE if quick else SearchGrid()
    baseline = baseline_configuration(server, sla, grid)
    return Pair(efficiency_tuple(server, best_configuration(server, sla, grid)), baseline.qps)


def fleet_of(pairs: Pairs, models: Iterable[str], available: Mapping[str, int]) -> FleetOptions:
    """The servers that planning chooses from; models under the paper's names."""
    names, kinds = tuple(models), tuple(available)
    chosen = [[pairs[name, kind].best for kind in kinds] for name in names]
    return FleetOptions(
        names,
        kinds,
        np.array([[one.qps for one in row] for row in chosen]),
        np.array([[one.power_watts for one in row] for row in chosen]),
        np.array([available[kind] for kind in kinds]),
    )


def day_curve(options: StudyOptions, interval_s: float) -> tuple[Floats, Floats]:
    """Interval edges `[n + 1]` in seconds, and the load in each `[n]`, the greatest being 1.

    The built-in mean weekday; with data, the first week of `load/nyc_taxi.csv`. Raises `StudyError` if that has gaps.
    """
    if options.data is None:
        moments, loads, span_s = np.arange(len(WEEKDAY)) * 1800.0, np.array(WEEKDAY), DAY_S
        moments, loads = np.append(moments, DAY_S), np.append(loads, loads[0])
    else:
        trace = read_rate_trace(options.data_file("load/nyc_taxi.csv"))
        if trace.gaps:
            raise StudyError(f"{trace.gaps[0]}: what came then must be known")
        moments, loads, span_s = trace.edges_s[:-1], trace.rates_qps, min(7 * DAY_S, trace.duration_s)
    edges = np.arange(0.0, span_s + 1.0, interval_s)
    curve = np.interp((edges[:-1] + edges[1:]) / 2, moments, loads)
    return edges, curve / curve.max()


def over_provision_of(options: StudyOptions) -> float:
    """The over-provision rate, estimated from the curve at the pace of re-planning, as in the paper's IV-C."""
    edges_s, history = day_curve(options, RE_PLANNING_S)
    return float(over_provision_rate((edges_s[:-1] + edges_s[1:]) / 2, history, RE_PLANNING_S))


@dataclass(frozen=True, slots=True)
class ChangedPair:
    """A model on a server, either of them changed; or other constants, or keys drawn evenly."""

    model: ModelSpec
    server: ServerSpec
    calibration: Calibration = CAFFE2
    skewed: bool = True


def changed_pairs(cases: Sequence[ChangedPair], quick: bool, progress: Progress) -> list[Pair]:
    """What `fleet.all_pairs` finds, of other pairs; `quick` on a coarser grid."""
    return sweep(_search_changed, [(case, quick) for case in cases], bar_of(progress, "one assumption changed"))


def with_lookups(model: ModelSpec, lookups: int) -> ModelSpec:
    """So many lookups in each feature that is summed, or steps in each sequence; one-hot features stay."""
    return replace(
        model,
        features=tuple(
            replace(feature, lookups=lookups)
            if feature.lookups > 1 or feature.pooling is Pooling.ATTENTION
            else feature
            for feature in model.features
        ),
    )


def without_products(model: ModelSpec) -> ModelSpec:
    """A DLRM whose vectors are concatenated, where the catalog's are multiplied in pairs."""
    return replace(model, settings={**model.settings, "interaction": "concat"})


def _search_changed(task: tuple[ChangedPair, bool]) -> Pair:
    case, quick = task
    reuse = PRODUCTION_2021 if case.skewed else None
    server = AnalyticServer(case.server, case.model, query_sizes(), reuse, case.calibration)
    return searched_pair(server, quick=quick)
