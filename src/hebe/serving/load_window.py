"""What some time of serving says of a model's load, by what its counters counted meanwhile."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hebe.serving.statistics import ModelStatistics

LEAST_LATE = 20
"""As many late queries an SLA target must allow in a window for its tail latency to mean something."""

CERTAIN_DEVIATIONS = 3.0
"""By so many standard deviations more than allowed must be late before the target counts as missed."""


@dataclass(frozen=True, slots=True)
class LoadWindow:
    """`queries` arrived in `seconds`, of which `late` were answered beyond the latency bound, or refused.

    `peak_watts` was drawn at most, None where that is not known; `power_estimated` unless it was read.
    """

    seconds: float
    queries: int
    late: int
    percentile: float
    peak_watts: float | None = None
    power_estimated: bool = True

    @property
    def qps(self) -> float:
        """Queries/s that arrived."""
        return self.queries / self.seconds if self.seconds > 0 else 0.0

    @property
    def tells(self) -> bool:
        """Whether there were queries enough for the percentile."""
        return self.queries * (1 - self.percentile / 100) >= LEAST_LATE

    @property
    def kept(self) -> bool | None:
        """Whether the SLA target held; None if so few more than allowed were late that it might be chance."""
        allowed = self.queries * (1 - self.percentile / 100)
        if self.late <= allowed:
            return True
        return None if self.late <= allowed + CERTAIN_DEVIATIONS * math.sqrt(allowed) else False


class WindowCounter:
    """The window of one version's counters that begins now."""

    def __init__(self, counted: ModelStatistics, percentile: float, now_s: float) -> None:
        self.counted = counted
        self._percentile = percentile
        self._began_s = now_s
        self._queries, self._late = self._counts()
        self._peak_watts: float | None = None
        self._estimated = False

    def drew(self, peak_watts: float, *, estimated: bool) -> None:
        """Power over a part of the window. Its peak is estimated if any part's is."""
        self._peak_watts = max(peak_watts, self._peak_watts or 0.0)
        self._estimated |= estimated

    def window(self, now_s: float) -> LoadWindow:
        """What the window is by now."""
        queries, late = self._counts()
        return LoadWindow(
            now_s - self._began_s,
            queries - self._queries,
            late - self._late,
            self._percentile,
            self._peak_watts,
            self._peak_watts is None or self._estimated,
        )

    def _counts(self) -> tuple[int, int]:
        counted = self.counted
        answered, refused = counted.success.count, counted.refused_late
        return answered + refused, answered - counted.within_sla + refused
