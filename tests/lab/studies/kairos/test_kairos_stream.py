"""A stream whose query sizes change, and the plans along it."""

import numpy as np
import pytest

from hebe.simulation.fleet.capacity import Capacity
from hebe.workload.query_sizes import NormalSizes
from hebe_lab.studies.kairos.setting import Setting
from hebe_lab.studies.kairos.shift import stream_plot, watch

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
