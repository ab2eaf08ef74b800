"""Plain data of the files that profiling writes, checked when it is read back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NoReturn

from hebe.planning.server_split.search import Configuration, Reached
from hebe.profile import LatencyProfile, ProfileError
from hebe.profiling.files.points import ScalabilityPoint
from hebe.profiling.steady_machine import Disturbance, RunDisturbance
from hebe.scheduling.events import Stage
from hebe.server_configuration import Lane, from_dict, to_dict
from hebe.spec import is_finite

RUN_FIELDS = ("configuration", "qps", "power_watts", "tail_latency_ms", "low_qps", "high_qps")
LATER_RUN_FIELDS = (
    "power_source", "power_estimated", "bandwidth_bytes_per_s", "bandwidth_estimated", "cpu_share", "runs_of_nothing",
)  # fmt: skip
"""Which runs that were written by older versions lack: it is then not known."""
TIMES_FIELDS = ("lane", "batch_sizes", "stages")
RUN_DISTURBANCE_FIELDS = ("denied", "ticks", "slowest_s", "repeated", "waited_s", "busy")
POINT_FIELDS = ("configuration", "cache_ways", "qps", "bandwidth_bytes_per_s", "estimated")
LATER_POINT_FIELDS = ("power_watts",)


def parse_json(text: str | bytes) -> Any:
    """What the text holds; raises `ValueError` where it is no JSON, with NaN and Infinity, which JSON has not."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as fault:
        raise ValueError(str(fault)) from None


def run_to_dict(configuration: Configuration, reached: Reached) -> dict[str, Any]:
    """What a configuration reached; a latency that is not known is None, as is a confidence."""
    known = math.isfinite(reached.tail_latency_ms)
    told = asdict(reached) | {"tail_latency_ms": reached.tail_latency_ms if known else None}
    return {"configuration": to_dict(configuration), **told}


def run_from_dict(where: str, data: object) -> tuple[Configuration, Reached]:
    """The inverse of `run_to_dict`; raises `ProfileError`, `SpecError` naming a missing, unknown or ill-typed field."""
    fields = checked_fields(where, data, RUN_FIELDS, LATER_RUN_FIELDS)
    configuration = from_dict(checked_object(f"{where}: configuration", fields.pop("configuration")))
    for name, value in fields.items():
        if name in ("power_estimated", "bandwidth_estimated"):
            checked_flag(where, name, value)
        elif name == "power_source":
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise ProfileError(f"{where}: {name} is {value!r}: must be text or null")
        elif name == "runs_of_nothing":
            fields[name] = checked_count(where, name, value)
        elif value is not None or name in ("qps", "power_watts"):
            fields[name] = checked_number(where, name, value)
    if fields["tail_latency_ms"] is None:
        fields["tail_latency_ms"] = math.inf
    reached = Reached(**fields)
    if reached.cpu_share is not None and reached.cpu_share > 1:
        raise ProfileError(f"{where}: cpu_share is {reached.cpu_share!r}: must be at most 1")
    if reached.qps > 0 and not reached.power_watts:
        raise ProfileError(f"{where}: power_watts is 0: a server that serves draws power")
    return configuration, reached


def point_to_dict(configuration: Configuration, cache_ways: int | None, point: ScalabilityPoint) -> dict[str, Any]:
    """What a configuration reached with so many ways of the last-level cache; None: all of them."""
    return {"configuration": to_dict(configuration), "cache_ways": cache_ways, **asdict(point)}


def point_from_dict(where: str, data: object) -> tuple[Configuration, int | None, ScalabilityPoint]:
    """The inverse of `point_to_dict`; raises as `run_from_dict`."""
    fields = {"power_watts": 0.0, **checked_fields(where, data, POINT_FIELDS, LATER_POINT_FIELDS)}
    configuration = from_dict(checked_object(f"{where}: configuration", fields["configuration"]))
    ways = fields["cache_ways"]
    if ways is not None and (not isinstance(ways, int) or isinstance(ways, bool) or ways < 1):
        raise ProfileError(f"{where}: cache_ways is {ways!r}: must be null, or a whole number of at least 1")
    estimated = checked_flag(where, "estimated", fields["estimated"])
    qps, traffic, watts = (
        checked_number(where, name, fields[name]) for name in ("qps", "bandwidth_bytes_per_s", "power_watts")
    )
    return configuration, ways, ScalabilityPoint(qps, traffic, estimated, watts)


def times_to_dict(lane: Lane, batch_sizes: Sequence[int], stages: Mapping[Stage, LatencyProfile]) -> dict[str, Any]:
    """How long batches of these sizes took on a lane's workers, by stage."""
    told = {str(stage): profile.to_dict() for stage, profile in stages.items()}
    return {"lane": to_dict((lane,)), "batch_sizes": list(batch_sizes), "stages": told}


