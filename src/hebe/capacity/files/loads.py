"""Loads over time, from CSV, TOML and JSON or given as data. Errors name file, line and field."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hebe.capacity.errors import ArgumentError, PlanFileError, check_at_least
from hebe.capacity.files.entries import Entry, entries_of, parse_number
from hebe.capacity.files.reading import in_memory
from hebe.workload.rate_trace import moment_of, parse_time_s

Floats = npt.NDArray[np.float64]

_SAME_STEP = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """Loads over time: `qps` float64 `[n, models]` at `times_s` `[n]`, evenly `spacing_s` apart, the first at 0.

    `start` is the first time as the file has it; `spacing_s` is 0 if it is the only one. `header` says where the file
    names the models, `where` [n] where it has the times, with their values.
    """

    models: tuple[str, ...]
    times_s: Floats
    qps: Floats
    spacing_s: float
    start: str
    header: str
    where: tuple[str, ...]

    @classmethod
    def evenly(cls, qps: Mapping[str, Sequence[float]], step_s: float, *, start: str = "0") -> Loads:
        """Loads in queries/s by model, the next `step_s` seconds after the one before; `start` names the first time.

        Raises `ArgumentError` for what is no load, and for models with loads of different lengths.
        """
        check_at_least("step_s", step_s, more_than=0.0)
        lengths = {len(of_model) for of_model in qps.values()}
        if len(lengths) != 1 or not min(lengths):
            raise ArgumentError("qps", "must have the load of at least one model, of all models at the same times")
        loads = np.array(list(qps.values()), dtype=np.float64).T
        for at, model in np.argwhere(~(np.isfinite(loads) & (loads >= 0))).tolist()[:1]:
            value = loads[at, model]
            raise ArgumentError("qps", f"load {at + 1} of {list(qps)[model]} is {value:g}: must be finite, at least 0")
        times_s = np.arange(len(loads), dtype=np.float64) * np.float64(step_s)
        where = tuple(f"{in_memory('loads')}: load {at}, {time_s:g} s" for at, time_s in enumerate(times_s.tolist(), 1))
        spacing_s = float(step_s) if len(loads) > 1 else 0.0
        return cls(tuple(qps), times_s, loads, spacing_s, start, str(in_memory("loads")), where)


def read_loads(path: Path, models: Collection[str]) -> Loads:
    """Loads of some or all of `models`: columns `time_s` and one for each model, or `time_s,model,qps`.

    A time is seconds, or a date and time in ISO 8601, with a UTC offset or without: all the same. In TOML and JSON the
    entries are called `load`. Refused are gaps in time and empty fields, a time or a model that is given twice, a model
    that is not among `models`, and what is no number of at least 0.
    """
    entries = entries_of(path, "load")
    names = set(entries[0].fields)
    if "time_s" not in names:
        raise PlanFileError(f"{entries[0].header}: time_s is missing")
    for entry in entries:
        if others := sorted(names.symmetric_difference(entry.fields)):
            wrong = "is missing" if others[0] in names else "is there, but not in the first entry"
            raise PlanFileError(f"{entry.where}: {others[0]} {wrong}")
    _check_times_alike(entries)
    table = _long(entries, models) if names == {"time_s", "model", "qps"} else _wide(entries, models)
    return _even(entries[0].header, *table)


def _wide(
    entries: list[Entry], models: Collection[str]
) -> tuple[tuple[str, ...], list[tuple[float, Entry]], list[list[float]]]:
    """One line a time, one column a model."""
    named = tuple(name for name in entries[0].fields if name != "time_s")
    for name in named:
        _check_model(name, models, f"{entries[0].header}: model {name!r}")
    if not named:
        raise PlanFileError(f"{entries[0].header}: must have the load of each model besides time_s")
    times = [(_time_s(entry), entry) for entry in entries]
    return named, times, [[_load(entry, name) for name in named] for entry in entries]


def _long(
    entries: list[Entry], models: Collection[str]
) -> tuple[tuple[str, ...], list[tuple[float, Entry]], list[list[float]]]:
    """One line a time and model, in any order of the models."""
    given: dict[float, tuple[Entry, dict[str, float]]] = {}
    named: dict[str, None] = {}
    for entry in entries:
        time_s = _time_s(entry)
        model = entry.text("model")
        _check_model(model, models, f"{entry.where}: model {model!r}")
        named[model] = None
        loads = given.setdefault(time_s, (entry, {}))[1]
        if model in loads:
            raise PlanFileError(f"{entry.where}: {model} at time_s {entry.fields['time_s']} is given twice")
        loads[model] = _load(entry, "qps")
    for entry, loads in given.values():
        for model in named:
            if model not in loads:
                raise PlanFileError(f"{entry.where}: no load of {model} at time_s {entry.fields['time_s']}: a gap")
    times = [(time_s, given[time_s][0]) for time_s in sorted(given)]
    return tuple(named), times, [[given[time_s][1][model] for model in named] for time_s, _ in times]


def _check_model(name: str, models: Collection[str], where: str) -> None:
    if name not in models:
        raise PlanFileError(f"{where} has no efficiency tuples: known models are {', '.join(models)}")


def _time_s(entry: Entry) -> float:
    return parse_time_s(_time_text(entry), f"{entry.where}: time_s")


def _time_text(entry: Entry) -> str:
    """In CSV and JSON a date is text, TOML knows it; what they have as a number is seconds."""
    value = entry.fields["time_s"]
    if isinstance(value, date):
        value = value.isoformat()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        value = f"{value}.0" if isinstance(value, int) else str(value)
    if not isinstance(value, str) or not value:
        raise PlanFileError(f"{entry.where}: time_s is {value!r}: must be seconds or an ISO 8601 date and time")
    return value


def _check_times_alike(entries: list[Entry]) -> None:
    """Of seconds, moments and the wall clock's times nobody knows which comes first."""
    first = _time_form(entries[0])
    for entry in entries[1:]:
        form = _time_form(entry)
        if form != first:
            raise PlanFileError(
                f"{entry.where}: time_s {entry.fields['time_s']} is {form}, but {entries[0].fields['time_s']} at"
                f" {entries[0].where} is {first}: give all times alike"
            )


