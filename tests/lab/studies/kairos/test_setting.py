"""Kairos' models and instances: the built-in figures, measurements in files, and noise.

The pick from the artifact's own figures.
"""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

from hebe.planning.pool.pool import plan_pool
from hebe.query import Query, SubQuery
from hebe.scheduling.fleet.distribution import FirstComeFirstServed
from hebe.scheduling.fleet.matching import CostMatching
from hebe.scheduling.node.latency_prediction import LatencyPredictor
from hebe.simulation.fleet.fleet_run import QueryTrace, run_fleet
from hebe_lab.studies.kairos.setting import (
    BUDGET_PER_HOUR,
    GAUSSIAN,
    MEASURED_ITEMS,
    MEASURED_MS,
    MODELS,
    TYPES,
    Setting,
    published_bound_qps,
    published_pick,
    settings,
)
from hebe_lab.study import StudyError, StudyOptions
from tests.examples.kairos_measurements import write_measurements


@pytest.mark.parametrize("model", MODELS)
def test_built_in_tables_have_the_cited_means_and_spreads(model):
    table = Setting(model).table
    assert table.types == TYPES
    for row, (means_ms, spread) in enumerate(MEASURED_MS[model].values()):
        for items, mean_ms in zip(MEASURED_ITEMS, means_ms, strict=True):
            samples_ms = 1e3 * table.quantiles_s[row, items]
            assert samples_ms.mean() == pytest.approx(mean_ms, rel=1e-9)
            assert samples_ms.std() / mean_ms == pytest.approx(spread, rel=0.1)


@pytest.mark.parametrize("model", MODELS)
def test_only_the_base_type_serves_every_query_in_time(model):
    problem = Setting(model).problem
    assert (problem.reach == problem.largest).tolist() == [True, False, False, False]
    assert problem.base_type() == 0


def test_measurements_are_read_and_added(tmp_path):
    write_measurements(tmp_path, ("rm2",))
    setting = settings(StudyOptions(data=tmp_path), ("rm2",))["rm2"]
    exec_ms, load_ms = np.array([120.0, 132.0, 126.0]), 5.0
    # The slowest sample is left out; loading takes 5 ms at every size.
    assert 1e3 * setting.table.mean_s[0, 999] == pytest.approx(np.sort(exec_ms)[:2].mean() + load_ms)
    own = settings(StudyOptions(data=tmp_path / "kairos"), ("rm2",))["rm2"]
    assert own.data == setting.data == tmp_path / "kairos", "the folder itself will do"


def test_what_measurements_lack_is_named(tmp_path):
    with pytest.raises(StudyError, match=r"exec_ms\.csv"):
        settings(StudyOptions(data=tmp_path))
    write_measurements(tmp_path / "models", ("ncf",))
    with pytest.raises(StudyError, match="rm2"):
        settings(StudyOptions(data=tmp_path / "models"))
    write_measurements(tmp_path / "types", MODELS, types=TYPES[:3])
    with pytest.raises(StudyError, match=r"t3\.xlarge"):
        settings(StudyOptions(data=tmp_path / "types"))
    write_measurements(tmp_path / "sizes", MODELS, sizes=(10, 100))
    with pytest.raises(StudyError, match="up to 100 items"):
        settings(StudyOptions(data=tmp_path / "sizes"))
    write_measurements(tmp_path / "field", MODELS)
    path = tmp_path / "field" / "kairos" / "load_ms.csv"
    path.write_text(path.read_text().replace(",5.0", ",slow", 1))
    with pytest.raises(StudyError, match=r"load_ms\.csv: line 14: ms_0 is 'slow'"):
        settings(StudyOptions(data=tmp_path / "field"))


def predicted(servers, trace, times):
    """How far off predictions for 200 items are on each type, asked for so many times: [types, times]."""
    servers.begin(trace)
    fleet = servers.fleet()
    for predictor in fleet.predictors:
        for _ in range(20):
            predictor.observe(200, 0.01)
    return np.array([[fleet.service_time_s(kind, 200) / 0.01 for _ in range(times)] for kind in range(len(TYPES))])


