"""What a configuration of a server reaches, measured or modelled, as the studies of Hercules' single server show it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

WATTS_ESTIMATED = "watts estimated"
"""What is said of all that is per watt, where `watts_estimated`."""


@dataclass(frozen=True, slots=True)
class Point:
    """Latency-bounded throughput, 0 where the SLA target is out of reach; power, and the share of the cores' time that
    is used, 0 to 1, close to it. `power_estimated` if the power is of this machine, which does not tell it."""

    qps: float
    power_watts: float
    utilization: float
    power_estimated: bool = False

    @property
    def efficiency(self) -> float:
        """Queries/s per watt."""
        return self.qps / self.power_watts if self.power_watts > 0 else 0.0


def watts_estimated(points: Iterable[Point | None]) -> bool:
    """Whether the power of any of them was."""
    return any(point is not None and point.power_estimated for point in points)
