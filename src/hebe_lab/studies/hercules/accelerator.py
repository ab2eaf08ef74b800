"""Hercules, Fig. 6-7: query fusion and co-location on an accelerator, and where queries' time goes there.

Small variants that fit on it whole, as in the paper: on the analytic T7, whose accelerator is a V100, and on this
machine: on its GPU, or, with none, on a second device on the CPU that stands for one. There one model is measured by
policy (`measured_here`), and where its queries' time goes.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.progress import Progress

from hebe.machine.gpu import device_name, find_accelerator
from hebe.machine.pinning import available_cores
from hebe.models import catalog
from hebe.profiling.evaluator import Effort as MeasurementEffort
from hebe.profiling.measurements.query_times import QueryTimes, mean_times, times_alone, times_under_load
from hebe.profiling.steady_machine import SteadyMachine
from hebe.report.document import Block, Cell, Heading, Picture, Table
from hebe.report.figures import Figure
from hebe.report.plots.latency import grouped_bars, time_per_stage
from hebe.server_configuration import Lane, Placement
from hebe.simulation.analytic.analytic_server import AnalyticServer
from hebe.simulation.analytic.server_types import HERCULES
from hebe.workload.reuse_profile import PRODUCTION_2021
from hebe_lab.studies.hercules.fleet import ABOUT_SERVERS, query_sizes
from hebe_lab.studies.hercules.live import (
    FIRST_LOOK,
    WATTS_ESTIMATED,
    WORKLOAD,
    LiveServer,
    Point,
    best_in_turns,
    live_server,
    make_model,
    measured_by_model,
    target_within_reach,
    watts_estimated,
)
from hebe_lab.study import StudyOptions, StudyResult

DESCRIPTION = "Hercules, Fig. 6-7: fusion and co-location on an accelerator, and the breakdown of latency there."

ENTRIES: Mapping[str, str] = {"RMC3": "dlrm-rmc3", "MT-WnD": "mt-wnd", "DIN": "din"}
"""The catalog's names by the paper's."""

MODELS_HERE = tuple(ENTRIES)

ALONE, LOCATED, FUSED = "neither (DeepRecSys)", "co-location (Baymax)", "co-location and fusion"

STATED_FUSION: Mapping[str, tuple[float, float, float, float]] = {
    "RMC3": (1.66, 2.95, 1.19, 2.29),
    "MT-WnD": (1.03, 7.87, 1.02, 3.14),
    "DIN": (1.36, 6.00, 1.06, 3.36),
}
"""Section III-B: throughput gained by co-location over neither, then by fusion over that; the same per watt."""

PAPER_LOADING = "0.65 to 0.83"
"""Of RMC3's latency on a V100 (section III-B)."""

CO_LOCATED = (1, 2, 3, 4, 6, 8)
FUSED_ITEMS = 16_384
BATCHES = (64, 256, 1024, 4096)
"""Items of a fused batch, of which the breakdown is shown."""

LOADING_CASE = "whole model, 256"
"""Of the breakdown of queries alone."""

_STAGES = ("queueing", "keys and lookups on the host", "loading", "inference")


@dataclass(frozen=True, slots=True)
class Effort:
    """What is measured here: models, bytes of their tables, co-located workers, items that are fused at most, query
    sizes that are asked alone, shares of the throughput at which the breakdown is taken and for how many seconds, and
    how often the best of each policy is measured anew."""

    models: tuple[str, ...]
    table_bytes: int
    co_located: tuple[int, ...]
    fused_items: int
    sizes: tuple[int, ...]
    loads: tuple[float, ...]
    load_s: float
    repeats: int


