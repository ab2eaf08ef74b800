"""Measured figures: one file a benchmark or study (`out/figures/NAME.json`), all alike.

A figure that was not measured is absent, never a default; so a value here is always finite.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hebe.report.atomic_write import write_whole
from hebe.report.document import Table, verdict
from hebe.report.measured_on import current_commit, describe_machine
from hebe.report.tables import Column, format_number

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_TARGET = re.compile(r"\s*(>=|<=|>|<)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*\Z")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\Z")


class FigureError(ValueError):
    """A figure or figure file that is not well formed; the message names the field (and the file)."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure should reach, as "`>= 0.90`", "`< 1`", "`<= 1.1`"."""

    comparison: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read ">= 0.90" and the like; raises `FigureError`."""
        match = _TARGET.match(text)
        if match is None:
            raise FigureError(f"target {text!r}: write a comparison and a number, such as '>= 0.90' or '< 1'")
        return cls(match[1], float(match[2]))

    def met_by(self, value: float) -> bool:
        """Whether `value` reaches it."""
        return _COMPARISONS[self.comparison](value, self.bound)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number. Raises `FigureError` for what was not measured.

    `name`   dotted, of one quantity in all files: "serve.over_inprocess.grpc"; `docs/figures/` has it once.
    `value`  in `unit` ("ratio", "ms", "queries/s", "bytes", ...), over `runs` repeats.
    `low`, `high` its spread (state which one in `note` if not that of `ratio_of_medians` or
             `median_and_spread`); both or neither.
    `target` what it should reach; None where nothing was promised.
    `paper`  what the paper reports, a number or its words.
    """

    name: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    runs: int = 1
    target: str | None = None
    paper: float | str | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise FigureError(f"figure name {self.name!r}: must be a text such as 'serve.over_inprocess.grpc'")
        for field_name in ("value", "low", "high"):
            number = getattr(self, field_name)
            if field_name != "value" and number is None:
                continue
            if isinstance(number, bool) or not isinstance(number, int | float | np.number):
                raise FigureError(f"figure {self.name}: {field_name} is {number!r}: must be a number")
            if not math.isfinite(number):
                raise FigureError(f"figure {self.name}: {field_name} is {number!r}: leave out what was not measured")
            object.__setattr__(self, field_name, float(number))
        if (self.low is None) != (self.high is None):
            raise FigureError(f"figure {self.name}: low and high: give both or neither")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise FigureError(f"figure {self.name}: low {self.low} is above high {self.high}")
        if isinstance(self.runs, bool) or not isinstance(self.runs, int) or self.runs < 1:
            raise FigureError(f"figure {self.name}: runs is {self.runs!r}: must be a whole number of at least 1")
        for field_name, kind in (
            ("unit", str),
            ("note", str),
            ("target", str | None),
            ("paper", int | float | str | None),
        ):
            if not isinstance(getattr(self, field_name), kind):
                raise FigureError(f"figure {self.name}: {field_name} is {getattr(self, field_name)!r}")
        if self.target is not None:
            Target.parse(self.target)

    @property
    def met(self) -> bool | None:
        """Whether `value` reaches `target`; None without a target."""
        return None if self.target is None else Target.parse(self.target).met_by(self.value)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, in the order of the file format."""
        return {
            "name": self.name,
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "runs": self.runs,
            "unit": self.unit,
            "target": self.target,
            "paper": self.paper,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class FigureFile:
    """All figures of one run of one benchmark or study, and what it ran on. Raises `FigureError` for bad fields."""

    name: str
    command: str
    commit: str
    machine: Mapping[str, str | int]
    seconds: float
    quick: bool
    figures: tuple[Figure, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _FILE_NAME.match(self.name):
            raise FigureError(f"figure file name {self.name!r}: use letters, digits, '_', '-'")
        kinds = {"command": str, "commit": str, "machine": Mapping, "seconds": int | float, "quick": bool}
        for field_name, kind in kinds.items():
            if not isinstance(getattr(self, field_name), kind):
                raise FigureError(f"figure file {self.name}: {field_name} is {getattr(self, field_name)!r}")
        seen: set[str] = set()
        for figure in self.figures:
            if figure.name in seen:
                raise FigureError(f"figure file {self.name}: figure {figure.name} appears twice")
            seen.add(figure.name)

    @classmethod
    def here(cls, name: str, command: str, seconds: float, quick: bool, figures: Sequence[Figure]) -> FigureFile:
        """A file for a run on this machine at this commit."""
        return cls(name, command, current_commit(), describe_machine(), seconds, quick, tuple(figures))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, in the order of the file format."""
        return {
            "name": self.name,
            "command": self.command,
            "commit": self.commit,
            "machine": dict(self.machine),
            "seconds": round(self.seconds, 3),
            "quick": self.quick,
            "figures": [figure.to_dict() for figure in self.figures],
        }

    def table(self, path: Path) -> Table:
        """The figures as a table under `path`, the file's, which is marked where the run was quick."""
        return figure_table(self.figures, f"{path}{' (quick)' if self.quick else ''}")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FigureFile:
        """The inverse of `to_dict`; raises `FigureError` naming a missing, unknown or ill-typed field."""
        _check_fields(cls, data, "")
        if not isinstance(data["figures"], list):
            raise FigureError("field 'figures' must be a list of figures")
        for number, figure in enumerate(data["figures"], 1):
            if not isinstance(figure, dict):
                raise FigureError(f"figure {number} of its list must be a JSON object")
            _check_fields(Figure, figure, f"figure {number} of its list: ")
        return cls(**{**data, "figures": tuple(Figure(**figure) for figure in data["figures"])})

    def path(self, directory: Path) -> Path:
        """DIRECTORY/NAME.json, where `write` puts it."""
        return directory / f"{self.name}.json"

    def write(self, directory: Path) -> Path:
        """Write DIRECTORY/NAME.json (made if missing), replacing an older one at once or not at all."""
        path = self.path(directory)
        write_whole(path, json.dumps(self.to_dict(), indent=1) + "\n")
        return path

    @classmethod
    def read(cls, path: Path) -> FigureFile:
        """Read one file; raises `FigureError` naming file and field, or OSError."""
        try:
            data = json.loads(path.read_text())
        except ValueError as fault:
            raise FigureError(f"{path}: not a figure file: {fault}") from None
        except RecursionError:
            raise FigureError(f"{path}: not a figure file: nested too deep") from None
        if not isinstance(data, dict):
            raise FigureError(f"{path}: not a figure file: a JSON object is expected")
        try:
            return cls.from_dict(data)
        except FigureError as fault:
            raise FigureError(f"{path}: not a figure file: {fault}") from None


