"""Finds and runs studies."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

from rich.progress import Progress

from hebe._version import __version__
from hebe.report.document import Document
from hebe.report.figures import FigureFile
from hebe.report.html import write_page
from hebe.report.measured_on import current_commit, describe_machine
from hebe_lab.description import module_description
from hebe_lab.page import study_document
from hebe_lab.saved_parts import KeptParts
from hebe_lab.studies import STUDIES
from hebe_lab.study import StudyOptions, StudyResult, needing_torch


@dataclass(frozen=True, slots=True)
class StudyRun:
    """One run of one study: its result, and its figures with what they were measured on."""

    description: str
    file: FigureFile
    result: StudyResult

    @property
    def document(self) -> Document:
        """The run as it is shown."""
        return study_document(self.description, self.file, self.result)

    def write(self, directory: Path) -> tuple[Path, Path]:
        """Write DIRECTORY/figures/NAME.json and DIRECTORY/studies/NAME.html; return both paths. Raises OSError."""
        page = directory / "studies" / f"{self.file.name}.html"
        return self.file.write(directory / "figures"), write_page(self.document, page)


def study_descriptions() -> dict[str, str]:
    """Every study's one-line description by name, read from the sources without importing them."""
    return {name: module_description(module) or "" for name, module in sorted(STUDIES.items())}


def _study_module(name: str) -> ModuleType:
    """The module of study `name`. Raises `StudyError` where it measures and what it measures with is not installed."""
    with needing_torch(name):
        return import_module(STUDIES[name])


def reads_data(name: str) -> bool:
    """Whether study `name` of `STUDIES` reads recorded data."""
    return hasattr(_study_module(name), "DATA")


def models_of(name: str) -> tuple[str, ...]:
    """Those that study `name` of `STUDIES` lets choose to measure on this machine; none where it does not."""
    return tuple(getattr(_study_module(name), "MODELS_HERE", ()))


def _with_data_it_reads(name: str, options: StudyOptions) -> StudyOptions:
    """The options without data that has no part in the result, which else its command would claim."""
    return options if options.data is None or reads_data(name) else replace(options, data=None)


def run_study(name: str, options: StudyOptions, progress: Progress) -> StudyRun:
    """Run study `name` of `STUDIES`, without `options.data` if it reads none; no result is written yet, and what
    `options.parts` kept of it is removed."""
    module, options = _study_module(name), _with_data_it_reads(name, options)
    run: Callable[[StudyOptions, Progress], StudyResult] = module.run
    started_s = time.perf_counter()
    result = run(options, progress)
    seconds = time.perf_counter() - started_s + options.parts.earlier_s
    options.parts.remove()
    file = FigureFile.here(name, _command(name, options), seconds, options.quick, result.figures)
    return StudyRun(module.DESCRIPTION, file, result)


def keeping_parts(name: str, options: StudyOptions, directory: Path, progress: Progress) -> StudyOptions:
    """`options` of study `name` that keep its parts beside the page that it will write.

    Not from a source tree that differs from its commit: what a part was measured with could not be told.
    """
    options = _with_data_it_reads(name, options)
    commit = current_commit()
    if commit.endswith("+changes"):
        return options
    of = {
        "command": _command(name, options),
        "data": None if options.data is None else str(options.data.resolve()),
        "commit": commit,
        "version": __version__,
        "machine": describe_machine(),
    }
    told = partial(progress.console.print, soft_wrap=True, markup=False)
    return replace(options, parts=KeptParts(directory / "studies" / f"{name}.parts", of, told))


def _command(name: str, options: StudyOptions) -> str:
    """What to type to run it again; a machine's own folders are nobody else's concern."""
    effort = options.pick(" --quick", "", " --full")
    models = f" --models {','.join(options.models)}" if options.models else ""
    return f"hebe study {name}{effort}{models}{'' if options.data is None else ' --data DIR'}"