EFFORTS = (
    Effort(("RMC3",), 16 << 20, (1, 2), 4096, (64, 256), (0.5,), 1.5, 1),
    Effort(tuple(ENTRIES), 256 << 20, (1, 2, 4), 4096, (64, 256, 1000), (0.3, 0.6, 0.9), 20.0, 3),
    Effort(tuple(ENTRIES), 1 << 30, CO_LOCATED, 4096, (16, 64, 256, 1000), (0.2, 0.4, 0.6, 0.8, 0.95), 60.0, 5),
)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Milliseconds of a query's latency by what they go to."""

    queueing: float
    sparse: float
    loading: float
    inference: float

    def by_stage(self) -> dict[str, float]:
        """By the words of the picture; what a case lacks is left out."""
        values = (self.queueing, self.sparse, self.loading, self.inference)
        return {stage: value for stage, value in zip(_STAGES, values, strict=True) if value > 0}

    @property
    def loading_share(self) -> float:
        """Loading, of the time on the accelerator."""
        return self.loading / (self.loading + self.inference)


@dataclass(frozen=True, slots=True)
class Modelled:
    """One model on T7: what each policy reaches, and the breakdown by items of a fused batch."""

    points: Mapping[str, Point]
    breakdown: Mapping[int, Breakdown]


@dataclass(frozen=True, slots=True)
class Measured:
    """One model on this machine: what each policy reaches under an SLA target of `target_ms`, None where none settled;
    the breakdown of queries alone by case, and of those under load. `gpu` names it, empty where a second CPU device
    stood for one."""

    target_ms: float
    points: Mapping[str, Point | None]
    alone: Mapping[str, Breakdown]
    loaded: Mapping[str, Breakdown]
    machine_words: str
    gpu: str = ""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measured:
        """The inverse of `dataclasses.asdict`."""
        return cls(
            data["target_ms"],
            {policy: None if point is None else Point(**point) for policy, point in data["points"].items()},
            {case: Breakdown(**each) for case, each in data["alone"].items()},
            {case: Breakdown(**each) for case, each in data["loaded"].items()},
            data["machine_words"],
            data["gpu"],
        )


def run(options: StudyOptions, progress: Progress) -> StudyResult:
    """Ask the analytic server, then this one."""
    effort = options.pick(*EFFORTS)
    modelled = {name: modelled_on_t7(entry) for name, entry in ENTRIES.items()}
    here = measured_by_model(ENTRIES, effort, options, progress, measured_here, Measured.from_dict)
    return told(modelled, here, effort)


def lane(co_located: int, fused_items: int = 0) -> Lane:
    """The whole model on the accelerator."""
    return Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, dense_workers=co_located, fused_items=fused_items)


def policies(co_located: Sequence[int], fused_items: int) -> dict[str, list[Lane]]:
    """What each policy may choose from."""
    return {
        ALONE: [lane(1)],
        LOCATED: [lane(count) for count in co_located],
        FUSED: [lane(count, fused_items) for count in co_located],
    }


def small_on_t7(entry: str) -> AnalyticServer:
    """T7 with the small variant of a model."""
    return AnalyticServer(HERCULES["T7"], catalog.entry(entry, "small"), query_sizes(), PRODUCTION_2021)


def modelled_on_t7(entry: str) -> Modelled:
    """What the analytic T7 reaches with each policy, and where a query's time goes there.

    With fusion one worker takes all that waits. A batch of B items that takes s seconds is followed by one as large
    where B / s items come per second; a query that comes meanwhile waits for half a batch, s / 2, on average.
    """
    server = small_on_t7(entry)
    points = {}
    for policy, lanes in policies(CO_LOCATED, FUSED_ITEMS).items():
        best = max((server.evaluate([each], server.model.sla) for each in lanes), key=lambda tried: tried.qps)
        points[policy] = Point(best.qps, best.power_watts, best.use.accelerator_share)
    one = lane(1)
    profile = server.latency_profile(one, BATCHES)
    breakdown = {}
    for items, seconds in zip(BATCHES, profile.service_s, strict=True):
        batch_ms = 1e3 * seconds
        loading = server.copying_share(one, items) * batch_ms
        breakdown[items] = Breakdown(batch_ms / 2, 0.0, loading, batch_ms - loading)
    return Modelled(points, breakdown)


