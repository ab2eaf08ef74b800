"""Results of a demo, as if measured, for the tests of what is concluded from them and of their page."""

from pathlib import Path

import numpy as np

from hebe.cli.demo.result import DemoResult, LoadedRun
from hebe.cli.demo.scoring import ScoredRows
from hebe.latency import LatencyRecorder
from hebe.load_generator.load_report import LoadReport
from hebe.load_generator.search.qps_search import Probe
from hebe.load_generator.search.rate_search import Crossing, Phase
from hebe.models.catalog import entry
from hebe.models.training.training import TrainingReport

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


def refused_probe() -> Probe:
    """Whose answers are quick, and of which a fifth of the queries has none."""
    refused = load_report(300, 3.0)
    refused.latencies.refuse("503", 50)
    return Probe(Phase.RAMP, 300, False, refused)
