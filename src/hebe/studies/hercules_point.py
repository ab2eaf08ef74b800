"""What a configuration of a server reaches, measured or modelled, as the studies of Hercules' single server show it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Point:
    """Latency-bounded throughput, 0 where the SLA target is out of reach; power, and the share of the cores' time that
    is used, 0 to 1, close to it."""

    qps: float
    power_watts: float
    utilization: float

    @property
    def efficiency(self) -> float:
        """Queries/s per watt."""
        return self.qps / self.power_watts if self.power_watts > 0 else 0.0
