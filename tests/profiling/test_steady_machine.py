"""When a measurement counts, on a machine whose speed and host are made up."""

from __future__ import annotations

import math
from itertools import chain, repeat
from types import SimpleNamespace

import pytest

from hebe.machine import this_server
from hebe.machine.cgroups import ControlGroupLimits
from hebe.machine.meters.processor import ProcessorUse
from hebe.machine.pinning import available_cores
from hebe.profiling import steady_machine as steady_machine_module
from hebe.profiling.error import ProfilingError
from hebe.profiling.steady_machine import Disturbance, RunDisturbance, SteadyMachine, steady_machine


class Course:
    """A machine that takes so many seconds for the same work, one time after another, and whose host denies it such
    shares of what measurements take; both then stay as they last were. A measurement takes 10 s."""

    def __init__(self, taken_s=(1.0,), denied=(0.0,), patience_s=0.0):
        self.now_s, self.told, self.measured = 0.0, [], 0
        seconds = chain(taken_s, repeat(taken_s[-1]))
        readings = (share for each in chain(denied, repeat(denied[-1])) for share in (0.0, each))
        self.machine = SteadyMachine(
            SimpleNamespace(sample=lambda: next(seconds)),
            SimpleNamespace(read=lambda: ProcessorUse(0.5, 0.5, 0.5, next(readings), 100)),
            patience_s,
            self.told.append,
            wait=self._wait,
            clock=lambda: self.now_s,
        )

    def _wait(self, seconds):
        self.now_s += seconds

    def measure(self, fault=None):
        def run():
            self.now_s += 10.0
            self.measured += 1
            if fault is not None:
                raise fault
            return self.measured

        return self.machine.measure(run)


def test_on_a_steady_machine_the_first_measurement_counts():
    course = Course((1.0, 1.3, 1.1), (0.09,), patience_s=100.0)
    assert (course.measure(), course.told) == (1, [])
    assert course.machine.disturbance == Disturbance(0.09, 1.0, 0, 0.0)


def test_a_measurement_waits_until_the_machine_is_as_fast_as_it_was():
    course = Course((1.0, 1.0, 2.0, 2.0, 1.2, 1.0), patience_s=100.0)
    assert [course.measure(), course.measure()] == [1, 2]
    assert course.now_s == 2 * 10.0 + 2 * 5.0
    assert course.told == ["The machine is at 50% of the speed that it had: waiting until it is steady, 100 s at most."]
    assert course.machine.disturbance == Disturbance(0.0, pytest.approx(1 / 1.2), 0, 10.0)


@pytest.mark.parametrize(
    ("course", "denied", "ended_at"),
    [
        (Course((1.0, 1.0, 1.0, 2.0, 1.0), patience_s=100.0), "0%", "50%"),
        (Course(denied=(0.0, 0.4, 0.0), patience_s=100.0), "40%", "100%"),
    ],
)
def test_what_was_disturbed_meanwhile_is_measured_anew(course, denied, ended_at):
    assert [course.measure(), course.measure()] == [1, 3]
    assert course.told == [
        f"The machine was disturbed: its host gave {denied} of the cores' time to others, and it ended at {ended_at} "
        "of the speed that it had. That is measured anew."
    ]
    assert course.machine.disturbance == Disturbance(0.0, 1.0, 1, 0.0), "of those that count"
    assert "; measurements made anew: 1, after 0 s of waiting" in str(course.machine.disturbance)


def test_it_is_told_once_a_minute():
    course = Course(denied=(0.4,), patience_s=75.0)
    assert course.measure() == 9, "eight times anew"
    assert len(course.told) == 2


def test_with_patience_at_its_end_everything_counts():
    course = Course(denied=(0.4,), patience_s=25.0)
    assert course.measure() == 4, "three times anew: 10 s each"
    assert course.measure() == 5
    assert course.machine.disturbance.denied == pytest.approx(0.4)
    slow = Course((1.0, 1.0, 2.0), patience_s=12.0)
    assert [slow.measure(), slow.measure()] == [1, 2]
    assert slow.machine.disturbance == Disturbance(0.0, 0.5, 0, 15.0)


