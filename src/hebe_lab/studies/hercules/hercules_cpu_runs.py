"""hercules-cpu: both splits of this machine, measured for one SLA target after another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.progress import Progress

from hebe.profiling.evaluator import Effort
from hebe_lab.studies.hercules import cpu as hercules_cpu
from hebe_lab.studies.hercules.cpu import ENTRY, Measured, Shape, lane, scaled
from hebe_lab.studies.hercules.hercules_point import Point
from hebe_lab.studies.hercules.live import (
    FIRST_LOOK,
    best_in_turns,
    live_server,
    make_model,
    patient_machine,
    target_within_reach,
)


def measured_here(
    splits: Sequence[Shape], effort: hercules_cpu.Effort, quick: bool, directory: Path, progress: Progress
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
        effort_now = FIRST_LOOK if quick else Effort()
        with live_server(repository, ENTRY, sla, effort_now, advance=advance, machine=machine) as server:
            candidates = {shape: [(lane(shape, size),) for size in effort.batch_sizes] for shape in splits}
            points = best_in_turns(server, candidates, effort.repeats)
            machine_words = server.machine_words
        for shape, point in points.items():
            found[shape][sla.latency_ms] = point
    progress.remove_task(task)
    return found, machine_words
