"""The demo as a whole, with little of everything; and that its server never outlives it."""

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from hebe.cli.demo import command as demo_module
from hebe.cli.demo.command import Effort, bracketed, demo
from hebe.cli.terminal.server_process import ServerProcess, ServerProcessError
from hebe.load_generator import session
from hebe.load_generator.search import qps_search
from hebe.load_generator.search.rate_search import Crossing, Phase
from hebe.models.repository import memory_estimate
from hebe.models.training.criteo_sample import generate_criteo
from tests.integration.serving.served import eventually
from tests.integration.tiers.forked_hebe import ForkedHebe

LITTLE = Effort(rows=2000, search_s=0.0, probe_s=0.3, rounds=2, resolution=0.3, run_s=0.5)


def served_at(line: str) -> str:
    return line.split(" at ")[1].split(",")[0]


def listens(url: str) -> bool:
    port = int(url.rsplit(":", 1)[1])
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("criteo") / "rows.tsv"
    generate_criteo(path, 1500, seed=4)
    return path


def a_short_search(target, workload, sla, on_probe, on_progress, **_options):
    """In the place of `find_qps`, whose length and result depend on the machine: one probe, and a low rate found."""
    report = session.run_load(target, workload, 30.0, 0.5, 0.1, sla, on_progress)
    probe, crossing = qps_search.Probe(Phase.ROUND, 30.0, True, report), Crossing(60.0, 50.0, 72.0)
    on_probe(probe, crossing)
    return qps_search.LatencyBoundedThroughput(sla, crossing, (probe,), False)


def test_the_demo_trains_serves_checks_loads_and_reports(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo_module, "QUICK", LITTLE)
    monkeypatch.setattr(session, "find_qps", a_short_search)
    demo(data=data, out=tmp_path, quick=True, as_json=True)
    printed = capsys.readouterr()
    document = json.loads(printed.out.splitlines()[-1])
    assert document == json.loads((tmp_path / "demo.json").read_text())
    assert (document["rows"], document["held_out_rows"], document["rows_scored_over_http"]) == (1200, 300, 300)
    assert abs(document["auc_http"] - document["auc_offline"]) <= 1e-6
    assert document["auc_agrees"] is True
    assert document["latency_bounded_throughput_qps"] == 60.0
    assert len(document["probes"]) == 1
    assert [run["share"] for run in document["runs"]] == [0.3, 0.6, 0.9]
    assert all(run["answers"] > 0 for run in document["runs"])
    assert all(set(run["stages_ms"]) == {"queue", "sparse", "dense"} for run in document["runs"])
    assert (tmp_path / "index.html").read_text().count("<svg") == 5
    assert "equal to the offline AUC" in printed.err
    assert f" serve {tmp_path / 'models'}" in printed.err
    assert not listens(served_at(printed.err.splitlines()[1]))


def test_a_demo_that_memory_does_not_suffice_for_does_not_begin(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_estimate, "available_bytes", lambda: 500 << 20)
    with pytest.raises(memory_estimate.NotEnoughMemory, match=r"the demo needs 7\d\d,\d+,\d+ bytes"):
        demo(out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_server_that_cannot_start_says_why(tmp_path):
    server = ServerProcess(tmp_path / "nothing", tmp_path / "server.log")
    with pytest.raises(ServerProcessError, match=r"(?s)ended with exit status 1; its log.*nothing"):
        server.start()
    server.stop()


def test_a_search_cut_short_tells_the_largest_rate_that_held():
    def probe(rate_qps: float, passed: bool) -> qps_search.Probe:
        return qps_search.Probe(Phase.RAMP, rate_qps, passed, None)

    assert bracketed([]) is None
    assert bracketed([probe(80, False), probe(40, False)]) is None
    assert bracketed([probe(40, True)]) == Crossing(40, 40, 40)
    tried = [probe(20, True), probe(160, False), probe(40, False), probe(60, True), probe(80, False)]
    assert bracketed(tried) == Crossing(60, 60, 80)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_stopped_takes_its_server_along(data, tmp_path, number):
    printed = tmp_path / "printed"
    running = ForkedHebe(["demo", "--data", str(data), "--out", str(tmp_path / "out")], printed, tmp_path / "stderr")

    def three_lines() -> list[str]:
        assert running.poll() is None, (tmp_path / "stderr").read_text()
        lines = printed.read_text().splitlines(keepends=True) if printed.exists() else []
        return lines if len(lines) >= 3 and lines[2].endswith("\n") else []

    try:
        url = served_at(eventually(three_lines, "it serves, and has scored")[1])
        assert listens(url)
        os.kill(running.pid, number)
        assert running.wait(60) != 0
        assert not listens(url)
    finally:
        running.kill()
        running.wait()
        running.close()
    assert not (tmp_path / "out" / "index.html").exists()