def times_from_dict(where: str, data: object) -> tuple[Lane, tuple[int, ...], dict[Stage, LatencyProfile]]:
    """The inverse of `times_to_dict`; raises as `run_from_dict`."""
    fields = checked_fields(where, data, TIMES_FIELDS)
    lane, *more = from_dict(checked_object(f"{where}: lane", fields["lane"]))
    sizes = checked_list(f"{where}: batch_sizes", fields["batch_sizes"])
    if more or not all(isinstance(size, int) and not isinstance(size, bool) for size in sizes):
        raise ProfileError(f"{where}: must be of one lane, and of whole numbers of items")
    told = checked_object(f"{where}: stages", fields["stages"])
    if unknown := sorted(set(told) - set(Stage)):
        raise ProfileError(f"{where}: stages: unknown stage {unknown[0]!r}: known are {', '.join(Stage)}")
    stages = {
        Stage(stage): LatencyProfile.from_dict(checked_object(f"{where}: {stage}", profile))
        for stage, profile in told.items()
    }
    return lane, tuple(sizes), stages


def run_disturbance_from_dict(where: str, data: object) -> RunDisturbance:
    """The inverse of `asdict`; raises `ProfileError` naming a missing, unknown or ill-typed field."""
    told = checked_fields(where, data, RUN_DISTURBANCE_FIELDS)
    denied, ticks, slowest_s, repeated, waited_s, busy = (
        checked_number(where, name, told[name]) for name in RUN_DISTURBANCE_FIELDS
    )
    if not slowest_s:
        raise ProfileError(f"{where}: slowest_s is 0: the work by which the machine's speed is told takes time")
    return RunDisturbance(denied, int(ticks), slowest_s, int(repeated), waited_s, busy)


def disturbance_to_dict(disturbance: Disturbance) -> dict[str, Any]:
    """What disturbed the measurements of a profile."""
    return {
        "busy_share": disturbance.busy,
        "denied_share": disturbance.denied,
        "slowest_share": disturbance.slowest_share,
        "repeated": disturbance.repeated,
        "waited_s": disturbance.waited_s,
    }


def disturbance_from_dict(where: str, data: object) -> Disturbance:
    """The inverse of `disturbance_to_dict`; raises as `run_disturbance_from_dict`."""
    names = tuple(disturbance_to_dict(Disturbance()))
    told = checked_fields(where, data, names)
    busy, denied, slowest_share, repeated, waited_s = (checked_number(where, name, told[name]) for name in names)
    return Disturbance(denied, slowest_share, int(repeated), waited_s, busy)


def checked_flag(where: str, name: str, value: object) -> bool:
    """`value`; raises `ProfileError` unless it is true or false."""
    if not isinstance(value, bool):
        raise ProfileError(f"{where}: {name} is {value!r}: must be true or false")
    return value


def checked_count(where: str, name: str, value: object) -> int:
    """`value`; raises `ProfileError` unless it is a whole number of at least 0."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ProfileError(f"{where}: {name} is {value!r}: must be a whole number of at least 0")
    return value


def checked_number(where: str, name: str, value: object) -> float:
    """`value` as a float; raises `ProfileError` unless it is a finite number of at least 0."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        raise ProfileError(f"{where}: {name} is {value!r}: must be a number of at least 0")
    if not is_finite(value):  # JSON has no infinity, but 1e999 becomes one
        raise ProfileError(f"{where}: {name} is {value!r}: must be a finite number")
    return float(value)


def checked_fields(where: str, data: object, names: Sequence[str], more: Sequence[str] = ()) -> dict[str, Any]:
    """`data` as a dict with exactly these fields, and those of `more` that it has; raises `ProfileError` naming what is
    missing or unknown."""
    fields = checked_object(where, data)
    if unknown := sorted(set(fields) - {*names, *more}):
        raise ProfileError(f"{where}: unknown field {unknown[0]!r}: known are {', '.join([*names, *more])}")
    if missing := [name for name in names if name not in fields]:
        raise ProfileError(f"{where}: field {missing[0]!r} is missing")
    return fields


def checked_object(where: str, data: object) -> dict[str, Any]:
    """`data` as a dict of its own; raises `ProfileError` unless it is an object."""
    if not isinstance(data, Mapping):
        raise ProfileError(f"{where} is {data!r}: must be an object with fields")
    return dict(data)


def checked_list(where: str, data: object) -> list[Any]:
    """`data` as a list; raises `ProfileError` unless it is one."""
    if not isinstance(data, list):
        raise ProfileError(f"{where} is {data!r}: must be a list")
    return data


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
