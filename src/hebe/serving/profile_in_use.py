"""The profile that a model runs by, as it is corrected while serving."""

from __future__ import annotations

from threading import Lock

from hebe.profile import EfficiencyTuple
from hebe.serving.correction import MeasuredLoad, corrected
from hebe.serving.load_window import LoadWindow
from hebe.serving.served_configuration import KeepMeasured, ServedConfiguration

LATE_IN_A_ROW = 2
"""As many windows in a row must miss the SLA target to lower the throughput: one may be a hiccup of the machine."""


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
        self._late: list[float] = []

    @property
    def unkept(self) -> bool:
        """Whether a correction is not yet written where the profile is from."""
        return self._keep is not None and self.measured is not self._kept

    def see(self, window: LoadWindow, at: str) -> bool:
        """Correct the tuple by a window that ended `at` (ISO 8601); whether that changed it."""
        self.window = window
        kept = window.kept
        self._late = [*self._late, window.qps][-LATE_IN_A_ROW:] if kept is False else []
        if kept is None or (not kept and len(self._late) < LATE_IN_A_ROW):
            return False
        qps = window.qps if kept else max(self._late)
        # Without a meter: no power, which corrects none.
        load = MeasuredLoad(qps, kept, window.peak_watts or 0.0, window.power_estimated)
        before = self.measured or self.efficiency
        after = corrected(before, load)
        if after is before:
            return False
        self.measured, self.measured_at = after, at
        return True

    def keep(self) -> None:
        """Write the correction where the profile is from, if it has not been. Blocks; raises as `KeepMeasured`."""
        with self._keeping:  # one that the server's end interrupted may still be at it
            measured, at = self.measured, self.measured_at
            if self._keep is None or measured is None or at is None or measured is self._kept:
                return
            self._keep(measured, at)
            self._kept = measured
