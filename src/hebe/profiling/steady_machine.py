"""Measurements on a machine that others disturb at times: begun while it is steady, and made anew where it was not.

What the host of a virtual machine gives to others comes and goes, for minutes or for hours. Whether a measurement
counts is decided by the machine's speed beside it and by what its host denied it, never by what was measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hebe.machine.meters.processor import MachineSpeed, ProcessorMeter
from hebe.machine.this_server import cores_allowed
from hebe.profiling.error import ProfilingError

STEADY_SHARE = 0.7
"""Of the fastest speed that the machine kept: what was measured at a lower one does not compare."""
MOST_DENIED = 0.1
"""Of the cores' time: where the host gives more to others, what is measured says more of it than of configurations."""
_LOOK_S, _TELL_S = 5.0, 60.0

_Measured = TypeVar("_Measured")


@dataclass(frozen=True, slots=True)
class RunDisturbance:
    """What disturbed one measurement that counts: numbers that can be kept with it.

    `denied` is the share of the cores' time that the host gave to others, of `ticks` in all; `slowest_s` what the same
    work took before it or after it, whichever was slower; `repeated` and `waited_s` as those of a `Disturbance`. `busy`
    is the share of the cores that others took before its session began.
    """

    denied: float
    ticks: int
    slowest_s: float
    repeated: int = 0
    waited_s: float = 0.0
    busy: float = 0.0


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What disturbed the measurements that count.

    `denied` is the share of the cores' time that the host gave to others, `slowest_share` the speed of the machine when
    it was slowest, of the fastest that it kept from a measurement's begin to its end; `repeated` measurements were made
    anew, and `waited_s` is how long none was made since the machine was not steady. `busy` is the largest share of the
    cores that others took before a session.
    """

    denied: float = 0.0
    slowest_share: float = 1.0
    repeated: int = 0
    waited_s: float = 0.0
    busy: float = 0.0

    @classmethod
    def of(cls, measurements: Sequence[RunDisturbance]) -> Disturbance:
        """Of all of these, on one machine, whenever they were made."""
        ticks = sum(each.ticks for each in measurements)
        speeds = [each.slowest_s for each in measurements]
        return cls(
            sum(each.denied * each.ticks for each in measurements) / ticks if ticks else 0.0,
            min(speeds) / max(speeds) if speeds else 1.0,
            sum(each.repeated for each in measurements),
            sum(each.waited_s for each in measurements),
            max((each.busy for each in measurements), default=0.0),
        )

    def __str__(self) -> str:
        """``the host gave 3% of the cores' time to others, and this machine's speed was at least 81% of its fastest``,
        and what was done about it."""
        said = (
            f"the host gave {self.denied:.0%} of the cores' time to others, and this machine's speed was at least "
            f"{self.slowest_share:.0%} of its fastest"
        )
        if self.repeated or self.waited_s >= 1:
            said += f"; measurements made anew: {self.repeated}, after {self.waited_s:,.0f} s of waiting"
        return said


class SteadyMachine:
    """Measures while the machine is steady, for as long as `patience_s` lasts: the time in all that is spent on waiting
    and on measurements that are made anew. After that, or with none, what is measured counts as it is.

    `told` is given a sentence when there is something to wait for, once a minute at most. One object is for all that is
    to be compared: it knows how fast the machine was. That is the fastest speed that a measurement both began and ended
    with: what lasts for a moment, as while nobody else uses the host, is not what the machine can be waited for.
    `disturbances` says what disturbed each measurement that counts, in their order.
    """

    def __init__(
        self,
        speed: MachineSpeed,
        meter: ProcessorMeter,
        patience_s: float = 0.0,
        told: Callable[[str], object] = lambda _words: None,
        *,
        wait: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._speed, self._meter, self._told = speed, meter, told
        self._patience_s, self._wait, self._clock = patience_s, wait, clock
        self._silent_until_s = float("-inf")
        self.forget()

    @property
    def disturbance(self) -> Disturbance:
        """What disturbed what was measured so far."""
        return Disturbance.of(self.disturbances)

    def forget(self) -> None:
        """What is measured from here on is told of, and compared, without what was before. Patience stays."""
        self.disturbances: list[RunDisturbance] = []
        self._repeated, self._waited_s = 0, 0.0

    def measure(self, run: Callable[[], _Measured]) -> _Measured:
        """What `run` returns. Raises what it does; a `ProfilingError` only if the machine was steady, or patience is at
        its end."""
        while True:
            before_s, began_s = self._steady_sample(), self._clock()
            self._meter.read()
            try:
                measured = run()
            except ProfilingError:
                if self._counts(before_s, began_s):
                    raise
            else:
                if self._counts(before_s, began_s):
                    return measured

    def _counts(self, before_s: float, began_s: float) -> bool:
        """Whether what was measured since `began_s` does; it is noted."""
        use, after_s = self._meter.read(), self._speed.sample()
        if self._patience_s > 0 and (use.steal >= MOST_DENIED or not self._is_steady(after_s)):
            self._patience_s -= self._clock() - began_s
            self._repeated += 1
            self._tell(
                f"The machine was disturbed: its host gave {use.steal:.0%} of the cores' time to others, and it ended "
                f"at {self._share(after_s):.0%} of the speed that it had. That is measured anew."
            )
            return False
        slowest_s = max(before_s, after_s)
        self.disturbances.append(RunDisturbance(use.steal, use.ticks, slowest_s, self._repeated, self._waited_s))
        self._repeated, self._waited_s = 0, 0.0
        return True

    def _tell(self, words: str) -> None:
        if (now_s := self._clock()) >= self._silent_until_s:
            self._silent_until_s = now_s + _TELL_S
            self._told(words)

    def _share(self, taken_s: float) -> float:
        """Of the speed that the machine kept; no more than all of it."""
        kept_s = min((each.slowest_s for each in self.disturbances), default=float("inf"))
        return min(kept_s / taken_s, 1.0)

    def _is_steady(self, taken_s: float) -> bool:
        return self._share(taken_s) >= STEADY_SHARE

    def _steady_sample(self) -> float:
        """A sample of the machine's speed: of when it is steady, if there is patience to wait for that."""
        taken_s = self._speed.sample()
        if not self._is_steady(taken_s) and self._patience_s > 0:
            self._tell(
                f"The machine is at {self._share(taken_s):.0%} of the speed that it had: waiting until "
                f"it is steady, {self._patience_s:,.0f} s at most."
            )
        began_s = self._clock()
        while not self._is_steady(taken_s) and self._patience_s > self._clock() - began_s:
            self._wait(_LOOK_S)
            taken_s = self._speed.sample()
        waited_s = self._clock() - began_s
        self._patience_s -= waited_s
        self._waited_s += waited_s
        return taken_s


def steady_machine(
    cores: Sequence[int], patience_s: float = 0.0, told: Callable[[str], object] = lambda _words: None
) -> SteadyMachine:
    """This machine, of which these cores are measured. Its speed is that of as many of them as may be busy at a time:
    on more of them a sample would wait for the control group's next period, and tell of that."""
    return SteadyMachine(MachineSpeed(cores[-cores_allowed(cores) :]), ProcessorMeter(cores), patience_s, told)
