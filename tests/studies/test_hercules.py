"""The hercules studies: what they tell of given tuples, and how tuples and loads come about."""

from dataclasses import replace

import numpy as np
import pytest
from rich.progress import Progress

from hebe.planning.error import PlanningError
from hebe.planning.provisioning_baselines import provision_obliviously
from hebe.planning.provisioning_day import DayPlan
from hebe.profile import EfficiencyTuple
from hebe.report.figures import FigureFile
from hebe.simulation.server_types import HERCULES, HERCULES_AVAILABLE
from hebe.studies import (
    hercules_causes,
    hercules_cluster,
    hercules_evolution,
    hercules_fleet,
    hercules_gains,
    hercules_servers,
)
from hebe.studies.hercules_changed import ChangedPair, changed_pairs, with_lookups, without_products
from hebe.studies.hercules_fleet import LIGHT_RMC2, MODELS, Pair, all_pairs, day_curve, fleet_of, model_of
from hebe.studies.hercules_schedulers import (
    Effort,
    cluster_days,
    largest_load_qps,
    largest_oblivious_qps,
    savings_at,
)
from hebe.studies.page import study_page
from hebe.studies.study import StudyError, StudyOptions

QUICK = StudyOptions(quick=True)
ON_T2 = dict(zip((*MODELS, LIGHT_RMC2), (2900.0, 40.0, 480.0, 2100.0, 80.0, 100.0, 120.0), strict=True))
"""Queries/s of each model on T2."""


SETTINGS = {
    "placement": "sparse-on-host", "workers": 2, "cores_per_worker": 3, "batch_size": 64, "dense_workers": 4,
    "fused_items": 512, "beside_placement": "model-on-host", "beside_workers": 5, "beside_cores_per_worker": 1,
    "beside_batch_size": 128, "beside_dense_workers": 0, "beside_fused_items": 0,
}  # fmt: skip


def made_up(*_):
    """Near-memory ranks help sums, accelerators the late models; power rises with both."""
    pairs = {}
    for name, qps in ON_T2.items():
        for kind, server in HERCULES.items():
            gain = 0.7 if kind == "T1" else 1.0
            if name in ("RMC1", "RMC2"):
                gain *= 1.0 + 0.9 * server.near_memory_ranks ** (0.5 if name == "RMC1" else 0.8)
            if server.accelerator is not None:
                gain *= 1.5 if name.startswith("RMC") else 12.0
            watts = server.peak_power_watts + (server.accelerator.peak_power_watts if server.accelerator else 0.0)
            best = EfficiencyTuple(name, kind, gain * qps, watts, SETTINGS, estimated=True)
            baseline = 0.0 if (name, kind) == ("RMC2", "T1") else 0.5 * gain * qps
            pairs[name, kind] = Pair(best, baseline)
    return pairs


PAIRS = made_up()


def made_up_changes(cases, _quick, _progress):
    """Pairs with something changed do twice as much where they have fewer lookups, and as much as before elsewhere."""
    names = {model_of(name).name: name for name in MODELS}
    found = []
    for case in cases:
        name = names[case.model.name]
        lighter = case.model.lookups_per_item < model_of(name).lookups_per_item
        pair = PAIRS[name, case.server.name]
        found.append(replace(pair, best=replace(pair.best, qps=pair.best.qps * (2.0 if lighter else 1.0))))
    return found


FLEET = fleet_of(PAIRS, MODELS, HERCULES_AVAILABLE)
EVENLY = np.array([ON_T2[name] for name in MODELS])
EFFORT = Effort(seeds=2, target_gap=0.01, rate=0.1)


STUDIES = {
    study.__name__.rpartition(".")[2]: study for study in (hercules_servers, hercules_cluster, hercules_evolution)
}


@pytest.fixture(scope="module")
def results():
    """Each study's result for made-up tuples: the search for real ones takes half a minute."""
    with pytest.MonkeyPatch.context() as patch:
        for study in STUDIES.values():
            patch.setattr(study, "all_pairs", made_up)
        for causes in (hercules_causes, hercules_gains):
            patch.setattr(causes, "changed_pairs", made_up_changes)
        patch.setattr(hercules_cluster, "_LOADS", (0.2, 0.6, 1.0))
        for study in (hercules_cluster, hercules_evolution):
            patch.setattr(study, "day_curve", lambda options, interval_s: day_curve(options, 2 * interval_s))
        return {name: study.run(QUICK, Progress(disable=True)) for name, study in STUDIES.items()}


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_tells_what_it_found(name, results):
    result = results[name]
    assert all(table.rows for table in result.tables)
    assert all(figure.name.startswith("hercules.") for figure in result.figures)
    assert sum(figure.paper is not None for figure in result.figures) > 5
    file = FigureFile.here("hercules", "hebe study", 1.0, True, result.figures)
    page = study_page(STUDIES[name].DESCRIPTION, file, result).render()
    assert page.count("<svg") >= 3
    assert ">nan<" not in page.lower()


