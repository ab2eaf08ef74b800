"""What some time of serving says of a model's load, by what its counters counted meanwhile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hebe.scheduling.events import Stage
from hebe.serving.statistics import ModelStatistics

Worked = Mapping[tuple[int, Stage], float]
"""Seconds that a worker of each lane and stage has been at work so far, their mean (`NodeDriver.worked_s`)."""

LEAST_LATE = 20
"""As many late queries an SLA target must allow in a window for its tail latency to mean something."""

CERTAIN_DEVIATIONS = 3.0
"""By so many standard deviations more than allowed must be late before the target counts as missed."""


@dataclass(frozen=True, slots=True)
class LoadWindow:
    """`queries` arrived in `seconds`, of which `late` were answered beyond the latency bound, or were among the
    `refused`; beside them `failures`, which were answered with an error that is the server's fault.

    `busy_share` of their time the workers of the busiest stage were at work, of two lanes side by side those of the one
    that had more time left; None where that is not known. `disturbed`: something else than the load hindered them at
    times. `peak_watts` was drawn at most, None where that is not known; `power_estimated` unless it was read.
    """

    seconds: float
    queries: int
    late: int
    percentile: float
    peak_watts: float | None = None
    power_estimated: bool = True
    refused: int = 0
    busy_share: float | None = None
    disturbed: bool = False
    failures: int = 0

    @property
    def answered(self) -> int:
        """Queries that were not refused."""
        return self.queries - self.refused

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
        """Whether the SLA target held; None if so few more than allowed were late that it might be chance, or if more
        failed than might be late: that says nothing of what the server can take.
        """
        if self.failures > (self.queries + self.failures) * (1 - self.percentile / 100):
            return None
        allowed = self.queries * (1 - self.percentile / 100)
        if self.late <= allowed:
            return True
        return None if self.late <= allowed + CERTAIN_DEVIATIONS * math.sqrt(allowed) else False


class WindowCounter:
    """The window of one version's counters that begins now; its workers have `worked` so far."""

    def __init__(self, counted: ModelStatistics, percentile: float, now_s: float, worked: Worked | None = None) -> None:
        self.counted = counted
        self.disturbed = False
        """Whether something else than the load hindered the workers at times."""
        self._percentile = percentile
        self._began_s = now_s
        self._worked = worked or {}
        self._queries, self._late, self._refused, self._failures = self._counts()
        self._peak_watts: float | None = None
        self._estimated = False

    def drew(self, peak_watts: float, *, estimated: bool) -> None:
        """Power over a part of the window. Its peak is estimated if any part's is."""
        self._peak_watts = max(peak_watts, self._peak_watts or 0.0)
        self._estimated |= estimated

    def window(self, now_s: float, worked: Worked | None = None) -> LoadWindow:
        """What the window is by now, when the workers have `worked`."""
        queries, late, refused, failures = self._counts()
        seconds = now_s - self._began_s
        busiest_s: dict[int, float] = {}
        """By lane, of its stages."""
        for (lane, stage), worked_s in (worked or {}).items():
            since_s = worked_s - self._worked.get((lane, stage), 0.0)
            busiest_s[lane] = max(busiest_s.get(lane, 0.0), since_s)
        return LoadWindow(
            seconds,
            queries - self._queries,
            late - self._late,
            self._percentile,
            self._peak_watts,
            self._peak_watts is None or self._estimated,
            refused - self._refused,
            min(*busiest_s.values(), seconds) / seconds if busiest_s and seconds > 0 else None,
            self.disturbed,
            failures - self._failures,
        )

    def _counts(self) -> tuple[int, int, int, int]:
        counted = self.counted
        answered, refused = counted.success.count, counted.refused_late
        return answered + refused, answered - counted.within_sla + refused, refused, counted.failures
