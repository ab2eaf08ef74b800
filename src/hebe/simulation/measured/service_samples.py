"""Samples of service times in CSV files: `model,server_type,items,ms_0,ms_1,...`, a row for a query size.

Several files (execution, loading) are added row by row, so that each must have every row of a model. The slowest sample
of a row, the first call, is left out, as the Kairos artifact does. Kairos' recorded measurements call the server type
`instance` and the items `batch`, and are read as well.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hebe.simulation.measured.service_table import ServiceTable, ServiceTableError
from hebe.workload.text_errors import FIGURE_LIMITS, is_figure, why_no_commas, why_unreadable

Floats = npt.NDArray[np.float64]

_KEYS = (["model", "server_type", "items"], ["model", "instance", "batch"])
"""The first columns: ours, and those of Kairos' measurements."""

_Row = tuple[str, str, int]


@dataclass(frozen=True, slots=True, eq=False)
class _File:
    """What a file has of each row: the line, and the samples in milliseconds, one for each of the `columns`."""

    path: Path
    columns: tuple[str, ...]
    lines: Mapping[_Row, int]
    samples_ms: Mapping[_Row, Floats]

    def place(self, row: _Row) -> str:
        return f"{self.path}: line {self.lines[row]}"

    def of_model(self, model: str) -> list[_Row]:
        return sorted(row for row in self.lines if row[0] == model)


@dataclass(frozen=True, slots=True, eq=False)
class ServiceSamples:
    """The samples of some files, and the models that they are of, sorted."""

    models: tuple[str, ...]
    _files: tuple[_File, ...]

    def table(self, model: str) -> ServiceTable:
        """The service times of one of the models. Raises `ServiceTableError` naming file and line if the files do not
        fit together, if a server type was measured less far than another, or if a sample is 0."""
        first, *others = self._files
        for other in others:
            self._check_same_rows(model, first, other)
        rows = first.of_model(model)
        self._check_reach(model, rows)
        samples_s: dict[str, dict[int, list[float]]] = {}
        for row in first.lines:  # server types in the order of the file
            if row[0] == model:
                samples_s.setdefault(row[1], {})[row[2]] = self._added_s(row)
        return ServiceTable.from_samples(samples_s)

    def _added_s(self, row: _Row) -> list[float]:
        """A row's samples of all files together, without the slowest."""
        added_ms = np.sum([file.samples_ms[row] for file in self._files], axis=0)
        kept_s: list[float] = (np.sort(added_ms)[:-1] / 1e3).tolist()
        if kept_s[0] <= 0:
            first = self._files[0]
            together = " in all files together" if len(self._files) > 1 else ""
            raise ServiceTableError(
                f"{first.place(row)}: {first.columns[int(added_ms.argmin())]} is 0{together}: samples must be positive"
                " milliseconds"
            )
        return kept_s

    @staticmethod
    def _check_same_rows(model: str, first: _File, other: _File) -> None:
        for has, lacks in ((first, other), (other, first)):
            for row in has.of_model(model):
                if row not in lacks.lines:
                    raise ServiceTableError(
                        f"{lacks.path}: has no {_words(row)}, which {has.path} has in line {has.lines[row]}: files are"
                        " added row by row; give every file every row, with zeros where there is nothing to add"
                    )
        if len(first.columns) != len(other.columns):
            raise ServiceTableError(
                f"{other.path}: has {len(other.columns)} samples in a row, and {first.path} {len(first.columns)}: files"
                " are added sample by sample"
            )

    def _check_reach(self, model: str, rows: Sequence[_Row]) -> None:
        reach = {row[1]: row for row in rows}  # the rows are sorted by items
        farthest = max(reach.values(), key=lambda row: row[2])
        for row in reach.values():
            if row[2] < farthest[2]:
                file = self._files[0]
                raise ServiceTableError(
                    f"{file.place(row)}: {model} on {row[1]} was measured up to {row[2]} items, on {farthest[1]} up to"
                    f" {farthest[2]} (line {file.lines[farthest]}): measure all server types equally far"
                )


def read_samples(paths: Sequence[Path]) -> ServiceSamples:
    """The samples of at least one file. Raises `ServiceTableError` naming file, line and field."""
    files = tuple(_read(path) for path in paths)
    return ServiceSamples(tuple(sorted({row[0] for file in files for row in file.lines})), files)


def read_service_tables(paths: Sequence[Path]) -> dict[str, ServiceTable]:
    """The tables of all models in some files. Raises as `read_samples` and `ServiceSamples.table` do."""
    samples = read_samples(paths)
    return {model: samples.table(model) for model in samples.models}


def _read(path: Path) -> _File:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            return _parsed(path, file)
    except (OSError, UnicodeDecodeError, csv.Error) as fault:
        raise ServiceTableError(f"{path}: {why_unreadable(path, fault)}") from None


def _parsed(path: Path, text: Iterable[str]) -> _File:
    reader = csv.reader(text, strict=True)
    header = [name.strip() for name in next(reader, [])]
    _check_header(path, header)
    columns = tuple(header[3:])
    lines: dict[_Row, int] = {}
    samples_ms: dict[_Row, Floats] = {}
    for fields in reader:
        if not any(cell.strip() for cell in fields):
            continue
        where = f"{path}: line {reader.line_num}"
        if len(fields) != len(header):
            raise ServiceTableError(f"{where}: has {len(fields)} fields: must have {len(header)}, as the header")
        row = _row(where, header, fields)
        if row in lines:
            raise ServiceTableError(f"{where}: {_words(row)} is given twice, before in line {lines[row]}")
        lines[row] = reader.line_num
        samples_ms[row] = np.array(
            [_milliseconds(where, name, text) for name, text in zip(columns, fields[3:], strict=True)]
        )
    return _File(path, columns, lines, samples_ms)


def _check_header(path: Path, header: list[str]) -> None:
    where = f"{path}: line 1"
    if fault := why_no_commas(header):
        raise ServiceTableError(f"{where}: {fault}")
    known = ", ".join(header[:3] if header[:3] in _KEYS else _KEYS[0])
    if header[:3] not in _KEYS or len(header) < 5:
        raise ServiceTableError(f"{where}: columns must be {known}, then at least two of samples: ms_0, ms_1")
    for at, name in enumerate(header):
        if at >= 3 and not re.fullmatch(r"ms_\d+", name):
            raise ServiceTableError(f"{where}: unknown field {name!r}: known are {known}, ms_0, ms_1, ...")
        if name in header[:at]:
            raise ServiceTableError(f"{where}: column {name!r} is there twice")


def _row(where: str, header: list[str], fields: list[str]) -> _Row:
    model, kind, items = fields[:3]
    for name, text in zip(header[:2], (model, kind), strict=True):
        if not text or text != text.strip():
            raise ServiceTableError(f"{where}: {name} is {text!r}: must be a name without spaces around it")
    if not items.isascii() or not items.isdigit() or len(items) > 9 or not int(items):
        raise ServiceTableError(f"{where}: {header[2]} is {items!r}: must be a whole number of items, at least 1")
    return model, kind, int(items)


def _milliseconds(where: str, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ServiceTableError(f"{where}: {name} is {text!r}: must be a number of milliseconds")
    if not is_figure(value):
        raise ServiceTableError(f"{where}: {name} is {text!r}: must be 0, or lie {FIGURE_LIMITS}")
    return value


def _words(row: _Row) -> str:
    return f"{row[0]} on {row[1]} at {row[2]} items"
