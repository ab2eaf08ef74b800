"""Kairos' and Hebe's gain over the homogeneous pool."""

from dataclasses import replace

import pytest
from rich.progress import Progress

from hebe.planning.pool.fluid_pool import best_pool
from hebe.simulation import sweep as sweeping
from hebe.simulation.fleet.capacity import Capacity
from hebe_lab.studies.kairos import homogeneous as kairos_gain
from hebe_lab.studies.kairos.contenders import KAIROS, homogeneous_contender, kairos_contender, splitting_on
from hebe_lab.studies.kairos.homogeneous import Gain, gains
from hebe_lab.studies.kairos.setting import Setting

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

    monkeypatch.setattr(kairos_gain, "splitting_contender", planned)
    noisy = replace(SETTING, noise=0.3)
    plain, other = gains([SETTING, noisy], 80, 1, 60, 0, Progress(disable=True), 0.05)
    assert planned_for == [SETTING, SETTING], "planning knows nothing of the noise"
    assert other.hebe == splitting_on(noisy, (1, 0, 2, 0))
    assert (plain.kairos.scheme, plain.kairos.pool) == (KAIROS, kairos_contender(SETTING).pool)
    assert plain.repicked.pool == best_pool(SETTING.problem, 1.1, most_parts=1).counts
    assert plain.scale == homogeneous_contender(SETTING)[1]
    assert plain.kairos_qps.qps == pytest.approx(plain.kairos.qps(80, 1), rel=0.1)
    assert other.kairos_qps != plain.kairos_qps
