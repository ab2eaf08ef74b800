"""Hercules, Figure 16: what plain and accelerated clusters need while costlier models replace cheaper ones.

Why it differs here from the paper's is tried by changing one assumption at a time (`growth_causes`, `saving_causes`). A
steady load at the day's peak stands for the day: growth at peak is what the paper states first, and a day takes longer
than is worth it for an answer to which assumption matters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from rich.progress import Progress

from hebe.planning.provisioning.day import DayPlan, plan_day
from hebe.planning.provisioning.provisioning import FleetOptions, ProvisioningPlan, provision
from hebe.report.document import Cell, Heading, Picture, Table
from hebe.report.figures import Figure
from hebe.report.plots.day import stacked_over_day
from hebe.report.plots.style import SERIES, drawing, to_svg
from hebe.simulation.analytic.server_types import HERCULES, HERCULES_AVAILABLE
from hebe.spec import ModelSpec
from hebe_lab.studies.hercules.fleet import (
    ABOUT_SERVERS,
    EARLY,
    LATE,
    LIGHT_RMC2,
    MODELS,
    PLAIN,
    ChangedPair,
    Pairs,
    all_pairs,
    changed_pairs,
    day_curve,
    fleet_of,
    model_of,
    over_provision_of,
    with_lookups,
    without_products,
)
from hebe_lab.studies.hercules.schedulers import NO_HURRY_S, largest_load_qps
from hebe_lab.study import StudyOptions, StudyResult

Floats = npt.NDArray[np.float64]


DESCRIPTION = "Hercules' model evolution: servers and power as new models replace old ones (Fig. 16)."
DATA = "load/"
_STEPS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Share of the load, in queries/s, that goes to the late models."""
_SECOND_DAY = _STEPS.index(0.2)

_EARLY_LIGHT = ("RMC1", LIGHT_RMC2, "RMC3")


@dataclass(frozen=True, slots=True, eq=False)
class Evolution:
    """Days of `_STEPS`, on plain servers alone and with accelerated ones."""

    edges_s: Floats
    plain: Sequence[DayPlan]
    accelerated: Sequence[DayPlan]

    def growth(self, step: int, what: Callable[[DayPlan], Floats]) -> tuple[float, float]:
        """Of the plain servers' days over the first one: at peak, and on average."""
        first, later = what(self.plain[0]), what(self.plain[step])
        return float(later.max() / first.max()), float(later.mean() / first.mean())

    def savings(self) -> list[tuple[float, float]]:
        """Power that accelerated servers save, at peak and on average, by step."""
        found = [one.power_saving_over(other) for one, other in zip(self.accelerated, self.plain, strict=True)]
        return [(saving.peak, saving.mean) for saving in found]


def run(options: StudyOptions, progress: Progress) -> StudyResult:
    """See `DESCRIPTION`."""
    pairs = all_pairs(options, progress, (*MODELS, LIGHT_RMC2))
    rate = over_provision_of(options)
    day = day_curve(options, options.pick(10_800.0, 3600.0, 1800.0))
    task = progress.add_task("evolution", total=4 * len(_STEPS))
    catalog, light = (
        _evolution(pairs, early, day, rate, options.pick(1e-2, 5e-3, 2e-3), lambda: progress.advance(task))
        for early in (EARLY, _EARLY_LIGHT)
    )
    savings = saving_causes(pairs, _STEPS, rate)
    causes = growth_causes(pairs, rate, options.quick, progress)
    return StudyResult(
        [*_figures("hercules.evolution", catalog), *_figures("hercules.evolution_light", light)],
        [
            ABOUT_SERVERS,
            "The load, in queries/s, shifts from RMC1, RMC2 and RMC3 to DIN, DIEN and MT-WnD, evenly within either "
            "kind, and follows one daily curve. It is the greatest that the 200 plain servers carry at every step. "
            "Plans are Hercules' integer program's. The paper does not state its loads.",
            Heading("Fig. 16(b): provisioned power"),
            Picture(_power_picture(catalog, "RMC2 as in the catalog, 120 lookups")),
            Picture(_power_picture(light, "RMC2 of 20 lookups")),
            _growth_table({"RMC2 as in the catalog": catalog, "RMC2 of 20 lookups": light}),
            _causes_table(causes),
            _why_growth(causes, pairs),
            _cost_table(pairs),
            _savings_table({"RMC2 as in the catalog": catalog, "RMC2 of 20 lookups": light}),
            _saving_causes_table(savings),
            _why_savings(pairs, savings),
            Heading("Fig. 16(c), (d): plain servers on the first and on the second day"),
            *(
                Picture(_servers_picture(light, light.plain[step], f"{title} day: active servers, RMC2 of 20 lookups"))
                for step, title in ((0, "First"), (_SECOND_DAY, "Second"))
            ),
        ],
        lead=[
            "hercules.evolution.servers.peak",
            "hercules.evolution_light.servers.peak",
            "hercules.evolution.accelerated_saving.peak.greatest",
        ],
    )


