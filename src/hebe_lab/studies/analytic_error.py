"""How far the analytic servers are off: their times beside those that Kairos' artifact measured on EC2.

No constant of `simulation.calibration` was set on these measurements. What of a type's data sheet counts was read off
them: whole cores with 64 FLOPs a cycle, the socket's memory bandwidth, one core at work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import exp, log
from statistics import median

import numpy as np
from rich.progress import Progress

from hebe.models import catalog
from hebe.report.document import Cell, Heading, Picture, Table
from hebe.report.figures import Figure
from hebe.report.plots.style import QUIET, SERIES, drawing, plain_ticks, to_svg
from hebe.report.tables import format_number
from hebe.server_configuration import Lane, Placement
from hebe.simulation.analytic.analytic_server import AnalyticServer
from hebe.simulation.analytic.calibration import CAFFE2
from hebe.simulation.analytic.server_types import EC2
from hebe.simulation.measured.service_samples import read_service_tables
from hebe.simulation.measured.service_table import ServiceTableError
from hebe.spec import ModelSpec, ServerSpec
from hebe_lab.study import StudyError, StudyOptions, StudyResult

DESCRIPTION = "Analytic servers: their service times beside those that Kairos measured on four EC2 types, and why."
DATA = "kairos/"

ITEMS = (10, 100, 500, 1000)

EXECUTION_MS: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "ncf": {
        "g4dn.xlarge": (0.272, 0.402, 0.624, 0.929),
        "c5n.2xlarge": (0.206, 0.635, 2.414, 5.411),
        "r5n.large": (0.258, 0.913, 3.044, 5.773),
        "t3.xlarge": (0.481, 1.131, 4.011, 10.01),
    },
    "rm2": {
        "g4dn.xlarge": (1.059, 1.898, 5.744, 10.46),
        "c5n.2xlarge": (2.216, 16.3, 82.67, 160.2),
        "r5n.large": (2.654, 18.06, 83.79, 162.9),
        "t3.xlarge": (4.276, 22.02, 98.72, 199.0),
    },
    "wnd": {
        "g4dn.xlarge": (0.918, 1.122, 2.065, 3.54),
        "c5n.2xlarge": (1.477, 3.276, 14.19, 28.26),
        "r5n.large": (1.599, 4.295, 17.34, 32.23),
        "t3.xlarge": (2.702, 6.938, 27.65, 49.9),
    },
    "mtwnd": {
        "g4dn.xlarge": (1.297, 1.577, 2.895, 4.86),
        "c5n.2xlarge": (1.884, 4.27, 18.97, 38.08),
        "r5n.large": (2.105, 5.486, 22.05, 42.45),
        "t3.xlarge": (3.687, 10.55, 35.95, 59.41),
    },
    "dien": {
        "g4dn.xlarge": (3.955, 4.965, 7.232, 10.29),
        "c5n.2xlarge": (1.667, 6.91, 35.28, 71.33),
        "r5n.large": (2.081, 7.893, 37.19, 76.79),
        "t3.xlarge": (3.419, 15.43, 63.13, 106.5),
    },
}
"""By model and type: median milliseconds of execution, without loading, of queries of `ITEMS` items. Cited from the
measurements of the Kairos artifact (B. Li et al., HPDC 2023, MIT licence, https://doi.org/10.5281/zenodo.7888058)."""

LOADING_MS: Mapping[str, tuple[float, float]] = {
    "ncf": (0.341, 0.124),
    "rm2": (4.322, 3.048),
    "wnd": (1.517, 0.555),
    "mtwnd": (2.324, 0.853),
    "dien": (2.328, 0.859),
}
"""Median milliseconds of loading 10 items on g4dn.xlarge, where they are copied to its accelerator, and on r5n.large,
where they are not. From the same measurements."""

_TABLES: Mapping[str, int] = {"ncf": 4, "rm2": 32, "wnd": 27, "mtwnd": 43, "dien": 43}
"""In DeepRecSys' configurations. Of each, keys and their counts are copied, and besides the dense input."""

_ALIKE = 1.1
"""Types whose measured times differ by less are not told apart."""


@dataclass(frozen=True, slots=True)
class Point:
    """One model on one type at one query size: seconds measured and modelled."""

    model: str
    server_type: str
    items: int
    measured_s: float
    modelled_s: float

    @property
    def ratio(self) -> float:
        """Modelled over measured: above 1 the model is too slow."""
        return self.modelled_s / self.measured_s


def run(options: StudyOptions, progress: Progress) -> StudyResult:
    """Compare every model on every type; then change one thing at a time."""
    measured = _measured(options)
    steps = progress.add_task("models and types", total=len(EC2))
    points: list[Point] = []
    for server_type in EC2:
        points += points_of(measured, (server_type,))
        progress.advance(steps)
    pairs = _pairs(points)
    copies_s = _copies_s()
    figures = [
        Figure(
            "analytic_error.typical",
            typical_factor(points),
            "factor",
            note=f"too slow or too fast, geometric mean over {len(points)} points: models, types, query sizes",
        ),
        Figure(
            "analytic_error.within_two",
            sum(max(point.ratio, 1 / point.ratio) <= 2 for point in points) / len(points),
            "share",
            note="points that are off by a factor of two at most",
        ),
        *(_spread(f"analytic_error.{kind.partition('.')[0]}", _of(points, server_type=kind), kind) for kind in EC2),
        *(_spread(f"analytic_error.{model}", _of(points, model=model), f"kairos-{model}") for model in EXECUTION_MS),
        *_between("hosts", [pair for pair in pairs if not any(map(_accelerated, pair))]),
        *_between("hosts_and_accelerator", [pair for pair in pairs if any(map(_accelerated, pair))]),
        Figure(
            "analytic_error.copy_us",
            1e6 * median(copies_s.values()),
            "us",
            low=1e6 * min(copies_s.values()),
            high=1e6 * max(copies_s.values()),
            runs=len(copies_s),
            note=f"a tensor to the T4, by what loading takes longer there; the analytic server has "
            f"{1e6 * CAFFE2.copy_overhead_s:.0f}; lowest and highest of the models",
        ),
    ]
    return StudyResult(
        figures,
        [
            "Service times of one query at a time, execution without loading (the artifact's making of tensors on the "
            "host), beside those of an analytic server: one worker of one core, or everything on the accelerator "
            f"without copies. {_about(options)}",
            Heading("Modelled and measured"),
            Picture(
                _scatter(points),
                "A point for each model and query size. On the line both are alike; between the dashed lines the model "
                "is off by two at most.",
            ),
            _table(points),
            Heading("Why"),
            _causes(measured, points),
            _explanation(points),
            _copies_table(copies_s),
        ],
        lead=[figure.name for figure in figures[:2]],
    )


def points_of(
    measured: Mapping[str, Mapping[str, Sequence[float]]],
    server_types: Iterable[str] = tuple(EC2),
    *,
    server: Callable[[ServerSpec], ServerSpec] = lambda spec: spec,
    model: Callable[[ModelSpec], ModelSpec] = lambda spec: spec,
) -> list[Point]:
    """Every model at every size on these types, changed by `server` and `model`; `measured` in milliseconds."""
    points = []
    for name, kind in product(measured, server_types):
        seconds = modelled_s(server(EC2[kind]), model(catalog.entry(f"kairos-{name}")), ITEMS)
        points += [
            Point(name, kind, items, ms / 1e3, own)
            for items, ms, own in zip(ITEMS, measured[name][kind], seconds, strict=True)
        ]
    return points


def modelled_s(server: ServerSpec, model: ModelSpec, items: Sequence[int]) -> list[float]:
    """Seconds of one query of each size: on one worker of one core, or on the accelerator, copies left out."""
    analytic = AnalyticServer(server, model, np.array(items))
    if server.accelerator is None:
        lane = Lane(Placement.MODEL_ON_HOST, 1, 1, max(items))
        return list(analytic.latency_profile(lane, items).service_s)
    lane = Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, 0, dense_workers=1)
    whole_s = analytic.latency_profile(lane, items).service_s
    return [one_s * (1 - analytic.copying_share(lane, size)) for one_s, size in zip(whole_s, items, strict=True)]