def steps(points: Mapping[str, Point | None], per_watt: bool = False) -> tuple[float | None, float | None]:
    """What co-location gains over neither, and fusion over that; None where either is not known."""

    def value(policy: str) -> float:
        point = points.get(policy)
        return 0.0 if point is None else point.efficiency if per_watt else point.qps

    def ratio(policy: str, base: str) -> float | None:
        return value(policy) / value(base) if value(policy) > 0 and value(base) > 0 else None

    return ratio(LOCATED, ALONE), ratio(FUSED, LOCATED)


def told(modelled: Mapping[str, Modelled], here: Mapping[str, Measured], effort: Effort) -> StudyResult:
    """What policies and breakdowns come to."""
    figures = [
        *_figures("t7", {name: each.points for name, each in modelled.items()}, with_paper=True),
        *(
            Figure(
                f"hercules.accelerator.loading_share.t7.{name.lower()}", each.breakdown[256].loading_share, "share",
                paper=PAPER_LOADING if name == "RMC3" else None, note="of a batch of 256 items, without queueing",
            )
            for name, each in modelled.items()
        ),
        *_figures(
            "live", {name: each.points for name, each in here.items()},
            with_paper=any(each.gpu for each in here.values()),
        ),
        *(
            Figure(
                f"hercules.accelerator.loading_share.live.{name.lower()}", each.alone[case].loading_share, "share",
                paper=PAPER_LOADING if each.gpu and name == "RMC3" else None,
                note=f"of a query alone, {case} items, without queueing and the host's part",
            )
            for name, each in here.items()
            if (case := LOADING_CASE) in each.alone
        ),
    ]  # fmt: skip
    content: list[Block] = [
        ABOUT_SERVERS.replace(
            "production sizes (DIN and DIEN with half of their rows, to fit T1's 64 GB)", "small sizes"
        ),
        Heading("Fig. 6: co-location and fusion on the analytic T7"),
        _policies_picture({name: each.points for name, each in modelled.items()}, "On the analytic T7"),
        _policies_table({name: each.points for name, each in modelled.items()}, "On the analytic T7", with_paper=True),
        Heading("Fig. 7: breakdown of latency on the analytic T7"),
        "One worker takes all queries that wait as one batch. At each size of the batch so many items come that the "
        "next one is as large; a query then waits for half a batch on average. The paper has RMC3 spend 65% to 83% of "
        "its latency on loading, with the GPU used for about 25% of the time.",
        *(
            Picture(
                time_per_stage(
                    {f"{items:,} items": each.by_stage() for items, each in one.breakdown.items()},
                    title=f"{name}: a query by items of the fused batch",
                )
            )
            for name, one in modelled.items()
        ),
        _breakdown_table(modelled),
        Heading("The same on this machine"),
        f"{_accelerator_words(here)} Tables have {effort.table_bytes / 2**20:,.0f} MiB. SLA targets are the models' "
        "own, or longer where a single large query takes too long.",
        *_live_content(here, effort),
    ]
    lead = [f"hercules.accelerator.t7.fusion.{name.lower()}" for name in ENTRIES]
    return StudyResult(figures, content, [name for name in lead if name in {figure.name for figure in figures}])


def _accelerator_words(here: Mapping[str, Measured]) -> str:
    gpus = " and ".join(dict.fromkeys(each.gpu for each in here.values() if each.gpu))
    if gpus:
        return (
            f"The accelerator is one {gpus}, whose memory holds the whole model; each co-located worker has a core of "
            "the host and a stream of its own. The paper's is a V100, its PCIe half as fast or less."
        )
    return (
        "PyTorch finds no GPU here: the accelerator is a second device on this CPU, with a memory of its own that "
        "holds the whole model, and each co-located worker has a core. What fusion saves here is the cost of ops per "
        "batch, not launches on a GPU; loading is a copy within memory. So this shows that both policies and the "
        "breakdown work on what is served, and says nothing of the paper's ratios."
    )


