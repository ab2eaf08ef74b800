"""When to leave a failing tier alone, and when to try it again. Pure: times are passed in, seconds of any clock."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BreakerOptions:
    """`failures` in a row open the breaker; a probe is due `pause_s` later, twice as late after each that fails, up to
    `longest_pause_s`. One that closes and opens again within that goes on with its pauses where it was: what answers
    probes alone is not back. Raises ValueError naming a field that is out of range.
    """

    failures: int = 3
    pause_s: float = 0.25
    longest_pause_s: float = 5.0

    def __post_init__(self) -> None:
        if self.failures < 1:
            raise ValueError(f"failures is {self.failures}: must be at least 1")
        if not 0 < self.pause_s <= self.longest_pause_s:
            raise ValueError(f"pause_s is {self.pause_s}: must be above 0 and at most longest_pause_s")


class CircuitBreaker:
    """Closed: calls pass. Open: they do not, until a probe succeeds. Not thread-safe: its owner has the lock."""

    def __init__(self, options: BreakerOptions) -> None:
        self._options = options
        self._failures = 0
        self._pause_s = options.pause_s
        self._probe_s: float | None = None
        self._closed_s = -math.inf
        """When it last closed."""

    @property
    def closed(self) -> bool:
        """Whether calls pass."""
        return self._probe_s is None

    @property
    def probe_s(self) -> float | None:
        """When the next probe is due; None while closed."""
        return self._probe_s

    def succeeded(self, now_s: float) -> None:
        """A call was answered while closed, or a probe."""
        if self._probe_s is not None:
            self._closed_s = now_s
        self._failures, self._probe_s = 0, None

    def failed(self, began_s: float, now_s: float) -> bool:
        """A call that began at `began_s` failed; returns whether the breaker opens with it.

        One from before it closed tells nothing new, however late: calls that hung all fail once the tier is back.
        """
        if self._probe_s is not None or began_s < self._closed_s:
            return False
        self._failures += 1
        if self._failures < self._options.failures:
            return False
        if now_s < self._closed_s + self._options.longest_pause_s:
            self.probe_failed(now_s)
        else:
            self._pause_s = self._options.pause_s
            self._probe_s = now_s + self._pause_s
        return True

    def probe_failed(self, now_s: float) -> None:
        """The next one is due after a pause twice as long."""
        self._pause_s = min(2 * self._pause_s, self._options.longest_pause_s)
        self._probe_s = now_s + self._pause_s
