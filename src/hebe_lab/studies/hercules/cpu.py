"""Hercules, Fig. 4: one core per worker against two, by SLA target: throughput, queries/s per watt, CPU utilization.

DLRM-RMC1 on this machine, with small tables, and on the analytic server of the paper's type, T2 with 20 cores. Each
split has the batch size that suits it best. On this machine both are measured for one SLA target after another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.progress import Progress

from hebe.machine.pinning import available_cores
from hebe.models import catalog
from hebe.planning.server_split.space import BATCH_SIZES
from hebe.profiling.evaluator import Effort as MeasurementEffort
from hebe.report.document import Block, Cell, Heading, Picture, Table
from hebe.report.figures import Figure
from hebe.report.plots.style import SERIES, drawing, plain_ticks, to_svg
from hebe.report.tables import format_number
from hebe.server_configuration import Lane, Placement
from hebe.spec import SlaTarget
from hebe_lab.studies.hercules.fleet import ABOUT_SERVERS, server_of
from hebe_lab.studies.hercules.live import (
    FIRST_LOOK,
    WATTS_ESTIMATED,
    Point,
    best_in_turns,
    live_server,
    make_model,
    patient_machine,
    target_within_reach,
    watts_estimated,
)
from hebe_lab.studies.hps.setting import scratch_directory
from hebe_lab.study import StudyOptions, StudyResult

DESCRIPTION = "Hercules, Fig. 4: one core per worker against two by SLA target, DLRM-RMC1."

MODEL, ENTRY, SERVER_TYPE = "RMC1", "dlrm-rmc1", "T2"
PAPER_QPS, PAPER_QPS_PER_WATT = 1.35, 1.33
"""Section III-A: 10 x 2 over 20 x 1, "by up to 35% and 33%"."""

MODELLED_TARGETS = (0.25, 0.4, 0.6, 1.0, 1.5, 2.5)
"""SLA targets over the model's own, 20 ms."""

Shape = tuple[int, int]
"""Workers, and cores of each."""

Measured = Mapping[Shape, Mapping[float, Point | None]]
"""By split and SLA target in milliseconds; None where it did not settle."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Bytes of the tables, SLA targets over the shortest that the machine can keep, batch sizes that are tried of each
    split, and how often the best of each is then measured anew."""

    table_bytes: int
    targets: tuple[float, ...]
    batch_sizes: tuple[int, ...]
    repeats: int


EFFORTS = (
    Effort(16 << 20, (1.0,), (256,), 1),
    Effort(1 << 30, (0.6, 1.0, 1.5, 2.5), (64, 256, 1024), 3),
    Effort(2 << 30, (0.4, 0.6, 1.0, 1.5, 2.5, 4.0), (32, 64, 128, 256, 512, 1024), 5),
)


def run(options: StudyOptions, progress: Progress) -> StudyResult:
    """Ask the analytic server, then this one."""
    effort, cores = options.pick(*EFFORTS), len(available_cores())
    modelled = modelled_points()
    if cores < 2:
        return told(modelled, {}, effort)
    with scratch_directory() as directory:
        here, machine_words = measured_here(shapes(cores), effort, options.quick, directory, progress)
    return told(modelled, here, effort, machine_words)


