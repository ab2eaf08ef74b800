import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.profile import EfficiencyTuple
from hebe.serving.correction import MeasuredLoad, corrected

READ = EfficiencyTuple("m", "s", 100.0, 50.0, {"workers": 2})
ESTIMATED = EfficiencyTuple("m", "s", 100.0, 50.0, {"workers": 2}, estimated=True)


@pytest.mark.parametrize(
    ("before", "load", "after"),
    [
        (READ, MeasuredLoad(120.0, True, 50.0, False), (120.0, 50.0, False)),
        (READ, MeasuredLoad(80.0, False, 50.0, False), (80.0, 50.0, False)),
        (READ, MeasuredLoad(90.0, True, 60.0, False), (100.0, 60.0, False)),
        (READ, MeasuredLoad(90.0, True, 60.0, True), (100.0, 50.0, False)),
        (ESTIMATED, MeasuredLoad(95.0, True, 40.0, False), (100.0, 40.0, False)),
        (ESTIMATED, MeasuredLoad(50.0, True, 40.0, False), (100.0, 50.0, True)),
        (ESTIMATED, MeasuredLoad(50.0, True, 60.0, True), (100.0, 60.0, True)),
    ],
)
def test_what_serving_shows_corrects_the_tuple(before, load, after):
    told = corrected(before, load)
    assert (told.qps, told.power_watts, told.estimated) == after
    assert told.configuration == before.configuration


@given(st.floats(0, 1e6), st.booleans(), st.floats(0, 1e3), st.booleans(), st.sampled_from([READ, ESTIMATED]))
def test_a_load_that_was_seen_before_says_nothing_new(qps, kept, watts, estimated, before):
    load = MeasuredLoad(qps, kept, watts + 1.0, estimated)
    once = corrected(before, load)
    assert corrected(once, load) is once
