"""Entries of CSV, TOML and JSON files, and the tuples and servers of some. Errors name file, line and field.

An entry is a line of a CSV file under its header, a table of an array in a TOML file (`[[server]]`), or an object of a
JSON file, which holds a list of them, or an object with that list (`{"server": [...]}`).
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hebe.capacity.errors import PlanFileError
from hebe.capacity.files.profiles import holds_profiles, read_profiles
from hebe.capacity.files.reading import reading
from hebe.profile import EfficiencyTuple, ProfileError
from hebe.workload.text_errors import FIGURE_LIMITS, is_figure, why_no_commas

_SETTING = "configuration."
"""CSV columns that begin so are settings of an efficiency tuple's configuration."""
_MOST_AVAILABLE = 1_000_000
"""Servers of a type: baselines take them one by one."""
_MOST_SHOWN = 60
"""Characters of a wrong value in a message."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a file: its fields, `where` it stands, and where their names do: `header`."""

    where: str
    fields: Mapping[str, Any]
    header: str

    def check_known(self, known: Collection[str]) -> None:
        """Refuse fields that are none of `known`: a misspelt one would be left out in silence."""
        for field in self.fields:
            if field not in known:
                raise PlanFileError(f"{self.where}: unknown field {field!r}: known are {', '.join(known)}")

    def text(self, field: str) -> str:
        """A field that names something."""
        value = self.fields.get(field)
        if value is None:
            raise PlanFileError(f"{self.where}: {field} is missing")
        if not isinstance(value, str) or not value.strip():
            raise PlanFileError(f"{self.where}: {field} is {value!r}: must be a name")
        return value.strip()

    def number(self, field: str, default: float | None = None, *, positive: bool = False) -> float:
        """A finite number of at least 0, or of more if it must be `positive`; `default` where the field is absent or
        empty."""
        value = self.fields.get(field)
        if value is None or value == "":
            if default is None:
                raise PlanFileError(f"{self.where}: {field} is missing")
            return default
        return parse_number(value, f"{self.where}: {field}", positive=positive)

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


def parse_number(value: object, where: str, *, positive: bool = False) -> float:
    """A number between 1e-15 and 1e15, or 0 unless it must be `positive`; `where` begins the message if it is none."""
    shown = repr(value)
    shown = shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}..."
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        raise PlanFileError(f"{where} is {shown}: must be a number") from None
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        raise PlanFileError(
            f"{where} is {shown}: must be a finite number of {'more than' if positive else 'at least'} 0"
        )
    if not is_figure(number):
        raise PlanFileError(f"{where} is {shown}: must {'' if positive else 'be 0, or '}lie {FIGURE_LIMITS}")
    return number


def read_entries(
    path: Path, name: str, required: Collection[str], optional: Collection[str] = (), prefix: str = ""
) -> list[Entry]:
    """The entries of a file, at least one; `name` is the array's in TOML and JSON.

    A field that is neither `required` nor `optional`, nor begins with `prefix`, is refused, and so is an entry that
    lacks a required one.
    """
    entries = entries_of(path, name)
    check_fields(entries, required, optional, prefix)
    return entries


def check_fields(
    entries: Iterable[Entry], required: Collection[str], optional: Collection[str] = (), prefix: str = ""
) -> None:
    """As `read_entries` does. Raises `PlanFileError`."""
    for entry in entries:
        for field in entry.fields:
            if field not in required and field not in optional and not (prefix and field.startswith(prefix)):
                known = ", ".join([*required, *optional, *([f"{prefix}NAME"] if prefix else [])])
                raise PlanFileError(f"{entry.header}: unknown field {field!r}: known are {known}")
        for field in required:
            if field not in entry.fields:
                raise PlanFileError(f"{entry.header}: {field} is missing")