def typical_factor(points: Sequence[Point]) -> float:
    """By which factor they are off, whichever way: the geometric mean."""
    return _typical([point.ratio for point in points])


def _typical(ratios: Sequence[float]) -> float:
    return exp(sum(abs(log(ratio)) for ratio in ratios) / len(ratios))


def _measured(options: StudyOptions) -> Mapping[str, Mapping[str, Sequence[float]]]:
    if options.data is None:
        return EXECUTION_MS
    path = options.data_file("kairos/exec_ms.csv")
    try:
        tables = read_service_tables([path])
        return {
            model: {kind: [1e3 * s for s in tables[model].profile(kind, ITEMS).service_s] for kind in EC2}
            for model in EXECUTION_MS
        }
    except ServiceTableError as fault:
        raise StudyError(str(fault)) from None
    except (KeyError, ValueError) as fault:
        raise StudyError(f"{path}: must hold {', '.join(EXECUTION_MS)} on {', '.join(EC2)}: {fault}") from None


def _about(options: StudyOptions) -> str:
    where = "the built-in medians cited from" if options.data is None else "medians of all measurements of"
    return f"Measured are {where} the Kairos artifact (Zenodo 7888058, MIT)."


def _of(points: Sequence[Point], model: str | None = None, server_type: str | None = None) -> list[Point]:
    return [point for point in points if model in (None, point.model) and server_type in (None, point.server_type)]


