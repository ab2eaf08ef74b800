"""What the demo concludes from its measurements, and the page that shows it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from hebe.cli.demo_page import write_page
from hebe.cli.demo_result import DemoResult, LoadedRun
from hebe.cli.demo_scoring import ScoredRows
from hebe.cli.output import plain
from hebe.latency import LatencyRecorder
from hebe.load_generator.load_report import LoadReport
from hebe.load_generator.qps_search import Probe
from hebe.load_generator.rate_search import Crossing, Phase
from hebe.models.catalog import entry
from hebe.models.training import TrainingReport

SPEC = entry("criteo-dlrm")


def load_report(rate_qps: float, latency_ms: float) -> LoadReport:
    latencies = LatencyRecorder(SPEC.sla)
    latencies.record_many(np.linspace(0.5, 1.0, 200) * latency_ms / 1e3, items=200)
    latencies.refuse("503", 2)
    return LoadReport(
        requested_qps=rate_qps, duration_s=2.0, warm_up_s=0.5, latencies=latencies, answered_in_window=200,
        items_in_window=4000, lag=LatencyRecorder(), cpu_share=0.1, waited=0, connections=8, cut_short="", messages={},
    )  # fmt: skip


def demo_result(auc: float = 0.75, labels: str = "0101") -> DemoResult:
    training = TrainingReport("criteo-dlrm", 3, Path("models/criteo-dlrm/3"), 80, 4, 1, 1, 0.5, 0.48, auc, 1.5)
    scored = ScoredRows(np.array(list(labels), dtype=np.float32), np.array([0.1, 0.3, 0.4, 0.8], dtype=np.float32))
    return DemoResult(SPEC, "clicks <&>.tsv", False, training, scored, SPEC.sla)


def measured_result() -> DemoResult:
    result = demo_result()
    result.crossing = Crossing(100.0, 90.0, 111.0)
    for rate, latency in ((50, 4.0), (100, 20.0), (103, 30.0), (104, 24.0), (200, 90.0)):
        result.probes.append(Probe(Phase.ROUND, rate, latency < 25, load_report(rate, latency)))
    stages = {"queue": 1.0, "sparse": 0.5, "dense": 2.0}
    result.runs = [LoadedRun(share, load_report(100 * share, 20 * share), stages) for share in (0.3, 0.6, 0.9)]
    result.seconds = {"training": 2.0, "all": 60.0}
    return result


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


def test_a_probe_that_refused_is_no_point_within_the_sla(tmp_path):
    result = measured_result()
    refused = load_report(300, 3.0)
    refused.latencies.refuse("503", 50)
    result.probes.append(Probe(Phase.RAMP, 300, False, refused))
    point = result.load_points()[-1]
    assert (point.rate_qps, point.tail_latency_ms, point.passed) == (300, float("inf"), False)
    write_page(result, [], tmp_path / "index.html")
    page = (tmp_path / "index.html").read_text()
    assert "SLA missed: p95 among queries without an answer" in page
    assert ">missed<" in page
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


def test_the_page_shows_all_of_it_and_escapes_what_others_named(tmp_path):
    path = tmp_path / "demo" / "index.html"
    write_page(measured_result(), ["hebe serve 'a & b'"], path)
    page = path.read_text()
    assert page.count("<svg") == 5
    assert "the host of this" not in page
    for text in (
        "latency-bounded throughput",
        "90 to 111",
        "equal to the offline AUC",
        "hebe serve &#39;a &amp; b&#39;",
    ):
        assert text in page
    assert "clicks &lt;&amp;&gt;.tsv" in page
    assert not re.search(r'(src|href)="(?!#)', page)


def test_limits_and_remarks_are_on_the_page_and_in_the_json_if_there_are_any(tmp_path):
    result = measured_result()
    write_page(result, [], tmp_path / "index.html")
    page = (tmp_path / "index.html").read_text()
    assert "itself a limit" not in page
    assert "A remark" not in page
    assert (result.to_dict()["generator_limits"], result.to_dict()["remarks"]) == ([], [])
    result.limits, result.remarks = ("sent <late>", "too few connections"), ("few keys", "short probes")
    write_page(result, [], tmp_path / "index.html")
    page = (tmp_path / "index.html").read_text()
    assert "itself a limit: sent &lt;late&gt;; too few connections." in page
    assert "few keys" in page
    assert "short probes" in page
    document = result.to_dict()
    assert document["generator_limits"] == ["sent <late>", "too few connections"]
    assert document["remarks"] == ["few keys", "short probes"]


def test_a_page_of_a_server_too_slow_for_its_sla_shows_what_there_is(tmp_path):
    result = demo_result(0.5)
    result.denied_share = 0.42
    result.crossing, result.search_cut_short = Crossing(0.0, 0.0, 0.0), True
    result.probes.append(Probe(Phase.RAMP, 0.1, False, load_report(0.1, 900.0)))
    write_page(result, [], tmp_path / "index.html")
    page = (tmp_path / "index.html").read_text()
    assert "offline it is 0.500000" in page
    assert "(the search ran out of time)" in page
    assert "the host of this virtual machine gave 42% of the cores" in page
    assert page.count("<svg") == 2
