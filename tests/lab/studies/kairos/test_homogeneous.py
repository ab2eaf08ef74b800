"""kairos-homogeneous on generated measurements: what holds whatever the numbers are."""

import pytest
from rich.progress import Progress
from tests.lab.studies.small_kairos import assert_told_of_measurements, is_within_budget, small

from hebe_lab.studies.kairos import homogeneous as kairos_homogeneous
from hebe_lab.studies.kairos.setting import SLA_MS


def run_small(options):
    with small(kairos_homogeneous, EFFORTS=[(120, 2, 100, 0)] * 3):
        return kairos_homogeneous.run(options, Progress(disable=True))


@pytest.fixture(scope="module")
def result(kairos_options):
    return run_small(kairos_options)


def test_the_study_tells_what_it_measured(result):
    assert_told_of_measurements(kairos_homogeneous, result)


def test_two_runs_agree_to_the_bit(result, kairos_options):
    assert run_small(kairos_options).figures == result.figures


def test_homogeneous_rows_add_up(result):
    kairos, hebe, changed = result.tables
    for row, other in zip(kairos.rows, hebe.rows, strict=True):
        cell = dict(zip(kairos.columns, row, strict=True)) | {"Hebe's pool": other[1]}
        assert cell["QoS (ms)"] == SLA_MS[cell["model"]]
        assert float(cell["over homogeneous"]) == pytest.approx(cell["Kairos"] / cell["homogeneous, scaled"], rel=0.1)
        for pool in (cell["Kairos' pool"], cell["Hebe's pool"]):
            assert is_within_budget(pool)
    for row in changed.rows:
        assert is_within_budget(row[5])
        assert all(float(cell) > 0 for cell in (row[1], row[3], row[6]))


def test_a_change_of_a_few_percent_is_none():
    changed = kairos_homogeneous._changed
    assert changed([("rm2", 1.02), ("wnd", 0.98)]) == "stays within 3%"
    assert changed([("rm2", 1.2), ("wnd", 0.9), ("ncf", 0.8)]) == "falls on wnd, ncf and rises on rm2"
