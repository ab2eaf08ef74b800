"""Why Hercules' evolution differs here from its Figure 16: one assumption changed at a time.

A steady load at the day's peak stands for the day: growth at peak is what the paper states first, and a day takes
longer than is worth it for an answer to which assumption matters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from rich.progress import Progress

from hebe.planning.provisioning.provisioning import FleetOptions, ProvisioningPlan, provision
from hebe.simulation.analytic.server_types import HERCULES, HERCULES_AVAILABLE
from hebe.spec import ModelSpec
from hebe_lab.studies.hercules.fleet import LATE, LIGHT_RMC2, MODELS, PLAIN, Pairs, fleet_of, model_of
from hebe_lab.studies.hercules.hercules_changed import ChangedPair, changed_pairs, with_lookups, without_products
from hebe_lab.studies.hercules.schedulers import NO_HURRY_S, largest_load_qps

Floats = npt.NDArray[np.float64]

MARGIN = 0.98
"""Whole servers carry a little less than fractions of them."""

EVEN = dict.fromkeys(MODELS, 1 / 3)
"""Each model's share of the queries within its kind, early or late."""

BASELINE = "accelerated servers under the baseline's scheduler"

_GAP = 5e-3


@dataclass(frozen=True, slots=True)
class Growth:
    """Servers and power at peak of the second day and of the end, over the first day's."""

    servers: float
    power: float
    end_servers: float
    end_power: float


@dataclass(frozen=True, slots=True)
class _Change:
    """What is not as in the catalog: models by name, keys, or the shares of queries."""

    what: str
    models: Mapping[str, ModelSpec]
    skewed: bool = True
    shares: Callable[[Pairs], Mapping[str, float]] = lambda _: EVEN


def growth_causes(pairs: Pairs, rate: float, quick: bool, progress: Progress) -> dict[str, Growth]:
    """Growth on plain servers by what is changed; the first is nothing, and `pairs` has it already."""
    changes = _changes()
    cases = {
        (change.what, name, kind): ChangedPair(model, HERCULES[kind], skewed=change.skewed)
        for change in changes
        for name, model in change.models.items()
        for kind in PLAIN
    }
    found = dict(zip(cases, changed_pairs(list(cases.values()), quick, progress), strict=True))
    answers = {}
    for change in changes:
        own = {(name, kind): pair for (what, name, kind), pair in found.items() if what == change.what}
        answers[change.what] = _growth({**pairs, **own}, change.shares({**pairs, **own}), rate)
    return answers


def _changes() -> Sequence[_Change]:
    rmc2, light = model_of("RMC2"), model_of(LIGHT_RMC2)
    in_time = replace(rmc2, sla=replace(rmc2.sla, latency_ms=2 * rmc2.sla.latency_ms))
    return (
        _Change("nothing: as in the catalog", {}),
        _Change("RMC2 of 20 lookups, not 120", {"RMC2": light}),
        _Change("RMC2's vectors concatenated, not multiplied in pairs", {"RMC2": without_products(rmc2)}),
        _Change("RMC2 of 20 lookups, vectors concatenated", {"RMC2": without_products(light)}),
        _Change("RMC2 gets no queries", {}, shares=lambda _: {**EVEN, "RMC1": 0.5, "RMC2": 0.0, "RMC3": 0.5}),
        _Change("RMC2's SLA target 100 ms, not 50", {"RMC2": in_time}),
        _Change("RMC2 needs a third of the early T2 servers, as each model of its kind", {}, shares=_by_worth),
        _Change("keys drawn evenly, not skewed", {name: model_of(name) for name in MODELS}, skewed=False),
        _Change("RMC1 of 20 lookups, not 80", {"RMC1": with_lookups(model_of("RMC1"), 20)}),
        _Change("DIN of 1,000 behaviours, not 100", {"DIN": with_lookups(model_of("DIN"), 1000)}),
        _Change("MT-WnD of 8 tasks, not 4", {"MT-WnD": replace(model_of("MT-WnD"), outputs=8)}),
    )


def _by_worth(pairs: Pairs) -> Mapping[str, float]:
    worth = {name: pairs[name, "T2"].best.qps for name in MODELS}
    sums = {late: sum(qps for name, qps in worth.items() if (name in LATE) == late) for late in (True, False)}
    return {name: qps / sums[name in LATE] for name, qps in worth.items()}


def _growth(pairs: Pairs, shares: Mapping[str, float], rate: float) -> Growth:
    fleet = fleet_of(pairs, MODELS, PLAIN)
    first, second, end = (_plan(fleet, load, rate) for load in largest_loads(fleet, (0.0, 0.2, 1.0), rate, shares))
    return Growth(
        second.servers / first.servers,
        second.power_watts / first.power_watts,
        end.servers / first.servers,
        end.power_watts / first.power_watts,
    )


def largest_loads(
    fleet: FleetOptions, late_shares: Sequence[float], rate: float, shares: Mapping[str, float] = EVEN
) -> list[Floats]:
    """Queries/s of each model, by which share of all go to the late ones: as many as `fleet` carries at any of them."""
    loads = [
        np.array([(late if name in LATE else 1 - late) * shares[name] for name in fleet.models]) for late in late_shares
    ]
    scale = min(float(largest_load_qps(fleet, load, rate).sum()) for load in loads)
    return [MARGIN * scale * load for load in loads]


def saving_causes(pairs: Pairs, late_shares: Sequence[float], rate: float) -> dict[str, tuple[float, float]]:
    """The least and the greatest share of power at peak that accelerated servers save over `late_shares`, by what is
    changed of them."""
    plain = fleet_of(pairs, MODELS, PLAIN)
    loads = largest_loads(plain, late_shares, rate)
    by_plain = [_plan(plain, load, rate).power_watts for load in loads]
    half = {kind: count if kind in PLAIN else count // 2 for kind, count in HERCULES_AVAILABLE.items()}
    fleets = {
        "nothing": fleet_of(pairs, MODELS, HERCULES_AVAILABLE),
        BASELINE: fleet_of(_without_gains(pairs), MODELS, HERCULES_AVAILABLE),
        "half as many accelerated servers": fleet_of(pairs, MODELS, half),
    }
    found = {}
    for what, fleet in fleets.items():
        saved = [1 - _plan(fleet, load, rate).power_watts / watts for load, watts in zip(loads, by_plain, strict=True)]
        found[what] = (min(saved), max(saved))
    return found


def _without_gains(pairs: Pairs) -> Pairs:
    """Accelerated servers at their baseline's throughput; their power stays, for want of the baseline's."""
    return {
        (name, kind): pair if kind in PLAIN else replace(pair, best=replace(pair.best, qps=pair.baseline_qps))
        for (name, kind), pair in pairs.items()
    }


def _plan(fleet: FleetOptions, demand_qps: Floats, rate: float) -> ProvisioningPlan:
    return provision(fleet, demand_qps, over_provision_rate=rate, target_gap=_GAP, time_limit_s=NO_HURRY_S)
