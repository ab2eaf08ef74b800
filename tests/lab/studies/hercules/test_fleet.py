"""Hercules' models, server types and day: how tuples are found once, and how loads come about.

Pairs with one assumption changed, searched.
"""

import numpy as np
import pytest
from rich.progress import Progress

from hebe.simulation.analytic.server_types import HERCULES
from hebe_lab.studies.hercules import fleet as hercules_fleet
from hebe_lab.studies.hercules.fleet import (
    LIGHT_RMC2,
    MODELS,
    ChangedPair,
    all_pairs,
    changed_pairs,
    day_curve,
    fleet_of,
    model_of,
    with_lookups,
    without_products,
)
from hebe_lab.study import StudyError, StudyOptions

from .hercules_tuples import PAIRS

QUICK = StudyOptions(quick=True)


def test_no_gain_is_told_where_the_baseline_serves_nothing():
    assert np.isnan(PAIRS["RMC2", "T1"].gain)
    assert PAIRS["RMC2", "T2"].gain == pytest.approx(2.0)


def test_a_fleet_has_the_tuples_in_the_order_of_its_names():
    fleet = fleet_of(PAIRS, ["DIN", "RMC1"], {"T7": 5, "T2": 70})
    assert (fleet.models, fleet.server_types) == (("DIN", "RMC1"), ("T7", "T2"))
    assert fleet.qps[1, 1] == PAIRS["RMC1", "T2"].best.qps
    assert fleet.power_watts[0, 0] == PAIRS["DIN", "T7"].best.power_watts
    assert fleet.available.tolist() == [5, 70]


def test_models_are_those_of_the_catalog_in_production_size():
    assert model_of("RMC2").features[0].lookups == 120
    assert model_of(LIGHT_RMC2).features[0].lookups == 20
    for name in MODELS:
        assert model_of(name).size == "production"
        assert model_of(name).table_bytes <= min(server.memory_bytes for server in HERCULES.values())


def test_pairs_are_searched_once(monkeypatch):
    searched = []

    def sweep(function, cases, _on_done):
        searched.extend(cases)
        return [function(case) for case in cases]

    monkeypatch.setattr(hercules_fleet, "sweep", sweep)
    monkeypatch.setattr(hercules_fleet, "_found", {})
    monkeypatch.setattr(hercules_fleet, "HERCULES", {"T2": HERCULES["T2"]})
    first = all_pairs(QUICK, Progress(disable=True), ["RMC1"])
    assert all_pairs(QUICK, Progress(disable=True), ["RMC1"]) == first
    assert searched == [("RMC1", "T2", True)]
    pair = first["RMC1", "T2"]
    assert (pair.best.model, pair.best.server_type) == ("dlrm-rmc1", "T2")
    assert 0 < pair.baseline_qps <= pair.best.qps
    assert pair.efficiency == pair.best.qps / pair.best.power_watts


def test_the_built_in_day_has_a_peak_of_one():
    edges, curve = day_curve(QUICK, 600.0)
    assert (edges[0], edges[-1], len(curve)) == (0.0, 86_400.0, 144)
    assert curve.max() == 1.0
    assert 0.1 < curve.min() < 0.15


def test_a_recorded_week_is_read_from_the_data(tmp_path):
    (tmp_path / "load").mkdir()
    hours = 10 * 24
    lines = [f"{3600 * hour},{100 + 50 * np.sin(2 * np.pi * hour / 24):.3f}" for hour in range(hours)]
    (tmp_path / "load" / "nyc_taxi.csv").write_text("\n".join(["time_s,rate_qps", *lines]))
    edges, curve = day_curve(StudyOptions(data=tmp_path), 1800.0)
    assert (edges[-1], len(curve)) == (7 * 86_400.0, 336)
    assert curve.max() == 1.0
    assert curve.min() == pytest.approx(50 / 150, rel=0.02)
    counts = [line for hour, line in enumerate(lines) if hour not in (3, 4)]
    (tmp_path / "load" / "nyc_taxi.csv").write_text("\n".join(["timestamp,value", *counts]))
    with pytest.raises(StudyError, match=r"line 5: timestamp 18000 is 10800 s after the line before, others 3600 s: a"):
        day_curve(StudyOptions(data=tmp_path), 1800.0)
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(StudyError, match=r"load/nyc_taxi\.csv"):
        day_curve(StudyOptions(data=tmp_path / "elsewhere"), 1800.0)


def test_changed_pairs_are_what_the_search_finds():
    rmc2 = model_of("RMC2")
    plain, light = (
        changed_pairs([ChangedPair(model, HERCULES["T2"])], True, Progress(disable=True))[0]
        for model in (rmc2, without_products(with_lookups(rmc2, 20)))
    )
    assert light.best.qps > 5 * plain.best.qps
    assert light.baseline_qps <= light.best.qps
    assert {feature.lookups for feature in with_lookups(model_of("DIN"), 300).features} == {1, 300}