def _evolution(
    pairs: Pairs,
    early: Sequence[str],
    day: tuple[Floats, Floats],
    rate: float,
    target_gap: float,
    on_day: Callable[[], object],
) -> Evolution:
    edges_s, curve = day
    models = (*early, *LATE)
    plain, everything = fleet_of(pairs, models, PLAIN), fleet_of(pairs, models, HERCULES_AVAILABLE)
    demands = [curve[:, None] * load for load in largest_loads(plain, _STEPS, rate, dict.fromkeys(models, 1 / 3))]
    interval_s = float(edges_s[1] - edges_s[0])
    days: list[list[DayPlan]] = []
    for fleet in (plain, everything):
        days.append([])
        for demand in demands:
            plan = plan_day(
                fleet, demand, interval_s, over_provision_rate=rate, target_gap=target_gap, time_limit_s=NO_HURRY_S
            )
            days[-1].append(plan)
            on_day()
    return Evolution(edges_s, *days)


def _watts(day: DayPlan) -> Floats:
    return day.power_watts


def _servers(day: DayPlan) -> Floats:
    return day.servers.astype(np.float64)


_STATED: Mapping[str, float] = {
    "servers.peak": 2.27,
    "servers.mean": 2.09,
    "power.peak": 1.77,
    "power.mean": 1.64,
    "end_servers.peak": 5.4,
    "end_power.peak": 3.54,
}
"""Section VI-C: the second day's and the end's growth over the first day's, on plain servers."""


def _grown(evolution: Evolution) -> dict[str, float]:
    """In the order of `_STATED`."""
    end = len(_STEPS) - 1
    servers, power = evolution.growth(_SECOND_DAY, _servers), evolution.growth(_SECOND_DAY, _watts)
    ends = evolution.growth(end, _servers)[0], evolution.growth(end, _watts)[0]
    return dict(zip(_STATED, (*servers, *power, *ends), strict=True))


def _figures(prefix: str, evolution: Evolution) -> list[Figure]:
    figures = [
        Figure(f"{prefix}.{name}", value, "ratio", paper=_STATED[name]) for name, value in _grown(evolution).items()
    ]
    for index, (when, paper) in enumerate((("peak", (0.22, 0.52)), ("mean", (0.18, 0.54)))):
        values = [saving[index] for saving in evolution.savings()]
        for name, value, stated in zip(("least", "greatest"), (min(values), max(values)), paper, strict=True):
            figures.append(Figure(f"{prefix}.accelerated_saving.{when}.{name}", value, "share", paper=stated))
    return figures


def _growth_table(evolutions: Mapping[str, Evolution]) -> Table:
    rows: list[list[Cell]] = [["the paper", *(round(value, 2) for value in _STATED.values())]]
    rows += [[name, *_grown(evolution).values()] for name, evolution in evolutions.items()]
    return Table(
        "Growth on plain servers",
        [
            "",
            "servers, peak",
            "servers, average",
            "power, peak",
            "power, average",
            "end: servers, peak",
            "end: power, peak",
        ],
        rows,
        "Over the first day, when all load is the early models': the second day, with 20% of the load at the late "
        "ones, and the end, with all of it.",
    )


def _cost_table(pairs: Pairs) -> Table:
    rows: list[list[Cell]] = []
    for name in ("RMC1", "RMC2", LIGHT_RMC2, "RMC3", *LATE):
        best = pairs[name, "T2"].best
        rows.append([name, best.qps, 1e3 / best.qps, 1e3 * best.power_watts / best.qps])
    return Table(
        "What a query costs on T2",
        ["model", "queries/s", "servers for 1,000 queries/s", "watts for 1,000 queries/s"],
        rows,
    )


def _savings_table(evolutions: Mapping[str, Evolution]) -> Table:
    rows: list[list[Cell]] = [["the paper", "22% to 52%", "18% to 54%"]]
    for name, evolution in evolutions.items():
        columns = list(zip(*evolution.savings(), strict=True))
        rows.append([name, *(f"{min(column):.0%} to {max(column):.0%}" for column in columns)])
    return Table(
        "Power that accelerated servers save", ["", "at peak", "on average"], rows, "The range over the evolution."
    )