def test_without_patience_everything_counts_and_is_told():
    course = Course((1.0, 1.0, 1.0, 4.0), (0.5,))
    assert (course.measure(), course.measure(), course.told, course.now_s) == (1, 2, [], 20.0)
    assert course.machine.disturbance == Disturbance(0.5, 0.25)
    assert str(course.machine.disturbance) == (
        "the host gave 50% of the cores' time to others, and this machine's speed was at least 25% of its fastest"
    )


def test_what_does_not_settle_is_tried_anew_only_where_the_machine_was_disturbed():
    steady = Course(patience_s=100.0)
    with pytest.raises(ProfilingError, match="did not settle"):
        steady.measure(ProfilingError("did not settle"))
    assert steady.measured == 1
    disturbed = Course(denied=(0.3, 0.3, 0.0), patience_s=100.0)
    with pytest.raises(ProfilingError, match="did not settle"):
        disturbed.measure(ProfilingError("did not settle"))
    assert disturbed.measured == 3


def test_what_else_goes_wrong_is_raised_at_once():
    course = Course(denied=(0.5,), patience_s=100.0)
    with pytest.raises(OSError, match="gone"):
        course.measure(OSError("gone"))
    assert course.measured == 1


def test_other_measurements_are_told_of_anew():
    course = Course((1.0, 1.0, 2.0, 2.4), (0.0, 0.05), patience_s=100.0)
    course.measure()
    course.machine.forget()
    assert course.machine.disturbance == Disturbance(), "nothing was measured since"
    course.measure()
    assert course.machine.disturbance == Disturbance(0.05), "it is as fast as it was since then"
    assert course.now_s == 2 * 10.0


def test_a_speed_that_lasts_for_a_moment_is_not_waited_for():
    course = Course((0.5, 1.0, 1.0, 1.1, 0.6, 1.0), patience_s=100.0)
    assert [course.measure(), course.measure(), course.measure()] == [1, 2, 3]
    assert (course.now_s, course.told) == (3 * 10.0, [])
    assert course.machine.disturbance == Disturbance(slowest_share=pytest.approx(1 / 1.1))


def test_one_that_lasts_is_from_then_on():
    course = Course((1.0, 1.0, 0.5, 0.5, 1.0, 0.6), patience_s=100.0)
    assert [course.measure(), course.measure(), course.measure()] == [1, 2, 3]
    assert course.now_s == 3 * 10.0 + 5.0
    assert course.machine.disturbance == Disturbance(slowest_share=0.5, waited_s=5.0), "the first one was at half of it"


@pytest.mark.parametrize(("allowed", "sampled"), [(2.5, (2, 3)), (0.5, (3,)), (math.inf, (0, 1, 2, 3))])
def test_the_speed_is_that_of_as_many_cores_as_may_be_busy_at_a_time(monkeypatch, allowed, sampled):
    monkeypatch.setattr(this_server, "control_group_limits", lambda *_: ControlGroupLimits(cores=allowed))
    monkeypatch.setattr(steady_machine_module, "MachineSpeed", lambda cores: asked.append(cores))
    asked = []
    steady_machine((0, 1, 2, 3))
    assert asked == [sampled]


def test_of_measurements_of_several_sessions_what_disturbed_them_all_is_told():
    """Whoever compares them has to know how unlike the machine was, whichever process measured."""
    before = [RunDisturbance(0.5, 100, 2.0, 1, 4.0, 0.3), RunDisturbance(0.0, 300, 1.5, 0, 0.0, 0.3)]
    now = [RunDisturbance(0.0, 100, 1.0, 2, 5.0, 0.1)]
    assert Disturbance.of(before + now) == Disturbance(0.1, 0.5, 3, 9.0, 0.3)
    assert Disturbance.of(now) == Disturbance(0.0, 1.0, 2, 5.0, 0.1)


def test_what_disturbed_each_measurement_is_kept():
    course = Course((1.0, 1.0, 2.0, 1.2, 1.0), (0.04, 0.05, 0.3, 0.02), patience_s=100.0)
    assert [course.measure() for _ in range(3)] == [1, 2, 4]
    assert course.machine.disturbances == [
        RunDisturbance(0.04, 100, 1.0), RunDisturbance(0.05, 100, 1.2, 0, 5.0), RunDisturbance(0.02, 100, 1.0, 1),
    ]  # fmt: skip


def test_this_machine_is_measured():
    machine = steady_machine(available_cores())
    assert machine.measure(lambda: "what it returns") == "what it returns"
    assert 0 < machine.disturbance.slowest_share <= 1
