"""Hera, Fig. 11: effective machine utilization (EMU) of the pairs that each way of choosing forms, in co-runs.

Every pair shares one socket at the split that planning predicts to be best; its EMU is what the models sustain there
together in a simulation (`simulation.co_run`), each over what it sustains in one alone on the whole socket. The four
ways of choosing are the paper's: one model a server, any pair, any pair but two models of high worker scalability, and
for each model of low scalability the one of high that suits it best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import numpy.typing as npt
from rich.progress import Progress

from hebe.planning.colocation.affinity import contended_affinity, scalability_slope
from hebe.planning.colocation.colocation import ServerGroup, hera, share_server
from hebe.planning.colocation.shared_server import ScalabilityTables
from hebe.report.document import Cell, Heading, Picture, Table
from hebe.report.figures import Figure
from hebe.report.plots.style import INK, QUIET, SERIES, drawing, to_svg
from hebe.simulation.analytic.scalability_model import resources_of, scalability_profile
from hebe.spec import Pooling
from hebe_lab.studies.hera.node import (
    ENTRIES,
    OTHER_WAYS,
    SIZES,
    SMALL_CORE_CACHE,
    CoRunCase,
    Effort,
    HeraNode,
    Measured,
    even_demands,
    measure_all,
    measured_rates,
    model,
    scaling_badly,
    skewed_demands,
)
from hebe_lab.study import StudyOptions, StudyResult

DESCRIPTION = "Hera, Fig. 11: effective machine utilization of the pairs that each way of choosing models forms."

EFFORTS = (Effort(1_000, 16_000), Effort(10_000, 100_000), Effort(20_000, 400_000))
PAPER_PERCENT = {"one model a server": 37.3, "random": 34.7, "Hera (random)": 5.4}
"""By how much Hera's average EMU is above that of each other way (Section VII-A)."""

PAPER_RANDOM = "82% to 147%"

PAPER_LOW = ("DLRM (B)", "DLRM (D)")

Pair = tuple[str, str]
Ways = Mapping[str, npt.NDArray[np.float64]]
"""EMU of the pairs that each way of choosing forms."""


def run(options: StudyOptions, progress: Progress) -> StudyResult:
    """Measure all pairs; then each way of choosing is a subset of them."""
    node = HeraNode()
    pairs: list[Pair] = list(combinations(ENTRIES, 2))
    groups = {pair: share_server(node.tables, pair) for pair in pairs}
    cases = [CoRunCase(node, groups[pair].tenants, options.pick(*EFFORTS)) for pair in pairs]
    measured = dict(zip(pairs, measure_all("co-runs of all pairs", cases, progress), strict=True))
    low = scaling_badly(node)
    chosen = {
        "random": pairs,
        "Hera (random)": [pair for pair in pairs if set(pair) & set(low)],
        "Hera": hera_pairs(node, low),
        "low with high": [pair for pair in pairs if len(set(pair) & set(low)) == 1],
    }
    utilization = {name: np.array([measured[pair].utilization for pair in of]) for name, of in chosen.items()}
    utilization["one model a server"] = np.ones(1)
    formed = {pair: measured[pair].utilization for pair in formed_pairs(node, groups, measured)}
    errors = np.array([groups[pair].utilization / measured[pair].utilization - 1 for pair in pairs])
    figures = _emu_figures(utilization, formed, low)
    figures.append(
        Figure(
            "hera.emu_error", float(np.abs(errors).max()), "share", runs=len(pairs),
            note=f"predicted over measured EMU less 1: all pairs are from {errors.min():.2f} to {errors.max():.2f}",
        )
    )  # fmt: skip
    order = [*OTHER_WAYS, "Hera"]
    return StudyResult(
        figures=figures,
        content=[
            "EMU adds up what every model on a server sustains, each over what it would sustain with the whole server. "
            "One model a server is 100% by definition. Splits are predicted from profiles of each model alone; the EMU "
            "shown is that of simulated co-runs at these splits.",
            Heading("Fig. 11: distribution over the pairs chosen"),
            Picture(_distribution({name: utilization[name] for name in order}), "One point a pair; bars: the means."),
            Table(
                "EMU of the pairs chosen",
                ["way of choosing", "pairs", "least", "median", "greatest", "mean", "Hera's is above by", "the paper"],
                [_way_row(name, utilization) for name in order],
                f"The paper's random pairs reach {PAPER_RANDOM}.",
            ),
            Heading("All pairs"),
            Table(
                "Predicted and measured EMU",
                [
                    "model",
                    "workers",
                    "ways",
                    "with",
                    "workers ",
                    "ways ",
                    "predicted",
                    "measured",
                    "predicted is above by",
                    "formed",
                ],
                [_pair_row(groups[pair], measured[pair], formed=pair in formed) for pair in pairs],
                "Splits are those of the largest predicted EMU. Formed: by Algorithm 2, for a demand of Fig. 15 or 16.",
            ),
            _models_table(node, low),
            _explanation(low, utilization, measured, chosen["Hera"]),
        ],
        lead=["hera.emu.min", *(f"hera.emu_over.{OTHER_WAYS[name]}" for name in PAPER_PERCENT)],
    )


