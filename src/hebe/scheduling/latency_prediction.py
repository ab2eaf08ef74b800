"""Service time by batch size, learned while serving.

Linear first, then corrected by a table, as Kairos section 5.1 proposes ("latency prediction learned online"):
service time is close to `fixed + per_item * items`, fitted by least squares that forgets; where enough batches of
about one size were seen, the ratio of what they took to the line corrects it.
"""

from __future__ import annotations

from dataclasses import dataclass

from hebe.profile import LatencyProfile

_FORGET = 0.995
"""Weight of the past per observation in the linear fit: the last few hundred batches decide."""
_TABLE_GAIN = 0.05
_TABLE_ENOUGH = 8
_UNKNOWN_S = 1e-3
"""Answer before anything was observed; warm-up normally comes first."""


@dataclass(slots=True)
class _Bucket:
    ratio: float = 1.0
    count: int = 0


class LatencyPredictor:
    """Predicts seconds per batch; `observe` after each batch. Deterministic, no clock."""

    def __init__(self, profile: LatencyProfile | None = None) -> None:
        self._weight = self._sum_x = self._sum_y = self._sum_xx = self._sum_xy = 0.0
        self._fixed_s, self._per_item_s = _UNKNOWN_S, 0.0
        self._buckets: dict[int, _Bucket] = {}
        if profile is not None:
            for size, service_s in zip(profile.batch_sizes, profile.service_s, strict=True):
                self.observe(size, service_s)

    def observe(self, items: int, service_s: float) -> None:
        """Learn that a batch of `items` took `service_s` seconds."""
        bucket = self._buckets.setdefault(items.bit_length(), _Bucket())
        if self._weight > 0:
            line = self._line_s(items)
            # One stalled batch says little about the next: its influence is bounded.
            ratio = min(max(service_s / line, 0.2), 5.0)
            gain = max(_TABLE_GAIN, 1.0 / (bucket.count + 1))
            bucket.ratio += gain * (ratio - bucket.ratio)
            if bucket.count >= _TABLE_ENOUGH:
                service_s = min(service_s, 5.0 * line * bucket.ratio)
        bucket.count += 1
        self._weight = self._weight * _FORGET + 1.0
        self._sum_x = self._sum_x * _FORGET + items
        self._sum_y = self._sum_y * _FORGET + service_s
        self._sum_xx = self._sum_xx * _FORGET + items * items
        self._sum_xy = self._sum_xy * _FORGET + items * service_s
        self._fit()

    def _fit(self) -> None:
        spread = self._weight * self._sum_xx - self._sum_x * self._sum_x
        mean_y = self._sum_y / self._weight
        if spread <= 1e-9 * self._weight * self._sum_xx:  # one size only: proportional
            self._fixed_s, self._per_item_s = 0.0, self._sum_y / self._sum_x
            return
        slope = max((self._weight * self._sum_xy - self._sum_x * self._sum_y) / spread, 0.0)
        self._per_item_s = slope
        self._fixed_s = max(mean_y - slope * self._sum_x / self._weight, 0.0)

    def _line_s(self, items: int) -> float:
        return max(self._fixed_s + self._per_item_s * items, 1e-9)

    def service_time_s(self, items: int) -> float:
        """Predicted seconds for one batch of `items`."""
        line = self._line_s(items)
        bucket = self._buckets.get(items.bit_length())
        return line * bucket.ratio if bucket is not None and bucket.count >= _TABLE_ENOUGH else line