def _spread(name: str, points: Sequence[Point], what: str) -> Figure:
    ratios = [point.ratio for point in points]
    return Figure(
        name,
        median(ratios),
        "ratio",
        low=min(ratios),
        high=max(ratios),
        runs=len(ratios),
        note=f"{what}: modelled over measured; median, lowest and highest",
    )


def _accelerated(point: Point) -> bool:
    return EC2[point.server_type].accelerator is not None


def _between(what: str, pairs: Sequence[tuple[Point, Point]]) -> list[Figure]:
    """How far ratios between two types are off, and how often the order of the two holds."""
    off = [other.ratio / one.ratio for one, other in pairs]
    held = sum(one.modelled_s < 0.99 * other.modelled_s for one, other in pairs)
    worst = max(max(value, 1 / value) for value in off)
    note = "types whose measured times differ by 10% and more, at one model and query size"
    return [
        Figure(f"analytic_error.between_{what}", _typical(off), "factor", note=f"{note}; at most {worst:.2g}"),
        Figure(f"analytic_error.order_held.{what}", held / len(pairs), "share", note=f"{held} of {len(pairs)}; {note}"),
    ]


def _pairs(points: Sequence[Point]) -> list[tuple[Point, Point]]:
    """Two types at one model and query size, the faster one as measured first; those alike are left out."""
    pairs = []
    for model, items in product(EXECUTION_MS, ITEMS):
        here = sorted((p for p in points if (p.model, p.items) == (model, items)), key=lambda p: p.measured_s)
        pairs += [(a, b) for a, b in combinations(here, 2) if b.measured_s > _ALIKE * a.measured_s]
    return pairs


def _table(points: Sequence[Point]) -> Table:
    rows: list[list[Cell]] = []
    for model, kind in product(EXECUTION_MS, EC2):
        here = _of(points, model, kind)
        rows.append([model, kind, *(f"{1e3 * p.measured_s:.3g} / {p.ratio:.2f}" for p in here)])
    return Table(
        "Execution: milliseconds measured, and modelled over measured",
        ["model", "type", *(f"{items:,} items" for items in ITEMS)],
        rows,
        "Above 1 the model is too slow.",
    )


_AS_BEFORE = {"g4dn.xlarge": 11.73e9, "c5n.2xlarge": 28.44e9, "r5n.large": 5.87e9, "t3.xlarge": 10.66e9}
"""Each instance's share of its host's memory bandwidth, by vCPUs."""


def _vcpus_as_cores(spec: ServerSpec) -> ServerSpec:
    return replace(spec, cores=2 * spec.cores, flops_per_cycle_per_core=spec.flops_per_cycle_per_core / 4)


def _one_task(spec: ModelSpec) -> ModelSpec:
    return replace(spec, outputs=1)


