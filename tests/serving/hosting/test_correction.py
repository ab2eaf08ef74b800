from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.profile import EfficiencyTuple
from hebe.serving.hosting.profile_in_use import MeasuredLoad, corrected

READ = EfficiencyTuple("m", "s", 100.0, 50.0, {"workers": 2})
ESTIMATED = EfficiencyTuple("m", "s", 100.0, 50.0, {"workers": 2}, estimated=True)


@pytest.mark.parametrize(
    ("before", "load", "after"),
    [
        (READ, MeasuredLoad(120.0, True, 50.0, False, lasting=True), (120.0, 50.0, False)),
        (READ, MeasuredLoad(120.0, True, 50.0, False), (100.0, 50.0, False)),  # it may be luck
        (READ, MeasuredLoad(90.0, True, 50.0, False, lasting=True), (100.0, 50.0, False)),
        (READ, MeasuredLoad(80.0, False, 50.0, False), (80.0, 50.0, False)),
        (READ, MeasuredLoad(90.0, True, 60.0, False), (100.0, 60.0, False)),
        (READ, MeasuredLoad(90.0, True, 60.0, True), (100.0, 50.0, False)),
        (ESTIMATED, MeasuredLoad(95.0, True, 40.0, False), (100.0, 40.0, False)),
        (ESTIMATED, MeasuredLoad(50.0, True, 40.0, False), (100.0, 50.0, True)),
        (ESTIMATED, MeasuredLoad(50.0, True, 60.0, True), (100.0, 60.0, True)),
    ],
)
def test_what_serving_shows_corrects_the_tuple(before, load, after):
    told = corrected(before, load, 100.0)
    assert (told.qps, told.power_watts, told.estimated) == after
    assert told.configuration == before.configuration


@pytest.mark.parametrize(
    ("load", "qps"),
    [
        (MeasuredLoad(60.0, True, 50.0, False, 0.15), 300.0),  # there is time for 400
        (MeasuredLoad(55.0, True, 50.0, False, 0.15), 300.0),  # about as much as it has
        (MeasuredLoad(60.0, True, 50.0, False, 0.4), 0.8 * 150.0),
        (MeasuredLoad(61.0, True, 50.0, False, 0.9), 61.0),
        (MeasuredLoad(61.0, True, 50.0, False, 0.0), 300.0),
        (MeasuredLoad(61.0, True, 50.0, False, None), 61.0),
        (MeasuredLoad(320.0, True, 50.0, False, None), 300.0),
        (MeasuredLoad(320.0, True, 50.0, False, 0.9), 300.0),
        (MeasuredLoad(320.0, True, 50.0, False, 0.9, lasting=True), 320.0),
        (MeasuredLoad(20.0, True, 50.0, False, 0.01), 60.0),  # what it does with little says little
        (MeasuredLoad(59.0, False, 50.0, False, 0.1), 59.0),
    ],
)
def test_what_was_lowered_comes_back_as_far_as_the_workers_have_time(load, qps):
    assert corrected(replace(READ, qps=60.0), load, 300.0).qps == pytest.approx(qps)


def test_what_was_not_lowered_is_raised_only_to_what_was_served():
    assert corrected(READ, MeasuredLoad(120.0, True, 50.0, False, 0.1, lasting=True), 100.0).qps == 120.0


@given(
    st.floats(0, 1e6),
    st.booleans(),
    st.floats(0, 1e3),
    st.booleans(),
    st.none() | st.floats(0, 1),
    st.booleans(),
    st.sampled_from([READ, ESTIMATED]),
    st.floats(1, 1e3),
)
def test_a_load_that_was_seen_before_says_nothing_new(qps, kept, watts, estimated, busy, lasting, before, profile_qps):
    load = MeasuredLoad(qps, kept, watts + 1.0, estimated, busy, lasting)
    once = corrected(before, load, profile_qps)
    assert corrected(once, load, profile_qps) is once
