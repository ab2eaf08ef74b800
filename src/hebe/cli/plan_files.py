"""What `hebe plan` reads: entries of CSV, TOML and JSON files. Faults name file, line and field.

An entry is a line of a CSV file under its header, a table of an array in a TOML file (`[[server]]`), or an object of a
JSON file, which holds a list of them, or an object with that list (`{"server": [...]}`).
"""

from __future__ import annotations

import csv
import json
import math
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hebe.profile import EfficiencyTuple

_SETTING = "configuration."
"""CSV columns that begin so are settings of an efficiency tuple's configuration."""


class PlanFileError(ValueError):
    """A file that cannot be planned from; the message names file, line and field."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a file: its fields, `where` it stands, and where their names do: `header`."""

    where: str
    fields: Mapping[str, Any]
    header: str

    def text(self, field: str) -> str:
        """A field that names something."""
        value = self.fields.get(field)
        if value is None:
            raise PlanFileError(f"{self.where}: {field} is missing")
        if not isinstance(value, str) or not value.strip():
            raise PlanFileError(f"{self.where}: {field} is {value!r}: must be a name")
        return value.strip()

    def number(self, field: str, default: float | None = None) -> float:
        """A finite number of at least 0; `default` where the field is absent or empty."""
        value = self.fields.get(field)
        if value is None or value == "":
            if default is None:
                raise PlanFileError(f"{self.where}: {field} is missing")
            return default
        return parse_number(value, f"{self.where}: {field}")

    def whole(self, field: str) -> int:
        """A whole number of at least 0."""
        value = self.number(field)
        if value != int(value):
            raise PlanFileError(f"{self.where}: {field} is {value:g}: must be a whole number")
        return int(value)

    def flag(self, field: str) -> bool:
        """True or false; false where the field is absent or empty."""
        value = self.fields.get(field, False)
        known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "": False}
        if isinstance(value, str) and value.strip().lower() in known:
            return known[value.strip().lower()]
        if not isinstance(value, bool):
            raise PlanFileError(f"{self.where}: {field} is {value!r}: must be true or false")
        return value


def parse_number(value: object, where: str) -> float:
    """A finite number of at least 0; `where` begins the message if it is none."""
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        raise PlanFileError(f"{where} is {value!r}: must be a number") from None
    if not math.isfinite(number) or number < 0:
        raise PlanFileError(f"{where} is {value!r}: must be a finite number of at least 0")
    return number


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What is wrong with `path` itself, that it is missing or no CSV, TOML, JSON or text, becomes a `PlanFileError`."""
    try:
        yield
    except (OSError, UnicodeDecodeError, csv.Error, tomllib.TOMLDecodeError, json.JSONDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) and fault.strerror else fault
        raise PlanFileError(f"{path}: cannot be read: {reason}") from None


def read_entries(
    path: Path, name: str, required: Collection[str], optional: Collection[str] = (), prefix: str = ""
) -> list[Entry]:
    """The entries of a file, at least one; `name` is the array's in TOML and JSON.

    A field that is neither `required` nor `optional`, nor begins with `prefix`, is refused, and so is an entry that
    lacks a required one.
    """
    readers: dict[str, Callable[[Path, str], Iterator[Entry]]] = {
        ".csv": csv_entries,
        ".toml": _toml_entries,
        ".json": _json_entries,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise PlanFileError(f"{path}: ends in {path.suffix or 'nothing'!r}: must be a .csv, .toml or .json file")
    with reading(path):
        entries = list(reader(path, name))
    if not entries:
        raise PlanFileError(f"{path}: holds no {name} entries")
    for entry in entries:
        for field in entry.fields:
            if field not in required and field not in optional and not (prefix and field.startswith(prefix)):
                known = ", ".join([*required, *optional, *([f"{prefix}NAME"] if prefix else [])])
                raise PlanFileError(f"{entry.header}: unknown field {field!r}: known are {known}")
        for field in required:
            if field not in entry.fields:
                raise PlanFileError(f"{entry.header}: {field} is missing")
    return entries


def read_efficiency(path: Path, power_watts: Mapping[str, float]) -> list[EfficiencyTuple]:
    """Efficiency tuples: `model,server_type,qps[,power_watts][,estimated][,configuration.NAME...]`.

    A tuple without power takes its server type's from `power_watts`. Tuples of unknown types are read as well. A
    directory stands for the profiles in it, as `hebe profile` writes them: what serving measured counts, where it did.
    """
    from hebe.profile import EfficiencyTuple, ProfileError

    if path.is_dir():
        return _profiled_efficiency(path)
    entries = read_entries(
        path,
        "efficiency",
        ("model", "server_type", "qps"),
        ("power_watts", "estimated", "configuration"),
        _SETTING,
    )
    tuples: list[EfficiencyTuple] = []
    seen: dict[tuple[str, str], str] = {}
    for entry in entries:
        model, kind, qps = entry.text("model"), entry.text("server_type"), entry.number("qps")
        if (model, kind) in seen:
            raise PlanFileError(f"{entry.where}: {model} on {kind} is given twice, before at {seen[model, kind]}")
        seen[model, kind] = entry.where
        power = entry.number("power_watts", power_watts.get(kind, 0.0))
        if qps > 0 and power == 0:
            raise PlanFileError(f"{entry.where}: power_watts is missing or 0, and {kind} has none in the servers' file")
        settings = entry.fields.get("configuration", {})
        if not isinstance(settings, dict):
            raise PlanFileError(f"{entry.where}: configuration is {settings!r}: must be a table of settings")
        settings = dict(settings)
        for field, value in entry.fields.items():
            if field.startswith(_SETTING) and value != "":
                settings[field.removeprefix(_SETTING)] = _setting(value)
        try:
            tuples.append(EfficiencyTuple(model, kind, qps, power, settings, entry.flag("estimated")))
        except ProfileError as fault:
            raise PlanFileError(f"{entry.where}: {fault}") from None
    return tuples


def _profiled_efficiency(directory: Path) -> list[EfficiencyTuple]:
    from hebe.profile import ProfileError
    from hebe.profiling.server_profile import read_server_profile

    found: dict[tuple[str, str], tuple[Path, EfficiencyTuple]] = {}
    for path in sorted(directory.glob("*.json")):
        try:
            profile = read_server_profile(path)
        except ProfileError as fault:
            raise PlanFileError(str(fault)) from None
        told = profile.measured or profile.efficiency
        if (before := found.get((told.model, told.server_type))) is not None:
            raise PlanFileError(f"{path}: {told.model} on {told.server_type} is given twice, before in {before[0]}")
        found[told.model, told.server_type] = path, told
    if not found:
        raise PlanFileError(f"{directory}: holds no profile (*.json) of hebe profile")
    return [told for _, told in found.values()]


@dataclass(frozen=True, slots=True)
class ServerOffer:
    """What a file says of a server type: how many there are, at which price, and what one draws if it is known."""

    available: int
    price_per_hour: float | None
    power_watts: float | None


def read_servers(path: Path) -> dict[str, ServerOffer]:
    """Server types by name: `server_type,available[,price_per_hour][,power_watts]`; all have a price, or none has."""
    offers: dict[str, ServerOffer] = {}
    entries = read_entries(path, "server", ("server_type", "available"), ("price_per_hour", "power_watts"))
    priced = None
    for entry in entries:
        kind = entry.text("server_type")
        if kind in offers:
            raise PlanFileError(f"{entry.where}: server_type {kind} is given twice")
        price, power = (
            entry.number(field) if entry.fields.get(field, "") != "" else None
            for field in ("price_per_hour", "power_watts")
        )
        if priced is not None and priced != (price is not None):
            raise PlanFileError(f"{entry.where}: price_per_hour is given for some server types only: give all or none")
        priced = price is not None
        offers[kind] = ServerOffer(entry.whole("available"), price, power)
    return offers


def _setting(text: Any) -> Any:
    """A CSV cell as the number or flag that it spells, or as text."""
    if not isinstance(text, str):
        return text
    if text.strip().lower() in ("true", "false"):
        return text.strip().lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip()


def csv_entries(path: Path, _name: str = "") -> Iterator[Entry]:
    """The lines of a CSV file under its header; empty lines are skipped, a line of another length is refused."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, strict=True)
        names = [name.strip() for name in next(reader, [])]
        header = f"{path}: line 1"
        if not any(names):
            raise PlanFileError(f"{header}: must be a header with the names of the columns")
        for number, name in enumerate(names):
            if not name:
                raise PlanFileError(f"{header}: column {number + 1} has no name")
            if name in names[:number]:
                raise PlanFileError(f"{header}: column {name!r} is there twice")
        for row in reader:
            where = f"{path}: line {reader.line_num}"
            if not any(cell.strip() for cell in row):
                continue
            if len(row) != len(names):
                raise PlanFileError(f"{where}: has {len(row)} fields: must have {len(names)}: {', '.join(names)}")
            yield Entry(where, dict(zip(names, (cell.strip() for cell in row), strict=True)), header)


