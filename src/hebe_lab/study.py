"""What a study is given, and what it hands back.

A study is a module with two names at its top level, and a line in `STUDIES`:

    DESCRIPTION = "one line, a plain string"
    def run(options: StudyOptions, progress: rich.progress.Progress) -> StudyResult: ...

and, if it reads recorded data, a third, without which it is given none, and if one may choose which models it measures
on this machine, a fourth:

    DATA = "kairos/"  # what it reads of --data DIR
    MODELS_HERE = ("RMC1", "DIN")  # what there is for --models

It takes under a minute with `options.quick`, draws chance from seeds of its own, reports its steps to `progress`, and
leaves out what it could not measure. One that measures Hebe's own parts, or uses what such a one models, needs torch:
the runner says what to install where that is missing (`needing_torch`). All others import without.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from hebe.report.document import Block, Table
from hebe.report.figures import Figure
from hebe_lab.saved_parts import KeptParts

_Choice = TypeVar("_Choice")


class StudyError(ValueError):
    """A study that cannot run as asked, or a result that is not well formed; the message says what to change."""


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """How thoroughly a study runs, and on whose measurements.

    `quick`  under a minute, for a first look; the figure file says so.
    `full`   as many repeats as the paper's claims deserve, however long that takes. Not both.
    `data`   directory of recorded measurements (each study says which files it reads); None: the built-in figures.
    `models` names of those that are measured on this machine, of a study that lets choose; none: as many as it likes.
    `parts`  where one that measures for long keeps what it has, so that it can be ended and goes on.
    """

    quick: bool = False
    full: bool = False
    data: Path | None = None
    models: tuple[str, ...] = ()
    parts: KeptParts = field(default_factory=KeptParts, compare=False)

    def __post_init__(self) -> None:
        if self.quick and self.full:
            raise StudyError("quick and full: choose one of them")

    def pick(self, quick: _Choice, usual: _Choice, full: _Choice) -> _Choice:
        """The one of three that fits: `seeds = options.pick(1, 3, 10)`."""
        return quick if self.quick else full if self.full else usual

    def data_file(self, name: str) -> Path:
        """The file `name` (a relative path) of the data directory, or of its own folder there (``kairos/`` of
        ``kairos/a.csv``) where `data` is that; raises `StudyError` where it is in neither."""
        if self.data is None:
            raise StudyError(f"{name}: give the directory of the recorded measurements, --data DIR")
        path = self.data / name
        within = self.data / path.name
        if not path.is_file() and not within.is_file():
            raise StudyError(f"{path}: there is no such file; --data names the directory that holds {name}")
        return path if path.is_file() else within


@dataclass(frozen=True, slots=True)
class StudyResult:
    """`figures`, with `paper` filled; `content` of the page in reading order; names of `figures` to `lead` with."""

    figures: Sequence[Figure]
    content: Sequence[Block]
    lead: Sequence[str] = ()

    def __post_init__(self) -> None:
        missing = [name for name in self.lead if name not in {figure.name for figure in self.figures}]
        if missing:
            raise StudyError(f"lead {', '.join(missing)}: there is no figure of that name")

    @property
    def tables(self) -> list[Table]:
        """The tables, in reading order."""
        return [block for block in self.content if isinstance(block, Table)]


@contextmanager
def needing_torch(study: str) -> Iterator[None]:
    """Around the imports of what measures: a `StudyError` where torch, numba or RocksDB is not installed."""
    try:
        yield
    except ModuleNotFoundError as fault:
        raise StudyError(
            f"{study} runs Hebe's own parts and needs torch, numba and rocksdict ({fault}): pip install hebe-serve"
        ) from None
