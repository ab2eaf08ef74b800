"""Service times and prices of server types, as `hebe plan pool` and `hebe simulate` read them.

Service times come as samples in CSV (`model,instance,batch,ms_0,...`, several files are added: execution, loading) or
as latency profiles in TOML or JSON. Faults name file, line and field.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hebe.cli.plan_files import PlanFileError, read_entries, reading
from hebe.profile import LatencyProfile, ProfileError
from hebe.simulation.service_table import ServiceTable, ServiceTableError, read_service_tables

_FIRST_COLUMNS = ["model", "instance", "batch"]
_PROFILE_FIELDS = ("model", "server_type", "batch_sizes", "service_s", "spread_s")

_Row = tuple[str, str, int]


@dataclass(frozen=True, slots=True, eq=False)
class ServiceTimes:
    """Of one model: the `table`, and the `files` it was read from."""

    model: str
    table: ServiceTable
    files: tuple[Path, ...]

    @property
    def named_files(self) -> str:
        """The files' names, for messages."""
        return " + ".join(map(str, self.files))

    def of_types(self, types: Sequence[str], why: str) -> ServiceTimes:
        """The same for these server types, in this order; `why` says in a message who asks for one that is missing."""
        for name in types:
            if name not in self.table.types:
                raise PlanFileError(
                    f"{self.named_files}: no service times of {self.model} on {name}, which {why}: measure it, or leave"
                    f" it out; there are {', '.join(self.table.types)}"
                )
        return ServiceTimes(self.model, self.table.of_types(types), self.files)


def read_service_times(files: Sequence[Path], model: str | None) -> ServiceTimes:
    """The service times of `model` in these files; of the only one there if `model` is None.

    Files of samples are added row by row, so each must hold the model with the same server types and sizes; files of
    profiles are put together.
    """
    kinds = {path.suffix.lower() for path in files}
    if kinds == {".csv"}:
        rows = {path: _scanned(path) for path in files}
        model = _only_model(files, sorted({row[0] for scanned in rows.values() for row in scanned}), model)
        _check_rows({path: _of_model(scanned, model) for path, scanned in rows.items()}, model)
        try:
            table = read_service_tables(files)[model]
        except ServiceTableError as fault:
            message = str(fault)
            known = any(message.startswith(str(path)) for path in files)
            raise PlanFileError(message if known else f"{' + '.join(map(str, files))}: {message}") from None
        return ServiceTimes(model, table, tuple(files))
    if kinds <= {".toml", ".json"} and kinds:
        profiles = _profiles(files)
        model = _only_model(files, sorted({of_model for of_model, _ in profiles}), model)
        of_types = {kind: profile for (of_model, kind), profile in profiles.items() if of_model == model}
        # No farther than all of them were measured.
        largest = min(profile.batch_sizes[-1] for profile in of_types.values())
        return ServiceTimes(model, ServiceTable.from_profiles(of_types, largest), tuple(files))
    listed = " + ".join(map(str, files)) or "no file"
    raise PlanFileError(f"{listed}: service times must be .csv files of samples, or .toml or .json files of profiles")


def read_prices(path: Path) -> dict[str, float]:
    """Prices per hour by server type: `instance,price`, each more than 0."""
    prices: dict[str, float] = {}
    for entry in read_entries(path, "price", ("instance", "price")):
        name, price = entry.text("instance"), entry.number("price")
        if name in prices:
            raise PlanFileError(f"{entry.where}: instance {name} is given twice")
        if price <= 0:
            raise PlanFileError(f"{entry.where}: price is {price:g}: must be more than 0 per hour")
        prices[name] = price
    return prices


def _only_model(files: Sequence[Path], models: Sequence[str], asked: str | None) -> str:
    listed = " + ".join(map(str, files))
    if not models:
        raise PlanFileError(f"{listed}: holds no service times")
    if asked is None and len(models) > 1:
        raise PlanFileError(f"{listed}: holds several models: choose one by --model: {', '.join(models)}")
    if asked is not None and asked not in models:
        raise PlanFileError(f"{listed}: holds no model {asked}: there are {', '.join(models)}")
    return models[0] if asked is None else asked


