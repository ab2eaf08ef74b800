"""The error of profiling that cannot begin or go on."""

from __future__ import annotations

from hebe.server_configuration import Lane, to_dict


class ProfilingError(RuntimeError):
    """What could not be measured or kept; the message says what was wrong and what to do."""


class MeasurementError(ProfilingError):
    """A measurement of `configuration` that failed, and why; what was measured before stays."""

    def __init__(self, configuration: tuple[Lane, ...], why: str) -> None:
        settings = ", ".join(f"{name} {value}" for name, value in to_dict(configuration).items())
        super().__init__(f"{settings}: {why}")
        self.configuration, self.why = configuration, why


class StartFailed(MeasurementError):
    """Workers of `configuration` could not start, and why."""
