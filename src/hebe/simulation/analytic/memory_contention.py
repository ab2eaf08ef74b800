"""How much slower memory answers the more of it is asked for at once.

Cores that wait for memory ask for `demand` bytes/s, what they would move were memory unloaded. Under load each of them
is slower by the same factor, its latency over the idle one, and that depends on what is moved:

    factor = 1 + RISE * (moved / bandwidth) ** STEEPNESS      while      moved = demand / factor <= bandwidth

and beyond that demand / bandwidth: the memory gives all it has, and everybody waits in proportion.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hebe.planning.error import PlanningError

Floats = npt.NDArray[np.float64]

RISE = 0.8
STEEPNESS = 8
"""Hardly any rise up to two thirds of the bandwidth, a third at nine tenths, nearly twice at its end: the usual shape
of loaded latency on server processors. Assumed, not measured on the machines that are modelled here."""

_STEPS = 2000
_MOST_DEMAND = 16.0


class MemoryContention:
    """The slowdown of memory that sustains `bandwidth_bytes_per_s`; raises `PlanningError` if that is not above 0."""

    def __init__(self, bandwidth_bytes_per_s: float) -> None:
        if not bandwidth_bytes_per_s > 0:
            raise PlanningError(f"bandwidth_bytes_per_s is {bandwidth_bytes_per_s!r}: must be a positive number")
        self.bandwidth_bytes_per_s = bandwidth_bytes_per_s
        # Along the curve both demand and factor are known for each amount moved; what is asked for is in between.
        moved = np.linspace(0.0, 1.0, _STEPS)
        factor = 1.0 + RISE * moved**STEEPNESS
        self._demands = np.append(moved * factor, _MOST_DEMAND)
        self._factors = np.append(factor, _MOST_DEMAND)

    def slowdown(self, demand_bytes_per_s: float) -> float:
        """By how much everybody who waits for memory is slowed down when together they ask for so much; at least 1."""
        asked = demand_bytes_per_s / self.bandwidth_bytes_per_s
        return float(np.interp(asked, self._demands, self._factors)) if asked < _MOST_DEMAND else asked

    def slowdown_at(self, moved_bytes_per_s: float) -> float:
        """The same where what is really moved is known, at most the bandwidth."""
        return 1.0 + RISE * min(moved_bytes_per_s / self.bandwidth_bytes_per_s, 1.0) ** STEEPNESS
