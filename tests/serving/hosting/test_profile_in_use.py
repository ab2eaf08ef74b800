from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.profile import EfficiencyTuple
from hebe.query import QueryResult
from hebe.scheduling.events import Stage
from hebe.serving.hosting import profile_in_use as module
from hebe.serving.hosting.profile_in_use import LoadWindow, MeasuredLoad, ProfileInUse, WindowCounter, corrected
from hebe.serving.statistics import ModelStatistics
from tests.serving.profiled import TUPLE, served

IN_TIME = LoadWindow(10.0, 1200, 0, 95.0, 25.0)


LASTING = replace(IN_TIME, seconds=180.0, queries=21_600)


LATE = LoadWindow(60.0, 4800, 4500, 95.0, 25.0, busy_share=0.95)


NIGHT = LoadWindow(10.0, 600, 400, 95.0, 25.0, busy_share=0.25)


DAY = EfficiencyTuple("ranker", "small-2-cores", 300.0, 30.0, TUPLE.configuration, estimated=True)


def test_a_load_that_was_kept_for_minutes_raises_the_tuple_and_the_profile_stays():
    profile = ProfileInUse(served())
    assert not any(see(profile, *[IN_TIME] * 17))
    assert profile.see(IN_TIME, "now")
    assert profile.efficiency == TUPLE
    assert (profile.measured, profile.measured_at) == (replace(TUPLE, qps=120.0), "now")
    assert profile.window is IN_TIME
    assert not any(see(profile, *[IN_TIME] * 18))
    assert profile.measured_at == "now"


def see(profile, *windows):
    return [profile.see(window, str(at)) for at, window in enumerate(windows)]


@pytest.mark.parametrize("between", [replace(IN_TIME, late=70), replace(IN_TIME, late=400), None])
def test_what_is_kept_now_and_then_is_luck(between):
    profile = ProfileInUse(served())
    for _ in range(100):
        see(profile, *[IN_TIME] * 17)
        profile.saw_too_few() if between is None else see(profile, between)
    assert profile.measured is None


def test_the_tuple_is_raised_to_the_mean_of_these_minutes_not_to_their_best():
    profile = ProfileInUse(served())
    assert see(profile, *[IN_TIME, replace(IN_TIME, queries=1600)] * 9)[-1]
    assert profile.measured.qps == 140.0
    assert not any(see(profile, *[replace(IN_TIME, queries=1700)] * 17))


def test_what_is_late_for_minutes_with_busy_workers_lowers_the_tuple_to_what_was_answered():
    profile = ProfileInUse(served())
    assert see(profile, LATE, replace(LATE, queries=5400, refused=600), replace(LATE, queries=3600)) == [0, 0, 1]
    assert profile.measured.qps == (80 + 80 + 60) / 3
    # as far below the profile as it is
    assert see(profile, *[replace(LATE, queries=1200)] * 3) == [0, 0, 1]
    assert profile.measured.qps == 20.0


def test_more_than_the_tuple_came_and_less_than_that_was_answered():
    profile = ProfileInUse(served())
    see(profile, *[replace(LATE, queries=9000, refused=6000)] * 3)
    assert profile.measured.qps == 50.0


@pytest.mark.parametrize("between", [replace(IN_TIME, queries=500), None])
def test_what_is_late_with_time_between_is_a_hiccup(between):
    profile = ProfileInUse(served())
    see(profile, LATE, LATE)
    if between is None:
        profile.saw_too_few()
    else:
        profile.see(between, "between")
    assert see(profile, LATE, LATE) == [0, 0]
    assert profile.measured is None
    assert see(profile, LATE) == [1]


@pytest.mark.parametrize("window", [NIGHT, replace(NIGHT, busy_share=None), replace(LATE, disturbed=True)])
def test_what_is_late_for_another_reason_than_the_load_lowers_nothing(window):
    profile = ProfileInUse(served(efficiency=DAY))
    assert not any(see(profile, *[window] * 100))
    assert profile.measured is None


def test_a_few_tens_of_seconds_lower_nothing_even_with_busy_workers():
    profile = ProfileInUse(served(efficiency=DAY))
    assert not any(see(profile, *[replace(NIGHT, busy_share=0.9)] * 3, replace(IN_TIME, queries=600)))
    assert profile.measured is None


def test_close_to_what_the_profile_says_workers_need_not_be_busy():
    profile = ProfileInUse(served())
    idle = replace(LATE, busy_share=0.3)
    assert see(profile, *[idle] * 3) == [0, 0, 1]
    assert profile.measured.qps == 80.0
    see(profile, *[replace(idle, queries=3600)] * 100)
    assert profile.measured.qps == 80.0  # by the profile, not by what it was lowered to


def test_what_was_lowered_wrongly_comes_back_at_a_load_far_below_the_profile():
    profile = ProfileInUse(served(efficiency=DAY))
    see(profile, *[replace(NIGHT, seconds=180.0, queries=180 * 60, late=9000, busy_share=0.9)])
    assert profile.measured.qps == 60.0
    assert see(profile, replace(NIGHT, late=0, busy_share=0.17)) == [1]
    assert profile.measured.qps == 300.0


def test_a_server_that_fails_neither_raises_nor_lowers_its_tuple():
    lowered = replace(DAY, qps=60.0)
    profile = ProfileInUse(served(efficiency=DAY, measured=lowered, measured_at="before"))
    failing = replace(NIGHT, late=0, busy_share=0.17, failures=600)
    assert not any(see(profile, failing, *[replace(LATE, failures=2000)] * 10))
    assert profile.measured is lowered


def test_a_window_at_the_edge_says_nothing():
    profile = ProfileInUse(served())
    assert not profile.see(replace(IN_TIME, late=70), "now")
    assert profile.window.kept is None
    assert profile.measured is None


