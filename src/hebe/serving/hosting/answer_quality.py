"""What share of a model's recent answers is real: of their keys, those without a default vector for want of time. Pure:
times are passed in, seconds of any clock.
"""

from __future__ import annotations

from collections import deque

from hebe.query import KeyCounts

WINDOW_S = 10
"""So far back answers count."""
MAX_DEFAULTED = 0.5
"""Of the keys of these answers: where more got a default vector, the model should answer no more for now."""
_MIN_ANSWERS = 20


class AnswerQuality:
    """Counts answers by the second. One thread at a time."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, KeyCounts]] = deque()
        self._answers: deque[int] = deque()
        self._poor_since_s: float | None = None

    def add(self, keys: KeyCounts, now_s: float) -> None:
        """A query was answered, with these keys."""
        second = int(now_s)
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, KeyCounts()))
            self._answers.append(0)
        self._seconds[-1][1].add(keys)
        self._answers[-1] += 1
        self.poor_since_s(now_s)

    def defaulted_share(self, now_s: float) -> float | None:
        """Of the keys of recent answers; None where there are none."""
        self._forget(now_s)
        total = sum(keys.total for _, keys in self._seconds)
        return sum(keys.defaulted for _, keys in self._seconds) / total if total else None

    def cut_share(self, now_s: float) -> float:
        """Of the keys of recent answers that got a default vector, those that the deadline has cut off."""
        self._forget(now_s)
        defaulted = sum(keys.defaulted for _, keys in self._seconds)
        return sum(keys.cut for _, keys in self._seconds) / defaulted if defaulted else 0.0

    def poor_since_s(self, now_s: float) -> float | None:
        """Since when answers have been mostly default vectors; None where they are not, or where there were too few."""
        share = self.defaulted_share(now_s)
        if share is None or share <= MAX_DEFAULTED or sum(self._answers) < _MIN_ANSWERS:
            self._poor_since_s = None
        elif self._poor_since_s is None:
            self._poor_since_s = now_s
        return self._poor_since_s

    def _forget(self, now_s: float) -> None:
        while self._seconds and self._seconds[0][0] <= now_s - WINDOW_S:
            self._seconds.popleft()
            self._answers.popleft()