def _causes(measured: Mapping[str, Mapping[str, Sequence[float]]], points: Sequence[Point]) -> Table:
    """Typical factors with one thing changed."""
    hosts = [kind for kind, spec in EC2.items() if spec.accelerator is None]
    on_hosts = [point for point in points if point.server_type in hosts]
    multi_task = {"mtwnd": measured["mtwnd"]}
    shared = points_of(
        measured, hosts, server=lambda spec: replace(spec, memory_bandwidth_bytes_per_s=_AS_BEFORE[spec.name])
    )
    changed = [
        ("hosts: a vCPU is a core of 16 FLOPs a cycle", on_hosts, points_of(measured, hosts, server=_vcpus_as_cores)),
        ("r5n.large: its share of the host's memory bandwidth",
         _of(points, server_type="r5n.large"), _of(shared, server_type="r5n.large")),
        ("mtwnd on hosts: one task", _of(on_hosts, "mtwnd"), points_of(multi_task, hosts, model=_one_task)),
        ("hosts without dien", on_hosts, [point for point in on_hosts if point.model != "dien"]),
        ("hosts without dien and t3.xlarge", on_hosts,
         [point for point in on_hosts if point.model != "dien" and point.server_type != "t3.xlarge"]),
    ]  # fmt: skip
    return Table(
        "One thing changed at a time",
        ["what", "off by a factor of", "changed", "lowest ratio", "highest ratio"],
        [
            [
                what,
                typical_factor(before),
                typical_factor(after),
                min(point.ratio for point in after),
                max(point.ratio for point in after),
            ]
            for what, before, after in changed
        ],
        "Geometric means over the points of the row; lowest and highest are those of the changed ones.",
    )


def _explanation(points: Sequence[Point]) -> str:
    at = {(point.model, point.server_type, point.items): point for point in points}

    def per_item_us(model: str, kind: str) -> float:
        return 1e6 * (at[model, kind, 1000].measured_s - at[model, kind, 100].measured_s) / 900

    small, large = at["dien", "r5n.large", 10], at["dien", "r5n.large", 1000]
    return (
        "Kairos says that a query uses all cores of a host, but c5n.2xlarge with four cores takes as long as r5n.large "
        f"with one ({per_item_us('wnd', 'c5n.2xlarge'):.1f} and {per_item_us('wnd', 'r5n.large'):.1f} us an item of "
        "wnd): one thread was at work, and to that the model is held. mtwnd runs at wnd's FLOPs a second if it has one "
        "task, as the artifact of DeepRecSys by default; the catalog has four. dien is "
        f"{small.ratio:.1f} times too slow with 10 items and {1 / large.ratio:.1f} times too fast with 1,000: its "
        "steps launch 700 ops here, where the measured one has no such fixed time, but twice the work. t3.xlarge "
        "shares its cores with others: at the clock of r5n.large it takes 1.2 to 2 times as long, and now this, now "
        "that (its times spread by up to 20%, the others' by 4% at most). The T4 reaches about half of what the model "
        "gives it, bound by memory (rm2) and by computing (wnd) alike; nothing in the measurements says why."
    )


def _copies_s() -> dict[str, float]:
    """Seconds that loading takes longer where it copies to an accelerator, by tensor."""
    return {model: (gpu - host) / 1e3 / (2 * _TABLES[model] + 1) for model, (gpu, host) in LOADING_MS.items()}


def _copies_table(copies_s: Mapping[str, float]) -> Table:
    return Table(
        "Copies to an accelerator: loading 10 items on g4dn.xlarge and on r5n.large",
        ["model", "g4dn.xlarge (ms)", "r5n.large (ms)", "tensors", "a tensor (us)"],
        [
            [model, *LOADING_MS[model], 2 * _TABLES[model] + 1, round(1e6 * each_s, 1)]
            for model, each_s in copies_s.items()
        ],
        "Taken to be keys and their counts by table, and the dense input. The constant of the analytic servers, fitted "
        f"to Hercules' Figure 6, is {1e6 * CAFFE2.copy_overhead_s:.0f} us.",
    )


def _scatter(points: Sequence[Point]) -> str:
    with drawing(height=4.6) as (canvas, axes):
        for number, kind in enumerate(EC2):
            here = _of(points, server_type=kind)
            axes.plot(
                [1e3 * p.measured_s for p in here],
                [1e3 * p.modelled_s for p in here],
                marker="o",
                linestyle="",
                color=SERIES[number % len(SERIES)],
                label=kind,
            )
        ends = np.array([0.15, 300.0])
        for factor, style in ((1.0, "-"), (2.0, "--"), (0.5, "--")):
            axes.plot(ends, factor * ends, color=QUIET, linestyle=style, linewidth=1.0)
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            plain_ticks(axis, format_number)
        axes.set_xlabel("measured (ms)")
        axes.set_ylabel("modelled (ms)")
        axes.set_title("Execution of one query")
        canvas.legend(loc="outside lower center", ncols=4)
        return to_svg(canvas, f"Modelled over measured milliseconds on {', '.join(EC2)}")
