"""When queries arrive: point processes with a given mean rate.

An arrival process is two things. Its *shape* says how the rate changes over time, as a piecewise constant function
of mean 1 over one period. Its *gaps* are exponential (a Poisson process) or all alike (a clock). Arrivals are drawn
in operational time, in which the rate is 1, and mapped back through the inverse of the cumulative rate (the
time-change of a non-homogeneous Poisson process; Devroye, Non-Uniform Random Variate Generation, VI.1.3).

The mean rate is that of whole periods: a run that ends in the middle of one has another. `over_window` and
`whole_periods_s` are for those who choose how long a run is.

Exponential gaps matter: the load generators of DeepRecSys and Kairos draw whole milliseconds from a Poisson
*distribution*, which gives gaps five times too even (coefficient of variation 0.2 instead of 1), and so tails that
are too good.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hebe.workload.rate_trace import RateTrace
from hebe.workload.text_errors import WorkloadError

Times = npt.NDArray[np.float64]

BLOCK_ARRIVALS = 1 << 16

ROUNDING = 1e-6
"""By so large a share a window may differ from whole periods and still hold them: it was rounded when it was printed,
or typed.
"""


class ArrivalProcess(Protocol):
    """When queries arrive at a given mean rate."""

    @property
    def period_s(self) -> float | None:
        """After so long the rate repeats; None if it has no period of its own."""
        ...

    def blocks(self, rate_qps: float, duration_s: float, rng: np.random.Generator) -> Iterator[Times]:
        """Arrival times in [0, duration_s), ascending, float64 seconds, block after block (bounded memory)."""
        ...


@dataclass(frozen=True, slots=True)
class PoissonArrivals:
    """A Poisson process: independent exponential gaps."""

    @property
    def period_s(self) -> None:
        """None: the rate is always the same."""
        return None

    def blocks(self, rate_qps: float, duration_s: float, rng: np.random.Generator) -> Iterator[Times]:
        """Arrival times, block after block."""
        return _Shape.flat().blocks(rate_qps, duration_s, rng)


@dataclass(frozen=True, slots=True)
class ConstantArrivals:
    """A clock: one arrival every 1 / rate seconds, the first at 0."""

    @property
    def period_s(self) -> None:
        """None: the rate is always the same."""
        return None

    def blocks(self, rate_qps: float, duration_s: float, rng: np.random.Generator) -> Iterator[Times]:  # noqa: ARG002
        """Arrival times, block after block."""
        return _Shape.flat().blocks(rate_qps, duration_s, None)


@dataclass(frozen=True, slots=True)
class BurstArrivals:
    """A Poisson process whose rate is `factor` times higher during bursts of `burst_s`, once every `period_s`.

    The mean over a period is the requested rate. A period starts with its calm part.
    """

    factor: float = 5.0
    burst_s: float = 1.0
    period_s: float = 10.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.factor) and self.factor > 0):
            raise WorkloadError(f"burst factor is {self.factor}: must be a positive number")
        if not (0 < self.burst_s < self.period_s < math.inf):
            raise WorkloadError(
                f"burst of {self.burst_s} s every {self.period_s} s: a burst must be longer than 0"
                " and shorter than its period"
            )

    def blocks(self, rate_qps: float, duration_s: float, rng: np.random.Generator) -> Iterator[Times]:
        """Arrival times, block after block."""
        calm_s = self.period_s - self.burst_s
        shape = _Shape(np.array([0.0, calm_s, self.period_s]), np.array([1.0, self.factor]))
        return shape.blocks(rate_qps, duration_s, rng)


@dataclass(frozen=True, slots=True)
class TraceArrivals:
    """A Poisson process whose rate follows a recording, scaled so that its mean is the requested rate.

    With `speed` None the whole recording is played once, in the time that the run lasts; otherwise it is played
    `speed` times as fast as recorded, and again from the start where it ends before the run does.
    """

    trace: RateTrace
    speed: float | None = None

    def __post_init__(self) -> None:
        if self.speed is not None and not (math.isfinite(self.speed) and self.speed > 0):
            raise WorkloadError(f"trace speed is {self.speed}: must be a positive number")

    @property
    def period_s(self) -> float | None:
        """How long the recording lasts at `speed`; None without one."""
        return None if self.speed is None else self.trace.duration_s / self.speed

    def blocks(self, rate_qps: float, duration_s: float, rng: np.random.Generator) -> Iterator[Times]:
        """Arrival times, block after block."""
        speed = self.trace.duration_s / duration_s if self.speed is None else self.speed
        return _Shape(self.trace.edges_s / speed, self.trace.rates_qps).blocks(rate_qps, duration_s, rng)


def arrival_remarks(process: ArrivalProcess) -> tuple[str, ...]:
    """What must be said of a run with these arrivals: where the recording that they follow has gaps."""
    return process.trace.remarks if isinstance(process, TraceArrivals) else ()


def over_window(process: ArrivalProcess, window_s: float) -> ArrivalProcess:
    """The process whose mean rate is that over a window of `window_s`, whenever the window begins.

    That is itself, but for a trace without a speed: its recording lasts as long as the window and begins anew.
    """
    if isinstance(process, TraceArrivals) and process.speed is None:
        return replace(process, speed=process.trace.duration_s / window_s)
    return process


def whole_periods_s(process: ArrivalProcess, window_s: float) -> float:
    """The shortest window of at least `window_s`, but for `ROUNDING`, that holds whole periods of the process."""
    period_s = over_window(process, window_s).period_s
    if period_s is None:
        return window_s
    # What is too much by rounding is not a period more.
    return max(math.ceil(window_s / period_s * (1 - ROUNDING)), 1) * period_s


class _Shape:
    """A periodic, piecewise constant rate of mean 1, and its cumulative function."""

    def __init__(self, edges_s: Times, rates: Times) -> None:
        cumulative = np.concatenate(([0.0], np.cumsum(np.diff(edges_s) * rates)))
        scale = float(edges_s[-1] / cumulative[-1])
        self._period_s = float(edges_s[-1])
        # Stretches without arrivals are left out of the search: the cumulative rate must increase to be inverted.
        busy = rates > 0
        self._starts_s = edges_s[:-1][busy]
        self._rates = rates[busy] * scale
        self._cumulative = cumulative[:-1][busy] * scale

    @classmethod
    def flat(cls) -> _Shape:
        return cls(np.array([0.0, 1.0]), np.array([1.0]))

    def times(self, operational: Times) -> Times:
        """Where the cumulative rate reaches `operational`; over one period it grows by the period's length."""
        periods = np.floor(operational / self._period_s)
        # Not below 0: the division may round up to the next whole period.
        rest = np.maximum(operational - periods * self._period_s, 0.0)
        i = np.searchsorted(self._cumulative, rest, side="right") - 1
        return np.asarray(periods * self._period_s + self._starts_s[i] + (rest - self._cumulative[i]) / self._rates[i])

    def blocks(self, rate_qps: float, duration_s: float, rng: np.random.Generator | None) -> Iterator[Times]:
        """Arrivals of a Poisson process, or without `rng` of a clock, at mean rate `rate_qps`."""
        if not (math.isfinite(rate_qps) and rate_qps > 0):
            raise WorkloadError(f"rate is {rate_qps} queries/s: must be a positive number")
        if not (math.isfinite(duration_s) and duration_s > 0):
            raise WorkloadError(f"duration is {duration_s} s: must be a positive number")
        return self._blocks(rate_qps, duration_s, rng)

    def _blocks(self, rate_qps: float, duration_s: float, rng: np.random.Generator | None) -> Iterator[Times]:
        done, last = 0, 0.0
        while True:
            # A little more than is expected, so that a short run takes one block.
            ahead = max(duration_s - last / rate_qps, 0.0) * rate_qps
            count = int(min(ahead + 4 * math.sqrt(ahead) + 16, BLOCK_ARRIVALS))
            if rng is None:
                operational = np.arange(done, done + count, dtype=np.float64)
            else:
                operational = last + np.cumsum(rng.exponential(1.0, count))
            done, last = done + count, float(operational[-1])
            times = self.times(operational / rate_qps)
            inside = int(np.searchsorted(times, duration_s))
            if inside:
                yield times[:inside]
            if inside < count:
                return
