"""What Kairos' gain hangs on."""

from dataclasses import replace

import pytest
from rich.progress import Progress

from hebe.simulation import sweep as sweeping
from hebe_lab.studies.kairos.homogeneous import gain_causes
from hebe_lab.studies.kairos.setting import Setting, published_pick

SETTING = Setting("rm2", budget_per_hour=1.1)


def test_a_change_that_is_none_leaves_the_gain(monkeypatch):
    monkeypatch.setattr(sweeping.os, "sched_getaffinity", lambda _: {0})
    steady = replace(SETTING, steady=True)
    plain, own = gain_causes([SETTING, steady], 150, Progress(disable=True))
    assert own.steady == pytest.approx(own.usual, rel=0.02), "its times did not scatter before"
    assert plain.artifact_gaps != pytest.approx(plain.usual, rel=1e-4)
    assert plain.published == own.published == published_pick("rm2", SETTING.problem, 1.1)
