"""kairos-bounds on generated measurements: what holds whatever the numbers are."""

import pytest
from rich.progress import Progress

from hebe.planning.pool.pool import plan_pool
from hebe_lab.studies.kairos import bounds as kairos_bounds
from hebe_lab.studies.kairos.setting import Setting
from tests.lab.studies.small_kairos import BUDGET, MODELS, assert_told_of_measurements, small


@pytest.fixture(scope="module")
def result(kairos_options):
    with small(kairos_bounds, EFFORTS=[kairos_bounds._Effort(MODELS, 10, 2, 100, 1, 2, 100)] * 3):
        return kairos_bounds.run(kairos_options, Progress(disable=True))


def test_the_study_tells_what_it_measured(result):
    assert_told_of_measurements(kairos_bounds, result)


def test_bounds_fall_along_the_ranking_and_the_best_is_at_least_the_pick(result):
    bounds = [row[1] for row in result.tables[1].rows]
    assert bounds == sorted(bounds, reverse=True)
    over = [figure.value for figure in result.figures if ".pick_over_best." in figure.name]
    assert len(over) == len(MODELS)
    assert all(0 < value <= 1 for value in over)
    for figure in result.figures:
        if ".share_of_bound." in figure.name:
            assert figure.runs == 2
            assert figure.low < figure.value < figure.high


def test_the_place_of_a_pool_is_that_in_the_whole_ranking():
    setting = Setting("rm2", budget_per_hour=BUDGET)
    ranked = plan_pool(setting.problem, BUDGET, head=5).ranked
    assert [kairos_bounds._rank(setting, pool.counts) for pool in ranked] == [1, 2, 3, 4, 5]
