"""hercules-cpu: both splits of this machine, measured for one SLA target after another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Protocol

from rich.progress import Progress

from hebe.planning.parallelism import Configuration
from hebe.profiling.live_evaluation import Effort
from hebe.studies import hercules_cpu
from hebe.studies.hercules_cpu import ENTRY, Measured, Shape, lane, scaled
from hebe.studies.hercules_live import FIRST_LOOK, live_server, make_model, target_within_reach
from hebe.studies.hercules_point import Point


class Server(Protocol):
    """What is asked: `hercules_live.LiveServer`."""

    def point(self, configuration: Configuration) -> Point | None:
        """What a configuration reaches; None where it did not settle."""


def measured_here(
    splits: Sequence[Shape], effort: hercules_cpu.Effort, quick: bool, directory: Path, progress: Progress
) -> tuple[Measured, str]:
    """By split and SLA target, and where watts are from.

    Targets are multiples of the model's own, or of what this machine can keep.
    """
    repository = make_model(ENTRY, effort.table_bytes, directory, progress)
    task = progress.add_task("SLA targets", total=len(effort.targets))
    base = target_within_reach(repository, ENTRY)
    power = ""
    found: dict[Shape, dict[float, Point | None]] = {shape: {} for shape in splits}
    for factor in effort.targets:
        sla = scaled(base, factor)
        with live_server(repository, ENTRY, sla, FIRST_LOOK if quick else Effort()) as server:
            points = best_of_each(server, splits, effort.batch_sizes, effort.repeats)
            power = server.power_words
        for shape, point in points.items():
            found[shape][sla.latency_ms] = point
        progress.advance(task)
    progress.remove_task(task)
    return found, power


def best_of_each(
    server: Server, splits: Sequence[Shape], batch_sizes: Sequence[int], repeats: int
) -> dict[Shape, Point | None]:
    """Each split with the batch size that suits it best, measured anew `repeats` times in turns: medians.

    What chose the batch size is left out of them, since the best of several measurements is too good.
    """
    best: dict[Shape, int] = dict.fromkeys(splits, batch_sizes[0])
    if len(batch_sizes) > 1:
        for shape in splits:
            tried = {size: server.point((lane(shape, size),)) for size in batch_sizes}
            best[shape] = max(tried, key=lambda size: _qps(tried[size]))
    runs: dict[Shape, list[Point]] = {shape: [] for shape in splits}
    for _ in range(repeats):
        for shape in splits:
            point = server.point((lane(shape, best[shape]),))
            if point is not None:
                runs[shape].append(point)
    return {shape: _median(points) for shape, points in runs.items()}


def _qps(point: Point | None) -> float:
    return -1.0 if point is None else point.qps


def _median(points: Sequence[Point]) -> Point | None:
    if not points:
        return None
    return Point(
        median(point.qps for point in points),
        median(point.power_watts for point in points),
        median(point.utilization for point in points),
    )
