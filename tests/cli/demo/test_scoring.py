"""Scoring over HTTP against a server of the standard library's that computes known scores.

Reading the time per stage from a Prometheus page, and from a server of the standard library's.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

from hebe.cli.demo.scoring import (
    HttpScorer,
    MetricsError,
    ScoringError,
    StageTotals,
    parse_stages,
    read_stages,
    score_rows,
)
from hebe.models.training.criteo import CriteoFile
from hebe.models.training.criteo_features import CriteoTransform
from hebe.models.training.criteo_sample import generate_criteo

TRANSFORM = CriteoTransform(tuple(f"C{n}" for n in range(1, 27)), (1000,) * 26)


def plain_scores(dense: np.ndarray, keys: np.ndarray) -> np.ndarray:
    return (dense.sum(1) + keys @ np.arange(1, 27) / 1e5).astype(np.float32)


class Handler(BaseHTTPRequestHandler):
    """Speaks as much of the protocol as one binary request needs; `fault` makes it answer otherwise."""

    protocol_version = "HTTP/1.1"
    fault = ""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        length = int(self.headers["Inference-Header-Content-Length"])
        head = json.loads(body[:length])
        tensors, at = {}, length
        for tensor in head["inputs"]:
            size = tensor["parameters"]["binary_data_size"]
            kind = {"FP32": "<f4", "INT64": "<i8"}[tensor["datatype"]]
            tensors[tensor["name"]] = np.frombuffer(body[at : at + size], kind).reshape(tensor["shape"])
            at += size
        assert at == len(body)
        assert head["parameters"]["binary_data_output"] is True
        assert self.path == "/v2/models/small%2Fmodel/infer"
        scores = plain_scores(tensors["dense"], np.hstack([tensors[f"C{n}"] for n in range(1, 27)]))
        self.reply(scores[:-1] if self.fault == "short" else scores)

    def reply(self, scores: np.ndarray) -> None:
        text = b"it broke" if self.fault == "error" else b'{"outputs":[]}' + scores.tobytes()
        self.send_response(500 if self.fault == "error" else 200)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Inference-Header-Content-Length", "14")
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url():
    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def file(tmp_path) -> CriteoFile:
    generate_criteo(tmp_path / "rows.tsv", 57, seed=2)
    return CriteoFile(tmp_path / "rows.tsv")


def test_rows_are_scored_in_order_query_by_query(url, file):
    with HttpScorer(url, "small/model") as scorer:
        scored = score_rows(scorer, TRANSFORM, file, start=20, stop=50, items=10)
    (rows,) = file.batches(100, 20, 50)
    assert np.array_equal(scored.labels, rows.labels)
    assert np.array_equal(scored.scores, plain_scores(TRANSFORM.dense(rows.integers), TRANSFORM.keys(rows.categories)))


@pytest.mark.parametrize(("fault", "message"), [("error", "answer 500: it broke"), ("short", "9 scores for 10 items")])
def test_an_answer_without_the_scores_is_an_error(url, file, monkeypatch, fault, message):
    monkeypatch.setattr(Handler, "fault", fault)
    with HttpScorer(url, "small/model") as scorer, pytest.raises(ScoringError, match=message):
        score_rows(scorer, TRANSFORM, file, start=0, stop=57, items=10)


def test_no_server_is_an_error(file):
    with HttpScorer("http://127.0.0.1:1", "small") as scorer, pytest.raises(ScoringError, match="refused"):
        score_rows(scorer, TRANSFORM, file, start=0, stop=57, items=10)


PAGE = """\
# HELP hebe_stage_seconds Time of answered queries in each stage.
# TYPE hebe_stage_seconds histogram
hebe_stage_seconds_bucket{le="0.001",model="a",stage="queue",version="1"} 3.0
hebe_stage_seconds_bucket{le="+Inf",model="a",stage="queue",version="1"} 4.0
hebe_stage_seconds_count{model="a",stage="queue",version="1"} 4.0
hebe_stage_seconds_sum{model="a",stage="queue",version="1"} 0.25
hebe_stage_seconds_count{model="a",stage="sparse",version="1"} 4.0
hebe_stage_seconds_sum{model="a",stage="sparse",version="1"} 0.5
hebe_stage_seconds_count{model="a",stage="dense",version="1"} 4.0
hebe_stage_seconds_sum{model="a",stage="dense",version="1"} 1.0
hebe_stage_seconds_count{model="a",stage="queue",version="2"} 1.0
hebe_stage_seconds_sum{model="a",stage="queue",version="2"} 1.0
hebe_stage_seconds_count{model="b",stage="queue",version="1"} 9.0
hebe_stage_seconds_sum{model="b",stage="queue",version="1"} 9.0
# HELP hebe_queries_total Queries answered.
# TYPE hebe_queries_total counter
hebe_queries_total{model="a",version="1"} 4.0
"""


def test_totals_are_those_of_all_versions_of_the_model_alone():
    assert parse_stages(PAGE, "a") == StageTotals(5, {"queue": 1.25, "sparse": 0.5, "dense": 1.0})
    assert parse_stages(PAGE, "c") == StageTotals(0, {"queue": 0.0, "sparse": 0.0, "dense": 0.0})


def test_means_are_of_the_queries_between_two_looks():
    before = StageTotals(5, {"queue": 1.0, "sparse": 0.5, "dense": 1.0})
    after = StageTotals(15, {"queue": 1.01, "sparse": 0.52, "dense": 1.03})
    assert after.mean_ms_since(before) == pytest.approx({"queue": 1.0, "sparse": 2.0, "dense": 3.0})
    assert before.mean_ms_since(before) == {}


def test_no_page_is_an_error():
    with pytest.raises(MetricsError, match=r"http://127\.0\.0\.1:1/metrics: cannot be read"):
        read_stages("http://127.0.0.1:1/metrics", "a")
