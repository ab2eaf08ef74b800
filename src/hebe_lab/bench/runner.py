"""Finds and runs benchmarks.

A benchmark is a module that `BENCHMARKS` names, with two names at its top level:

    DESCRIPTION = "one line, a plain string"
    def run(quick: bool, progress: rich.progress.Progress) -> list[Figure]: ...

A `run` with an argument `data` is also given the directory of recorded measurements, if there is one; one of a module
with `PARTS`, a mapping by name, is told in `only` which of them to measure alone. `run` takes about a minute with
`quick`. It reports its steps to `progress`, and leaves out what it could not measure.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from rich.progress import Progress

from hebe.report.figures import Figure, FigureFile
from hebe_lab.bench import BENCHMARKS
from hebe_lab.description import module_description


def benchmark_descriptions() -> dict[str, str]:
    """Every benchmark's one-line description by name, read from the sources without importing them."""
    return {name: module_description(module) or "" for name, module in sorted(BENCHMARKS.items())}


def benchmark_parts(name: str) -> tuple[str, ...]:
    """The parts of benchmark `name` that can be measured alone, in order; none if it has no such parts."""
    return tuple(getattr(import_module(BENCHMARKS[name]), "PARTS", ()))


def run_benchmark(
    name: str, quick: bool, progress: Progress, data: Path | None = None, only: str | None = None
) -> FigureFile:
    """Run benchmark `name` and return its figures with what they were measured on (not yet written).

    `data` goes to a benchmark that takes it. The command says `--data DIR`: a machine's own folders are nobody else's
    concern. `only` is one of its parts, whose figures are a file of their own, NAME-PART.
    """
    run: Callable[..., Sequence[Figure]] = import_module(BENCHMARKS[name]).run
    given: dict[str, object] = {} if only is None else {"only": only}
    command = f"hebe bench {name}{' --quick' if quick else ''}{'' if only is None else f' --only {only}'}"
    if data is not None and "data" in inspect.signature(run).parameters:
        given["data"] = data
        command += " --data DIR"
    started_s = time.perf_counter()
    figures = run(quick, progress, **given)
    file = name if only is None else f"{name}-{only}"
    return FigureFile.here(file, command, time.perf_counter() - started_s, quick, figures)
