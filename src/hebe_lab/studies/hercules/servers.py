"""Hercules, Figures 4 to 7, 14 and 15: what task scheduling gains on one server, and which server suits which model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.ticker import LogLocator, NullLocator
from rich.progress import Progress

from hebe.report.document import Cell, Heading, Picture, Table
from hebe.report.figures import Figure
from hebe.report.plots.style import SERIES, drawing, plain_ticks, to_svg
from hebe.report.tables import format_number
from hebe.server_configuration import Lane, from_dict
from hebe.simulation.analytic.calibration import CAFFE2
from hebe.simulation.analytic.server_types import HERCULES
from hebe_lab.studies.hercules.accelerator import ENTRIES, STATED_FUSION, lane, modelled_on_t7, small_on_t7, steps
from hebe_lab.studies.hercules.cpu import gains, modelled_points
from hebe_lab.studies.hercules.fleet import ABOUT_SERVERS, LATE, MODELS, Pairs, all_pairs, query_sizes
from hebe_lab.studies.hercules.hercules_gains import gain_causes, gain_causes_table, why_first_cpu, why_gains_differ
from hebe_lab.studies.hercules.idle import modelled_idle
from hebe_lab.study import StudyOptions, StudyResult

DESCRIPTION = "Hercules' task scheduling and server architectures: 6 models on 10 server types (Fig. 4-7, 14, 15)."

STATED_GAINS: Mapping[tuple[str, str], float] = {
    ("RMC1", "T2"): 1.82, ("RMC2", "T2"): 2.39, ("RMC3", "T2"): 2.64,
    ("RMC1", "T3"): 1.59, ("RMC2", "T3"): 2.65, ("RMC3", "T3"): 2.58,
    ("RMC3", "T7"): 6.71, ("MT-WnD", "T7"): 9.0, ("DIN", "T7"): 6.95, ("DIEN", "T7"): 6.0,
}  # fmt: skip
"""Section VI-A: latency-bounded throughput over the baseline's."""


def run(options: StudyOptions, progress: Progress) -> StudyResult:
    """See `DESCRIPTION`."""
    pairs = all_pairs(options, progress)
    gains, fusion = _gain_table(pairs), _fusion_checks()
    tried = gain_causes(options.quick, progress)
    op_parallel, idle = _op_parallelism(), _idle_shares()
    statements = list(_statements(pairs))
    held = sum(holds for _, _, holds in statements)
    figures = [
        *(
            Figure(
                f"hercules.schedule_gain.{name.lower()}.{kind.lower()}", pairs[name, kind].gain, "ratio", paper=paper
            )
            for (name, kind), paper in STATED_GAINS.items()
        ),
        Figure("hercules.schedule_gain.largest", max(_all_gains(pairs)), "ratio", paper=9.0),
        *(
            Figure(f"hercules.{what}.{name.lower()}", value, "ratio", paper=paper)
            for name, values in fusion.items()
            for what, value, paper in zip(_FUSION_NAMES, values[:4], STATED_FUSION[name], strict=True)
        ),
        Figure("hercules.loading_share.rmc3", fusion["RMC3"][4], "share", paper="0.65 to 0.83"),
        Figure(
            "hercules.op_parallelism.rmc1.qps", op_parallel[0], "ratio", paper=1.35, note="10 x 2 over 20 x 1 on T2"
        ),
        Figure("hercules.op_parallelism.rmc1.qps_per_watt", op_parallel[1], "ratio", paper=1.33),
        Figure("hercules.idle_op_workers.least", min(idle.values()), "share", paper=0.25, note="2 to 4 op workers"),
        Figure("hercules.idle_op_workers.greatest", max(idle.values()), "share", paper=0.74),
        Figure(
            "hercules.statements_held",
            held / len(statements),
            "share",
            note=f"{held} of {len(statements)} statements on which server is better; three of them chose a constant",
        ),
    ]
    return StudyResult(
        figures,
        [
            ABOUT_SERVERS,
            Heading("Fig. 14: task scheduling on single servers"),
            "The baseline is DeepRecSys on hosts (a worker on every core, the best batch size) and Baymax on "
            "accelerators (co-location without fusion). Hercules' space has op-parallelism, pipelines of sparse and "
            "dense workers, and fusion besides; here it is searched on a grid.",
            Picture(
                _by_type(
                    {name: [pairs[name, kind].gain for kind in HERCULES] for name in MODELS},
                    "throughput over the baseline's",
                    "What task scheduling gains",
                ),
                "1 where the baseline's configuration is already the best of all; no point where the baseline cannot "
                "keep the SLA target at all.",
            ),
            gains,
            gain_causes_table(pairs, tried),
            why_gains_differ(pairs, tried, {name: values[1] for name, values in fusion.items()}),
            Heading("Fig. 15: server architectures"),
            Picture(_by_type(_relative(pairs, "qps"), "throughput over T2's", "Latency-bounded throughput")),
            Picture(_by_type(_relative(pairs, "efficiency"), "queries/s per watt over T2's", "Energy efficiency")),
            _pairs_table(pairs),
            Table(
                "What the paper says of Fig. 8(a) and 15",
                ["section", "statement", "holds here"],
                [[section, statement, holds] for section, statement, holds in statements],
                "'Better' is more than 2% better, 'equal' within 2%.",
            ),
            why_first_cpu(pairs, tried),
            Heading("Fig. 4 to 7: what the constants were set on"),
            _fusion_table(fusion),
            f"Fig. 4, RMC1 on T2: 10 workers of 2 cores reach up to {op_parallel[0]:.2f} times the throughput of 20 "
            f"workers of one (the paper: 1.35), and {op_parallel[1]:.2f} times the queries/s per watt (1.33). "
            f"Fig. 5(c): {min(idle.values()):.0%} to {max(idle.values()):.0%} of the cycles of 2 to 4 op workers are "
            "idle (25% to 74%); least for RMC1 and RMC2, whose tables share out evenly. Fig. 7, RMC3: copies take "
            f"{fusion['RMC3'][4]:.0%} of a lone query's time on a V100 (65% to 83%).",
        ],
        lead=[
            "hercules.schedule_gain.rmc1.t2",
            "hercules.schedule_gain.rmc2.t2",
            "hercules.schedule_gain.mt-wnd.t7",
            "hercules.statements_held",
        ],
    )