def entries_of(path: Path, name: str) -> list[Entry]:
    """The entries of a file, at least one, whatever their fields; `name` is the array's in TOML and JSON."""
    readers: dict[str, Callable[[Path, str], Iterator[Entry]]] = {
        ".csv": _csv_entries,
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
    return entries


def read_efficiency(path: Path, power_watts: Mapping[str, float]) -> list[EfficiencyTuple]:
    """Efficiency tuples: `model,server_type,qps[,power_watts][,estimated][,configuration.NAME...]`.

    A tuple without power takes its server type's from `power_watts`. Tuples of unknown types are read as well. A
    profile that `hebe profile` wrote, or a directory of them, will do too: what serving measured counts, where it did.
    """
    if holds_profiles(path):
        return [one.profile.measured or one.profile.efficiency for one in read_profiles(path)]
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
            if field == _SETTING:
                raise PlanFileError(f"{entry.header}: column {field!r} names no setting: must be {_SETTING}NAME")
            if field.startswith(_SETTING) and value != "":
                settings[field.removeprefix(_SETTING)] = _setting(value)
        for setting, value in settings.items():
            if not setting.strip():
                raise PlanFileError(f"{entry.where}: configuration: a setting has no name")
            if isinstance(value, float) and not math.isfinite(value):
                raise PlanFileError(f"{entry.where}: {_SETTING}{setting} is {value}: must be a finite number")
        try:
            tuples.append(EfficiencyTuple(model, kind, qps, power, settings, entry.flag("estimated")))
        except ProfileError as fault:
            raise PlanFileError(f"{entry.where}: {fault}") from None
    return tuples


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
        available = entry.whole("available")
        if available > _MOST_AVAILABLE:
            raise PlanFileError(f"{entry.where}: available is {available:,}: at most {_MOST_AVAILABLE:,}")
        offers[kind] = ServerOffer(available, price, power)
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


def _csv_entries(path: Path, _name: str) -> Iterator[Entry]:
    """The lines of a CSV file under its header; empty lines are skipped, a line of another length is refused."""
    with io.StringIO(path.read_bytes().decode("utf-8-sig"), newline="") as file:
        reader = csv.reader(file, strict=True)
        names = [name.strip() for name in next(reader, [])]
        header = f"{path}: line 1"
        if not any(names):
            raise PlanFileError(f"{header}: must be a header with the names of the columns")
        if fault := why_no_commas(names):
            raise PlanFileError(f"{header}: {fault}")
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
    text = path.read_text(encoding="utf-8-sig")
    content = tomllib.loads(text)
    listed = _only_list(path, content, name)
    # tomllib tells no lines; those of the arrays' headings can be found, unless the array is written inline
    pattern = rf"""\s*\[\[\s*["']?{re.escape(name)}["']?\s*\]\]"""
    lines = [number for number, line in enumerate(text.splitlines(), 1) if re.match(pattern, line)]
    for number, fields in enumerate(listed, 1):
        line = f"line {lines[number - 1]}, " if len(lines) == len(listed) else ""
        yield Entry(where := f"{path}: {line}{name} {number}", fields, where)


def _json_entries(path: Path, name: str) -> Iterator[Entry]:
    text = path.read_text(encoding="utf-8-sig")
    content = json.loads(text)
    _check_unique(path, text)
    listed = content if isinstance(content, list) else _only_list(path, content, name)
    lines = _object_lines(text, 1 if isinstance(content, list) else 2)
    for number, fields in enumerate(listed, 1):
        line = f"line {lines[number - 1]}, " if len(lines) == len(listed) else ""
        where = f"{path}: {line}{name} {number}"
        if not isinstance(fields, dict):
            raise PlanFileError(f"{where}: is {fields!r}: must be an object")
        yield Entry(where, fields, where)


def _object_lines(text: str, depth: int) -> list[int]:
    """In which line each object begins that lies in so many others and lists; `text` is JSON, which `json` tells no
    lines of."""
    lines, line, around = [], 1, 0
    for token in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[\]{}\n]', text):
        match token[0]:
            case "\n":
                line += 1
            case "{" | "[":
                if token[0] == "{" and around == depth:
                    lines.append(line)
                around += 1
            case "}" | "]":
                around -= 1
    return lines


def _check_unique(path: Path, text: str) -> None:
    """Refuse an object with a field that is there twice, of which `json` takes the last; `text` is JSON."""
    objects: list[set[str]] = []
    for token in re.finditer(r'("(?:[^"\\]|\\.)*")(\s*:)?|[\[\]{}]', text):
        if token[0] in "[{":
            objects.append(set())
        elif token[0] in "]}":
            objects.pop()
        elif token[2]:
            name = json.loads(token[1])
            if name in objects[-1]:
                line = text.count("\n", 0, token.start()) + 1
                raise PlanFileError(f"{path}: line {line}: field {name!r} is there twice in one object")
            objects[-1].add(name)


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