def read_figures(directory: Path) -> tuple[list[tuple[Path, FigureFile]], list[FigureError]]:
    """Every figure file of a directory, by name, and why each other .json there is none, by its full path. Nothing if
    there is no such directory.
    """
    found, faults = [], []
    for path in sorted(directory.glob("[!.]*.json")):
        try:
            found.append((path, FigureFile.read(path.absolute())))
        except FigureError as fault:
            faults.append(fault)
        except OSError as fault:
            faults.append(FigureError(f"{path.absolute()}: {fault.strerror or fault}"))
    return found, faults


def figure_table(figures: Sequence[Figure], title: str = "") -> Table:
    """A row for each figure: name, value, spread, unit, target, met or missed, the paper's."""
    return Table(
        title,
        [
            Column("figure"),
            Column("value", right=True),
            Column("spread", right=True, spare=2),
            *(Column(heading) for heading in ("unit", "target", "met")),
            Column("paper", folds=True, spare=1),
        ],
        [
            [figure.name, figure.value, _spread(figure), figure.unit, figure.target, verdict(figure.met), figure.paper]
            for figure in figures
        ],
    )


def _spread(figure: Figure) -> str:
    if figure.low is None or figure.high is None:
        return ""
    return f"{format_number(figure.low)} to {format_number(figure.high)}"


def _check_fields(kind: type[Figure] | type[FigureFile], data: Mapping[str, Any], where: str) -> None:
    """Raises `FigureError` for a field of `kind` that `data` lacks, or one that it has not."""
    needed = {field.name: field.default is MISSING for field in fields(kind)}
    if unknown := [name for name in data if name not in needed]:
        raise FigureError(f"{where}field '{unknown[0]}' is unknown")
    if missing := [f"'{name}'" for name in needed if needed[name] and name not in data]:
        which = f"fields {', '.join(missing)} are" if missing[1:] else f"field {missing[0]} is"
        raise FigureError(f"{where}{which} missing")


def median_and_spread(samples: npt.ArrayLike) -> tuple[float, float, float]:
    """Median of repeats and its 95% bootstrap interval: (value, low, high). Raises `FigureError`."""
    values = _samples("samples", samples)
    medians = _bootstrap_medians(values, np.random.default_rng(0))
    return (float(np.median(values)), *_interval(medians))


def ratio_of_medians(a_samples: npt.ArrayLike, b_samples: npt.ArrayLike) -> tuple[float, float, float]:
    """median(a) / median(b) and its 95% bootstrap interval: (value, low, high).

    Both sets are resampled on their own (percentile bootstrap, 4,000 draws, fixed seed), which is right for
    unpaired repeats and wide rather than narrow for repeats taken in turns. One repeat each gives no spread
    (low = value = high). Raises `FigureError` for empty, non-finite or non-positive samples of `b`.
    """
    a, b = _samples("a_samples", a_samples), _samples("b_samples", b_samples)
    if b.min() <= 0:
        raise FigureError(f"b_samples holds {b.min()}: a ratio needs positive numbers below the line")
    generator = np.random.default_rng(0)
    ratios = _bootstrap_medians(a, generator) / _bootstrap_medians(b, generator)
    return (float(np.median(a) / np.median(b)), *_interval(ratios))


def _samples(what: str, samples: npt.ArrayLike) -> npt.NDArray[np.float64]:
    values = np.asarray(samples, dtype=np.float64).ravel()
    if values.size == 0 or not np.isfinite(values).all():
        raise FigureError(f"{what}: needs at least one number, all of them finite")
    return values


def _bootstrap_medians(values: npt.NDArray[np.float64], generator: np.random.Generator) -> npt.NDArray[np.float64]:
    draws = generator.integers(0, values.size, size=(4000, values.size))
    medians: npt.NDArray[np.float64] = np.median(values[draws], axis=1)
    return medians


def _interval(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