def _all_gains(pairs: Pairs) -> list[float]:
    gains = [pair.gain for pair in pairs.values()]
    return [gain for gain in gains if np.isfinite(gain)]


def _gain_table(pairs: Pairs) -> Table:
    rows: list[list[Cell]] = [
        [name, kind, pairs[name, kind].baseline_qps, pairs[name, kind].best.qps, pairs[name, kind].gain, paper]
        for (name, kind), paper in STATED_GAINS.items()
    ]
    return Table(
        "Throughput over the baseline's",
        ["model", "server", "baseline (queries/s)", "Hercules' space", "ratio", "the paper"],
        rows,
        "The paper states these ten; it shows the others in a picture.",
    )


def _relative(pairs: Pairs, what: str) -> dict[str, list[float]]:
    values = {pair: held.best.qps if what == "qps" else held.efficiency for pair, held in pairs.items()}
    return {name: [values[name, kind] / values[name, "T2"] for kind in HERCULES] for name in MODELS}


def _pairs_table(pairs: Pairs) -> Table:
    rows: list[list[Cell]] = []
    for name in MODELS:
        for kind in HERCULES:
            best = pairs[name, kind].best
            lanes = from_dict(best.configuration) if best.qps > 0 else ()
            shown = "; beside it ".join(map(lane_words, lanes)) or "out of reach"
            rows.append([name, kind, best.qps, best.power_watts, pairs[name, kind].efficiency, shown])
    return Table(
        "Efficiency tuples: all pairs",
        ["model", "server", "queries/s", "watts", "queries/s per watt", "best configuration"],
        rows,
        ABOUT_LANES,
    )


ABOUT_LANES = "m x o workers and cores each, d the batch size, k dense workers, f the most items of a fused batch."


def lane_words(lane: Lane) -> str:
    """``pipeline-on-host 1 x 1 d 256 k 1``, which `ABOUT_LANES` explains."""
    parts = [str(lane.placement)]
    if lane.workers:
        parts += [f"{lane.workers} x {lane.cores_per_worker}", f"d {lane.batch_size}"]
    if lane.dense_workers:
        parts.append(f"k {lane.dense_workers}")
    if lane.fused_items:
        parts.append(f"f {lane.fused_items}")
    return " ".join(parts)


