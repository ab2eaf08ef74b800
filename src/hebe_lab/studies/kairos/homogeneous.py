"""Kairos, Fig. 8: throughput of Kairos' own pick over the best homogeneous pool, at equal budget.

The homogeneous pool has as many of the base type as the budget buys, and its throughput is scaled up to the whole
budget, as in the paper; what the other pools leave of the budget is lost. Beyond the paper: Hebe's plan, which knows
that queries can be split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.progress import Progress

from hebe.report.document import Cell, Heading, Picture, Table
from hebe.report.figures import Figure
from hebe.report.plots.style import INK, QUIET, SERIES, drawing, name_places, to_svg
from hebe_lab.studies.kairos.contenders import pool_text
from hebe_lab.studies.kairos.kairos_gain import Gain, gains
from hebe_lab.studies.kairos.kairos_gain_causes import GainCauses, gain_causes
from hebe_lab.studies.kairos.setting import SLA_MS, TYPES, about, settings, traces_text
from hebe_lab.study import StudyOptions, StudyResult

DESCRIPTION = "Kairos, Fig. 8: throughput over the best homogeneous pool at equal budget; and what splitting adds."
DATA = "kairos/"

EFFORTS = ((2_000, 1, 1_000, 2), (10_000, 3, 5_000, 8), (20_000, 10, 10_000, 8))
"""Queries of a trace, traces; queries of the trace on which Hebe's plan is chosen, and how many more pools it tries."""
PAPER: Mapping[str, str] = {"rm2": "2.0"}
PAPER_ELSE = "above 1.25"


def run(options: StudyOptions, progress: Progress) -> StudyResult:
    """Choose the pools; then measure all on the same traces."""
    queries, seeds, choosing, runners_up = options.pick(*EFFORTS)
    given = list(settings(options).values())
    found = gains(given, queries, seeds, choosing, runners_up, progress)
    causes = gain_causes(given, choosing, progress)
    figures = [_figures(gain) for gain in found]
    return StudyResult(
        figures=[figure for pair in figures for figure in pair],
        content=[
            f"Throughput is the largest rate at which 99% of queries are answered within the QoS, found by simulation "
            f"with Hebe's own distribution policies, on {traces_text(seeds)} of {queries:,} queries, for 2.5 dollars "
            f"an hour. {about(options)}",
            Heading("Fig. 8: Kairos over the best homogeneous pool"),
            Picture(
                _bars(found),
                "The line at 1 is the homogeneous pool, scaled to the whole budget; points are the traces. The dashed "
                "line is the paper's least, 1.25; its rm2 is 2.0; other heights stand in its plot only.",
            ),
            Table(
                "Throughput at equal budget",
                [
                    "model", "QoS (ms)", "homogeneous, scaled", "Kairos' pool", "Kairos", "over homogeneous",
                    "the paper",
                ],
                [_kairos_row(gain) for gain in found],
                f"Pools: counts of {', '.join(TYPES)}. Queries/s. The paper states 2.0 for rm2, and more than 1.25 for "
                "every model.",
            ),
            Table(
                "Beyond the paper: Hebe's plan",
                ["model", "Hebe's pool", "policy", "Hebe", "over homogeneous", "over Kairos"],
                [_hebe_row(gain) for gain in found],
                "Queries/s; chosen among few pools by simulation on another trace.",
            ),
            Table(
                "Kairos over homogeneous, one thing changed at a time",
                [
                    "model", "one trace", "artifact's gaps", "no spread", "pick from the artifact's profile",
                    "best fluid pool", "on that pool",
                ],
                [_causes_row(each, gain) for each, gain in zip(causes, found, strict=True)],
                f"The first three on one trace of {choosing:,} queries, the last as above. Artifact's gaps: as long on "
                "average as at the throughput without them; none where no rate holds. No spread: every service time "
                "is its mean. Best fluid pool: the one with the best bound for whole queries, under Kairos' matching.",
            ),
            _explanation(causes, found),
        ],
        lead=[own.name for own, _ in figures],
    )  # fmt: skip


def _figures(gain: Gain) -> tuple[Figure, Figure]:
    """Kairos and Hebe over homogeneous."""
    return (
        gain.of_kairos(
            f"kairos.fig8.over_homogeneous.{gain.model}", paper=PAPER.get(gain.model, PAPER_ELSE),
            note=f"pool {gain.kairos.pool_text}; mean of traces, Student's 95% interval",
        ),
        gain.of_hebe(
            f"kairos.fig8.hebe_over_homogeneous.{gain.model}",
            note=f"pool {gain.hebe.pool_text}, {gain.hebe_policy}; beyond the paper",
        ),
    )  # fmt: skip