def _figures(case: str, points: Mapping[str, Mapping[str, Point | None]], *, with_paper: bool) -> list[Figure]:
    figures = []
    for name, by_policy in points.items():
        found = (*steps(by_policy), *steps(by_policy, per_watt=True))
        names = ("co_location", "fusion", "co_location_per_watt", "fusion_per_watt")
        per_watt = WATTS_ESTIMATED if watts_estimated(by_policy.values()) else ""
        notes = ("", "", per_watt, per_watt)
        for what, value, paper, note in zip(names, found, STATED_FUSION[name], notes, strict=True):
            if value is not None:
                stated = paper if with_paper else None
                figures.append(
                    Figure(
                        f"hercules.accelerator.{case}.{what}.{name.lower()}", value, "ratio", paper=stated, note=note
                    )
                )
    return figures


def _policies_picture(points: Mapping[str, Mapping[str, Point | None]], title: str) -> Picture:
    """Throughput of each policy over that of neither."""
    groups = {}
    for name, by_policy in points.items():
        base = by_policy.get(ALONE)
        if base is not None and base.qps > 0:
            groups[name] = {policy: point.qps / base.qps for policy, point in by_policy.items() if point is not None}
    return Picture(grouped_bars(groups, "throughput over that of neither", title))


def _policies_table(
    points: Mapping[str, Mapping[str, Point | None]], title: str, *, with_paper: bool, target: str = ""
) -> Table:
    columns = ["model"]
    estimated = watts_estimated(point for by_policy in points.values() for point in by_policy.values())
    per_watt = f"per watt; {WATTS_ESTIMATED}" if estimated else "per watt"
    for policy in (ALONE, LOCATED, FUSED):
        columns += [f"{policy}: queries/s", per_watt]
    columns += ["co-location gains", *(["the paper"] if with_paper else [])]
    columns += ["fusion gains", *(["the paper"] if with_paper else [])]
    rows: list[list[Cell]] = []
    for name, by_policy in points.items():
        row: list[Cell] = [name]
        for policy in (ALONE, LOCATED, FUSED):
            point = by_policy.get(policy)
            row += [None, None] if point is None else [point.qps, point.efficiency]
        for gain, paper in zip(steps(by_policy), STATED_FUSION[name][:2], strict=True):
            row += [gain, *([paper] if with_paper else [])]
        rows.append(row)
    return Table(title, columns, rows, f"Fusion's gain is over co-location alone. {target}".strip())


def _breakdown_table(modelled: Mapping[str, Modelled]) -> Table:
    rows: list[list[Cell]] = [
        [
            name, items, each.queueing, each.loading, each.inference, f"{each.loading_share:.0%}",
            f"{each.loading / (each.queueing + each.loading + each.inference):.0%}", f"{1 - each.loading_share:.0%}",
        ]
        for name, one in modelled.items()
        for items, each in one.breakdown.items()
    ]  # fmt: skip
    return Table(
        "A query on the analytic T7, by items of the fused batch",
        [
            "model", "items", "queueing (ms)", "loading (ms)", "inference (ms)", "loading, without queueing",
            "loading, of all", "GPU used",
        ],
        rows,
        "With one worker, copies and inference take turns: the GPU computes while it does not load.",
    )  # fmt: skip


def _live_content(here: Mapping[str, Measured], effort: Effort) -> list[Block]:
    points = {name: each.points for name, each in here.items()}
    targets = ", ".join(f"{name} {each.target_ms:g} ms" for name, each in here.items())
    machine_words = " ".join(f"{name}: {each.machine_words}" for name, each in here.items())
    content: list[Block] = [
        _policies_picture(points, "On this machine"),
        _policies_table(
            points, "On this machine", with_paper=any(each.gpu for each in here.values()),
            target=f"At most {effort.fused_items:,} items are fused. SLA targets: {targets}. {machine_words}",
        ),
    ]  # fmt: skip
    for name, each in here.items():
        for title, by_case in (
            ("queries alone, by items", each.alone),
            ("means by share of the throughput", each.loaded),
        ):
            if by_case:
                bars = {case: one.by_stage() for case, one in by_case.items()}
                content.append(Picture(time_per_stage(bars, title=f"{name}: {title}")))
    rows: list[list[Cell]] = [
        [name, case, one.queueing, one.sparse, one.loading, one.inference]
        for name, each in here.items()
        for case, one in (*each.alone.items(), *each.loaded.items())
    ]
    content.append(
        Table(
            "Milliseconds of a query on this machine",
            ["model", "case", *_STAGES],
            rows,
            "Queueing is all that is none of the others, between stages too. With the whole model on the accelerator, "
            "rows are looked up within inference, and the host only parts the keys.",
        )
    )
    return content


