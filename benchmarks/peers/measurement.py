"""One timed closed loop of one client against one server."""

from __future__ import annotations

from dataclasses import dataclass


class MeasurementError(RuntimeError):
    """A measurement that does not count: the client failed, or the server answered with errors."""


class ClientStalledError(MeasurementError):
    """The client did not end in time: a server that stopped answering, or a machine that was suspended."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a client saw, latencies from its own clock; wrk's are corrected for coordinated omission (`wrk.py`)."""

    queries_per_s: float
    p50_ms: float
    p99_ms: float
