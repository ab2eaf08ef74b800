"""The profile that a model runs by, as it is corrected while serving.

What some time of serving says of a model's load, by what its counters counted meanwhile (`LoadWindow`), is held against
what the profile says of it (`corrected`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock

from hebe.profile import EfficiencyTuple
from hebe.scheduling.events import Stage
from hebe.serving.hosting.served_configuration import KeepMeasured, ServedConfiguration
from hebe.serving.statistics import ModelStatistics

LASTING_S = 180.0
"""So long must the SLA target be missed to lower the throughput, with no window between in which it held, or hold to
raise it above the profile's, with none in which it may have been missed: what passes sooner is a hiccup of the machine,
of storage, or of what runs beside the server, or luck."""

BUSY_SHARE = 0.5
"""Workers that are at work for less of their time are not what makes queries late."""

CLOSE = 0.7
"""At a load of this share of what the profile says the target may be missed for want of capacity, however busy the
workers are: with a tight bound queries must not wait at all."""


class ProfileInUse:
    """`efficiency` is what the profile says; `measured` what has become of it, None while nothing differs, by
    `measured_at`; `window` is the last load that told something. All of it is of `configuration`, which may draw
    `power_budget_watts`; None: whatever it takes.
    """

    def __init__(self, served: ServedConfiguration) -> None:
        self.configuration = served.lanes
        self.efficiency: EfficiencyTuple = served.efficiency
        self.power_budget_watts = served.power_budget_watts
        self.measured = served.measured
        self.measured_at = served.measured_at
        self.window: LoadWindow | None = None
        self._over_budget_since_s: float | None = None
        self._keep: KeepMeasured | None = served.keep
        self._kept = served.measured
        self._keeping = Lock()
        self._late: list[LoadWindow] = []
        self._in_time: list[LoadWindow] = []

    @property
    def unkept(self) -> bool:
        """Whether a correction is not yet written where the profile is from."""
        return self._keep is not None and self.measured is not self._kept

    @property
    def over_budget_s(self) -> float | None:
        """Seconds since the first of the last loads ended that all drew more than the budget; None if none did."""
        return None if self._over_budget_since_s is None else time.monotonic() - self._over_budget_since_s

    def see(self, window: LoadWindow, at: str) -> bool:
        """Correct the tuple by a window that ended `at` (ISO 8601); whether that changed it."""
        self.window = window
        watts, budget = window.peak_watts, self.power_budget_watts
        if watts is None or budget is None or watts <= budget:
            self._over_budget_since_s = None
        elif self._over_budget_since_s is None:
            self._over_budget_since_s = time.monotonic()
        before = after = self.measured or self.efficiency
        for load in self._loads_of(window):
            after = corrected(after, load, self.efficiency.qps)
        if after is before:
            return False
        self.measured, self.measured_at = after, at
        return True

    def saw_too_few(self) -> None:
        """Some time had too few queries to tell anything: what was late before is over, and what was in time."""
        self._late, self._in_time = [], []

    def _loads_of(self, window: LoadWindow) -> Iterator[MeasuredLoad]:
        """What `window` says of the server, and what it does with those before it; nothing if that is nothing yet."""
        if window.kept:
            self._late = []
            self._in_time.append(window)
            yield _measured([window], window.queries, kept=True)
            if _last(self._in_time):
                in_time, self._in_time = self._in_time, []
                yield _measured(in_time, sum(each.queries for each in in_time), kept=True, lasting=True)
            return
        self._in_time = []
        if window.kept is None or not self._for_want_of_capacity(window):
            return
        self._late.append(window)
        if _last(self._late):
            late, self._late = self._late, []
            yield _measured(late, sum(each.answered for each in late), kept=False, lasting=True)

    def _for_want_of_capacity(self, window: LoadWindow) -> bool:
        """Whether it may have been missed since the server cannot take the load."""
        if window.disturbed:
            return False
        busy = window.busy_share is not None and window.busy_share >= BUSY_SHARE
        return busy or window.qps >= CLOSE * self.efficiency.qps

    def keep(self) -> None:
        """Write the correction where the profile is from, if it has not been. Blocks; raises as `KeepMeasured`."""
        with self._keeping:  # one that the server's end interrupted may still be at it
            measured, at = self.measured, self.measured_at
            if self._keep is None or measured is None or at is None or measured is self._kept:
                return
            self._keep(measured, at)
            self._kept = measured


def _last(windows: Sequence[LoadWindow]) -> bool:
    return sum(window.seconds for window in windows) >= LASTING_S


def _measured(windows: Sequence[LoadWindow], queries: int, *, kept: bool, lasting: bool = False) -> MeasuredLoad:
    """`queries` in the time of `windows`. Without a meter: no power, which corrects none."""
    qps = queries / sum(window.seconds for window in windows)
    watts = max(window.peak_watts or 0.0 for window in windows)
    estimated = any(window.power_estimated for window in windows)
    return MeasuredLoad(qps, kept, watts, estimated, windows[-1].busy_share, lasting)


NEAR = 0.9
"""A load of this share of the latency-bounded throughput is as good as all of it: for power, and to show that a figure
was too low."""

COUNTED_ON = 0.8
"""Of the load that workers would have time for, counted on where that is less than what the profile says: queries wait
for each other before the workers are busy all the time."""


@dataclass(frozen=True, slots=True)
class MeasuredLoad:
    """Some time of serving, long enough for its tail latency to mean something.

    `kept` says whether the SLA target held; `qps` arrived, and where it did not hold, were answered at all.
    `power_watts` is the peak that was drawn meanwhile; it is `power_estimated` where it could not be read.
    `busy_share` of their time the workers of the busiest stage were at work, of the lane that had most time left; None
    where that is not known. `lasting`: for so long that it was not by luck.
    """

    qps: float
    kept: bool
    power_watts: float
    power_estimated: bool
    busy_share: float | None = None
    lasting: bool = False


def corrected(efficiency: EfficiencyTuple, load: MeasuredLoad, profile_qps: float) -> EfficiencyTuple:
    """The tuple after `load` was seen, of which the profile says `profile_qps`; the same one if it says nothing new.

    About as many queries within the SLA as it has, or more, where it was lowered before: it has those, or what the
    workers' time would suffice for, up to what the profile says. More than that only if they were kept for long, since
    what is too much for a server is kept by luck now and then. Fewer, and too late: it has no more than those. Power
    rises to the highest seen; an estimate of it gives way to what was read near the full load, and never the other way
    round.
    """
    qps, power, estimated = efficiency.qps, efficiency.power_watts, efficiency.estimated
    if not load.kept:
        qps = min(qps, load.qps)
    elif qps < profile_qps and load.qps >= NEAR * qps:
        qps = max(qps, _would_serve(load, profile_qps))
    if load.kept and load.lasting:
        qps = max(qps, load.qps)
    if estimated and not load.power_estimated and load.qps >= NEAR * qps:
        power, estimated = load.power_watts, False
    elif estimated == load.power_estimated:
        power = max(power, load.power_watts)
    if (qps, power, estimated) == (efficiency.qps, efficiency.power_watts, efficiency.estimated):
        return efficiency
    return replace(efficiency, qps=qps, power_watts=power, estimated=estimated)


def _would_serve(load: MeasuredLoad, profile_qps: float) -> float:
    """Up to what the profile says: what was served, or more by the workers' time that this took."""
    has_time_for = 0.0 if load.busy_share is None else load.qps / max(load.busy_share, 1e-6)
    if has_time_for >= profile_qps:
        return profile_qps
    return min(max(load.qps, COUNTED_ON * has_time_for), profile_qps)


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