def _kairos_row(gain: Gain) -> list[Cell]:
    own, _ = _figures(gain)
    return [
        gain.model, SLA_MS[gain.model], gain.homogeneous_qps.qps * gain.scale, gain.kairos.pool_text,
        gain.kairos_qps.qps, f"{own.value:.2f}", own.paper,
    ]  # fmt: skip


def _hebe_row(gain: Gain) -> list[Cell]:
    _, other = _figures(gain)
    over_kairos = gain.hebe_qps.qps / gain.kairos_qps.qps
    return [
        gain.model, gain.hebe.pool_text, gain.hebe_policy, gain.hebe_qps.qps, f"{other.value:.2f}",
        f"{over_kairos:.2f}",
    ]  # fmt: skip


def _causes_row(each: GainCauses, gain: Gain) -> list[Cell]:
    artifact_gaps = f"{each.artifact_gaps:.2f}" if each.artifact_gaps else "none"
    return [
        each.model, f"{each.usual:.2f}", artifact_gaps, f"{each.steady:.2f}", pool_text(each.published),
        gain.repicked.pool_text, f"{gain.over_homogeneous(gain.repicked_qps):.2f}",
    ]  # fmt: skip


def _bars(found: Sequence[Gain]) -> str:
    with drawing(height=4.2) as (canvas, axes):
        for number, name in enumerate(("Kairos' pick", "Hebe's plan")):
            places = [at - 0.2 + 0.4 * number for at in range(len(found))]
            heights = [_figures(gain)[number].value for gain in found]
            axes.bar(places, heights, 0.36, color=SERIES[number], label=name)
            for place, height, gain in zip(places, heights, found, strict=True):
                other = (gain.kairos_qps, gain.hebe_qps)[number]
                points = [
                    own / (base * gain.scale)
                    for own, base in zip(other.by_trace_qps, gain.homogeneous_qps.by_trace_qps, strict=True)
                ]
                axes.plot([place] * len(points), points, "o", color=INK, markersize=2.5)
                axes.annotate(f"{height:.2f}", (place, max(points)), xytext=(0, 4), textcoords="offset points",
                              ha="center", fontsize=9)  # fmt: skip
        axes.axhline(1.0, color=INK, linewidth=1.0)
        axes.axhline(1.25, color=QUIET, linewidth=1.0, linestyle="--")
        name_places(axes, [gain.model for gain in found])
        axes.set_ylabel("throughput over homogeneous")
        axes.set_title("What a mixed pool brings at equal budget")
        canvas.legend(loc="outside lower center", ncols=2)
        return to_svg(canvas, "Throughput of Kairos' and Hebe's pools over the best homogeneous pool, by model")


def _changed(values: Sequence[tuple[str, float]]) -> str:
    """Of models and what a change multiplies their gain by: on which it rises or falls by more than a few percent."""
    up = [model for model, value in values if value > 1.03]
    down = [model for model, value in values if value < 0.97]
    parts = [f"{word} on {', '.join(models)}" for word, models in (("falls", down), ("rises", up)) if models]
    return " and ".join(parts) or "stays within 3%"


def _explanation(causes: Sequence[GainCauses], found: Sequence[Gain]) -> str:
    others = "; ".join(
        f"on {gain.model} Kairos' matching is at {gain.over_homogeneous(gain.repicked_qps):.2f} on "
        f"{gain.repicked.pool_text}, at {gain.over_homogeneous(gain.kairos_qps):.2f} on its pick "
        f"{gain.kairos.pool_text}"
        for gain in found
        if gain.repicked.pool != gain.kairos.pool
    )
    same = all(each.published == gain.kairos.pool for each, gain in zip(causes, found, strict=True))
    return (
        "Where ours differs. Causes were tested one at a time, in the table above. Gaps: the paper says Poisson "
        "process, its artifact draws whole milliseconds of a Poisson variate. That is smoother where gaps last many "
        "milliseconds, and burstier where they last less than one, as ncf's. With such gaps Kairos' gain "
        f"{_changed([(each.model, each.artifact_gaps / each.usual) for each in causes])}. Spread: with every service "
        f"time at its mean it {_changed([(each.model, each.steady / each.usual) for each in causes])}. "
        "The pick: from the figures that the artifact publishes of its own, Kairos' rule picks "
        + ("the same pools as from the measurements. " if same else "other pools where the table says so. ")
        + (f"They are not always the best: {others}. " if others else "")
        + "Not tested: what EC2's network and the artifact's RPCs cost, which the measurements do not contain. Hebe's "
        "plan may split large queries over cheap servers."
    )