def shapes(cores: int) -> tuple[Shape, Shape]:
    """One core per worker, as DeepRecSys, and two."""
    return (cores, 1), (cores // 2, 2)


def lane(shape: Shape, batch_size: int) -> Lane:
    """The split."""
    return Lane(Placement.MODEL_ON_HOST, *shape, batch_size)


def modelled_points() -> Measured:
    """The paper's two splits of the analytic T2."""
    server, own = server_of(MODEL, SERVER_TYPE), catalog.entry(ENTRY, "production").sla

    def best(shape: Shape, sla: SlaTarget) -> Point:
        found = max((server.evaluate([lane(shape, size)], sla) for size in BATCH_SIZES), key=lambda tried: tried.qps)
        return Point(found.qps, found.power_watts, found.use.cores / server.server.cores)

    return {shape: by_target(own, MODELLED_TARGETS, _of(shape, best)) for shape in shapes(server.server.cores)}


def _of(shape: Shape, best: Callable[[Shape, SlaTarget], Point]) -> Callable[[SlaTarget], Point]:
    return lambda sla: best(shape, sla)


def by_target(
    own: SlaTarget, targets: Sequence[float], best: Callable[[SlaTarget], Point]
) -> dict[float, Point | None]:
    """`best` of each SLA target, which are so many times as long as `own`."""
    found: dict[float, Point | None] = {}
    for factor in targets:
        sla = scaled(own, factor)
        found[sla.latency_ms] = best(sla)
    return found


def scaled(own: SlaTarget, factor: float) -> SlaTarget:
    """An SLA target so many times as long, in three digits."""
    return replace(own, latency_ms=float(f"{factor * own.latency_ms:.3g}"))


def told(modelled: Measured, here: Measured, effort: Effort, machine_words: str = "") -> StudyResult:
    """What the points come to; `here` is empty on a single core, `machine_words` is to be said of the machine."""
    figures: list[Figure] = []
    content: list[Block] = [ABOUT_SERVERS, Heading("Fig. 4: the analytic T2, 20 cores")]
    content += _shown(modelled, "RMC1 on the analytic T2")
    figures += _figures("t2", modelled, (PAPER_QPS, PAPER_QPS_PER_WATT), "10 x 2 over 20 x 1, the largest of all")
    content.append(Heading("The same on this machine"))
    if not here:
        content.append("This machine has one core: there is nothing to share out between workers.")
    else:
        first, second = here
        content.append(
            f"{_name(second)} against {_name(first)} workers and cores of each on this machine, where the paper has 20 "
            f"cores. Layers are those of production size, tables have {effort.table_bytes / 2**20:,.0f} MiB. An op "
            "worker is a thread that takes a share of each op of the DenseNet, and of the items of a lookup. The load "
            "generator runs in the same process and, as front ends do here, shares the workers' cores, so CPU "
            f"utilization counts it too. {machine_words}"
        )
        content += _shown(here, "RMC1 on this machine")
        figures += _figures(
            "live", here, ("up to 1.35", "up to 1.33"), f"{_name(second)} over {_name(first)}, the largest of all"
        )
    return StudyResult(figures, content, lead=[figure.name for figure in figures if figure.name.endswith("qps_gain")])


def gains(points: Measured, of: Callable[[Point], float]) -> dict[float, float]:
    """Two cores per worker over one by SLA target, of those that both keep."""
    one, two = points.values()
    found = {}
    for target_ms, base in one.items():
        other = two.get(target_ms)
        if base is not None and other is not None and of(base) > 0:
            found[target_ms] = of(other) / of(base)
    return found


def _figures(case: str, points: Measured, paper: tuple[float | str, float | str], note: str) -> list[Figure]:
    figures = []
    estimated = f"; {WATTS_ESTIMATED}" if _estimated(points) else ""
    for what, of, stated, of_watts in (
        ("qps_gain", lambda point: point.qps, paper[0], ""),
        ("qps_per_watt_gain", lambda point: point.efficiency, paper[1], estimated),
    ):
        found = gains(points, of)
        if found:
            at_ms = max(found, key=lambda target_ms: found[target_ms])
            name = f"hercules.cpu.{case}.{what}"
            figures.append(
                Figure(name, found[at_ms], "ratio", paper=stated, note=f"{note} SLA targets: at {at_ms:g} ms{of_watts}")
            )
    return figures


def _estimated(points: Measured) -> bool:
    return watts_estimated(point for by_target_ms in points.values() for point in by_target_ms.values())


def _shown(points: Measured, title: str) -> list[Block]:
    caption = f"{_CAPTION} Per watt: {WATTS_ESTIMATED}." if _estimated(points) else _CAPTION
    return [Picture(_picture(points, title), caption), _table(points, title)]


_CAPTION = "Utilization: the share of the cores' time that is used close to that load."


def _name(shape: Shape) -> str:
    return f"{shape[0]} x {shape[1]}"


def _utilization(point: Point) -> float | None:
    return point.utilization if point.qps > 0 else None


_PANELS: tuple[tuple[str, Callable[[Point], float | None]], ...] = (
    ("queries/s", lambda point: point.qps),
    ("queries/s per watt", lambda point: point.efficiency),
    ("CPU utilization", _utilization),
)


def _picture(points: Measured, title: str) -> str:
    with drawing(width=9.0, height=3.6) as (canvas, only):
        only.remove()
        for axes, (what, of) in zip(canvas.subplots(1, 3), _PANELS, strict=True):
            for number, (shape, by_target_ms) in enumerate(points.items()):
                known = {target_ms: of(point) for target_ms, point in by_target_ms.items() if point is not None}
                drawn = {target_ms: value for target_ms, value in known.items() if value is not None}
                axes.plot(
                    list(drawn), list(drawn.values()), marker="o", color=SERIES[number],
                    label=_name(shape) if axes.get_subplotspec().is_first_col() else None,
                )  # fmt: skip
            axes.margins(y=0.1)
            axes.set_ylim(bottom=0)
            axes.set_xlabel("SLA target (ms)")
            axes.set_title(what)
            plain_ticks(axes.xaxis, format_number)
            plain_ticks(axes.yaxis, (lambda value: f"{value:.0%}") if of is _utilization else format_number)
        canvas.legend(loc="outside lower center", ncols=2)
        return to_svg(canvas, f"{title}: {', '.join(what for what, _ in _PANELS)} by SLA target")


def _table(points: Measured, title: str) -> Table:
    columns = ["SLA target (ms)"]
    per_watt = f"per watt; {WATTS_ESTIMATED}" if _estimated(points) else "per watt"
    for shape in points:
        columns += [f"{_name(shape)}: queries/s", per_watt, "utilization"]
    rows: list[list[Cell]] = []
    for target_ms in next(iter(points.values())):
        row: list[Cell] = [target_ms]
        for by_target_ms in points.values():
            point = by_target_ms.get(target_ms)
            if point is None:
                row += [None, None, None]
            elif point.qps <= 0:
                row += ["out of reach", None, None]
            else:
                row += [point.qps, point.efficiency, f"{point.utilization:.0%}"]
        rows.append([*row, gains(points, lambda point: point.qps).get(target_ms)])
    return Table(title, [*columns, "gain"], rows, "Workers x cores of each, at their best batch size.")


def measured_here(
    splits: Sequence[Shape], effort: Effort, quick: bool, directory: Path, progress: Progress
) -> tuple[Measured, str]:
    """By split and SLA target, and what is to be said of the machine.

    Targets are multiples of the model's own, or of what this machine can keep.
    """
    repository = make_model(ENTRY, effort.table_bytes, directory, progress)
    chosen = len(effort.batch_sizes) if len(effort.batch_sizes) > 1 else 0
    measurements = len(effort.targets) * len(splits) * (chosen + effort.repeats)
    task = progress.add_task("measurements of this machine", total=measurements)
    machine = patient_machine(quick, progress)
    base = target_within_reach(repository, ENTRY, machine=machine)
    machine_words = ""

    def advance() -> None:
        progress.advance(task)

    found: dict[Shape, dict[float, Point | None]] = {shape: {} for shape in splits}
    for factor in effort.targets:
        sla = scaled(base, factor)
        effort_now = FIRST_LOOK if quick else MeasurementEffort()
        with live_server(repository, ENTRY, sla, effort_now, advance=advance, machine=machine) as server:
            candidates = {shape: [(lane(shape, size),) for size in effort.batch_sizes] for shape in splits}
            points = best_in_turns(server, candidates, effort.repeats)
            machine_words = server.machine_words
        for shape, point in points.items():
            found[shape][sla.latency_ms] = point
    progress.remove_task(task)
    return found, machine_words
