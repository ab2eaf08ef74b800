"""A machine that does the same work faster and slower."""

from __future__ import annotations

import threading

import pytest

from hebe.runtime.machine_speed import MachineSpeed
from hebe.runtime.pinning import available_cores


def test_the_slowest_sample_is_told_as_a_share_of_the_fastest():
    taken_s = iter([2.0, 3.0, 9.0, 4.0, 5.0, 8.0, 3.0, 2.5, 9.0])
    speed = MachineSpeed((0,), lambda: next(taken_s))
    assert speed.slowest_share == 1.0, "not known"
    speed.sample()
    assert speed.slowest_share == 1.0
    speed.sample()
    assert speed.slowest_share == pytest.approx(2.0 / 4.0), "of each three the fastest"
    speed.sample()
    assert speed.slowest_share == pytest.approx(2.0 / 4.0)


def test_the_core_that_takes_longest_counts():
    seconds = threading.local()
    given = iter([1.0, 4.0, 1.0, 2.0])
    lock = threading.Lock()

    def work() -> float:
        with lock:
            if not hasattr(seconds, "own"):
                seconds.own = next(given)
        return seconds.own

    speed = MachineSpeed((0, 0), work)
    speed.sample()
    speed.sample()
    assert speed.slowest_share == pytest.approx(2.0 / 4.0)


def test_the_work_is_done_on_every_core_and_takes_time():
    speed = MachineSpeed(available_cores())
    speed.sample()
    speed.sample()
    assert 0 < speed.slowest_share <= 1