def _power_picture(evolution: Evolution, title: str) -> str:
    lines = {
        "plain servers, peak": [day.power_watts.max() for day in evolution.plain],
        "plain servers, average": [day.power_watts.mean() for day in evolution.plain],
        "with accelerated ones, peak": [day.power_watts.max() for day in evolution.accelerated],
        "with accelerated ones, average": [day.power_watts.mean() for day in evolution.accelerated],
    }
    with drawing() as (canvas, axes):
        for number, (name, watts) in enumerate(lines.items()):
            shown = [float(value) / 1e3 for value in watts]
            axes.plot([100 * step for step in _STEPS], shown, marker="o", color=SERIES[number], label=name)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("load of DIN, DIEN and MT-WnD (% of queries/s)")
        axes.set_ylabel("kW")
        axes.set_title(title)
        canvas.legend(loc="outside lower center", ncols=2)
        return to_svg(canvas, f"Provisioned power over the evolution, {title}: {', '.join(lines)}")


def _servers_picture(evolution: Evolution, plan: DayPlan, title: str) -> str:
    layers = dict(zip(plan.options.server_types, plan.servers_by_type.T, strict=True))
    return stacked_over_day(evolution.edges_s, layers, "servers", title)


def _causes_table(causes: Mapping[str, Growth]) -> Table:
    rows: list[list[Cell]] = [
        ["the paper (of days)", *(_STATED[f"{what}.peak"] for what in ("servers", "power", "end_servers", "end_power"))]
    ]
    rows += [
        [what, *(round(value, 2) for value in (one.servers, one.power, one.end_servers, one.end_power))]
        for what, one in causes.items()
    ]
    return Table(
        "What growth hangs on: one assumption changed at a time",
        ["changed", "servers", "power", "end: servers", "end: power"],
        rows,
        "Steady loads as high as a day's peak, on plain servers. Second day and end over the first day.",
    )


def _why_growth(causes: Mapping[str, Growth], pairs: Pairs) -> str:
    plain, *others = causes.items()
    reached = max(others, key=lambda other: other[1].end_servers)
    without_rmc2 = [one.end_servers for what, one in others if "RMC2" not in what]
    share = (1 / pairs["RMC2", "T2"].best.qps) / sum(1 / pairs[name, "T2"].best.qps for name in EARLY)
    return (
        "Why ours differs: what RMC2 costs. With the catalog's 120 lookups in each of 100 tables and the products of "
        f"all pairs of its vectors it takes {share:.0%} of the servers that the early models need, so that replacing "
        "it by late models saves servers. The table changes one assumption at a time. Most is changed by this one: "
        f"{reached[0]}. Then servers grow {reached[1].servers:.2f} times on the second day and "
        f"{reached[1].end_servers:.2f} times by the end, where nothing is changed {plain[1].servers:.2f} and "
        f"{plain[1].end_servers:.2f} times; what does not touch RMC2 leaves the end at "
        f"{min(without_rmc2):.2f} to {max(without_rmc2):.2f} times. So the paper's RMC2 must be much cheaper than the "
        "catalog's, or get few of the queries. Which of these it was cannot be tested: Table I gives 20 to 160 "
        "lookups, no interaction, and the shares of the early models are not stated."
    )


def _saving_causes_table(causes: Mapping[str, tuple[float, float]]) -> Table:
    rows: list[list[Cell]] = [[what, f"{least:.0%} to {greatest:.0%}"] for what, (least, greatest) in causes.items()]
    return Table(
        "What the accelerated servers' saving hangs on",
        ["changed", "power saved"],
        rows,
        "Steady loads as high as a day's peak, RMC2 as in the catalog; the range over the evolution. The baseline's "
        "scheduler is DeepRecSys on hosts and Baymax on accelerators; servers draw what they draw under Hercules'.",
    )


def _why_savings(pairs: Pairs, causes: Mapping[str, tuple[float, float]]) -> str:
    def gains(names: Sequence[str], kinds: Sequence[str]) -> str:
        ratios = [pairs[name, kind].best.qps / pairs[name, "T2"].best.qps for name in names for kind in kinds]
        return f"{min(ratios):.1f} to {max(ratios):.1f} times"

    accelerated = [kind for kind in HERCULES_AVAILABLE if kind not in PLAIN]
    return (
        f"Accelerated servers save more here than in the paper. Over T2, the late models do {gains(LATE, ['T7'])} the "
        f"queries/s on T7, and RMC2 {gains(['RMC2'], accelerated)} on the accelerated types, so that "
        f"{sum(HERCULES_AVAILABLE[kind] for kind in accelerated)} of these carry much of a load that fills "
        f"{sum(PLAIN.values())} plain ones. Under the baseline's scheduler, in the table, they save "
        f"{causes[BASELINE][0]:.0%} to {causes[BASELINE][1]:.0%} of the power at peak: what scheduling gains on single "
        "servers is what makes them save more than the paper's. Its own ratios stand in a picture only (Fig. 15), and "
        "its loads nowhere."
    )


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
