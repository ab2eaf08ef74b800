"""What was measured of a model on a server, as plain data that can be written to disk and read back.

Efficiency tuples and scalability profiles join this file with the searches that measure them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
