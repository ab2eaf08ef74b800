"""The harness that compares Hebe with other servers, as far as it runs without installing them."""

import json
import sys

import numpy as np
import pytest
import torch

from hebe.models.architectures.ranking_model import RankingModel
from hebe.models.repository.repository import ModelRepository
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling
from tests.places import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks.peers.__main__ import InUseError, alone, main
from benchmarks.peers.comparison import figures, picture
from benchmarks.peers.floor import Floor
from benchmarks.peers.installation import Installation, InstallError
from benchmarks.peers.measurement import Measurement, MeasurementError
from benchmarks.peers.perf_analyzer import parse_report
from benchmarks.peers.processes import ServerError, ServerProcess, marked_pids
from benchmarks.peers.queries import ITEMS, QUERIES, QuerySet
from benchmarks.peers.run import Contender, Results, protocol_scores
from benchmarks.peers.served.dlrm import RawModel
from benchmarks.peers.server import ServedModel, post
from benchmarks.peers.wrk import parse_output

FEATURES = ("a", "b", "c")
SPEC = ModelSpec(
    name="small",
    architecture="dlrm",
    tables=tuple(EmbeddingTableSpec(f"table_{name}", 50, 8) for name in FEATURES),
    features=tuple(FeatureSpec(name, f"table_{name}", 5, Pooling.SUM) for name in FEATURES),
    dense_dim=4,
    towers={"bottom": (16, 8), "top": (16, 1)},
)


@pytest.fixture(scope="module")
def queries() -> QuerySet:
    return QuerySet.draw(FEATURES, rows=50, lookups=5, dense_dim=4, seed=3)


@pytest.fixture(scope="module")
def model() -> RankingModel:
    return RankingModel(SPEC, seed=3).eval()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, model: RankingModel) -> ServedModel:
    root = tmp_path_factory.mktemp("repository")
    tables = {table.name: model.table_weight(table.name).detach().numpy() for table in SPEC.tables}
    ModelRepository(root).write(SPEC, tables, model.dense_net.state_dict())
    return ServedModel(root, SPEC.name)


def reference_scores(model: RankingModel, queries: QuerySet, index: int) -> np.ndarray:
    features = {name: torch.from_numpy(queries.keys[index, i]) for i, name in enumerate(FEATURES)}
    with torch.inference_mode():
        return model(torch.from_numpy(queries.dense[index]), features).numpy().ravel()


@pytest.mark.parametrize("scripted", [False, True])
# torch.jit is deprecated, and faster than eager; bodies are read where they were received, never written.
@pytest.mark.filterwarnings("ignore:.*torch.jit.*", "ignore:The given NumPy array is not writable")
def test_peers_serve_hebes_model(served, model, queries, scripted):
    raw = RawModel(served.folder, scripted)
    for index, body in enumerate(queries.raw_bodies()):
        scores = np.frombuffer(raw.scores_of_body(body), np.float32)
        np.testing.assert_allclose(scores, reference_scores(model, queries, index), atol=1e-6)


def test_protocol_requests_describe_their_bytes(queries):
    headers, bodies = queries.protocol_requests()
    assert len(bodies) == QUERIES
    length = int(headers["Inference-Header-Content-Length"])
    inputs = json.loads(bodies[5][:length])["inputs"]
    assert [one["name"] for one in inputs] == [*FEATURES, "dense"]
    assert sum(one["parameters"]["binary_data_size"] for one in inputs) == len(bodies[5]) - length
    second = inputs[0]["parameters"]["binary_data_size"] + length
    keys = np.frombuffer(bodies[5], np.int64, ITEMS * 5, second).reshape(inputs[1]["shape"])
    np.testing.assert_array_equal(keys, queries.keys[5, 1])


@pytest.mark.parametrize(("batched", "entries", "items"), [(True, QUERIES * ITEMS, None), (False, QUERIES, ITEMS)])
def test_perf_analyzer_data(queries, tmp_path, batched, entries, items):
    queries.write_perf_analyzer_data(tmp_path / "data.json", batched)
    data = json.loads((tmp_path / "data.json").read_text())["data"]
    assert len(data) == entries
    assert data[1]["b"]["shape"] == ([5] if batched else [items, 5])
    expected = queries.keys[0, 1, 1] if batched else queries.keys[1, 1]
    assert data[1]["b"]["content"] == expected.ravel().tolist()


def test_protocol_scores_are_found_behind_other_outputs():
    outputs = [
        {"name": "other", "parameters": {"binary_data_size": 8}},
        {"name": "score", "parameters": {"binary_data_size": 12}},
    ]
    header = json.dumps({"outputs": outputs}).encode()
    body = header + bytes(8) + np.array([0.1, 0.2, 0.3], np.float32).tobytes()
    scores = protocol_scores({"Inference-Header-Content-Length": str(len(header))}, body)
    np.testing.assert_allclose(scores, [0.1, 0.2, 0.3])
    header = json.dumps({"outputs": outputs[:1]}).encode()
    with pytest.raises(KeyError, match="score"):
        protocol_scores({"Inference-Header-Content-Length": str(len(header))}, header + bytes(8))


