"""kairos-homogeneous on generated measurements: what holds whatever the numbers are.

Kairos' and Hebe's gain over the homogeneous pool, and what Kairos' gain hangs on.
"""

from dataclasses import replace

import pytest
from rich.progress import Progress

from hebe.planning.pool.fluid_pool import best_pool
from hebe.simulation import sweep as sweeping
from hebe.simulation.fleet.capacity import Capacity
from hebe_lab.studies.kairos import homogeneous as kairos_homogeneous
from hebe_lab.studies.kairos.contenders import KAIROS, homogeneous_contender, kairos_contender, splitting_on
from hebe_lab.studies.kairos.homogeneous import Gain, gain_causes, gains
from hebe_lab.studies.kairos.setting import SLA_MS, Setting, published_pick
from tests.lab.studies.small_kairos import assert_told_of_measurements, is_within_budget, small


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


SETTING = Setting("rm2", budget_per_hour=1.1)


def test_a_gain_is_of_each_trace_over_the_scaled_homogeneous_pool():
    kairos = kairos_contender(SETTING)
    own, base = Capacity.of([20.0, 50.0]), Capacity.of([10.0, 20.0])
    gain = Gain(kairos, splitting_on(SETTING, kairos.pool), kairos, 1.25, base, own, base, base)
    assert gain.model == "rm2"
    assert gain.over_homogeneous(own) == pytest.approx((2.0 + 2.5) / 2 / 1.25)
    figure = gain.of_kairos("kairos.fig8.x", paper="2.0")
    assert (figure.value, figure.paper, figure.runs) == (gain.over_homogeneous(own), "2.0", 2)
    assert gain.of_hebe("kairos.fig8.y").value == pytest.approx(1 / 1.25)
    assert gain.hebe_policy == "splitting"
    assert replace(gain, hebe=kairos).hebe_policy == "matching"


def test_contenders_are_measured_with_the_noise_and_planned_without(monkeypatch):
    monkeypatch.setattr(sweeping.os, "sched_getaffinity", lambda _: {0})
    planned_for = []

    def planned(setting, _queries, _runners_up):
        planned_for.append(setting)
        return splitting_on(setting, (1, 0, 2, 0))

    monkeypatch.setattr(kairos_homogeneous, "splitting_contender", planned)
    noisy = replace(SETTING, noise=0.3)
    plain, other = gains([SETTING, noisy], 80, 1, 60, 0, Progress(disable=True), 0.05)
    assert planned_for == [SETTING, SETTING], "planning knows nothing of the noise"
    assert other.hebe == splitting_on(noisy, (1, 0, 2, 0))
    assert (plain.kairos.scheme, plain.kairos.pool) == (KAIROS, kairos_contender(SETTING).pool)
    assert plain.repicked.pool == best_pool(SETTING.problem, 1.1, most_parts=1).counts
    assert plain.scale == homogeneous_contender(SETTING)[1]
    assert plain.kairos_qps.qps == pytest.approx(plain.kairos.qps(80, 1), rel=0.1)
    assert other.kairos_qps != plain.kairos_qps


def test_a_change_that_is_none_leaves_the_gain(monkeypatch):
    monkeypatch.setattr(sweeping.os, "sched_getaffinity", lambda _: {0})
    steady = replace(SETTING, steady=True)
    plain, own = gain_causes([SETTING, steady], 150, Progress(disable=True))
    assert own.steady == pytest.approx(own.usual, rel=0.02), "its times did not scatter before"
    assert plain.artifact_gaps != pytest.approx(plain.usual, rel=1e-4)
    assert plain.published == own.published == published_pick("rm2", SETTING.problem, 1.1)
