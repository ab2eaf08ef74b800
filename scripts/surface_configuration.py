"""Keys of the files that a user writes.

Readers of tables name all that they know when they meet a key that they do not: what they say then is the list. Keys of
files that become a dataclass are its fields.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import sys
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import tomli_w
from surface_runs import Workplace
from surface_sources import class_named, hebe, sources

UNKNOWN = "zz_unknown"
_KNOWN = re.compile(rf"unknown (?:field|key|setting) '?{UNKNOWN}'?.{{0,3}}(?:known are|there are|known is) (.*)")


def configuration_lines(place: Workplace) -> Iterator[str]:
    """A line for each key."""
    yield from _fields("model.toml", class_named("ModelSpec"))
    yield from _fields("hierarchy.toml", class_named("HierarchyConfig"))
    yield from _alias(place)
    yield from _fields("figures.json", class_named("FigureFile"))
    yield from _hps_parameters()
    yield from _inputs()
    for plan, command in place.plans.items():
        yield from _tables_of(plan, command)
    yield from _server_type()
    yield from _environment()


def _fields(where: str, kind: Any) -> Iterator[str]:
    """The fields of a dataclass and of those in it, with their types and defaults."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint, brackets = hints[field.name], ""
        if isinstance(hint, types.UnionType):
            hint = next(each for each in typing.get_args(hint) if each is not type(None))
        while (origin := typing.get_origin(hint)) is not None:
            inner = [each for each in typing.get_args(hint) if each is not ...]
            brackets += ".{}" if issubclass(origin, Mapping) else "[]"
            hint = inner[-1]
            if isinstance(hint, types.UnionType):
                break
        path = f"{where} {field.name}{brackets}" if " " not in where else f"{where}.{field.name}{brackets}"
        if dataclasses.is_dataclass(hint):
            yield f"{path}: table"
            yield from _fields(path, hint)
            continue
        words = hint.__name__ if isinstance(hint, type) else str(hint)
        if isinstance(hint, type) and issubclass(hint, Enum):
            words = "one of " + ", ".join(str(each.value) for each in hint)
        yield f"{path}: {words}, {_default(field)}"


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        value = field.default.value if isinstance(field.default, Enum) else field.default
        return f"default {value!r}" if not dataclasses.is_dataclass(value) else "default a table"
    return "required" if field.default_factory is dataclasses.MISSING else "default made"


def _alias(place: Workplace) -> Iterator[str]:
    """HPS' word for the address of Kafka, which is no field."""
    Path("kafka.toml").write_text('[update_source]\ntype = "kafka_message_queue"\nbrokers = "127.0.0.1:9092"\n')
    ended = hebe("model", "memory", place.model, "--repository", place.models, "--hierarchy", "kafka.toml")
    yield f"hierarchy.toml update_source.brokers: {'an address' if not ended.code else ended.err}"


def _hps_parameters() -> Iterator[str]:
    """The parameters of HugeCTR's ps.json, by section, and what becomes of each."""
    kind = class_named("HpsParameter")
    (table,) = (
        value
        for value in vars(sys.modules[kind.__module__]).values()
        if isinstance(value, dict)
        and all(isinstance(row, tuple) and isinstance(row[0], kind) for row in value.values())
    )
    for section, parameters in table.items():
        for each in parameters:
            default = "required" if type(each.default) is object else f"default {each.default!r}"
            yield f"ps.json {section or '(root)'}.{each.name}: {each.kind}, {default}, {each.fate} {each.ours}".rstrip()
    Path("ps_unknown.json").write_text(json.dumps({UNKNOWN: 1}))
    yield from _asked("ps.json (root), said", "model", "import-hps", "ps_unknown.json")