def test_the_paper_stands_beside_the_savings(results):
    figures = {figure.name: figure for figure in results["hercules_cluster"].figures}
    stated = {
        "hercules.power_saving": (0.237, 0.091),
        "hercules.capacity_saving": (0.477, 0.228),
        "hercules.greedy_power_saving": (0.508, 0.427),
        "hercules.greedy_capacity_saving": (0.758, 0.674),
    }
    for name, papers in stated.items():
        assert (figures[f"{name}.peak"].paper, figures[f"{name}.mean"].paper) == papers
    assert figures["hercules.power_saving.mean"].value > 0
    assert figures["hercules.greedy_power_saving.mean"].value > 0


def test_configurations_are_spelled_out(results):
    tuples = next(table for table in results["hercules_servers"].tables if "all pairs" in table.title)
    assert tuples.rows[0][-1] == "sparse-on-host 2 x 3 d 64 k 4 f 512; beside it model-on-host 5 x 1 d 128"


def test_growth_is_that_of_what_queries_cost(results):
    figures = {figure.name: figure.value for figure in results["hercules_evolution"].figures}
    # On plain servers a query of the early models takes 1/(3 * 40) + ... servers, of the late ones less.
    early, late = (sum(1 / ON_T2[name] for name in names) for names in (MODELS[:3], MODELS[3:]))
    assert figures["hercules.evolution.end_servers.peak"] == pytest.approx(late / early, rel=0.25)
    light = sum(1 / ON_T2[name] for name in ("RMC1", LIGHT_RMC2, "RMC3"))
    assert figures["hercules.evolution_light.end_servers.peak"] == pytest.approx(late / light, rel=0.25)
    assert 0 < figures["hercules.evolution.accelerated_saving.mean.least"] < 1


def test_growth_is_told_for_each_change(results):
    causes = next(table for table in results["hercules_evolution"].tables if table.title.startswith("What growth"))
    ends = {row[0]: row[3] for row in causes.rows}
    nothing = ends.pop("nothing: as in the catalog")
    assert ends["RMC2 of 20 lookups, not 120"] > 1.5 * nothing
    assert ends["RMC2 gets no queries"] > 5 * nothing
    assert ends["keys drawn evenly, not skewed"] == pytest.approx(nothing, rel=0.01)


def test_changed_pairs_are_what_the_search_finds():
    rmc2 = model_of("RMC2")
    plain, light = (
        changed_pairs([ChangedPair(model, HERCULES["T2"])], True, Progress(disable=True))[0]
        for model in (rmc2, without_products(with_lookups(rmc2, 20)))
    )
    assert light.best.qps > 5 * plain.best.qps
    assert light.baseline_qps <= light.best.qps
    assert {feature.lookups for feature in with_lookups(model_of("DIN"), 300).features} == {1, 300}


def test_statements_are_judged_by_the_tuples():
    statements = {text: holds for _, text, holds in hercules_servers._statements(PAIRS)}
    assert statements["RMC1: T2 has more throughput than T1"]
    assert statements["DIN: near memory gains no throughput"]
    assert statements["MT-WnD: T7 has more throughput and energy efficiency than T2"]
    worse = {**PAIRS, ("RMC1", "T2"): replace(PAIRS["RMC1", "T1"])}
    judged = {text: holds for _, text, holds in hercules_servers._statements(worse)}
    assert not judged["RMC1: T2 has more throughput than T1"]


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

    def sweep(_title, function, cases, _progress):
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
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(StudyError, match=r"load/nyc_taxi\.csv"):
        day_curve(StudyOptions(data=tmp_path / "elsewhere"), 1800.0)


def test_the_largest_oblivious_load_is_served_and_not_much_more_is():
    peak = largest_oblivious_qps(FLEET, EVENLY, 0.1)
    assert peak / EVENLY == pytest.approx(np.full(6, (peak / EVENLY)[0]))
    provision_obliviously(FLEET, 0.9 * peak, np.random.default_rng(5), over_provision_rate=0.1)
    failed = 0
    for seed in range(20):
        try:
            provision_obliviously(FLEET, 1.1 * peak, np.random.default_rng(seed), over_provision_rate=0.1)
        except PlanningError:
            failed += 1
    assert failed
    assert (largest_load_qps(FLEET, EVENLY, 0.1) > peak).all()


def test_days_of_all_schedulers_meet_the_load():
    peak = 0.5 * largest_oblivious_qps(FLEET, EVENLY, 0.1)
    day = day_curve(QUICK, 7200.0)
    days = cluster_days(FLEET, peak, day, EFFORT)
    for plan in (days.hercules, days.priority, *days.greedy, *days.oblivious):
        assert (plan.capacity_qps >= (1 - 1e-6) * 1.1 * day[1][:, None] * peak).all()
        assert (plan.servers_by_type <= FLEET.available).all()
    saving = days.hercules_over_greedy(DayPlan.power_saving_over)
    assert [one.mean for one in saving] == [days.hercules.power_saving_over(other).mean for other in days.greedy]
    assert all(one.mean >= -0.01 for one in saving)
    assert all(one.mean > 0 for one in days.greedy_over_oblivious(DayPlan.power_saving_over))
    assert len(days.priority_over_greedy(DayPlan.capacity_saving_over)) == EFFORT.seeds


def test_steady_savings_follow_from_the_seeds():
    load = 0.3 * largest_oblivious_qps(FLEET, EVENLY, 0.1)
    assert savings_at(FLEET, load, EFFORT) == savings_at(FLEET, load, EFFORT)
    assert savings_at(FLEET, load, EFFORT).hercules_power >= -0.01
