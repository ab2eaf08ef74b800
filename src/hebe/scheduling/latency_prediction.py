"""Service time by batch size, learned while serving.

Linear first, then corrected by a table, as Kairos section 5.1 proposes ("latency prediction learned online"):
service time is close to `fixed + per_item * items`, fitted by least squares that forgets; where enough batches of
about one size were seen, what they took replaces the line's level there.
"""

from __future__ import annotations

from dataclasses import dataclass

from hebe.profile import LatencyProfile

_FORGET = 0.995
"""Weight of the past per observation in the linear fit: the last few hundred batches decide."""
_GAIN = 0.1
_GAIN_DOWN = 0.3
"""Weight of an observation below half the table's entry: a prediction too high keeps queries out, so it must fall
fast, while one too low corrects itself with the next batches."""
_ENOUGH = 4
_STALL = 3.0
"""An observation counts as at most this multiple of the table's entry: one stall says little about the next batch."""
_UNKNOWN_S = 1e-3
"""Answer before anything was observed; warm-up normally comes first."""


@dataclass(slots=True)
class _TableEntry:
    """Batches whose size has the same number of bits."""

    items: float
    service_s: float
    count: int = 0


class LatencyPredictor:
    """Predicts seconds per batch; `observe` after each batch. Deterministic, no clock."""

    def __init__(self, profile: LatencyProfile | None = None) -> None:
        self._weight = self._sum_x = self._sum_y = self._sum_xx = self._sum_xy = 0.0
        self._fixed_s, self._per_item_s = _UNKNOWN_S, 0.0
        self._table: dict[int, _TableEntry] = {}
        if profile is not None:
            for size, service_s in zip(profile.batch_sizes, profile.service_s, strict=True):
                self.observe(size, service_s)

    def observe(self, items: int, service_s: float) -> None:
        """Learn that a batch of `items` took `service_s` seconds."""
        entry = self._table.setdefault(items.bit_length(), _TableEntry(items, service_s))
        if entry.count >= _ENOUGH:
            service_s = min(service_s, _STALL * entry.service_s * items / entry.items)
        gain = max(_GAIN_DOWN if service_s < 0.5 * entry.service_s else _GAIN, 1.0 / (entry.count + 1))
        entry.items += gain * (items - entry.items)
        entry.service_s += gain * (service_s - entry.service_s)
        entry.count += 1
        self._weight = self._weight * _FORGET + 1.0
        self._sum_x = self._sum_x * _FORGET + items
        self._sum_y = self._sum_y * _FORGET + service_s
        self._sum_xx = self._sum_xx * _FORGET + items * items
        self._sum_xy = self._sum_xy * _FORGET + items * service_s
        self._fit()

    def _fit(self) -> None:
        spread = self._weight * self._sum_xx - self._sum_x * self._sum_x
        if spread <= 1e-9 * self._weight * self._sum_xx:  # one size only: proportional
            self._fixed_s, self._per_item_s = 0.0, self._sum_y / self._sum_x
            return
        slope = max((self._weight * self._sum_xy - self._sum_x * self._sum_y) / spread, 0.0)
        self._per_item_s = slope
        self._fixed_s = max((self._sum_y - slope * self._sum_x) / self._weight, 0.0)

    def _line_s(self, items: float) -> float:
        return max(self._fixed_s + self._per_item_s * items, 1e-9)

    def service_time_s(self, items: int) -> float:
        """Predicted seconds for one batch of `items`."""
        line = self._line_s(items)
        entry = self._table.get(items.bit_length())
        if entry is None or entry.count < _ENOUGH:
            return line
        # Within an entry sizes differ by up to two: its level, the line's slope.
        return entry.service_s * line / self._line_s(entry.items)