def _scanned(path: Path) -> dict[_Row, int]:
    """The line of each row of a file of samples; the samples themselves are checked by `read_service_tables`."""
    found: dict[_Row, int] = {}
    with reading(path), open(path, newline="", encoding="utf-8") as file:
        reader = csv.reader(file, strict=True)
        header = next(reader, [])
        _check_header(path, header)
        for fields in reader:
            where = f"{path}: line {reader.line_num}"
            if len(fields) != len(header):
                raise PlanFileError(f"{where}: has {len(fields)} fields: must have {len(header)}, as the header")
            for name, text in zip(_FIRST_COLUMNS[:2], fields, strict=False):
                if not text or text != text.strip():
                    raise PlanFileError(f"{where}: {name} is {text!r}: must be a name without spaces around it")
            if not fields[2].isascii() or not fields[2].isdigit() or not 0 < len(fields[2]) <= 9:
                raise PlanFileError(f"{where}: batch is {fields[2]!r}: must be a whole number of items")
            row = (fields[0], fields[1], int(fields[2]))
            if row in found:
                raise PlanFileError(f"{where}: {_words(row)} is given twice, before in line {found[row]}")
            found[row] = reader.line_num
    return found


def _check_header(path: Path, header: list[str]) -> None:
    where = f"{path}: line 1"
    if header[:3] != _FIRST_COLUMNS or len(header) < 5:
        raise PlanFileError(
            f"{where}: columns must be model, instance, batch, then at least two of samples: ms_0, ms_1"
        )
    for at, name in enumerate(header):
        if at >= 3 and not re.fullmatch(r"ms_\d+", name):
            raise PlanFileError(f"{where}: unknown field {name!r}: known are model, instance, batch, ms_0, ms_1, ...")
        if name in header[:at]:
            raise PlanFileError(f"{where}: column {name!r} is there twice")


def _of_model(rows: Mapping[_Row, int], model: str) -> dict[_Row, int]:
    return {row: line for row, line in rows.items() if row[0] == model}


def _check_rows(by_file: Mapping[Path, Mapping[_Row, int]], model: str) -> None:
    """All files have the same rows of the model, and all its server types reach equally far."""
    (first, rows), *others = by_file.items()
    for path, of_path in others:
        for one, other, has, lacks in ((first, path, rows, of_path), (path, first, of_path, rows)):
            if lacking := sorted(set(has) - set(lacks)):
                row = lacking[0]
                raise PlanFileError(
                    f"{other}: has no {_words(row)}, which {one} has in line {has[row]}: files are added row by row;"
                    " give every file every row, with zeros where there is nothing to add"
                )
    reach: dict[str, _Row] = {}
    for row in sorted(rows):
        reach[row[1]] = row
    farthest = max(reach.values(), key=lambda row: row[2])
    for row in reach.values():
        if row[2] < farthest[2]:
            raise PlanFileError(
                f"{first}: line {rows[row]}: {model} on {row[1]} was measured up to {row[2]} items, on {farthest[1]} up"
                f" to {farthest[2]} (line {rows[farthest]}): measure all server types equally far"
            )


def _words(row: _Row) -> str:
    return f"{row[0]} on {row[1]} at {row[2]} items"


def _profiles(files: Sequence[Path]) -> dict[tuple[str, str], LatencyProfile]:
    profiles: dict[tuple[str, str], LatencyProfile] = {}
    for path in files:
        for entry in read_entries(path, "profile", _PROFILE_FIELDS):
            pair = (entry.text("model"), entry.text("server_type"))
            if pair in profiles:
                raise PlanFileError(f"{entry.where}: {pair[0]} on {pair[1]} is given twice")
            try:
                profiles[pair] = LatencyProfile.from_dict(entry.fields)
            except ProfileError as fault:
                raise PlanFileError(f"{entry.where}: {str(fault).removeprefix('latency profile: ')}") from None
    return profiles
