"""What was measured of a model on a server, as plain data that can be written to disk and read back.

Each raises `ProfileError` when made of what no measurement can give.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from hebe.spec import SettingValue


class ProfileError(ValueError):
    """A profile that cannot be used; the message names the field."""


@dataclass(frozen=True, slots=True)
class LatencyProfile:
    """Service time of one batch on one worker, by batch size.

    `batch_sizes` items, strictly increasing; `service_s` the median seconds at each; `spread_s` the median
    absolute deviation at each.
    """

    batch_sizes: tuple[int, ...]
    service_s: tuple[float, ...]
    spread_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.batch_sizes:
            raise ProfileError("latency profile: batch_sizes is empty; measure at least one size")
        if not len(self.batch_sizes) == len(self.service_s) == len(self.spread_s):
            raise ProfileError("latency profile: batch_sizes, service_s and spread_s differ in length")
        if any(b <= a for a, b in zip((0, *self.batch_sizes), self.batch_sizes, strict=False)):
            raise ProfileError("latency profile: batch_sizes must be positive and strictly increasing")
        if not all(math.isfinite(value) and value > 0 for value in self.service_s):
            raise ProfileError("latency profile: service_s must be positive seconds")
        if not all(math.isfinite(value) and value >= 0 for value in self.spread_s):
            raise ProfileError("latency profile: spread_s must be non-negative seconds")

    def service_time_s(self, items: int) -> float:
        """Median seconds for a batch of `items`: linear between measured sizes, and the first's below it.

        Beyond the last size it rises as from the largest size of at most half the last (else the first) to the last,
        but never falls; in proportion to the items where one size was measured.
        """
        sizes, times = self.batch_sizes, self.service_s
        at = bisect_left(sizes, items)
        if at == 0:
            return times[0]
        if at == len(sizes):
            if at == 1:
                return times[-1] * items / sizes[-1]
            # From afar: between neighbours the noise of two measurements may be all the difference.
            before = max(bisect_right(sizes, sizes[-1] // 2) - 1, 0)
            slope = max((times[-1] - times[before]) / (sizes[-1] - sizes[before]), 0.0)
            return times[-1] + slope * (items - sizes[-1])
        share = (items - sizes[at - 1]) / (sizes[at] - sizes[at - 1])
        return times[at - 1] + share * (times[at] - times[at - 1])

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `from_dict` reads it back to an equal profile."""
        return {
            "batch_sizes": list(self.batch_sizes),
            "service_s": list(self.service_s),
            "spread_s": list(self.spread_s),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LatencyProfile:
        """The inverse of `to_dict`; raises `ProfileError` naming a missing or ill-typed field.

        Other fields, such as what the profile is of, are left aside.
        """
        for name in ("batch_sizes", "service_s", "spread_s"):
            if name not in data:
                raise ProfileError(f"latency profile: field {name!r} is missing")
            values, whole = data[name], name == "batch_sizes"
            if not isinstance(values, list | tuple) or not all(
                _is_number(value) and (isinstance(value, int) or not whole) for value in values
            ):
                kind = "whole numbers" if whole else "numbers"
                raise ProfileError(f"latency profile: {name} is {values!r}: must be a list of {kind}")
        return cls(
            tuple(data["batch_sizes"]),
            tuple(float(value) for value in data["service_s"]),
            tuple(float(value) for value in data["spread_s"]),
        )


@dataclass(frozen=True, slots=True)
class EfficiencyTuple:
    """What one server of a type does for one model, at its best configuration.

    `qps` is the latency-bounded throughput, `power_watts` the provisioned power: the peak measured at that load.
    A `qps` of 0 says that the server type cannot serve the model, which is not the same as a tuple that is missing.
    `configuration` holds the settings that reached it (workers, cores a worker, batch size), where they are known.
    `estimated`: computed from a model of the server, not measured on one.
    """

    model: str
    server_type: str
    qps: float
    power_watts: float
    configuration: Mapping[str, SettingValue] = field(default_factory=dict, hash=False)
    estimated: bool = False

    def __post_init__(self) -> None:
        for name, text in (("model", self.model), ("server_type", self.server_type)):
            _check_text("efficiency tuple", name, text)
        where = f"efficiency tuple of {self.model} on {self.server_type}"
        for name, value in (("qps", self.qps), ("power_watts", self.power_watts)):
            if not _is_number(value) or not math.isfinite(value) or value < 0:
                raise ProfileError(f"{where}: {name} is {value!r}: must be a finite number of at least 0")
        if self.qps > 0 and self.power_watts == 0:
            raise ProfileError(f"{where}: power_watts is 0: a server that serves draws power")
        if not isinstance(self.configuration, Mapping):
            raise ProfileError(f"{where}: configuration is {self.configuration!r}: must map settings to values")
        for name, setting in self.configuration.items():
            if not isinstance(name, str) or not isinstance(setting, int | float | str | bool):
                raise ProfileError(f"{where}: configuration: {name!r} is {setting!r}: must be a number, text or a flag")
        if not isinstance(self.estimated, bool):
            raise ProfileError(f"{where}: estimated is {self.estimated!r}: must be true or false")
        object.__setattr__(self, "configuration", MappingProxyType(dict(self.configuration)))

    def __reduce__(self) -> tuple[Any, ...]:
        # The read-only mapping can be neither copied nor pickled; its content can.
        return EfficiencyTuple.from_dict, (self.to_dict(),)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `from_dict` reads it back to an equal tuple."""
        return {
            "model": self.model,
            "server_type": self.server_type,
            "qps": self.qps,
            "power_watts": self.power_watts,
            "configuration": dict(self.configuration),
            "estimated": self.estimated,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EfficiencyTuple:
        """The inverse of `to_dict`; raises `ProfileError` naming a missing, unknown or ill-typed field."""
        _check_fields("efficiency tuple", cls, data)
        return cls(**data)


@dataclass(frozen=True, slots=True)
class ScalabilityProfile:
    """What one model, alone on a server, does with some of its cores and some of its cache ways.

    `workers` are counts, strictly increasing, of workers with `cores_per_worker` cores each; at each count, with the
    whole cache: `qps`, the latency-bounded throughput (0: the SLA target is out of reach), `bandwidth_bytes_per_s`, the
    memory traffic at that load, and `memory_bytes`, what is resident (all of it empty if not known). The last count is
    the largest that fits.
    `cache_ways` are counts, strictly increasing, the last one the whole cache. `qps_by_cache_ways` has one row for
    each worker count: the qps with each count of ways, or nothing where that was not measured; at least one row was.
    `estimated`: computed from a model of the server, not measured on one.
    """

    model: str
    workers: tuple[int, ...]
    qps: tuple[float, ...]
    bandwidth_bytes_per_s: tuple[float, ...]
    cache_ways: tuple[int, ...]
    qps_by_cache_ways: tuple[tuple[float, ...], ...]
    memory_bytes: tuple[float, ...] = ()
    estimated: bool = False
    cores_per_worker: int = 1

    def __post_init__(self) -> None:
        _check_text("scalability profile", "model", self.model)
        where = f"scalability profile of {self.model}"
        for name in ("workers", "cache_ways"):
            counts = _tuple_of(where, name, getattr(self, name))
            object.__setattr__(self, name, counts)
            if not counts:
                raise ProfileError(f"{where}: {name} is empty; measure at least one count")
            if not all(isinstance(count, int) and not isinstance(count, bool) for count in counts):
                raise ProfileError(f"{where}: {name} is {list(counts)}: must be whole numbers")
            if any(b <= a for a, b in zip((0, *counts), counts, strict=False)):
                raise ProfileError(f"{where}: {name} is {list(counts)}: must be positive and strictly increasing")
        for name in ("qps", "bandwidth_bytes_per_s", "memory_bytes"):
            values = self._checked_row(
                where, name, getattr(self, name), len(self.workers), may_be_empty=name == "memory_bytes"
            )
            object.__setattr__(self, name, values)
        rows = _tuple_of(where, "qps_by_cache_ways", self.qps_by_cache_ways)
        if len(rows) != len(self.workers):
            raise ProfileError(
                f"{where}: qps_by_cache_ways has {len(rows)} rows for {len(self.workers)} worker counts; "
                "leave a row empty where nothing was measured"
            )
        checked = []
        for count, row, whole in zip(self.workers, rows, self.qps, strict=True):
            name = f"qps_by_cache_ways at {count} workers"
            values = self._checked_row(where, name, row, len(self.cache_ways), may_be_empty=True)
            if values and not math.isclose(values[-1], whole, rel_tol=1e-6):
                raise ProfileError(f"{where}: {name}: the last, {values[-1]}, must be qps with all ways, {whole}")
            checked.append(values)
        if not any(checked):
            raise ProfileError(f"{where}: qps_by_cache_ways has no row; measure one worker count with fewer ways")
        object.__setattr__(self, "qps_by_cache_ways", tuple(checked))
        if not isinstance(self.estimated, bool):
            raise ProfileError(f"{where}: estimated is {self.estimated!r}: must be true or false")
        cores = self.cores_per_worker
        if not isinstance(cores, int) or isinstance(cores, bool) or cores < 1:
            raise ProfileError(f"{where}: cores_per_worker is {cores!r}: must be a whole number of at least 1")

    @staticmethod
    def _checked_row(where: str, name: str, row: object, count: int, *, may_be_empty: bool) -> tuple[float, ...]:
        values = _tuple_of(where, name, row)
        if not (len(values) == count or (may_be_empty and not values)):
            raise ProfileError(f"{where}: {name} has {len(values)} values where {count} are expected")
        for value in values:
            if not _is_number(value) or not math.isfinite(value) or value < 0:
                raise ProfileError(f"{where}: {name} has {value!r}: must be a finite number of at least 0")
        return tuple(float(value) for value in values)

    def qps_table(self) -> npt.NDArray[np.float64]:
        """Queries/s with up to w workers and up to k cache ways: float64 `[workers[-1] + 1, cache_ways[-1] + 1]`.

        Linear between measured counts and down to none; never less with more, since workers and ways may stay idle.
        What fewer ways cost at a worker count where that was not measured follows from the nearest ones that were.
        """
        counts = np.arange(self.workers[-1] + 1)
        ways = np.arange(self.cache_ways[-1] + 1)
        whole = np.interp(counts, (0, *self.workers), (0.0, *self.qps))
        known = [
            (count, np.interp(ways, (0, *self.cache_ways), (0.0, *np.minimum(row, row[-1]))) / row[-1])
            for count, row in zip(self.workers, self.qps_by_cache_ways, strict=True)
            if row and row[-1] > 0
        ]
        if not known:  # no measured row is above 0, so none says what a cache way is worth: all the same, at worst
            known = [(1, ways / ways[-1])]
        known_counts = np.array([count for count, _ in known])
        shares = np.stack([share for _, share in known])
        right = np.clip(np.searchsorted(known_counts, counts), 1, None)
        right = np.minimum(right, len(known) - 1)
        left = np.maximum(right - 1, 0)
        span = np.maximum(known_counts[right] - known_counts[left], 1)
        weight = np.clip((counts - known_counts[left]) / span, 0.0, 1.0)[:, None]
        table = whole[:, None] * ((1 - weight) * shares[left] + weight * shares[right])
        return np.maximum.accumulate(np.maximum.accumulate(table, axis=0), axis=1)

    def bandwidth_table(self) -> npt.NDArray[np.float64]:
        """Memory traffic of 0, 1, ... workers with the whole cache: bytes/s, float64 `[workers[-1] + 1]`."""
        return np.interp(np.arange(self.workers[-1] + 1), (0, *self.workers), (0.0, *self.bandwidth_bytes_per_s))

    def memory_table(self) -> npt.NDArray[np.float64]:
        """Bytes resident with 0, 1, ... workers: float64 `[workers[-1] + 1]`; 0 throughout if not known."""
        counts = np.arange(self.workers[-1] + 1)
        if not self.memory_bytes:
            return np.zeros(len(counts))
        return np.where(counts == 0, 0.0, np.interp(counts, self.workers, self.memory_bytes))

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `from_dict` reads it back to an equal profile."""
        return {
            "model": self.model,
            "workers": list(self.workers),
            "qps": list(self.qps),
            "bandwidth_bytes_per_s": list(self.bandwidth_bytes_per_s),
            "cache_ways": list(self.cache_ways),
            "qps_by_cache_ways": [list(row) for row in self.qps_by_cache_ways],
            "memory_bytes": list(self.memory_bytes),
            "estimated": self.estimated,
            "cores_per_worker": self.cores_per_worker,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ScalabilityProfile:
        """The inverse of `to_dict`; raises `ProfileError` naming a missing, unknown or ill-typed field."""
        _check_fields("scalability profile", cls, data)
        return cls(**data)


def _check_fields(where: str, kind: type[EfficiencyTuple | ScalabilityProfile], data: Mapping[str, Any]) -> None:
    """Raise `ProfileError` for a field that `kind` does not have, and for a missing one that has no default."""
    known = {one.name: one.default is MISSING and one.default_factory is MISSING for one in fields(kind)}
    if unknown := sorted(set(data) - set(known)):
        raise ProfileError(f"{where}: unknown field {unknown[0]!r}: known are {', '.join(sorted(known))}")
    for name, needed in known.items():
        if needed and name not in data:
            raise ProfileError(f"{where}: field {name!r} is missing")


def _check_text(where: str, name: str, text: object) -> None:
    if not isinstance(text, str) or not text or text != text.strip() or not text.isprintable():
        raise ProfileError(f"{where}: {name} is {text!r}: must be a name without spaces around it")


def _tuple_of(where: str, name: str, values: object) -> tuple[Any, ...]:
    if not isinstance(values, list | tuple):
        raise ProfileError(f"{where}: {name} is {values!r}: must be a list")
    return tuple(values)


def _is_number(value: object) -> bool:
    """Whether it is a float, or a whole number that fits one: files may hold larger ones."""
    return isinstance(value, float) or (
        isinstance(value, int) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    )
