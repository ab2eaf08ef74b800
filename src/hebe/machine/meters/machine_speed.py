"""How fast a machine is now: the same work, done again and again.

A virtual machine whose host lets others use its memory bus or the other half of its cores gets slower without a sign:
no core is denied to it, nothing of its own runs. Measurements hours apart, or minutes, then differ by factors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from hebe.machine.pinning import pin_thread

_NUMBERS = 1 << 22
"""Float64 that are summed, 32 MiB: more than second-level caches hold, so that memory takes part."""
_COMPUTED = 1 << 14
"""Of which the exponential is taken, which caches hold."""
_RUNS, _PAUSE_S = 6, 0.05
"""Of which the fastest counts, so that what interrupts one of them does not: steal tells of that."""

Work = Callable[[], float]
"""Does the work once; returns the seconds that it took."""


class MachineSpeed:
    """`sample` does the work on each of `cores`, at the same time: a third of a second.

    It takes 32 MiB while this object lives. `work` is done in its place.
    """

    def __init__(self, cores: Sequence[int], work: Work | None = None) -> None:
        self._cores = tuple(cores)
        self._numbers = np.ones(_NUMBERS if work is None else 0)
        self._work = work or self._sum_and_compute

    def sample(self) -> float:
        """Seconds that the work takes now: on the core where it takes longest, the fastest of some runs."""

        def run(core: int) -> float:
            pin_thread((core,))
            return min(self._paused_work() for _ in range(_RUNS))

        with ThreadPoolExecutor(len(self._cores)) as threads:
            return max(threads.map(run, self._cores))

    def _paused_work(self) -> float:
        time.sleep(_PAUSE_S)
        return self._work()

    def _sum_and_compute(self) -> float:
        began_s = time.perf_counter()
        self._numbers.sum()
        for _ in range(8):
            np.exp(self._numbers[:_COMPUTED])
        return time.perf_counter() - began_s
