from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Event, Thread
from types import SimpleNamespace

import pytest
from rich.progress import Progress

from hebe.latency import LatencyRecorder
from hebe.load_generator.load_report import LoadReport
from hebe.machine.pinning import available_cores
from hebe.spec import SlaTarget
from hebe.workload import forms
from hebe.workload.query_sizes import FixedSizes
from hebe_lab.bench.serving import reload
from hebe_lab.bench.serving.reload import Loading, Turn, figures_of

SLA = SlaTarget(20.0, 95.0)


def report(latency_s, refused=0):
    latencies, nothing = LatencyRecorder(SLA), LatencyRecorder()
    latencies.record_many([latency_s] * 50)
    latencies.refuse("503", refused)
    return LoadReport(120.0, 1.0, 0.0, latencies, 50, 50, nothing, 0.1, 0, 1, "", {}, nothing)


def test_the_tail_during_loads_is_held_against_that_of_the_turn_before():
    slow = Loading(report(0.01, refused=9), (1.0,))
    turns = [
        Turn(report(0.002, refused=1), Loading(report(0.003), (0.5, 0.7)), slow),
        Turn(report(0.001), Loading(report(0.004, refused=2), (0.6,)), slow),
        Turn(report(0.002), Loading(report(0.002, refused=1), (0.9,)), slow),
    ]
    lost, ratio, lost_at_once, ratio_at_once = figures_of("ranker", turns)
    assert (lost.name, lost.value, lost.met) == ("reload.lost_queries.ranker", 3, False)
    assert lost.note == (
        "refused or failed of 153, during 4 loads; the median one took 0.65 s; 1 of 151 with nothing else under way"
    )
    assert (lost_at_once.name, lost_at_once.value) == ("reload.lost_queries.ranker.at_once", 27)
    assert (ratio_at_once.name, ratio_at_once.value) == (
        "reload.p99_over_quiet.ranker.at_once",
        pytest.approx(5.0, rel=0.05),
    )
    assert (ratio.name, ratio.value) == ("reload.p99_over_quiet.ranker", pytest.approx(1.5, rel=0.05))
    assert ratio.low == pytest.approx(1.0, rel=0.05)
    assert ratio.high == pytest.approx(4.0, rel=0.05)
    assert ratio.note.endswith("at 120 queries/s of 64 items")


@contextmanager
def answering(status):
    asked, paths = Event(), []

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self):
            paths.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", "8")
            self.end_headers()
            self.wfile.write(b"too full")
            asked.set()

        def log_message(self, *_arguments):
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked, paths
        finally:
            server.shutdown()
            thread.join()


def test_loads_follow_one_another_until_the_turn_ends():
    with answering(200) as (url, asked, paths):
        with reload._loads(f"{url}/load", 0.0) as took_s:
            assert asked.wait(30)
        assert len(took_s) == len(paths) >= 1
        assert set(paths) == {"/load"}
        assert min(took_s) > 0


def test_the_rest_between_loads_ends_with_the_turn():
    with answering(200) as (url, asked, paths):
        with reload._loads(f"{url}/load", 3600.0) as took_s:
            assert asked.wait(30)
        assert len(took_s) == len(paths) == 1


def test_a_load_that_fails_ends_the_benchmark():
    with (
        answering(409) as (url, asked, _),
        pytest.raises(RuntimeError, match="a version was not loaded: too full"),
    ):
        with reload._loads(f"{url}/load", 0.0):
            assert asked.wait(30)


def test_one_core_is_too_few(monkeypatch, tmp_path):
    monkeypatch.setattr(reload, "available_cores", lambda: (0,))
    monkeypatch.setattr(reload, "bench_repository", lambda *_: tmp_path)
    with pytest.raises(RuntimeError, match="needs two cores"):
        reload.run(True, Progress(disable=True))


def test_both_models_are_measured_in_turns(monkeypatch, tmp_path):
    rates = []

    @contextmanager
    def server(_repository, _log, options):
        assert options == ["--workers", "1"]
        yield SimpleNamespace(http_url="http://127.0.0.1:1", check=lambda: None)

    @contextmanager
    def loads(url, rest_s):
        rates.append((url, rest_s))
        yield [0.5]

    def load(_target, workload, rate_qps, _duration_s):
        assert workload.sizes == FixedSizes(64)
        rates.append(rate_qps)
        return report(0.002)

    cores = available_cores()
    monkeypatch.setattr(reload, "available_cores", lambda: (*cores, *cores)[: max(len(cores), 2)])
    monkeypatch.setattr(reload, "bench_repository", lambda *_: tmp_path)
    monkeypatch.setattr(reload, "ServerProcess", server)

    def saturated(_url, _model, sizes, *_):
        assert forms.query_sizes(sizes) == FixedSizes(64)
        return SimpleNamespace(throughput_qps=300.0)

    monkeypatch.setattr(reload, "closed_loop", saturated)
    monkeypatch.setattr(reload, "_REST_S", 0.01)
    monkeypatch.setattr(reload, "_loads", loads)
    monkeypatch.setattr(reload, "run_load", load)
    found = reload.run(True, Progress(disable=True))
    assert [figure.name for figure in found] == [
        f"reload.{what}.{name}{how}"
        for name in ("dlrm-rmc1", "mt-wnd")
        for how in ("", ".at_once")
        for what in ("lost_queries", "p99_over_quiet")
    ]
    url = "http://127.0.0.1:1/v2/repository/models/dlrm-rmc1/load"
    assert rates[:5] == [100.0, (url, 0.01), 100.0, (url, 0.0), 100.0]
    assert len(rates) == 2 * 2 * 5