def _toml_entries(path: Path, name: str) -> Iterator[Entry]:
    text = path.read_text(encoding="utf-8")
    content = tomllib.loads(text)
    listed = _only_list(path, content, name)
    # tomllib tells no lines; those of the arrays' headings can be found, unless the array is written inline
    pattern = rf"""\s*\[\[\s*["']?{re.escape(name)}["']?\s*\]\]"""
    lines = [number for number, line in enumerate(text.splitlines(), 1) if re.match(pattern, line)]
    for number, fields in enumerate(listed, 1):
        line = f"line {lines[number - 1]}, " if len(lines) == len(listed) else ""
        yield Entry(where := f"{path}: {line}{name} {number}", fields, where)


def _json_entries(path: Path, name: str) -> Iterator[Entry]:
    content = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_unique(path))
    listed = content if isinstance(content, list) else _only_list(path, content, name)
    for number, fields in enumerate(listed, 1):
        where = f"{path}: {name} {number}"
        if not isinstance(fields, dict):
            raise PlanFileError(f"{where}: is {fields!r}: must be an object")
        yield Entry(where, fields, where)


def _only_list(path: Path, content: Any, name: str) -> list[Any]:
    """The array `name` of a file that holds nothing else."""
    if not isinstance(content, dict) or not isinstance(content.get(name), list):
        raise PlanFileError(f"{path}: holds no array {name!r}")
    if others := sorted(set(content) - {name}):
        raise PlanFileError(f"{path}: unknown field {others[0]!r}: known is {name}")
    if not all(isinstance(fields, dict) for fields in content[name]):
        raise PlanFileError(f"{path}: {name}: must hold tables only")
    listed: list[Any] = content[name]
    return listed


def _unique(path: Path) -> Any:
    """Refuses an object with a field that is there twice; `json` would take the last one."""

    def joined(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) != len(pairs):
            twice = next(
                field for number, (field, _) in enumerate(pairs) if field in [name for name, _ in pairs[:number]]
            )
            raise PlanFileError(f"{path}: field {twice!r} is there twice in one object")
        return fields

    return joined