_ROOM = 1.25
"""Memory of the accelerator over the tables' bytes, for each co-located worker: all rows fit."""


def measured_here(
    entry: str, effort: Effort, quick: bool, machine: SteadyMachine, directory: Path, progress: Progress
) -> Measured:
    """Catalog model `entry`, by policy; then alone by query size, and under load with and without fusion."""
    machine.forget()
    repository = make_model(entry, effort.table_bytes, directory, progress)
    cores = len(available_cores())
    counts = [count for count in effort.co_located if count <= cores]
    memory_bytes = round(_ROOM * max(counts) * effort.table_bytes)
    lanes_of = policies(counts, effort.fused_items)
    every = {policy: [(each,) for each in lanes] for policy, lanes in lanes_of.items()}
    task = progress.add_task(f"measuring {entry} (measurements)", total=None)
    try:
        sla = target_within_reach(repository, entry, (lane(1),), memory_bytes, machine)
        with live_server(
            repository,
            entry,
            sla,
            FIRST_LOOK if quick else MeasurementEffort(),
            accelerator_bytes=memory_bytes,
            advance=lambda: progress.advance(task),
            machine=machine,
        ) as server:
            points = best_in_turns(server, every, effort.repeats)
            alone = _alone(server, effort, cores)
            loaded = {
                f"{words}, {share:.0%} load": breakdown
                for words, fused in (("single", 0), ("fused", effort.fused_items))
                for share, breakdown in _loaded(server, lane(1, fused), effort).items()
            }
            gpu = device_name(find_accelerator())
            return Measured(sla.latency_ms, points, alone, loaded, server.machine_words, gpu)
    finally:
        progress.remove_task(task)
        shutil.rmtree(repository)


def _alone(server: LiveServer, effort: Effort, cores: int) -> dict[str, Breakdown]:
    """Queries one after another: the whole model on the accelerator, and its DenseNet alone."""
    lanes = {"whole model": lane(1)}
    if cores > 1:
        lanes["DenseNet alone"] = Lane(Placement.SPARSE_ON_HOST, 1, 1, WORKLOAD.sizes.largest, 1)
    found = {}
    for words, each in lanes.items():
        server.live.configure((each,))
        for items in effort.sizes:
            ask = partial(times_alone, server.live.driver, server.live.queries(items))
            times = server.live.machine.measure(ask)
            found[f"{words}, {items:,}"] = breakdown_of(times)
    return found


def _loaded(server: LiveServer, each: Lane, effort: Effort) -> dict[float, Breakdown]:
    """By share of the latency-bounded throughput; empty where there is none."""
    point, live = server.point((each,)), server.live
    if point is None or point.qps <= 0:
        return {}
    found = {}
    for share in effort.loads:
        ask = partial(times_under_load, live.driver, WORKLOAD, share * point.qps, effort.load_s, live.sla)
        found[share] = breakdown_of(live.machine.measure(ask))
    return found


def breakdown_of(times: list[QueryTimes]) -> Breakdown:
    """The mean of several queries, in milliseconds."""
    mean = mean_times(times)
    return Breakdown(1e3 * mean.queueing_s, 1e3 * mean.sparse_s, 1e3 * mean.loading_s, 1e3 * mean.inference_s)
