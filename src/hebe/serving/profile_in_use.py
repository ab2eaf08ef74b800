"""The profile that a model runs by, as it is corrected while serving."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from hebe.profile import EfficiencyTuple
from hebe.serving.correction import MeasuredLoad, corrected
from hebe.serving.load_window import LoadWindow
from hebe.serving.served_configuration import KeepMeasured, ServedConfiguration

LATE_S = 180.0
"""So long must the SLA target be missed to lower the throughput, with no window between in which it held: what passes
sooner is a hiccup of the machine, of storage, or of what runs beside the server."""

BUSY_SHARE = 0.5
"""Workers that are at work for less of their time are not what makes queries late."""

CLOSE = 0.7
"""At a load of this share of what the profile says the target may be missed for want of capacity, however busy the
workers are: with a tight bound queries must not wait at all."""


class ProfileInUse:
    """`efficiency` is what the profile says; `measured` what has become of it, None while nothing differs, by
    `measured_at`; `window` is the last load that told something. All of it is of `configuration`.
    """

    def __init__(self, served: ServedConfiguration) -> None:
        self.configuration = served.lanes
        self.efficiency: EfficiencyTuple = served.efficiency
        self.measured = served.measured
        self.measured_at = served.measured_at
        self.window: LoadWindow | None = None
        self._keep: KeepMeasured | None = served.keep
        self._kept = served.measured
        self._keeping = Lock()
        self._late: list[LoadWindow] = []

    @property
    def unkept(self) -> bool:
        """Whether a correction is not yet written where the profile is from."""
        return self._keep is not None and self.measured is not self._kept

    def see(self, window: LoadWindow, at: str) -> bool:
        """Correct the tuple by a window that ended `at` (ISO 8601); whether that changed it."""
        self.window = window
        load = self._load_of(window)
        if load is None:
            return False
        before = self.measured or self.efficiency
        after = corrected(before, load, self.efficiency.qps)
        if after is before:
            return False
        self.measured, self.measured_at = after, at
        return True

    def saw_too_few(self) -> None:
        """Some time had too few queries to tell anything: what was late before is over."""
        self._late = []

    def _load_of(self, window: LoadWindow) -> MeasuredLoad | None:
        """What `window`, with those before it, says of the server; None if that is nothing yet."""
        if window.kept:
            self._late = []
            return _measured([window], window.qps, kept=True)
        if window.kept is None or not self._for_want_of_capacity(window):
            return None
        self._late.append(window)
        seconds = sum(late.seconds for late in self._late)
        if seconds < LATE_S:
            return None
        late, self._late = self._late, []
        return _measured(late, sum(each.answered for each in late) / seconds, kept=False)

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


def _measured(windows: Sequence[LoadWindow], qps: float, *, kept: bool) -> MeasuredLoad:
    """Without a meter: no power, which corrects none."""
    watts = max(window.peak_watts or 0.0 for window in windows)
    estimated = any(window.power_estimated for window in windows)
    return MeasuredLoad(qps, kept, watts, estimated, windows[-1].busy_share)