def test_noise_is_white_and_the_same_again():
    setting = Setting("wnd", noise=0.05)
    factor = predicted(setting.servers, setting.trace(100, 1), 4_000)
    assert factor.mean(axis=1) == pytest.approx(np.ones(4), abs=0.005)
    assert factor.std(axis=1) == pytest.approx(np.full(4, 0.05), rel=0.1)
    assert np.abs(np.corrcoef(factor) - np.eye(4)).max() < 0.1
    assert abs(np.corrcoef(factor[0, 1:], factor[0, :-1])[0, 1]) < 0.1
    np.testing.assert_array_equal(factor, predicted(setting.servers, setting.trace(100, 1), 4_000))
    other = predicted(setting.servers, setting.trace(100, 2), 4_000)
    assert abs(np.corrcoef(factor[0], other[0])[0, 1]) < 0.1, "noise of one trace says nothing of another's"


def test_noise_is_on_predictions_and_what_is_learned_is_not_off():
    setting = Setting("wnd", noise=0.3)
    servers, trace = setting.servers, setting.trace(100, 1)
    servers.begin(trace)
    (noisy, *_), exact = servers.fleet().predictors, LatencyPredictor()
    for predictor in (noisy, exact):
        for _ in range(200):
            predictor.observe(200, 0.01)
    tails_s = [noisy.tail_time_s(200) for _ in range(2_000)]
    assert np.mean(tails_s) == pytest.approx(exact.tail_time_s(200), rel=0.02)
    assert np.std(tails_s) / np.mean(tails_s) == pytest.approx(0.3, rel=0.1)
    assert min(noisy.service_time_s(200) for _ in range(2_000)) > 0


@pytest.mark.parametrize(("policy", "alike"), [(FirstComeFirstServed(), True), (CostMatching(0.35, 1000), False)])
def test_noise_is_nothing_to_a_policy_that_predicts_nothing(policy, alike):
    setting, runs = Setting("rm2"), []
    for each in (setting, replace(setting, noise=0.22)):
        run = run_fleet(setting.trace(300, 1), 30.0, (1, 0, 4, 0), each.servers, deepcopy(policy), each.sla.latency_s)
        runs.append(run.latency_s)
    assert np.array_equal(*runs) == alike


def test_gaussian_sizes_change_the_weights_only():
    usual, gaussian = Setting("rm2"), Setting("rm2", sizes=GAUSSIAN)
    items = np.arange(1, usual.problem.largest + 1)
    assert gaussian.problem.size_weights @ items == pytest.approx(256, rel=0.01)
    assert usual.problem.size_weights @ items == pytest.approx(238, rel=0.02)
    np.testing.assert_array_equal(usual.problem.service_s, gaussian.problem.service_s)


def test_artifact_gaps_are_whole_milliseconds_and_keep_the_mean():
    trace = Setting("rm2", gap_ms=8.0).trace(20_000, 1)
    usual = Setting("rm2").trace(20_000, 1)
    np.testing.assert_array_equal(trace.sizes, usual.sizes)
    np.testing.assert_allclose(8 * trace.gaps, np.round(8 * trace.gaps))
    assert trace.gaps.mean() == pytest.approx(1, rel=0.01)
    assert trace.gaps.std() == pytest.approx(8**-0.5, rel=0.05)
    assert usual.gaps.std() == pytest.approx(1, rel=0.05)


def test_steady_service_times_are_the_means():
    setting = Setting("mtwnd", steady=True)
    whole = SubQuery(Query(0, 200, 0.0), 0, 200)
    servers = setting.servers
    servers.begin(QueryTrace(np.ones(1), np.array([200]), np.array([0.99])))
    assert servers.service_s(3, whole) == pytest.approx(setting.problem.service_s[3, 199])


@pytest.mark.parametrize("model", MODELS)
def test_it_is_the_one_from_measurements(model):
    problem = Setting(model).problem
    assert published_pick(model, problem, BUDGET_PER_HOUR) == plan_pool(problem, BUDGET_PER_HOUR).pick.counts


def test_bounds_are_those_of_eq_15():
    assert published_bound_qps("dien", (2, 0, 0, 0)) == pytest.approx(2 * 105.56)
    assert published_bound_qps("dien", (0, 3, 0, 0)) == 0
    # One base and one r5n.large, which serves 0.857 of all queries; the base has time left for any.
    large, offloaded = 105.56 * 0.143 / 0.212, 63.06 * 0.143 / 0.857
    expected = 63.06 / 0.857 + (1 - offloaded / large) * 105.56
    assert published_bound_qps("dien", (1, 0, 1, 0)) == pytest.approx(expected)
    # So many auxiliary ones that the large queries fill the base.
    assert published_bound_qps("dien", (1, 0, 50, 0)) == pytest.approx(large / 0.143)
