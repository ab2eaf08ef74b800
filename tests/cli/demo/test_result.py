"""What the demo concludes from its measurements."""

import json

import numpy as np
import pytest

from hebe.cli.demo.scoring import ScoredRows
from hebe.cli.terminal.output import plain

from .demo_results import demo_result, measured_result, refused_probe


def test_the_servers_auc_must_be_the_offline_one_to_a_millionth():
    assert demo_result(0.75).http_auc == 0.75
    assert demo_result(0.75 + 0.9e-6).auc_agrees is True
    assert demo_result(0.75 - 1.1e-6).auc_agrees is False
    alike = demo_result(float("nan"), labels="0000")
    assert alike.auc_agrees is None
    assert json.loads(json.dumps(plain(alike.to_dict()), allow_nan=False))["auc_http"] is None


def test_probes_at_nearly_the_same_rate_become_one_point():
    points = measured_result().load_points()
    assert [round(point.rate_qps) for point in points] == [30, 50, 60, 90, 103, 200]
    assert points[4].tail_latency_ms == pytest.approx(24 * 0.98, rel=0.01)
    assert [point.passed for point in points] == [True] * 5 + [False]


def test_a_probe_that_refused_is_no_point_within_the_sla():
    result = measured_result()
    result.probes.append(refused_probe())
    point = result.load_points()[-1]
    assert (point.rate_qps, point.tail_latency_ms, point.passed) == (300, float("inf"), False)
    document = json.loads(json.dumps(plain(result.to_dict()), allow_nan=False))
    assert document["probes"][-1]["tail_latency_of_all_ms"] is None


def test_calibration_is_by_rising_score_and_few_rows_are_few_groups():
    groups = demo_result().calibration()
    assert list(groups) == ["1", "2", "3", "4"]
    assert groups["2"] == pytest.approx({"predicted": 30.0, "clicked": 100.0})
    result = demo_result()
    draw = np.random.default_rng(0)
    scores = draw.random(1003).astype(np.float32)
    result.scored = ScoredRows((draw.random(1003) < scores).astype(np.float32), scores)
    predicted = [group["predicted"] for group in result.calibration().values()]
    assert len(predicted) == 10
    assert predicted == sorted(predicted)


def test_limits_and_remarks_are_in_the_json_if_there_are_any():
    result = measured_result()
    assert (result.to_dict()["generator_limits"], result.to_dict()["remarks"]) == ([], [])
    result.limits, result.remarks = ("sent <late>", "too few connections"), ("few keys", "short probes")
    document = result.to_dict()
    assert document["generator_limits"] == ["sent <late>", "too few connections"]
    assert document["remarks"] == ["few keys", "short probes"]
