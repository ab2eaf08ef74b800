"""Finds and runs benchmarks.

A benchmark is a module of this package with two names at its top level:

    DESCRIPTION = "one line, a plain string"
    def run(quick: bool, progress: rich.progress.Progress) -> list[Figure]: ...

A `run` with a third argument, `data`, is also given the directory of recorded measurements, if there is one. `run`
takes under a minute with `quick`. It reports its steps to `progress`, and leaves out what it could not measure.
Modules without a DESCRIPTION are what benchmarks share.
"""

from __future__ import annotations

import inspect
import pkgutil
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from rich.progress import Progress

import hebe.bench
from hebe.report.description import module_description
from hebe.report.figures import Figure, FigureFile


def benchmark_descriptions() -> dict[str, str]:
    """Every benchmark's one-line description by name, read from the sources without importing them."""
    found = {}
    for module in pkgutil.iter_modules(hebe.bench.__path__):
        description = None if module.ispkg else module_description(f"{hebe.bench.__name__}.{module.name}")
        if description is not None:
            found[module.name] = description
    return dict(sorted(found.items()))


def run_benchmark(name: str, quick: bool, progress: Progress, data: Path | None = None) -> FigureFile:
    """Run benchmark `name` and return its figures with what they were measured on (not yet written).

    `data` goes to a benchmark that takes it. The command says `--data DIR`: a machine's own folders are nobody else's
    concern.
    """
    run: Callable[..., Sequence[Figure]] = import_module(f"{hebe.bench.__name__}.{name}").run
    uses_data = data is not None and "data" in inspect.signature(run).parameters
    started_s = time.perf_counter()
    figures = run(quick, progress, data) if uses_data else run(quick, progress)
    command = f"hebe bench {name}{' --quick' if quick else ''}{' --data DIR' if uses_data else ''}"
    return FigureFile.here(name, command, time.perf_counter() - started_s, quick, figures)
