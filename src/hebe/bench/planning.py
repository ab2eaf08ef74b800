"""Everything that planning and simulation promise: Kairos, splitting, provisioning, co-location, the simulator.

Kairos' and the splitting policy's figures need the recorded measurements; without `data` they are left out. Hercules'
and Hera's come from their studies.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.progress import Progress

from hebe.bench.planning_kairos import FULL, QUICK, kairos_figures
from hebe.bench.planning_simulator import simulator_figures
from hebe.bench.planning_solvers import solver_figures
from hebe.report.figures import Figure
from hebe.studies.kairos_setting import FILES, measurements, settings
from hebe.studies.runner import run_study
from hebe.studies.study import StudyOptions

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


def run(quick: bool, progress: Progress, data: Path | None = None) -> list[Figure]:
    """Measure `kairos.*`, `split.*`, `matching.*`, `pool.*`, `provision.*`, `affinity.*`, `colocate.*`, `simulator.*`,
    `hercules.*`, `hera.*`. What is timed comes first.

    `data` is the directory of the recorded measurements (exec_ms.csv, load_ms.csv), or what holds it as `kairos/`.
    Raises `ValueError` for bad ones, before anything is measured.
    """
    effort = QUICK if quick else FULL
    measured = measurements(options := StudyOptions(data=data))
    if measured is not None:
        settings(options, effort.models)
    figures = [*solver_figures(quick, progress), *simulator_figures(quick, progress)]
    if measured is None:
        needed = "give --data DIR, with " + " and ".join(FILES)
        progress.console.print(f"Left out: kairos.*, split.*, kairos_plus.*: {needed}", soft_wrap=True)
    else:
        figures += kairos_figures(measured, effort, progress)
    return figures + _of_studies(progress)


def _of_studies(progress: Progress) -> list[Figure]:
    """The papers' cluster figures, by the studies' quick runs; the studies themselves take longer, and explain."""
    figures: list[Figure] = []
    for name, beginnings in STUDY_FIGURES.items():
        found = run_study(name, StudyOptions(quick=True), progress).file.figures
        note = f"a quick run of the study {name}"
        figures += [
            replace(figure, note=f"{figure.note}; {note}" if figure.note else note)
            for figure in found
            if figure.name.startswith(beginnings)
        ]
    return figures