def hera_pairs(node: HeraNode, low: list[str]) -> list[Pair]:
    """For each model of low scalability the one of high scalability with the largest affinity."""
    affinity, names = contended_affinity(node.tables), list(ENTRIES)
    high = [name for name in names if name not in low]
    chosen = []
    for name in low:
        partner = max(high, key=lambda other: affinity[names.index(name), names.index(other)])
        chosen.append((name, partner) if names.index(name) < names.index(partner) else (partner, name))
    return chosen


def formed_pairs(node: HeraNode, groups: Mapping[Pair, ServerGroup], measured: Mapping[Pair, Measured]) -> list[Pair]:
    """All pairs that Algorithm 2 forms to meet the demands of Fig. 15 and 16, first partners and further ones, whether
    it goes by what pairs should serve or by what they were measured to."""
    answers = [measured[pair] for pair in groups]
    known = dict(measured_rates(list(groups.values()), answers))
    for pair, answer in zip(groups, answers, strict=True):
        known |= {frozenset([name]): {name: qps} for name, qps in zip(pair, answer.alone_qps, strict=True)}
    formed: set[frozenset[str]] = set()
    for demand in (*even_demands().values(), *skewed_demands(scaling_badly(node)).values()):
        for rates in ({}, known):
            plan = hera(node.tables, demand, measured=rates)
            formed |= {frozenset(tenant.model for tenant in group.tenants) for group in plan.groups}
    return [pair for pair in groups if frozenset(pair) in formed]


def _emu_figures(utilization: Ways, formed: Mapping[Pair, float], low: Sequence[str]) -> list[Figure]:
    best, any_partner = utilization["Hera"], utilization["low with high"]
    worst = min(formed, key=lambda pair: formed[pair])
    return [
        Figure(
            "hera.emu.min", formed[worst], "ratio", runs=len(formed), target="> 1.0", paper="never below 1",
            note=f"least of all pairs that Algorithm 2 forms for the demands of Fig. 15 and 16: {' with '.join(worst)}",
        ),
        Figure(
            "hera.emu.min.first_partner", float(best.min()), "ratio", runs=len(best),
            note=f"least of the pairs that it forms first, one for each of {', '.join(low)}",
        ),
        Figure(
            "hera.emu.min.any_partner", float(any_partner.min()), "ratio", runs=len(any_partner),
            note="least of all pairs of low with high scalability; plans that know it is below 1 do not form it",
        ),
        *(
            Figure(
                f"hera.emu_over.{OTHER_WAYS[name]}", _above_percent(utilization, name), "%", runs=len(best),
                paper=paper, note=f"mean EMU of Hera's pairs over that of: {name}",
            )
            for name, paper in PAPER_PERCENT.items()
        ),
    ]  # fmt: skip


def _above_percent(utilization: Ways, name: str) -> float:
    return 100 * (float(utilization["Hera"].mean()) / float(utilization[name].mean()) - 1)


def _way_row(name: str, utilization: Ways) -> list[Cell]:
    values = utilization[name]
    spread = [f"{100 * value:.0f}%" for value in (values.min(), np.median(values), values.max(), values.mean())]
    above = f"{_above_percent(utilization, name):.1f}%" if name in PAPER_PERCENT else None
    paper = f"{PAPER_PERCENT[name]}%" if name in PAPER_PERCENT else None
    return [name, 0 if name == "one model a server" else len(values), *spread, above, paper]


def _pair_row(group: ServerGroup, answer: Measured, *, formed: bool) -> list[Cell]:
    first, second = group.tenants
    error = group.utilization / answer.utilization - 1
    return [
        first.model, first.workers, first.cache_ways, second.model, second.workers, second.cache_ways,
        f"{100 * group.utilization:.0f}%", f"{100 * answer.utilization:.0f}%", f"{100 * error:.1f}%", formed,
    ]  # fmt: skip


