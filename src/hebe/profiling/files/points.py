"""What one measurement yields, as the profile file and the journal keep it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hebe.planning.server_split.search import Configuration
from hebe.profile import LatencyProfile
from hebe.scheduling.events import Stage
from hebe.server_configuration import Lane


@dataclass(frozen=True, slots=True)
class ScalabilityPoint:
    """What a configuration reaches with a part of the cores or of the last-level cache, queries/s within the SLA
    target, and the memory traffic meanwhile: `estimated` where the system does not tell it. `power_watts` is drawn at
    that load, 0 where it is not known."""

    qps: float
    bandwidth_bytes_per_s: float
    estimated: bool
    power_watts: float = 0.0


MeasurePoint = Callable[[Configuration, int | None], ScalabilityPoint]
"""Asked with a configuration and how many ways of the last-level cache it may use; None: all of them."""


TimeBatches = Callable[[Lane, Sequence[int]], dict[Stage, LatencyProfile]]
"""Asked with a lane and batch sizes: `ServerEvaluator.busy_profiles`."""