def test_perf_analyzer_report():
    columns = "Concurrency,Inferences/Second,p50 latency,p90 latency,p95 latency,p99 latency"
    report = f"{columns}\n4,6400,2000,2500,2600,3100\n"
    assert parse_report(report, 32) == Measurement(200.0, 2.0, 3.1)
    for broken in (report.replace("6400", "0"), report.replace("p99 latency", "p98"), columns):
        with pytest.raises(MeasurementError):
            parse_report(broken, 32)


def test_wrk_output():
    line = (
        'RESULT {"requests": 900, "duration_us": 3000000, "p50_us": 1500, "p99_us": 9000, '
        '"status_errors": 0, "socket_errors": 0}'
    )
    assert parse_output(f"Running 3s test\n{line}\n") == Measurement(300.0, 1.5, 9.0)
    errors, silence = line.replace('"status_errors": 0', '"status_errors": 1'), line.replace(": 900,", ": 0,")
    for broken in (errors, silence, "connection refused"):
        with pytest.raises(MeasurementError):
            parse_output(broken)


def results_of(rates: dict[Contender, list[float]]) -> Results:
    results = Results()
    for contender, values in rates.items():
        results.servers[contender.server] = {"settings": "defaults"}
        for value in values:
            results.add(contender, 4, Measurement(value, 1e3 / value, 2e3 / value))
    return results


HEBE = Contender("hebe", "perf_analyzer", "http")
TRITON = [Contender("triton", "perf_analyzer", protocol) for protocol in ("http", "grpc")]


def test_hebe_is_compared_with_the_better_protocol():
    results = results_of({HEBE: [900, 1000, 1100], TRITON[0]: [400, 390, 380], TRITON[1]: [480, 500, 520]})
    found = {figure.name: figure for figure in figures(results, [4])}
    assert found["serve.over_triton.c4"].value == pytest.approx(2.0)
    assert found["serve.over_triton.c4"].met
    assert found["serve.p99_over_triton.c4"].value == pytest.approx(0.5)
    assert "grpc" in found["serve.over_triton.c4"].note
    assert found["peers.triton.http.perf_analyzer.c4"].value == 390
    drawn = picture(results, [4])
    assert "Hebe, perf_analyzer, Triton (pytriton), perf_analyzer for concurrency 4" in drawn
    assert ">1,000<" in drawn
    assert ">500<" in drawn


def test_wrks_latencies_are_told_to_be_corrected():
    results = results_of({HEBE: [1000], Contender("bentoml", "wrk", "raw"): [400]})
    notes = {figure.name: figure.note for figure in figures(results, [4])}
    assert "p99 5.00 ms; latencies corrected by wrk" in notes["peers.bentoml.raw.wrk.c4"]
    assert "corrected" not in notes["peers.hebe.http.perf_analyzer.c4"]


def test_what_was_not_measured_is_absent():
    results = results_of({HEBE: [1000], TRITON[0]: [400]})
    results.drop("triton")
    names = [figure.name for figure in figures(results, [1, 4, 16])]
    assert names == ["peers.hebe.http.perf_analyzer.c4"]


def test_ending_a_server_ends_what_it_detached(tmp_path):
    code = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print('started', flush=True)\n"
        "time.sleep(600)\n"
    )
    process = ServerProcess("stray", [sys.executable, "-c", code], tmp_path)
    try:
        process.wait_ready(lambda: b"started" in process.log.read_bytes(), 30)
        assert len(marked_pids(process.mark)) == 2
    finally:
        process.stop()
    assert marked_pids(process.mark) == []
    process.stop()


def test_a_server_that_ends_or_stalls_is_told_with_its_log(tmp_path):
    process = ServerProcess("broken", [sys.executable, "-c", "print('no such model'); raise SystemExit(3)"], tmp_path)
    with pytest.raises(ServerError, match=r"exit code 3(.|\n)*no such model"):
        process.wait_ready(lambda: False, 30)
    process.stop()
    process = ServerProcess("stalled", [sys.executable, "-c", "import time; time.sleep(600)"], tmp_path)
    try:
        with pytest.raises(ServerError, match="not ready after"):
            process.wait_ready(lambda: False, 0.01)
    finally:
        process.stop()


def test_a_server_is_started_reached_and_ended(served, model, queries, tmp_path):
    """The floor needs nothing installed; every other server goes the same way."""
    running = Floor().start(served, tmp_path)
    try:
        _, answer = post(running.endpoint.url, queries.raw_bodies()[2], {"Content-Type": "application/octet-stream"})
    finally:
        running.process.stop()
    np.testing.assert_allclose(np.frombuffer(answer, np.float32), reference_scores(model, queries, 2), atol=1e-6)
    with pytest.raises(OSError, match="refused"):
        post(running.endpoint.url, b"", {})


def test_a_failed_installation_says_what_failed(tmp_path):
    lines: list[str] = []
    installation = Installation(tmp_path, lines.append)
    with pytest.raises(InstallError, match="nowhere"):
        installation.virtualenv("nowhere", str(tmp_path / "no-python"), ["torch"])
    assert not (tmp_path / "venvs" / "nowhere" / "installed").exists()
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "hebe,tritom"], "no server tritom"),
        (["--rounds", "0"], "must be positive"),
        (["--seconds", "-1"], "must be positive"),
    ],
)
def test_the_command_refuses_bad_arguments(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["peers", *arguments])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert message in capsys.readouterr().err


def test_one_run_at_a_time(tmp_path):
    with alone(tmp_path), pytest.raises(InUseError, match="another run"), alone(tmp_path):
        pass
