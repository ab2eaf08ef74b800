"""kairos-shift on generated measurements: what holds whatever the numbers are.

A stream whose query sizes change, and the plans along it.
"""

import numpy as np
import pytest
from rich.progress import Progress

from hebe.simulation.fleet.capacity import Capacity
from hebe.workload.query_sizes import NormalSizes
from hebe_lab.studies.kairos import shift as kairos_shift
from hebe_lab.studies.kairos.setting import Setting
from hebe_lab.studies.kairos.shift import stream_plot, watch
from tests.lab.studies.small_kairos import assert_told_of_measurements, is_within_budget, small


@pytest.fixture(scope="module")
def result(kairos_options):
    with small(kairos_shift, EFFORTS=[kairos_shift._Effort(("rm2",), 100, 1, 100, 100)] * 3, TRIALS=3):
        return kairos_shift.run(kairos_options, Progress(disable=True))


def test_the_study_tells_what_it_measured(result):
    assert_told_of_measurements(kairos_shift, result)


def test_the_shift_is_noticed_and_planned_for(result):
    plans, courses, learning = result.tables
    assert [row[0] for row in learning.rows] == [50, 100, 200]
    noticed = next(figure for figure in result.figures if figure.name.endswith("queries_until_noticed.rm2"))
    assert 0 < noticed.value < 5_000
    assert plans.rows[0][0] == "the plan before"
    after = [int(row[0].replace(",", "")) for row in plans.rows[1:]]
    assert after == sorted(after)
    assert after[0] == noticed.value
    for row in (*plans.rows, *([None, row[6], None, row[6]] for row in courses.rows)):
        for pool in (row[1], row[3]):
            assert is_within_budget(pool)


def test_a_course_serves_what_is_on_trial_and_then_the_best(monkeypatch):
    monkeypatch.setattr(kairos_shift, "TRIALS", 4)
    course = kairos_shift._Course((1, 0), 9.0, 4.0, (((0, 1), 5.0), ((1, 1), 8.0), ((0, 2), 6.0)))
    assert course.best == ((1, 1), 8.0)
    assert course.serving() == [5.0, 8.0, 6.0, 8.0]
    assert course.until(6.0) == 2
    assert course.until(8.5) is None
    longer = kairos_shift._Course((1, 0), 9.0, 4.0, 5 * (((0, 1), 5.0),))
    assert longer.serving() == 4 * [5.0]


SETTING = Setting("dien", budget_per_hour=0.7)


SHIFTED = NormalSizes(500, 150, 1000)


@pytest.fixture(scope="module")
def stream():
    return watch(SETTING, SHIFTED)


def test_plans_are_made_after_the_change_and_end_with_the_new_sizes(stream):
    first, *new = stream.plans
    assert first.after == 0
    assert new, "the change is noticed"
    assert all(plan.after > 0 for plan in new)
    assert [plan.after for plan in new] == sorted({plan.after for plan in new})
    assert stream.distance[-1] < 0.05, "the last plan is for what comes"
    at = [number for number, look in enumerate(stream.looks) if look == new[0].after]
    before, after = (stream.distance[number] for number in at)
    assert before > after, "a new plan is for what was seen"


def test_looks_go_along_the_stream(stream):
    assert (np.diff(stream.looks) >= 0).all()
    assert stream.looks[0] < 0 < stream.looks[-1]
    quiet = max(distance for look, distance in zip(stream.looks, stream.distance, strict=True) if -2_000 < look <= 0)
    assert quiet < 0.05 < max(stream.distance)


def test_sizes_that_stay_are_planned_for_once():
    steady = watch(SETTING, SETTING.sizes)
    assert [plan.after for plan in steady.plans] == [0]


def test_the_plot_has_both_schemes(stream):
    served = [Capacity.of([10.0 + number]) for number in range(len(stream.plans))]
    svg = stream_plot(stream, served, served)
    for text in (">Kairos<", ">Hebe<", "queries after the change", "distance"):
        assert text in svg