def _models_table(node: HeraNode, low: Sequence[str]) -> Table:
    """What the profiles say of each model, and in which class the paper has it."""
    tables, slopes = node.tables, scalability_slope(node.tables)
    rows: list[list[Cell]] = [
        [
            name, float(tables.alone[row]), int(tables.workers[row, -1]), float(tables.traffic[row, -1]) / 1e9,
            float(slopes[row]), "low" if name in low else "high", "low" if name in PAPER_LOW else "high",
        ]
        for row, name in enumerate(ENTRIES)
    ]  # fmt: skip
    return Table(
        "Models on the whole socket",
        ["model", "queries/s", "workers", "memory traffic (GB/s)", "slope", "scalability", "the paper"],
        rows,
        "Slope: what the last quarter of the cores brings, over what a quarter brings on average.",
    )


def _distribution(utilization: Ways) -> str:
    with drawing(height=4.2) as (canvas, axes):
        for place, values in enumerate(utilization.values()):
            spread = np.linspace(-0.22, 0.22, len(values)) if len(values) > 1 else np.zeros(1)
            axes.plot(
                place + spread, 100 * np.sort(values), "o", color=SERIES[place], markersize=5,
                markeredgecolor=INK, markeredgewidth=0.3,
            )  # fmt: skip
            mean = 100 * float(values.mean())
            axes.plot([place - 0.3, place + 0.3], [mean, mean], color=INK, linewidth=2)
            axes.annotate(f"{mean:.0f}%", (place + 0.32, mean + 0.3), va="bottom", fontsize=9)
        axes.axhline(100, color=QUIET, linewidth=1.0)
        axes.set_xticks(range(len(utilization)), list(utilization))
        axes.set_xlim(-0.5, len(utilization) - 0.3)
        axes.grid(visible=False, axis="x")
        axes.set_ylabel("effective machine utilization (%)")
        axes.set_title("EMU of the pairs chosen")
        return to_svg(canvas, "EMU of the pairs that each way of choosing forms, one point a pair, with means")


def _explanation(low: Sequence[str], utilization: Ways, measured: Mapping[Pair, Measured], hera: Sequence[Pair]) -> str:
    as_the_paper = [measured[pair].utilization for pair in hera if set(pair) & set(PAPER_LOW)]
    shorter = [f"{behaviours}: {_din_slope(behaviours):.2f}" for behaviours in _FEWER_BEHAVIOURS]
    least = {node: min(_predicted(node).values()) for node in (HeraNode(), SMALL_CORE_CACHE)}
    part = least[SMALL_CORE_CACHE] < least[HeraNode()] - 0.01
    return (
        f"Where ours differs. Our profiles put {', '.join(low)} among the models of low worker scalability, the paper "
        f"{' and '.join(PAPER_LOW)}. Tried: the slope of DIN by the number of its behaviours, of which the catalog has "
        f"250, as DeepRecSys' configuration does ({'; '.join(shorter)}). Without DIN's pair Hera's mean would be "
        f"{100 * (float(np.mean(as_the_paper)) - 1):.1f}% above one model a server, beside the paper's "
        f"{PAPER_PERCENT['one model a server']}%. Pairs of DLRM (B), which memory holds to eight workers, gain as in "
        f"the paper (up to {100 * float(utilization['random'].max()):.0f}%, the paper 147%). The worst pair has "
        f"{100 * float(utilization['random'].min()):.0f}%, the paper's 82%. Tried: with next to no second-level cache "
        f"in the cores the least EMU that is predicted is {100 * least[SMALL_CORE_CACHE]:.1f}%, with it "
        f"{100 * least[HeraNode()]:.1f}%, so that these caches {'explain part of it' if part else 'do not explain it'}"
        "; what else does was not found."
    )


_FEWER_BEHAVIOURS = (250, 100, 30)


def _din_slope(behaviours: int) -> float:
    """DIN's slope with so long a sequence."""
    node, din = HeraNode(), model("DIN")
    features = tuple(
        replace(feature, lookups=behaviours) if feature.pooling is Pooling.ATTENTION else feature
        for feature in din.features
    )
    sizes = SIZES.draw(20_000, np.random.default_rng(0))
    profile = scalability_profile(node.shared, replace(din, features=features), sizes, name="DIN")
    return float(scalability_slope(ScalabilityTables.of([profile], resources_of(node.shared)))[0])


def _predicted(node: HeraNode) -> dict[Pair, float]:
    """The EMU that planning expects of every pair."""
    return {pair: share_server(node.tables, pair).utilization for pair in combinations(ENTRIES, 2)}
