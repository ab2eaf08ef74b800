"""kairos-shift on generated measurements: what holds whatever the numbers are."""

import pytest
from rich.progress import Progress
from tests.lab.studies.small_kairos import assert_told_of_measurements, is_within_budget, small

from hebe_lab.studies.kairos import shift as kairos_shift


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
