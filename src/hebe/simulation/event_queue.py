"""What will happen, in the order of virtual time; what happens at the same time, in the order it was announced."""

from __future__ import annotations

import heapq
import math
from typing import Generic, TypeVar

T = TypeVar("T")


class EventQueue(Generic[T]):
    """A heap of events with deterministic ties."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._announced = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, at_s: float, event: T) -> None:
        """Announce `event` for time `at_s`."""
        self._announced += 1
        heapq.heappush(self._heap, (at_s, self._announced, event))

    @property
    def next_s(self) -> float:
        """When the next event is; `inf` if there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def pop(self) -> tuple[float, T]:
        """Time and event of the next; raises IndexError if there is none."""
        at_s, _, event = heapq.heappop(self._heap)
        return at_s, event
