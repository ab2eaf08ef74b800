"""DeepRecSys' hill climb: the query size from which on queries go to the base type, by measuring.

U. Gupta et al., "DeepRecSys: a system for optimizing end-to-end at-scale neural recommendation inference", ISCA 2020,
climbs one knob by its effect on throughput. Kairos gives that policy a threshold so found (section 7, DRS).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hebe.planning.error import PlanningError


@dataclass(frozen=True, slots=True)
class ThresholdSearch:
    """The best threshold, in items, of `path`: (threshold, queries/s) in the order of measuring."""

    threshold: int
    qps: float
    path: tuple[tuple[int, float], ...]

    @property
    def evaluations(self) -> int:
        """How many thresholds were measured."""
        return len(self.path)


def climb_threshold(
    evaluate: Callable[[int], float],
    largest: int,
    *,
    start: int | None = None,
    step: int | None = None,
    finest: int = 10,
    most_evaluations: int = 40,
) -> ThresholdSearch:
    """Climbs from `start` (half of `largest` items) by `step` (a quarter): on while it gets better, else the other
    way, else by half the step, down to steps of `finest` items.

    `evaluate(threshold)` gives queries/s, finite and at least 0, for thresholds from 0 to `largest`; each is measured
    once. A start that gives 0 is halved until it does not: it sends slow servers more than they serve in time. Of
    equal thresholds the one found first stays. Raises `PlanningError`.
    """
    start = largest // 2 if start is None else start
    step = max(largest // 4, 1) if step is None else step
    if largest < 1 or not 0 <= start <= largest:
        raise PlanningError(
            f"start is {start}, largest {largest}: must be 0 <= start <= largest, and largest at least 1"
        )
    if step < 1 or finest < 1 or most_evaluations < 1:
        raise PlanningError(f"step {step}, finest {finest}, most_evaluations {most_evaluations}: must be at least 1")
    path: dict[int, float] = {}

    def measure(threshold: int) -> float:
        if threshold not in path:
            value = float(evaluate(threshold))
            if not (math.isfinite(value) and value >= 0):
                raise PlanningError(f"evaluate gave {value} at threshold {threshold}: must be finite and at least 0")
            path[threshold] = value
        return path[threshold]

    here, towards = start, 1
    while measure(here) == 0 and here and len(path) < most_evaluations:
        here //= 2
    while len(path) < most_evaluations:
        for direction in (towards, -towards):
            there = min(max(here + direction * step, 0), largest)
            if (there in path or len(path) < most_evaluations) and measure(there) > path[here]:
                here, towards = there, direction
                break
        else:
            if step <= finest:
                break
            step = max(step // 2, finest)
    return ThresholdSearch(here, path[here], tuple(path.items()))
