"""A machine that does the same work faster and slower."""

from __future__ import annotations

import itertools
import threading

import pytest

from hebe.machine.meters.processor import MachineSpeed
from hebe.machine.pinning import available_cores


def test_of_each_sample_the_fastest_run_counts():
    taken_s = iter([3.0, 2.5, 9.0, 4.0, 3.5, 8.0, 4.0, 5.0, 9.0, 6.0, 8.0, 2.0])
    speed = MachineSpeed((0,), lambda: next(taken_s))
    assert [speed.sample(), speed.sample()] == [2.5, 2.0]


def test_the_core_that_takes_longest_counts():
    together, order, own, seconds = threading.Barrier(2), itertools.count(), threading.local(), [1.0, 1.0]

    def work() -> float:
        together.wait(60)  # at the same time, so on two threads
        if not hasattr(own, "number"):
            own.number = next(order) % 2
        return seconds[own.number]

    speed = MachineSpeed(available_cores()[:1] * 2, work)
    assert speed.sample() == 1.0
    seconds[0] = 4.0
    assert speed.sample() == 4.0


def test_a_core_that_may_not_be_used_is_a_fault():
    with pytest.raises(OSError, match="Invalid argument"):
        MachineSpeed((1 << 15,)).sample()


def test_the_work_is_done_on_every_core_and_takes_time():
    assert MachineSpeed(available_cores()).sample() > 0
