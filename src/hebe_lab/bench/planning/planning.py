"""Everything that planning and simulation promise: Kairos, splitting, provisioning, co-location, the simulator.

Kairos' and the splitting policy's figures need the recorded measurements; without `data` they are left out. Hercules'
and Hera's are those of their studies, run as thoroughly as this is and on the same data, so that a name has one value;
in full they take most of the time, half an hour. Each part can be measured alone, as
`hebe bench planning --only simulator`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from rich.progress import Progress

from hebe.report.figures import Figure
from hebe_lab.bench.planning.kairos import FULL, QUICK, Effort, kairos_figures
from hebe_lab.bench.planning.simulator import simulator_figures
from hebe_lab.bench.planning.solvers import solver_figures
from hebe_lab.runner import run_study
from hebe_lab.studies.hercules.fleet import RE_PLANNING_S, day_curve
from hebe_lab.studies.kairos.setting import FILES, measurements, settings
from hebe_lab.study import StudyOptions

DESCRIPTION = "Planned fleets, proved in simulation: Kairos, splitting, Hercules, Hera, and the simulator's speed."

STUDY_FIGURES = {
    "hercules-cluster": (
        "hercules.power_saving.",
        "hercules.capacity_saving.",
        "hercules.greedy_power_saving.",
        "hercules.greedy_capacity_saving.",
    ),
    "hera-affinity": ("hera.affinity_correlation",),
    "hera-emu": ("hera.emu.", "hera.emu_over."),
}
"""Which figures of which studies belong here, by how their names begin."""


def run(quick: bool, progress: Progress, data: Path | None = None, only: str | None = None) -> list[Figure]:
    """Measure `kairos.*`, `split.*`, `matching.*`, `pool.*`, `provision.*`, `affinity.*`, `colocate.*`, `simulator.*`,
    `hercules.*`, `hera.*`, or `only` one of the parts. What is timed comes first.

    `data` is the directory of the recorded measurements (exec_ms.csv, load_ms.csv), or what holds it as `kairos/`, and
    maybe the recorded load of days as `load/`. Raises `ValueError` for bad ones, before anything is measured.
    """
    day_curve(_of_load(quick, data), RE_PLANNING_S)
    if measurements(options := StudyOptions(data=data)) is not None:
        settings(options, _effort(quick).models)
    return [
        figure for name, measure in PARTS.items() if only in (None, name) for figure in measure(quick, progress, data)
    ]


def _effort(quick: bool) -> Effort:
    return QUICK if quick else FULL


def _of_kairos(quick: bool, progress: Progress, data: Path | None) -> list[Figure]:
    measured = measurements(StudyOptions(data=data))
    if measured is None:
        needed = "give --data DIR, with " + " and ".join(FILES)
        progress.console.print(f"Left out: kairos.*, split.*, kairos_plus.*: {needed}", soft_wrap=True)
        return []
    return kairos_figures(measured, _effort(quick), progress)


def _of_load(quick: bool, data: Path | None) -> StudyOptions:
    """What a study is given: of `data`, the recorded load."""
    return StudyOptions(quick=quick, data=data if data is not None and (data / "load").is_dir() else None)


def _of_studies(quick: bool, progress: Progress, data: Path | None) -> list[Figure]:
    """The papers' cluster figures; the studies' own pages explain them."""
    figures: list[Figure] = []
    for name, beginnings in STUDY_FIGURES.items():
        file = run_study(name, _of_load(quick, data), progress).file
        note = f"as {file.command}"
        figures += [
            replace(figure, note=f"{figure.note}; {note}" if figure.note else note)
            for figure in file.figures
            if figure.name.startswith(beginnings)
        ]
    return figures


PARTS: Mapping[str, Callable[[bool, Progress, Path | None], list[Figure]]] = {
    "solvers": lambda quick, progress, _: solver_figures(quick, progress),
    "simulator": lambda quick, progress, _: simulator_figures(quick, progress),
    "kairos": _of_kairos,
    "studies": _of_studies,
}
"""By name: those of `matching.*` to `colocate.*`, of `simulator.*`, of `kairos.*` and `split.*`, and of the studies."""
