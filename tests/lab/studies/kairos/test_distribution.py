"""kairos-distribution on generated measurements: what holds whatever the numbers are."""

import pytest
from rich.progress import Progress

from hebe_lab.studies.kairos import distribution as kairos_distribution
from tests.lab.studies.small_kairos import MODELS, assert_told_of_measurements, is_within_budget, small


@pytest.fixture(scope="module")
def result(kairos_options):
    with small(
        kairos_distribution,
        EFFORTS=[kairos_distribution._Effort(MODELS, 100, 100, 1, 100)] * 3,
        FIG3_POOLS=((1, 0, 3, 0), (2, 0, 0, 0)),
    ):
        return kairos_distribution.run(kairos_options, Progress(disable=True))


def test_the_study_tells_what_it_measured(result):
    assert_told_of_measurements(kairos_distribution, result)


def test_distribution_gives_every_scheme_a_pool_within_the_budget(result):
    throughput, pools = result.tables[1], result.tables[3]
    assert [row[0] for row in throughput.rows] == list(MODELS)
    assert all(value > 0 for row in throughput.rows for value in row[1:])
    for row in pools.rows:
        for pool in row[1:]:
            assert is_within_budget(pool.split(":")[0])


def test_a_label_is_moved_only_off_a_line_that_crosses_it():
    clear_of = kairos_distribution._clear_of
    assert clear_of(1.05, 1.0, 0.1) == 1.05
    assert clear_of(1.2, 1.0, 0.1) == 1.0
    assert clear_of(0.9, 1.0, 0.1) == 1.0
