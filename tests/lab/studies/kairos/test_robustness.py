"""kairos-robustness on generated measurements: what holds whatever the numbers are."""

import pytest
from rich.progress import Progress

from hebe_lab.studies.kairos import robustness as kairos_robustness
from tests.lab.studies.small_kairos import BUDGET, assert_told_of_measurements, small

CHANGES = {**kairos_robustness.CHANGES, "budget": ("twice the budget", {"budget_per_hour": 2 * BUDGET})}


@pytest.fixture(scope="module")
def result(kairos_options):
    with small(kairos_robustness, EFFORTS=[kairos_robustness._Effort(("rm2",), 120, 1, 100, 0)] * 3, CHANGES=CHANGES):
        return kairos_robustness.run(kairos_options, Progress(disable=True))


def test_the_study_tells_what_it_measured(result):
    assert_told_of_measurements(kairos_robustness, result)


def test_robustness_has_every_change(result):
    assert len(result.figures) == 2 * len(CHANGES)
    assert [table.title for table in result.tables] == [title for title, _ in CHANGES.values()]
