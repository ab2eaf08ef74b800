"""Admit or refuse a query by its deadline.

A query is refused at once if the work ahead of it, by the learned service times, would make it late: a refusal
within a millisecond lets the caller go elsewhere, a late answer only costs. The safety margin is learned too: it
is the SLA percentile of how much later than predicted the admitted queries were in fact done.
"""

from __future__ import annotations

import math

_PROBE_EVERY = 16
_PROBE_AFTER_S = 1.0


class DeadlineAdmission:
    """Compares predicted completion with deadlines and corrects itself. Times in seconds, `now` on any clock."""

    def __init__(self, percentile: float, step_share: float = 0.05) -> None:
        self._quantile = percentile / 100.0
        self._step_share = step_share
        self._scale_s = 0.0
        self._idle_refusals = 0
        self._refusing_since_s = math.inf
        self.margin_s = 0.0

    def likely_within_s(self, predicted_s: float, *, idle: bool) -> float:
        """In what time a query predicted to take `predicted_s` is done, as often as the SLA's percentile asks.

        `idle`: no work is ahead of it. Then the margin, which is about what happens in queues, does not count.
        """
        return predicted_s + (0.0 if idle else self.margin_s)

    def admits(self, predicted_s: float, budget_s: float, now: float, *, idle: bool) -> bool:
        """Whether a query predicted to take `predicted_s` from `now` may be expected within `budget_s`.

        `idle`: as for `likely_within_s`. An idle server that refuses learns nothing: one in `_PROBE_EVERY` of such
        refusals is let through, and the first that comes `_PROBE_AFTER_S` after they began, so that a prediction spoilt
        by a stall heals.
        """
        if self.likely_within_s(predicted_s, idle=idle) <= budget_s:
            return True
        if not idle:
            return False
        self._idle_refusals += 1
        self._refusing_since_s = min(self._refusing_since_s, now)
        if self._idle_refusals < _PROBE_EVERY and now < self._refusing_since_s + _PROBE_AFTER_S:
            return False
        self._idle_refusals, self._refusing_since_s = 0, math.inf
        return True

    def observe(self, predicted_s: float, actual_s: float) -> None:
        """Learn from an answered query: stochastic approximation of the error's quantile.

        Each error above the margin raises it by `quantile` steps, each below lowers it by `1 - quantile`; it
        settles where that share of errors lies below. The step is a share of the usual latency, or of the margin
        where that is larger: what bad times have raised must fall as fast as it rose.
        """
        self._scale_s += 0.02 * (actual_s - self._scale_s)
        step = self._step_share * max(self._scale_s, self.margin_s)
        late = actual_s - predicted_s > self.margin_s
        self.margin_s += step * (self._quantile if late else self._quantile - 1.0)
        self.margin_s = max(self.margin_s, 0.0)
