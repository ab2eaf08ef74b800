"""The profile that a model runs by, as it is corrected while serving."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from threading import Lock

from hebe.profile import EfficiencyTuple
from hebe.serving.hosting.correction import MeasuredLoad, corrected
from hebe.serving.hosting.load_window import LoadWindow
from hebe.serving.hosting.served_configuration import KeepMeasured, ServedConfiguration

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
