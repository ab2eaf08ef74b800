"""One timed closed loop of one client against one server."""

from __future__ import annotations

from dataclasses import dataclass


class MeasurementError(RuntimeError):
    """A measurement that does not count: the client failed, or the server answered with errors."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a client saw, latencies from its own clock."""

    queries_per_s: float
    p50_ms: float
    p99_ms: float
