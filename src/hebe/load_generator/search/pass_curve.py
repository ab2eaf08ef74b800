"""Where a rate's chance to meet the SLA crosses one half, and how far to trust it, from single verdicts.

Close to the latency-bounded throughput, whether a run meets the SLA is a matter of luck. Its chance falls with the
logarithm of the rate along a logistic curve,

    P(a run at rate r holds) = 1 / (1 + exp((ln r - m) / w))

with the crossing m and the width w. All verdicts of a search are draws from it, those of the bracket as well as those
of every round, whatever made the search ask for that rate. Nobody knows the width: it depends on how long runs are and
how heavy the tail of the service times is, from 0.01 (a clock that serves alike queries) to 0.3 (production sizes, a
few hundred queries a run). A search of thirty runs does not tell it either: the width that fits best is half of the
true one, and with it the interval covers the crossing four times in five. So the widths are averaged over, each weighed
by how well it explains the verdicts and by how plausible it is before them (log-normal around `TYPICAL_WIDTH`, spread
`WIDTH_SPREAD`); the crossing may lie anywhere. What remains is the crossing's distribution: its median is the estimate,
its middle 95% the interval. `tests/load_generator/search/test_rate_search.py` holds it to that against queues.

A share of `LAPSE` of the verdicts says nothing: something else may have disturbed the machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95

TYPICAL_WIDTH = 0.08
WIDTH_SPREAD = 1.0
"""Of the logarithm of the width: it lies between a seventh and seven times the typical one, most probably."""

LAPSE = 0.04

_BEYOND = 0.5
"""So far outside of the rates that were tried the crossing is looked for, as a logarithm."""
_WIDTHS = np.geomspace(0.005, 2.0, 40)
_STEP = 0.004
"""Of the crossing's logarithm, where rates are as close together as that; between the farthest, 2,000 steps."""
_MOST_STEPS = 2000

Floats = npt.NDArray[np.float64]


def crossing_of(rates: Sequence[float], verdicts: Sequence[bool]) -> tuple[float, float, float]:
    """The logarithm of the crossing rate, and of both ends of its interval, from at least one verdict."""
    tried, held = np.log(np.asarray(rates, dtype=np.float64)), np.asarray(verdicts, dtype=bool)
    low, high = float(tried.min()) - _BEYOND, float(tried.max()) + _BEYOND
    crossings = np.linspace(low, high, min(math.ceil((high - low) / _STEP) + 2, _MOST_STEPS))
    chances = _chances(tried, held, crossings)
    tail = (1 - CONFIDENCE) / 2
    lower, middle, upper = np.interp((tail, 0.5, 1 - tail), np.cumsum(chances), crossings)
    return float(middle), float(lower), float(upper)


def _chances(tried: Floats, held: npt.NDArray[np.bool_], crossings: Floats) -> Floats:
    """How probable each of `crossings` is, float64, summing to 1."""
    prior = -0.5 * ((np.log(_WIDTHS) - math.log(TYPICAL_WIDTH)) / WIDTH_SPREAD) ** 2
    logs = np.repeat(prior[:, None], len(crossings), axis=1)
    for rate, holds in zip(tried, held, strict=True):
        chance = 0.5 + 0.5 * np.tanh((crossings - rate) / (2.0 * _WIDTHS[:, None]))  # the logistic function
        logs += np.log(LAPSE / 2 + (1 - LAPSE) * (chance if holds else 1 - chance))
    weights = np.exp(logs - logs.max()).sum(axis=0)
    return np.asarray(weights / weights.sum())