def _statements(pairs: Pairs) -> Iterator[tuple[str, str, bool]]:
    """Section, statement, whether it holds here."""
    qps = {pair: held.best.qps for pair, held in pairs.items()}
    per_watt = {pair: held.efficiency for pair, held in pairs.items()}

    def better(values: Mapping[tuple[str, str], float], name: str, kind: str, than: str) -> bool:
        return values[name, kind] > 1.02 * values[name, than]

    for name in MODELS:
        yield "VI-B", f"{name}: T2 has more throughput than T1", better(qps, name, "T2", "T1")
    for name in ("RMC2", "RMC3", "MT-WnD"):
        yield "VI-B", f"{name}: T1 is more energy-efficient than T2", better(per_watt, name, "T1", "T2")
    for name in ("RMC1", "DIN", "DIEN"):
        yield (
            "VI-B",
            f"{name}: T1 is not more energy-efficient than T2 (implied)",
            not better(per_watt, name, "T1", "T2"),
        )
    for name in ("RMC3", *LATE):
        for kind in ("T6", "T7"):
            both = better(qps, name, kind, "T2") and better(per_watt, name, kind, "T2")
            yield "VI-B", f"{name}: {kind} has more throughput and energy efficiency than T2", both
    for name in ("RMC1", "RMC2"):
        for kind, than in (("T3", "T2"), ("T4", "T2"), ("T5", "T2"), ("T8", "T7"), ("T9", "T7"), ("T10", "T7")):
            both = better(qps, name, kind, than) and better(per_watt, name, kind, than)
            yield "VI-B", f"{name}: {kind} has more throughput and energy efficiency than {than}", both
    gains = {name: qps[name, "T5"] / qps[name, "T2"] for name in MODELS}
    yield (
        "VI-B",
        "near memory gains less for RMC3 than for RMC1 and RMC2",
        gains["RMC3"] < min(gains["RMC1"], gains["RMC2"]),
    )
    for name in LATE:
        equal = all(0.98 < qps[name, kind] / qps[name, "T2"] < 1.02 for kind in ("T3", "T4", "T5"))
        yield "VI-B", f"{name}: near memory gains no throughput", equal
        yield (
            "VI-B",
            f"{name}: T4 and T5 are less energy-efficient than T2",
            all(better(per_watt, name, "T2", kind) for kind in ("T4", "T5")),
        )
    for name in ("RMC1", "RMC2"):
        ranked = better(per_watt, name, "T3", "T7") and better(per_watt, name, "T7", "T2")
        yield "III-C", f"{name}: by energy efficiency T3, then T7, then T2", ranked
    gained = {name: per_watt[name, "T3"] / per_watt[name, "T2"] for name in ("RMC1", "RMC2")}
    yield "III-C", "T3's energy efficiency gains more over T2's for RMC2 than for RMC1", gained["RMC2"] > gained["RMC1"]


_FUSION_NAMES = ("co_location.qps", "fusion.qps", "co_location.qps_per_watt", "fusion.qps_per_watt")


def _fusion_checks() -> dict[str, tuple[float, float, float, float, float]]:
    """Figure 6 and 7: what co-location and then fusion gain on T7 in queries/s and per watt, and the copies' share."""
    found = {}
    for name, entry in ENTRIES.items():
        points = modelled_on_t7(entry).points
        located, fused = steps(points)
        located_per_watt, fused_per_watt = steps(points, per_watt=True)
        loading = small_on_t7(entry).copying_share(lane(1), round(float(query_sizes().mean())))
        found[name] = (located or 0.0, fused or 0.0, located_per_watt or 0.0, fused_per_watt or 0.0, loading)
    return found


def _fusion_table(found: Mapping[str, Sequence[float]]) -> Table:
    columns = ["model"]
    for what in ("co-location, queries/s", "fusion, queries/s", "co-location, per watt", "fusion, per watt"):
        columns += [what, "the paper"]
    rows: list[list[Cell]] = []
    for name, values in found.items():
        row: list[Cell] = [name]
        for value, paper in zip(values[:4], STATED_FUSION[name], strict=True):
            row += [value, paper]
        rows.append(row)
    return Table(
        "Fig. 6: small models on a V100",
        columns,
        rows,
        "Gain of co-location over one worker, and of fusion over that. The copies' overhead, "
        f"{1e6 * CAFFE2.copy_overhead_s:.0f} us, was fitted to the throughputs.",
    )


def _op_parallelism() -> tuple[float, float]:
    """Figure 4: 10 x 2 over 20 x 1 for RMC1 on T2, the largest over SLA targets; queries/s, and per watt."""
    points = modelled_points()
    return (
        max(gains(points, lambda point: point.qps).values()),
        max(gains(points, lambda point: point.efficiency).values()),
    )


def _idle_shares() -> dict[tuple[str, int], float]:
    """Figure 5(c): share of idle cycles with 2 to 4 op workers a worker, batches of 256 items, on T2."""
    return {(name, count): share for name in MODELS for count, share in modelled_idle(name).items() if count > 1}


def _by_type(values: Mapping[str, Sequence[float]], unit: str, title: str) -> str:
    """A point for each server type and model, those of a model joined; logarithmic."""
    with drawing(height=4.2) as (canvas, axes):
        for number, (name, heights) in enumerate(values.items()):
            axes.plot(range(len(heights)), heights, marker="o", color=SERIES[number % len(SERIES)], label=name)
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        axes.set_ylim(low, high)
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_xticks(range(len(HERCULES)), list(HERCULES))
        plain_ticks(axes.yaxis, format_number)
        axes.set_ylabel(unit)
        axes.set_title(title)
        canvas.legend(loc="outside lower center", ncols=6)
        return to_svg(canvas, f"{title}: {', '.join(values)} on {', '.join(HERCULES)}")