def _time_form(entry: Entry) -> str:
    """How a time is given, in words; raises what `parse_time_s` does."""
    text = _time_text(entry)
    parse_time_s(text, f"{entry.where}: time_s")
    moment = moment_of(text)
    if moment is None:
        return "in seconds"
    return "a date without a UTC offset" if moment.tzinfo is None else "a date with a UTC offset"


def _load(entry: Entry, field: str) -> float:
    value = entry.fields[field]
    if value is None or value == "":
        raise PlanFileError(f"{entry.where}: {field} is empty: the load has a gap")
    return parse_number(value, f"{entry.where}: {field}")


def _even(header: str, models: tuple[str, ...], times: list[tuple[float, Entry]], loads: list[list[float]]) -> Loads:
    """Checks that the times increase by the same step."""
    moments = np.array([time_s for time_s, _ in times])
    steps = np.diff(moments)
    for number, step in enumerate(steps.tolist()):
        if step <= 0:
            entry = times[number + 1][1]
            twice = "is given twice" if step == 0 else "is earlier than the line before"
            raise PlanFileError(f"{entry.where}: time_s {entry.fields['time_s']} {twice}")
    # The lower median: a step that there is, where the median lies between two.
    spacing = float(np.sort(steps)[(len(steps) - 1) // 2]) if len(steps) else 0.0
    odd = np.flatnonzero(np.abs(steps - spacing) > _SAME_STEP * spacing)
    if len(odd):
        at = int(odd[0])
        entry, step = times[at + 1][1], steps[at]
        kind = "a gap" if step > spacing else "an uneven step"
        steps_are = f"{step:g} s after the time before, others {spacing:g} s"
        raise PlanFileError(f"{entry.where}: time_s {entry.fields['time_s']} is {steps_are}: {kind}")
    where = tuple(f"{entry.where}: time_s {entry.fields['time_s']}" for _, entry in times)
    start = str(times[0][1].fields["time_s"])
    return Loads(models, moments - moments[0], np.array(loads), spacing, start, header, where)
