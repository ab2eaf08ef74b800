"""Plain data of the files that profiling writes, checked when it is read back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NoReturn

from hebe.planning.parallelism import Configuration, Reached
from hebe.profile import ProfileError
from hebe.profiling.evaluator import ScalabilityPoint
from hebe.server_configuration import from_dict, to_dict

RUN_FIELDS = ("configuration", "qps", "power_watts", "tail_latency_ms", "low_qps", "high_qps")
POINT_FIELDS = ("configuration", "cache_ways", "qps", "bandwidth_bytes_per_s", "estimated")


def parse_json(text: str | bytes) -> Any:
    """What the text holds; raises `ValueError` where it is no JSON, with NaN and Infinity, which JSON has not."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as fault:
        raise ValueError(str(fault)) from None


def run_to_dict(configuration: Configuration, reached: Reached) -> dict[str, Any]:
    """What a configuration reached; a latency that is not known is None, as is a confidence."""
    known = math.isfinite(reached.tail_latency_ms)
    return {
        "configuration": to_dict(configuration),
        "qps": reached.qps,
        "power_watts": reached.power_watts,
        "tail_latency_ms": reached.tail_latency_ms if known else None,
        "low_qps": reached.low_qps,
        "high_qps": reached.high_qps,
    }


def run_from_dict(where: str, data: object) -> tuple[Configuration, Reached]:
    """The inverse of `run_to_dict`; raises `ProfileError`, `SpecError` naming a missing, unknown or ill-typed field."""
    fields = checked_fields(where, data, RUN_FIELDS)
    configuration = from_dict(checked_object(f"{where}: configuration", fields.pop("configuration")))
    if fields["tail_latency_ms"] is None:
        fields["tail_latency_ms"] = math.inf
    for name, value in fields.items():
        if value is not None or name not in ("low_qps", "high_qps"):
            fields[name] = checked_number(where, name, value)
    return configuration, Reached(**fields)


def point_to_dict(configuration: Configuration, cache_ways: int | None, point: ScalabilityPoint) -> dict[str, Any]:
    """What a configuration reached with so many ways of the last-level cache; None: all of them."""
    return {"configuration": to_dict(configuration), "cache_ways": cache_ways, **asdict(point)}


def point_from_dict(where: str, data: object) -> tuple[Configuration, int | None, ScalabilityPoint]:
    """The inverse of `point_to_dict`; raises as `run_from_dict`."""
    fields = checked_fields(where, data, POINT_FIELDS)
    configuration = from_dict(checked_object(f"{where}: configuration", fields["configuration"]))
    ways, estimated = fields["cache_ways"], fields["estimated"]
    if ways is not None and (not isinstance(ways, int) or isinstance(ways, bool) or ways < 1):
        raise ProfileError(f"{where}: cache_ways is {ways!r}: must be null, or a whole number of at least 1")
    if not isinstance(estimated, bool):
        raise ProfileError(f"{where}: estimated is {estimated!r}: must be true or false")
    qps, traffic = (checked_number(where, name, fields[name]) for name in ("qps", "bandwidth_bytes_per_s"))
    return configuration, ways, ScalabilityPoint(qps, traffic, estimated)


def checked_number(where: str, name: str, value: object) -> float:
    """`value` as a float; raises `ProfileError` unless it is a number of at least 0."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        raise ProfileError(f"{where}: {name} is {value!r}: must be a number of at least 0")
    try:
        return float(value)
    except OverflowError:
        raise ProfileError(f"{where}: {name} is {value!r}: must be a finite number") from None


def checked_fields(where: str, data: object, names: Sequence[str]) -> dict[str, Any]:
    """`data` as a dict with exactly these fields; raises `ProfileError` naming what is missing or unknown."""
    fields = checked_object(where, data)
    if unknown := sorted(set(fields) - set(names)):
        raise ProfileError(f"{where}: unknown field {unknown[0]!r}: known are {', '.join(names)}")
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
