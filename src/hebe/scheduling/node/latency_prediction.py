"""Service time by batch size, learned while serving.

Linear first, then corrected by a table, as Kairos section 5.1 proposes ("latency prediction learned online"):
service time is close to `fixed + per_item * items`, neither negative, fitted by least squares that forgets; where
enough batches of about one size were seen, what they took replaces the line's level there.

That is what a batch takes in the middle; the paper decides by it, with two percent to spare for all variance (xi). But
burstable servers scatter by tens of percent where others do by one, so `tail_time_s` learns each server type's own.
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
_LEAST_S = 1e-9
"""Of the line: a batch takes some time, whatever a clock has said."""
_UNKNOWN_S = 1e-3
"""Answer before anything was observed; warm-up normally comes first."""
_TAIL = 0.9
"""Share of batches that are done within their tail time."""
_TAIL_STEP = 0.01
"""How far an observation moves the tail's ratio once many were seen; the first ones move it more."""
_FIRST_TAIL_STEP, _FIRST = 0.1, 5


@dataclass(slots=True)
class _TableEntry:
    """Batches whose size has the same number of bits."""

    items: float
    service_s: float
    count: int = 0


class LatencyPredictor:
    """Predicts seconds per batch; `observe` after each batch. Deterministic, no clock.

    `fixed_s` and `per_item_s` are the line's: of sizes of which nothing else is known.
    """

    def __init__(self, profile: LatencyProfile | None = None) -> None:
        self._weight = self._sum_x = self._sum_y = self._sum_xx = self._sum_xy = 0.0
        self.fixed_s, self.per_item_s = _UNKNOWN_S, 0.0
        self._table: dict[int, _TableEntry] = {}
        self._observed = 0
        self._tail_ratio = 1.0
        if profile is not None:
            for size, service_s in zip(profile.batch_sizes, profile.service_s, strict=True):
                self.observe(size, service_s)

    def observe(self, items: int, service_s: float) -> None:
        """Learn that a batch of `items` took `service_s` seconds."""
        self._observe_tail(service_s / self.service_time_s(items))
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

    def _observe_tail(self, ratio: float) -> None:
        """Move the tail's ratio towards the quantile of the ratios of observed to predicted time.

        Stochastic approximation, with a step that falls with the number of observations and then stays.
        """
        self._observed += 1
        step = max(_TAIL_STEP, _FIRST_TAIL_STEP * _FIRST / (self._observed + _FIRST))
        self._tail_ratio = max(self._tail_ratio + step * (_TAIL - (ratio <= self._tail_ratio)), 1.0)

    def _fit(self) -> None:
        spread = self._weight * self._sum_xx - self._sum_x * self._sum_x
        one_size = spread <= 1e-9 * self._weight * self._sum_xx
        slope = 0.0 if one_size else max((self._weight * self._sum_xy - self._sum_x * self._sum_y) / spread, 0.0)
        fixed_s = (self._sum_y - slope * self._sum_x) / self._weight
        if one_size or fixed_s < 0.0:  # through 0, fitted anew: of the same slope it would lie above all that was seen
            fixed_s, slope = 0.0, self._sum_xy / self._sum_xx
        self.fixed_s, self.per_item_s = max(fixed_s, _LEAST_S - slope), slope

    def service_time_s(self, items: int) -> float:
        """Predicted seconds for one batch of `items`, at least one."""
        line_s = self.fixed_s + self.per_item_s * items
        entry = self._table.get(items.bit_length())
        if entry is None or entry.count < _ENOUGH:
            return line_s
        # Within an entry sizes differ by up to two: its level, the line's slope.
        return entry.service_s * line_s / (self.fixed_s + self.per_item_s * entry.items)

    def tail_time_s(self, items: int, safeguard: float = 1.0) -> float:
        """Seconds within which nine in ten batches of `items` are done, but at least the predicted time.

        `safeguard`: the share of the deadline that the caller plans with (Kairos' xi); what it spares counts.
        """
        return self.service_time_s(items) * max(safeguard * self._tail_ratio, 1.0)
