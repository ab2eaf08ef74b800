from dataclasses import replace

import pytest

from hebe.serving.load_window import LoadWindow
from hebe.serving.profile_in_use import ProfileInUse

from .profiled import TUPLE, served

IN_TIME = LoadWindow(10.0, 1200, 0, 95.0, 25.0)
LATE = LoadWindow(10.0, 800, 700, 95.0, 25.0)


def test_a_load_that_was_kept_raises_the_tuple_and_the_profile_stays():
    profile = ProfileInUse(served())
    assert profile.see(IN_TIME, "now")
    assert profile.efficiency == TUPLE
    assert (profile.measured, profile.measured_at) == (replace(TUPLE, qps=120.0), "now")
    assert profile.window is IN_TIME
    assert not profile.see(IN_TIME, "later")
    assert profile.measured_at == "now"


def test_one_late_window_is_a_hiccup_and_two_are_not():
    profile = ProfileInUse(served())
    assert not profile.see(LATE, "1")
    assert not profile.see(replace(IN_TIME, queries=500), "2")
    assert not profile.see(LATE, "3")
    assert profile.measured is None
    assert profile.see(replace(LATE, queries=700), "4")
    assert profile.measured.qps == 80.0  # the more of the two


def test_a_window_at_the_edge_says_nothing():
    profile = ProfileInUse(served())
    assert not profile.see(replace(IN_TIME, late=70), "now")
    assert profile.window.kept is None
    assert profile.measured is None


def test_without_a_power_meter_the_power_stays():
    profile = ProfileInUse(served(efficiency=replace(TUPLE, estimated=False)))
    profile.see(replace(IN_TIME, peak_watts=None), "now")
    assert (profile.measured.power_watts, profile.measured.estimated) == (30.0, False)


def test_a_correction_goes_on_from_the_one_before():
    profile = ProfileInUse(served(measured=replace(TUPLE, qps=150.0), measured_at="before"))
    assert not profile.see(IN_TIME, "now")
    assert (profile.measured.qps, profile.measured_at) == (150.0, "before")
    assert not profile.unkept


def test_what_changed_is_kept_once_and_again_where_it_could_not_be():
    kept, fault = [], OSError(28, "No space left on device", "ranker.json")

    def keep(measured, at):
        if fault is not None:
            raise fault
        kept.append((measured.qps, at))

    profile = ProfileInUse(served(keep=keep))
    profile.keep()
    profile.see(IN_TIME, "now")
    with pytest.raises(OSError, match="No space"):
        profile.keep()
    assert profile.unkept
    fault = None
    profile.keep()
    profile.keep()
    assert kept == [(120.0, "now")]
    assert not profile.unkept


def test_with_nowhere_to_write_nothing_waits_for_it():
    profile = ProfileInUse(served())
    profile.see(IN_TIME, "now")
    profile.keep()
    assert not profile.unkept