def _inputs() -> Iterator[str]:
    """Columns of CSV, and fields of TOML, that planning and simulation read."""
    pool = ("--sla-ms", 12, "--budget", 1, "--sizes", "fixed:10", "--no-simulate")
    plan_pool = ("plan", "pool", "times.csv", "--prices", "prices.csv", *pool)
    provision = ("plan", "provision", "efficiency.csv", "servers.csv", "loads.csv")
    colocate = ("plan", "colocate", "scalability.csv", "server.csv", "demand.csv")
    asked = {
        "times.csv": plan_pool, "prices.csv": plan_pool, "efficiency.csv": provision, "servers.csv": provision,
        "scalability.csv": colocate, "server.csv": colocate, "demand.csv": colocate,
    }  # fmt: skip
    for name, command in asked.items():
        header, *lines = Path(name).read_text().splitlines()
        other = Path(f"unknown_{name}")
        other.write_text("\n".join([f"{header},{UNKNOWN}", *(f"{line},1" for line in lines)]) + "\n")
        yield from _asked(name, *(str(other) if word == name else word for word in command))
    Path("recorded.csv").write_text(f"instance,price,{UNKNOWN}\na,1,1\n")
    yield from _asked("prices.csv (recorded)", "plan", "pool", "times.csv", "--prices", "recorded.csv", *pool)
    profiles = tomllib.loads(Path("profiles.toml").read_text())
    profiles["profile"][0][UNKNOWN] = 1
    Path("unknown_profiles.toml").write_text(tomli_w.dumps(profiles))
    yield from _asked("profiles.toml", "plan", "pool", "unknown_profiles.toml", "--prices", "prices.csv", *pool)
    Path("unknown_scalability.toml").write_text(tomli_w.dumps({"scalability": [{UNKNOWN: 1}]}))
    unknown = ("plan", "colocate", "unknown_scalability.toml", "server.csv", "demand.csv")
    yield from _asked("scalability.toml", *unknown)


def _tables_of(path: Path, command: tuple[object, ...]) -> Iterator[str]:
    """What each table of a plan file may have."""
    content = tomllib.loads(path.read_text())
    other = path.with_name(f"unknown_{path.name}")
    for table in sorted(set(_table_paths(content))):
        changed = copy.deepcopy(content)
        at: Any = changed
        for step in table:
            at = at[0] if step == "[]" else at[step]
        at[UNKNOWN] = 1
        other.write_text(tomli_w.dumps(changed))
        steps = (re.sub(r"^data_.*", "{}", step) for step in table)
        name = f"{path.name} {'.'.join(steps)}".strip().replace(".[]", "[]")
        yield from _asked(name, *(other if word == path else word for word in command))


def _table_paths(value: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(value, dict):
        yield at
        for key, inner in value.items():
            yield from _table_paths(inner, (*at, key))
    elif isinstance(value, list) and value:
        yield from _table_paths(value[0], (*at, "[]"))


def _server_type() -> Iterator[str]:
    """The fields of a server type of one's own."""
    template = hebe("estimate", "--template").out
    whole = tomllib.loads(re.sub(r"^# (?=\[|\w+ = )", "", template, flags=re.M))
    for where in ("", "accelerator"):
        changed = copy.deepcopy(whole)
        (changed[where] if where else changed)[UNKNOWN] = 1
        Path("unknown_server.toml").write_text(tomli_w.dumps(changed))
        yield from _asked(f"server type {where}".strip(), "estimate", "ncf", "--server", "unknown_server.toml")


def _environment() -> Iterator[str]:
    for name in sorted({found for _, path in sources() for found in re.findall(r"HEBE_[A-Z_]+", path.read_text())}):
        yield f"environment {name}"


def _asked(where: str, *command: object) -> Iterator[str]:
    """What a command says that it knows of a file with one key that nothing knows."""
    ended = hebe(*command)
    said = " ".join(ended.err.split())
    if found := _KNOWN.search(said):
        for name in sorted({name.strip().rstrip(".") for name in found[1].split(",")} - {""}):
            yield f"{where}: {name}"
    elif UNKNOWN in said:
        yield f"{where}: refuses what it does not know"
    elif ended.code == 0:
        yield f"{where}: takes any key"
    else:
        raise RuntimeError(f"{where}: {command} says nothing of {UNKNOWN}: {said}")
