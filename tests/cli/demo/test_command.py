"""The demo's search; the demo as a whole is `tests/integration/commands/test_demo.py`."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from hebe.cli.demo.command import QUICK, _bound, _search
from hebe.cli.demo.result import DemoResult
from hebe.cli.demo.scoring import ScoredRows
from hebe.latency import LatencyRecorder
from hebe.load_generator import session
from hebe.load_generator.load_report import LoadReport
from hebe.load_generator.search.qps_search import LatencyBoundedThroughput, Probe
from hebe.load_generator.search.rate_search import Crossing, Phase
from hebe.models.catalog import entry
from hebe.models.training.training import TrainingReport

SPEC = entry("criteo-dlrm")
SERVER = SimpleNamespace(http_url="http://127.0.0.1:1", check=lambda: None)
BUSY = "the generator used 97% of a core"


def probe(rate_qps: float, passed: bool) -> Probe:
    latencies = LatencyRecorder(SPEC.sla)
    report = LoadReport(rate_qps, 1.0, 0.0, latencies, 0, 0, LatencyRecorder(), 0.97, 0, 8, "", {})
    return Probe(Phase.BRACKET, rate_qps, passed, report)


def search(monkeypatch, crossing: Crossing | None) -> tuple[DemoResult, dict[str, object]]:
    asked: dict[str, object] = {}
    probes = (probe(100.0, True), probe(200.0, False), probe(140.0, False))

    def find_qps(_target, _workload, sla, on_probe, **options):
        asked.update(options)
        for each in probes:
            on_probe(each, None)
        return LatencyBoundedThroughput(sla, crossing, probes, crossing is None, remarks=("few keys",))

    monkeypatch.setattr(session, "find_qps", find_qps)
    training = TrainingReport(SPEC.name, 1, Path("models"), 80, 4, 1, 1, 0.5, 0.48, 0.75, 1.5)
    scored = ScoredRows(np.zeros(2, dtype=np.float32), np.zeros(2, dtype=np.float32))
    result = DemoResult(SPEC, "clicks.tsv", False, training, scored, SPEC.sla)
    _search(SERVER, result, QUICK)
    return result, asked


def test_a_search_cut_short_says_too_what_limited_it(monkeypatch):
    result, asked = search(monkeypatch, None)
    assert asked["longest_s"] == QUICK.search_s
    assert (result.crossing, result.search_cut_short) == (Crossing(100.0, 100.0, 140.0), True)
    assert len(result.probes) == 3
    assert (result.limits, result.remarks) == ((BUSY,), ("few keys",))


def test_that_no_rate_held_is_said_only_where_none_did(monkeypatch):
    result, _ = search(monkeypatch, Crossing(0.0, 0.0, 120.0))
    assert "throughput below about 100 queries/s[/] with p95 within" in _bound(result)
    assert "no lower arrival rate was tried" in _bound(result)
    result.probes = [each for each in result.probes if not each.passed]
    assert "no arrival rate that was tried kept p95 within" in _bound(result)


def test_a_search_that_had_time_is_as_it_was_found(monkeypatch):
    found = Crossing(150.0, 130.0, 170.0)
    result, _ = search(monkeypatch, found)
    assert (result.crossing, result.search_cut_short) == (found, False)
    assert (result.limits, result.remarks) == ((f"{BUSY}, at worst of 2 probes",), ("few keys",))