def test_without_a_power_meter_the_power_stays():
    profile = ProfileInUse(served(efficiency=replace(TUPLE, estimated=False)))
    see(profile, *[replace(IN_TIME, peak_watts=None)] * 18)
    assert (profile.measured.power_watts, profile.measured.estimated) == (30.0, False)


def test_a_correction_goes_on_from_the_one_before():
    profile = ProfileInUse(served(measured=replace(TUPLE, qps=150.0), measured_at="before"))
    assert not any(see(profile, *[IN_TIME] * 18))
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
    profile.see(LASTING, "now")
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
    profile.see(LASTING, "now")
    profile.keep()
    assert not profile.unkept


def test_since_when_loads_draw_more_than_the_power_budget(monkeypatch):
    now_s = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s)
    profile = ProfileInUse(served(power_budget_watts=35.0))
    over = replace(IN_TIME, peak_watts=40.0)
    see(profile, over)
    now_s += 10
    see(profile, over)
    assert profile.over_budget_s == 10.0
    see(profile, IN_TIME)
    assert profile.over_budget_s is None
    see(profile, over)
    assert profile.over_budget_s == 0.0
    see(profile, replace(over, peak_watts=None))
    assert profile.over_budget_s is None


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


def answer(counted, latency_s, times=1):
    for _ in range(times):
        counted.query_answered(8, QueryResult(1, np.zeros((8, 1), np.float32), latency_s, 0.0, 0.0, 0.0), 0.0, 0.0)


def test_a_window_counts_what_came_while_it_was_open():
    counted = ModelStatistics("ranker", 1, 0.05)
    answer(counted, 0.5, 7)
    counted.query_refused("deadline", 0.0)
    counter = WindowCounter(counted, 95.0, 100.0)
    assert counter.window(110.0) == LoadWindow(10.0, 0, 0, 95.0)
    answer(counted, 0.01, 30)
    answer(counted, 0.06, 4)
    for reason in ("deadline", "queue_full", "expired", "invalid", "cancelled", "failed"):
        counted.query_refused(reason, 0.0)
    counter.drew(20.0, estimated=False)
    counter.drew(15.0, estimated=True)
    window = counter.window(110.0)
    assert window == LoadWindow(10.0, 37, 7, 95.0, 20.0, True, refused=3)
    assert (window.qps, window.answered) == (3.7, 34)


def test_the_busiest_stage_counts():
    counted = ModelStatistics("ranker", 1, 0.05)
    sparse, dense = (0, Stage.SPARSE), (0, Stage.DENSE)
    counter = WindowCounter(counted, 95.0, 100.0, {sparse: 3.0, dense: 5.0})
    assert counter.window(110.0, {sparse: 12.0, dense: 6.0}).busy_share == pytest.approx(0.9)
    beside = (1, Stage.WHOLE)
    assert counter.window(110.0, {sparse: 12.0, dense: 6.0, beside: 2.0}).busy_share == pytest.approx(0.2)
    assert counter.window(110.0).busy_share is None
    assert counter.window(100.0, {sparse: 3.0}).busy_share is None
    assert not counter.window(110.0).disturbed
    counter.disturbed = True
    assert counter.window(110.0).disturbed


def test_a_request_that_gives_less_time_than_the_bound_says_nothing_of_it():
    counted = ModelStatistics("ranker", 1, 0.05)
    counter = WindowCounter(counted, 95.0, 0.0)
    counted.query_refused("deadline", 0.0, 0.049)
    counted.query_refused("deadline", 0.0, 0.05)
    assert counter.window(1.0).queries == 1


def test_what_a_client_gave_up_after_the_bound_was_late():
    counted = ModelStatistics("ranker", 1, 0.05)
    counter = WindowCounter(counted, 95.0, 0.0)
    counted.query_refused("cancelled", 0.051)
    counted.query_refused("cancelled", 0.05)
    window = counter.window(1.0)
    assert (window.queries, window.late, window.answered) == (1, 1, 0)


@pytest.mark.parametrize(("failures", "late", "kept"), [(21, 0, True), (22, 0, None), (22, 400, None), (400, 0, None)])
def test_where_more_fail_than_may_be_late_the_window_says_nothing(failures, late, kept):
    counted = ModelStatistics("ranker", 1, 0.05)
    counter = WindowCounter(counted, 95.0, 0.0)
    answer(counted, 0.01, 400 - late)
    answer(counted, 0.1, late)
    for _ in range(failures):
        counted.query_refused("failed", 0.001, failed=True)
    window = counter.window(10.0)
    assert (window.queries, window.late, window.failures) == (400, late, failures)
    assert window.kept is kept


@pytest.mark.parametrize(
    ("percentile", "queries", "tells"), [(95.0, 399, False), (95.0, 400, True), (99.0, 400, False), (99.0, 2000, True)]
)
def test_a_percentile_needs_queries(percentile, queries, tells):
    assert LoadWindow(10.0, queries, 0, percentile).tells == tells


@pytest.mark.parametrize(("late", "kept"), [(0, True), (20, True), (21, None), (33, None), (34, False), (400, False)])
def test_a_target_is_missed_when_it_cannot_be_chance(late, kept):
    assert LoadWindow(10.0, 400, late, 95.0).kept is kept


@given(st.integers(1, 10**6), st.floats(0, 1), st.floats(50, 99.9))
def test_more_late_queries_never_look_better(queries, share, percentile):
    order = {False: 0, None: 1, True: 2}
    late = int(queries * share)
    fewer, more = (LoadWindow(10.0, queries, each, percentile).kept for each in (late, min(late + 1, queries)))
    assert order[fewer] >= order[more]
