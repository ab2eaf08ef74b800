"""What was measured of a model on a server, as plain data that can be written to disk and read back."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

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
        """Median seconds for a batch of `items`: linear between measured sizes, proportional beyond the last."""
        sizes, times = self.batch_sizes, self.service_s
        at = bisect_left(sizes, items)
        if at == 0:
            return times[0]
        if at == len(sizes):
            if at == 1:
                return times[-1] * items / sizes[-1]
            slope = max((times[-1] - times[-2]) / (sizes[-1] - sizes[-2]), 0.0)
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
        """The inverse of `to_dict`; raises `ProfileError` naming a missing or ill-typed field."""
        try:
            return cls(
                tuple(int(size) for size in data["batch_sizes"]),
                tuple(float(value) for value in data["service_s"]),
                tuple(float(value) for value in data["spread_s"]),
            )
        except KeyError as missing:
            raise ProfileError(f"latency profile: field {missing} is missing") from None
        except (TypeError, ValueError) as fault:
            raise ProfileError(f"latency profile: {fault}") from None


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
            if not isinstance(text, str) or not text or text != text.strip() or not text.isprintable():
                raise ProfileError(f"efficiency tuple: {name} is {text!r}: must be a name without spaces around it")
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
        known = {"model", "server_type", "qps", "power_watts", "configuration", "estimated"}
        if unknown := sorted(set(data) - known):
            raise ProfileError(f"efficiency tuple: unknown field {unknown[0]!r}: known are {', '.join(sorted(known))}")
        for name in ("model", "server_type", "qps", "power_watts"):
            if name not in data:
                raise ProfileError(f"efficiency tuple: field {name!r} is missing")
        return cls(**data)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
