"""Finding the latency-bounded throughput: rates out, verdicts in; no clock and no I/O.

    rate = search.next_rate()     the arrival rate to try next, None when done
    search.record(passed)         whether the SLA held at it

The latency-bounded throughput is the arrival rate at which a run meets the SLA half of the time; below, it mostly does,
and above, it mostly does not. Close to it, single verdicts are a matter of luck, so one bisection gives a number but
not how far to trust it. The search therefore has three phases:

    ramp      double (or halve) the rate until a passing one is below a failing one
    bracket   bisect until the two are close
    rounds    find the crossing several times over: from the estimate so far, step towards the side that the verdict
              points to until it flips, then bisect to the resolution

Rounds begin where those before them ended, so what they find is closer together than the truth is to any of it, and
their spread says little. The result is from all verdicts at once instead, and so is its interval (`crossing_of`). It
never leaves the rates that were tried, and is never narrower than the resolution unless it ends there.

The chance that a run meets the SLA falls with the logarithm of the rate along a logistic curve,

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
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Found = TypeVar("Found")
Probing = Generator[float, bool, Found]
"""Yields rates to try, is sent whether the SLA held, returns what it found."""


class Phase(Enum):
    """What a probe is for."""

    RAMP = "ramp"
    BRACKET = "bracket"
    ROUND = "round"


@dataclass(frozen=True, slots=True)
class Crossing:
    """The latency-bounded throughput and its 95% interval, queries per second.

    0 if not even `RateSearch.lowest_qps` meets the SLA: below it nothing is known, and the interval ends no lower than
    there. `capped` if `highest_qps` still does.
    """

    qps: float
    low_qps: float
    high_qps: float
    capped: bool = False


class RateSearch:
    """The search, from `start_qps`, for `rounds` crossings to a relative `resolution`.

    Raises ValueError naming the setting that is out of range.
    """

    def __init__(
        self,
        start_qps: float,
        lowest_qps: float = 0.1,
        highest_qps: float = 1e6,
        resolution: float = 0.03,
        rounds: int = 5,
    ) -> None:
        for name, value in (("start_qps", start_qps), ("lowest_qps", lowest_qps), ("highest_qps", highest_qps)):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value}: must be a positive number")
        if lowest_qps > highest_qps:
            raise ValueError(f"lowest_qps is {lowest_qps}: must not exceed highest_qps, {highest_qps}")
        if not 0 < resolution < 1:
            raise ValueError(f"resolution is {resolution}: must lie between 0 and 1")
        if rounds < 2:
            raise ValueError(f"rounds is {rounds}: a confidence interval needs at least 2")
        self.lowest_qps, self.highest_qps = lowest_qps, highest_qps
        self.resolution, self.rounds = resolution, rounds
        self.rounds_done = 0
        self.phase = Phase.RAMP
        self.crossings: list[float] = []
        self._tried: list[float] = []
        self._held: list[bool] = []
        self._capped = False
        self._steps = self._search(self._within(start_qps))
        self._rate: float | None = next(self._steps)

    def next_rate(self) -> float | None:
        """The rate to try; the same until `record` is called. None when the search is over."""
        return self._rate

    def record(self, passed: bool) -> None:
        """The SLA held at `next_rate()`, or not. Raises ValueError when the search is over."""
        if self._rate is None:
            raise ValueError("the search is over: there is no rate to record a verdict for")
        self._tried.append(self._rate)
        self._held.append(passed)
        try:
            self._rate = self._steps.send(passed)
        except StopIteration:
            self._rate = None

    def result(self) -> Crossing | None:
        """What has been found so far; None before the first round has ended."""
        if not self.rounds_done:
            if self._rate is not None:
                return None
            if self._capped:
                return Crossing(self.highest_qps, self.highest_qps, self.highest_qps, capped=True)
        middle, low, high = crossing_of(self._tried, self._held)
        spread = math.log1p(self.resolution) / 2
        low, high = min(low, middle - spread), max(high, middle + spread)
        least, most = min(self._tried), max(self._tried)
        if not self.rounds_done or math.exp(middle) <= self.lowest_qps:
            return Crossing(0.0, 0.0, min(max(math.exp(high), least), most))
        qps, low_qps, high_qps = (min(max(math.exp(log), least), most) for log in (middle, low, high))
        return Crossing(qps, low_qps, high_qps, capped=qps >= self.highest_qps)

    # Each generator below yields a rate and is sent the verdict.

    def _search(self, start_qps: float) -> Probing[None]:
        bounds = yield from self._ramp(start_qps)
        if bounds is None:
            return
        self.phase = Phase.BRACKET
        low, high = yield from self._bisect(*bounds, 1 + 4 * self.resolution)
        self.phase = Phase.ROUND
        estimate = math.sqrt(low * high)
        for _ in range(self.rounds):
            between = yield from self._cross(estimate)
            self.rounds_done += 1
            if between is not None:
                self.crossings.append(math.sqrt(between[0] * between[1]))
                estimate = math.exp(float(np.log(self.crossings).mean()))

    def _ramp(self, rate: float) -> Probing[tuple[float, float] | None]:
        """A passing and a failing rate, a factor of two apart at most; None if one of them is not to be found.

        The lowest rate is tried twice before none is said to hold: below it there is none to overcome a false alarm.
        """
        if (yield rate):
            while rate < self.highest_qps:
                last, rate = rate, self._within(rate * 2)
                if not (yield rate):
                    return last, rate
            self._capped = True
        else:
            last = rate
            while rate > self.lowest_qps:
                last, rate = rate, self._within(rate / 2)
                if (yield rate):
                    return rate, last
            if (yield rate):
                return rate, last
        return None

    def _bisect(self, low: float, high: float, ratio: float) -> Probing[tuple[float, float]]:
        """Narrow a passing and a failing rate until they are no more than `ratio` apart."""
        while high / low > ratio:
            rate = math.sqrt(low * high)
            if (yield rate):
                low = rate
            else:
                high = rate
        return low, high

    def _cross(self, rate: float) -> Probing[tuple[float, float] | None]:
        """The crossing anew, starting at `rate`: a passing and a failing rate, close together.

        None where the rates that may be tried end before: a verdict there is no crossing.
        """
        upwards = yield self._within(rate)
        factor = 1 + 2 * self.resolution
        while True:
            last, rate = rate, self._within(rate * factor if upwards else rate / factor)
            if rate == last:
                return None
            if (yield rate) != upwards:
                break
            # The estimate was further off than noise explains.
            factor *= factor
        low, high = min(last, rate), max(last, rate)
        return (yield from self._bisect(low, high, 1 + self.resolution))

    def _within(self, rate: float) -> float:
        return min(max(rate, self.lowest_qps), self.highest_qps)


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
