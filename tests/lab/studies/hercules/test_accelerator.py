"""hercules-accelerator: what it tells of given points and breakdowns, and the analytic T7's."""

import json
from dataclasses import asdict, replace

import pytest

from hebe.server_configuration import Placement
from hebe_lab.studies.hercules import accelerator as hercules_accelerator
from hebe_lab.studies.hercules.accelerator import (
    ALONE,
    BATCHES,
    FUSED,
    LOCATED,
    Breakdown,
    Effort,
    Measured,
    Modelled,
    modelled_on_t7,
    policies,
    steps,
    told,
)
from hebe_lab.studies.hercules.live import Point
from tests.lab.studies.study_page import page_of

EFFORT = Effort(("RMC3",), 1 << 20, (1, 2), 4096, (64,), (0.5,), 1.0, 1)
POINTS = {ALONE: Point(100.0, 50.0, 0.2), LOCATED: Point(150.0, 60.0, 0.3), FUSED: Point(600.0, 120.0, 0.9)}
BREAKDOWN = dict.fromkeys(BATCHES, Breakdown(1.0, 0.0, 1.5, 0.5))


def test_what_given_points_come_to():
    modelled = {name: Modelled(POINTS, BREAKDOWN) for name in ("RMC3", "MT-WnD", "DIN")}
    one = Breakdown(0.1, 0.5, 0.25, 2.0)
    here = {
        "RMC3": Measured(100.0, {**POINTS, LOCATED: None}, {"whole model, 64": one}, {}, "Power is a guess."),
        "DIN": Measured(100.0, {**POINTS, ALONE: Point(0.0, 20.0, 0.0)}, {}, {"fused, 50%": one}, "Power is a guess."),
    }
    result = told(modelled, here, EFFORT)
    values = {figure.name: figure for figure in result.figures}
    assert values["hercules.accelerator.t7.co_location.rmc3"].value == pytest.approx(1.5)
    assert values["hercules.accelerator.t7.co_location.rmc3"].paper == 1.66
    assert values["hercules.accelerator.t7.fusion.din"].value == pytest.approx(4.0)
    assert values["hercules.accelerator.t7.fusion_per_watt.mt-wnd"].value == pytest.approx(2.0)
    assert values["hercules.accelerator.loading_share.t7.rmc3"].value == pytest.approx(0.75)
    live = {name: figure for name, figure in values.items() if ".live." in name}
    assert set(live) == {"hercules.accelerator.live.fusion.din", "hercules.accelerator.live.fusion_per_watt.din"}
    assert all(figure.paper is None for figure in live.values()), "a second device on a CPU is no GPU"
    assert "hercules.accelerator.t7.fusion.rmc3" in result.lead
    page = page_of(hercules_accelerator, result)
    assert page.count("<svg") == 1 + 3 + 1 + 2
    assert "PyTorch finds no GPU here" in page
    on_gpu = {name: replace(each, gpu="NVIDIA H100") for name, each in here.items()}
    figures = {figure.name: figure for figure in told(modelled, on_gpu, EFFORT).figures}
    assert figures["hercules.accelerator.live.fusion.din"].paper == 6.0
    assert "The accelerator is one NVIDIA H100" in page_of(hercules_accelerator, told(modelled, on_gpu, EFFORT))


def test_what_is_per_watt_is_marked_where_watts_were_estimated():
    modelled = {name: Modelled(POINTS, BREAKDOWN) for name in ("RMC3", "MT-WnD", "DIN")}
    estimated = {policy: replace(point, power_estimated=True) for policy, point in POINTS.items()}
    result = told(modelled, {"RMC3": Measured(100.0, estimated, {}, {}, "")}, EFFORT)
    marked = {figure.name for figure in result.figures if figure.note == "watts estimated"}
    assert marked == {f"hercules.accelerator.live.{what}_per_watt.rmc3" for what in ("co_location", "fusion")}
    by_title = {table.title: table for table in result.tables}
    assert by_title["On the analytic T7"].columns.count("per watt") == 3
    assert by_title["On this machine"].columns.count("per watt; watts estimated") == 3


def test_what_was_measured_comes_back_from_disk_as_it_was():
    one = Breakdown(0.1, 0.5, 0.25, 2.0)
    measured = Measured(100.0, {**POINTS, LOCATED: None}, {"whole model, 64": one}, {"fused, 50%": one}, "A guess.")
    assert Measured.from_dict(json.loads(json.dumps(asdict(measured)))) == measured


def test_steps_are_known_only_between_what_is_known():
    assert steps(POINTS) == (pytest.approx(1.5), pytest.approx(4.0))
    assert steps({**POINTS, FUSED: None}) == (pytest.approx(1.5), None)
    assert steps({}) == (None, None)


def test_neither_is_among_co_locations_and_no_policy_has_the_host_look_up():
    every = policies((1, 2), 512)
    assert every[ALONE][0] in every[LOCATED]
    assert {lane.fused_items for lane in every[FUSED]} == {512}
    assert {lane.placement for lanes in every.values() for lane in lanes} == {Placement.HOT_SPARSE_ON_ACCELERATOR}
    assert {lane.workers for lanes in every.values() for lane in lanes} == {0}


def test_fusion_gains_most_on_the_analytic_t7_and_rmc3_spends_its_time_loading():
    found = modelled_on_t7("dlrm-rmc3")
    co_location, fusion = steps(found.points)
    assert fusion > co_location > 1.0
    for each in found.breakdown.values():
        assert 0.65 <= each.loading_share <= 0.83, "the paper's"
        assert each.queueing == pytest.approx((each.loading + each.inference) / 2)
