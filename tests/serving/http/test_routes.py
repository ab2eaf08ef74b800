"""The protocol over HTTP, as a client without a library of its own would speak it."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hebe.serving.access.auth import Gate
from hebe.serving.access.byte_budget import ByteBudget
from hebe.serving.http1.messages import HttpLimits
from hebe.serving.monitoring.tracing import start_tracing
from hebe.serving.requests.errors import QueryFailed, QueryRefused
from tests.serving.http_requests import (
    DENSE,
    HISTORY,
    ITEMS,
    ONE,
    USER,
    HalfSent,
    binary_request,
    call,
    error_of,
    get,
    json_request,
    with_input,
)
from tests.serving.tier_states import tiers_state


def test_health(front_ends):
    assert get(front_ends, "/v2/health/live") == {"live": True}
    assert get(front_ends, "/v2/health/ready") == {"ready": True}
    front_ends.host.ready = False
    assert error_of(call(front_ends, "GET", "/v2/health/ready"), 503) == "the server is not ready"
    assert get(front_ends, "/v2/health/live") == {"live": True}
    front_ends.host.live = False
    assert error_of(call(front_ends, "GET", "/v2/health/live"), 503) == "the server is not live"


def test_metadata_and_config(front_ends):
    assert get(front_ends, "/v2")["name"] == "hebe"
    for path in ("/v2/models/ranker", "/v2/models/ranker/versions/1", "/v2/models/ranker/"):
        model = get(front_ends, path)
        assert (model["name"], model["versions"]) == ("ranker", ["1"])
    assert get(front_ends, "/v2/models/ranker/config")["max_batch_size"] == 64


def test_model_ready(front_ends):
    assert get(front_ends, "/v2/models/ranker/ready") == {"name": "ranker", "ready": True}
    front_ends.host.models["ranker"].trouble = "its last batches all failed"
    message = "model ranker is not ready: its last batches all failed"
    assert error_of(call(front_ends, "GET", "/v2/models/ranker/ready"), 503) == message
    del front_ends.host.models["ranker"]
    assert error_of(call(front_ends, "GET", "/v2/models/ranker/ready"), 503) == "model ranker is being loaded"


def test_timeout_and_priority_reach_the_query(front_ends):
    assert json_request(front_ends, {"parameters": {"timeout": 250_000, "priority": 3}})[0] == 200
    query = front_ends.host.models["ranker"].queries[-1]
    assert query.deadline_s - query.arrival_s == pytest.approx(0.25)
    assert query.priority == 3
    assert json_request(front_ends, {"parameters": {"timeout": 0}})[0] == 200
    assert front_ends.host.models["ranker"].queries[-1].deadline_s == float("inf")


def test_a_deadline_that_is_over_before_the_query_is_read(front_ends):
    message = error_of(json_request(front_ends, {"parameters": {"timeout": 1}}), 408)
    assert "deadline passed" in message
    assert not front_ends.host.models["ranker"].queries


def test_what_admission_refuses_is_answered_before_its_tensors_have_come(front_ends):
    model = front_ends.host.models["ranker"]
    model.refuses = QueryRefused("deadline", "overloaded", 2.3)
    half = HalfSent(front_ends, parameters={"timeout": 250_000})
    answer = half.answer()
    assert "overloaded" in error_of(answer, 503)
    assert answer[1]["retry-after"] == "3"
    half.connection.send(half.rest)
    model.refuses = None
    # The tensors that nobody wanted are skipped, and the connection goes on.
    half.connection.request("GET", "/v2/health/live")
    assert half.connection.getresponse().status == 200
    half.connection.close()
    assert not model.queries
    (counted,) = front_ends.data_plane.statistics.find("ranker")
    assert counted.refused == {"deadline": 1}


def test_who_is_refused_too_often_is_told_at_once_and_listened_to_later(front_ends, monkeypatch):
    model = front_ends.host.models["ranker"]
    model.workers_beside_front_end, model.refuses = 2, QueryRefused("deadline", "overloaded")
    monkeypatch.setattr(front_ends.data_plane._pace, "refused", lambda workers: 0.15 * workers)
    half = HalfSent(front_ends)
    assert "overloaded" in error_of(half.answer(), 503)
    told_s = time.monotonic()
    half.connection.send(half.rest)
    half.connection.request("GET", "/v2/health/live")
    assert half.connection.getresponse().status == 200
    assert time.monotonic() - told_s >= 0.25
    half.connection.close()


def test_a_model_that_has_refused_nothing_of_late_is_not_asked_before_the_tensors_have_come(front_ends):
    model = front_ends.host.models["ranker"]
    model.refuses, model.refuses_of_late = QueryRefused("deadline", "overloaded"), False
    half = HalfSent(front_ends)
    half.connection.send(half.rest)
    assert half.answer()[0] == 200
    half.connection.close()


@pytest.mark.parametrize("wrong", [{"parameters": {"timeout": -1}}, {"parameters": []}])
def test_what_is_wrong_with_a_request_is_told_once_it_has_come(front_ends, wrong):
    front_ends.host.models["ranker"].refuses = QueryRefused("deadline", "overloaded")
    half = HalfSent(front_ends, **wrong)
    half.connection.send(half.rest)
    error_of(half.answer(), 400)
    half.connection.close()


@pytest.mark.parametrize(
    ("fault", "status", "retry"),
    [
        (QueryRefused("deadline", "overloaded", 2.3), 503, "3"),
        (QueryRefused("queue_full", "full", 0.01), 503, "1"),
        (QueryRefused("expired", "too late"), 503, None),
        (QueryRefused("expired", "too late", timed_out=True), 408, None),
        (QueryRefused("no_worker", "none"), 503, None),
        (QueryRefused("shutting_down", "bye"), 503, None),
        (QueryFailed("worker 1 died"), 500, None),
    ],
)
def test_refusals_and_failures_have_their_status(front_ends, fault, status, retry):
    front_ends.host.models["ranker"].fault = fault
    got, headers, body = json_request(front_ends)
    assert (got, json.loads(body)["error"]) == (status, str(fault))
    assert headers.get("retry-after") == retry


def test_an_unforeseen_fault_is_a_plain_500_that_tells_nothing_of_the_inside(front_ends):
    front_ends.host.models["ranker"].fault = ZeroDivisionError("secret detail")
    message = error_of(json_request(front_ends), 500)
    assert "secret" not in message
    front_ends.host.models["ranker"].fault = None
    assert json_request(front_ends)[0] == 200


def test_defaulted_keys_are_told_and_may_be_forbidden(front_ends):
    model = front_ends.host.models["ranker"]
    assert "parameters" not in json.loads(json_request(front_ends)[2])
    model.tiers, model.defaulted_keys = tiers_state(), 2
    status, _, body = json_request(front_ends, {"parameters": {"max_defaulted_fraction": 0.2}})
    assert status == 200
    assert json.loads(body)["parameters"] == {
        "defaulted_fraction": 0.2,
        "cut_by_deadline_fraction": 0.0,
        "stale_fraction": 0.0,
        "unknown_fraction": 0.0,
        "total_keys": 10,
    }
    message = error_of(json_request(front_ends, {"parameters": {"max_defaulted_fraction": 0.1}}), 503)
    assert message.startswith("the rows of 2 of 10 keys were not there in time")


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/", 404, None),
        ("GET", "/v1/models/ranker", 404, None),
        ("GET", "/v2/models", 404, None),
        ("GET", "/v2/models/ranker/weights", 404, None),
        ("GET", "/v2/models/ranker/versions", 404, None),
        ("GET", "/v2/models/ranker/versions/1/infer/now", 404, None),
        ("GET", "/v2/models/nothing", 404, None),
        ("GET", "/v2/models/ranker/versions/2", 404, None),
        ("GET", "/v2/models/ranker/versions/x/config", 404, None),
        ("GET", "/v2/models/%ff%00/ready", 404, None),
        ("GET", "/v2/models/nothing/stats", 404, None),
        ("GET", "/v2/models/ranker/infer", 405, "POST"),
        ("POST", "/v2", 405, "GET"),
        ("DELETE", "/v2/models/ranker", 405, "GET"),
        ("GET", "/v2/repository/index", 405, "POST"),
        ("GET", "/v2/repository/models/ranker/load", 405, "POST"),
        ("PUT", "/v2/logging", 405, "GET, POST"),
        ("POST", "/v2/systemsharedmemory/region/r/status", 405, "GET"),
        ("POST", "/v2/models/nothing/infer", 404, None),
    ],
)
def test_paths_and_methods_that_are_not_served(front_ends, method, path, status, allow):
    body = json.dumps(with_input()).encode() if path.endswith("infer") else None
    got, headers, answer = call(front_ends, method, path, body)
    assert got == status
    assert headers.get("allow") == allow
    assert json.loads(answer)["error"]


def test_inference_needs_a_length(front_ends):
    connection = http.client.HTTPConnection(front_ends.http_url, timeout=10)
    connection.putrequest("POST", "/v2/models/ranker/infer")
    connection.endheaders()
    response = connection.getresponse()
    assert response.status == 411
    assert "Content-Length" in json.loads(response.read())["error"]
    connection.close()


def test_oversized_requests(front_ends):
    status, _, body = call(front_ends, "POST", "/v2/models/ranker/infer", bytes((1 << 20) + 1))
    assert status == 413
    assert "maximum request size of 1048576 bytes" in json.loads(body)["error"]
    bomb = gzip.compress(bytes(4 << 20))
    message = error_of(call(front_ends, "POST", "/v2/models/ranker/infer", bomb, {"Content-Encoding": "gzip"}), 413)
    assert "unfolds to more than the maximum of 1048576 bytes" in message
    assert error_of(call(front_ends, "POST", "/v2/models/ranker/infer", b"x", {"Content-Encoding": "br"}), 415)


def test_json_is_bounded_more_tightly_than_tensors(serve_with):
    front_ends = serve_with(limits=HttpLimits(max_json_bytes=1000))
    path = "/v2/models/ranker/infer"
    for body, headers, says in (
        (bytes(1001), {}, "1001 bytes of JSON exceed the maximum of 1000"),
        (gzip.compress(b" " * 5000), {"Content-Encoding": "gzip"}, "unfolds to more than the maximum of 1000 bytes"),
        (b" " * 1001, {"Inference-Header-Content-Length": "1001"}, "1001 bytes of JSON exceed the maximum of 1000"),
    ):
        message = error_of(call(front_ends, "POST", path, body, headers), 413)
        assert f"{says}; send tensors as binary data" in message
    items = 50
    arrays = {"user": np.zeros((items, 1), np.int64), "history": np.zeros((items, 3), np.int64)}
    arrays["dense"] = np.zeros((items, 2), np.float32)
    assert sum(a.nbytes for a in arrays.values()) > 1000
    assert binary_request(front_ends, arrays)[0] == 200


@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/repository/models/lone/load", "/v2/logging"])
def test_json_is_bounded_on_every_path_however_it_comes(serve_with, path):
    front_ends = serve_with(limits=HttpLimits(max_json_bytes=1000))
    document = b" " * 1001
    for body, headers in (
        (document, {}),
        ([document[:500], document[500:]], {}),
        (gzip.compress(document), {"Content-Encoding": "gzip"}),
        ([gzip.compress(document)], {"Content-Encoding": "gzip"}),
        (zlib.compress(document), {"Content-Encoding": "deflate"}),
    ):
        message = error_of(call(front_ends, "POST", path, iter(body) if isinstance(body, list) else body, headers), 413)
        assert "1000" in message
    assert front_ends.data_plane.statistics.refused == {"too_large": 5}
    assert not front_ends.host.loads


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready"])
def test_health_needs_no_token_and_takes_no_body(serve_with, path):
    front_ends = serve_with(gate=Gate(["secret"]))
    for body, headers in (
        (b"x", {}),
        (b"x" * 100_000, {}),
        (iter([b"x"]), {}),
        (b"", {"Transfer-Encoding": "chunked"}),
    ):
        assert error_of(call(front_ends, "GET", path, body, headers), 400) == f"path '{path}' takes no body"
    assert call(front_ends, "GET", path, b"", {"Content-Length": "0"})[0] == 200


def test_bodies_that_unfold_share_the_memory_that_there_is_for_them(serve_with):
    budget = ByteBudget(100_000)
    front_ends = serve_with(budget=budget)
    packed = gzip.compress(b" " * 100_000)
    message = error_of(call(front_ends, "POST", "/v2/repository/index", packed, {"Content-Encoding": "gzip"}), 503)
    assert f"take {len(packed)} of at most 100000 bytes" in message
    front_ends.host.models["ranker"].delay_s = 0.5
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(binary_request, front_ends, coding="gzip")
        wait_until(lambda: front_ends.host.models["ranker"].queries)
        assert budget.held_bytes > USER.nbytes + HISTORY.nbytes + DENSE.nbytes
        assert asked.result()[0] == 200
    assert budget.held_bytes == 0
    assert front_ends.data_plane.statistics.refused == {"bytes_in_flight": 1}


def test_more_elements_than_a_query_can_have_are_refused_unread(front_ends):
    for count, message in ((192, "has 192 items; a query may have at most 64"), (193, "at most 192 are taken")):
        document = with_input(shape=[count, 1], data=[0] * count)
        assert message in error_of(call(front_ends, "POST", "/v2/models/ranker/infer", document), 400)
    counters = front_ends.data_plane.statistics
    assert (counters.refused, counters.find("ranker")[0].refused) == ({}, {"invalid": 2})


REFUSED = {
    "unknown path": (b"GET /nothing HTTP/1.1\r\n\r\n", "not_found"),
    "unknown model": (b"GET /v2/models/nothing HTTP/1.1\r\n\r\n", "not_found"),
    "unknown model, with a body": (
        b"POST /v2/models/nothing/infer HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
        "not_found",
    ),
    "unknown model to load": (b"POST /v2/repository/models/nothing/load HTTP/1.1\r\n\r\n", "not_found"),
    "wrong method": (b"GET /v2/models/ranker/infer HTTP/1.1\r\n\r\n", "wrong_method"),
    "no HTTP": (b"GARBAGE\r\n\r\n", "invalid"),
    "no length": (b"POST /v2/models/ranker/infer HTTP/1.1\r\n\r\n", "no_length"),
    "not JSON": (b"POST /v2/models/ranker/infer HTTP/1.1\r\nContent-Length: 1\r\n\r\n{", "invalid"),
    "a long body": (b"POST /v2/models/ranker/infer HTTP/1.1\r\nContent-Length: 9000000\r\n\r\n", "too_large"),
    "a long chunked body": (
        b"POST /v2/models/ranker/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5000\r\n" + bytes(0x5000),
        "too_large",
    ),
    "much JSON": (
        b"POST /v2/models/ranker/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n"
        + bytes(1001)
        + b"\r\n0\r\n\r\n",
        "too_large",
    ),
    "an unknown coding": (
        b"POST /v2/models/ranker/infer HTTP/1.1\r\nContent-Encoding: br\r\nContent-Length: 1\r\n\r\nx",
        "wrong_coding",
    ),
    "damaged gzip": (
        b"POST /v2/models/ranker/infer HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx",
        "invalid",
    ),
    "a long head": (b"GET / HTTP/1.1\r\nA: " + b"a" * 70_000, "head_too_large"),
    "a slow head": (b"GET / HT", "timed_out"),
    "a slow body": (b"POST /v2/models/ranker/infer HTTP/1.1\r\nContent-Length: 9\r\n\r\n{", "timed_out"),
    "a transfer coding": (b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "unsupported"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_whatever_is_refused_is_counted_once_by_its_reason(serve_with, what):
    limits = HttpLimits(max_request_bytes=20_000, max_json_bytes=1000, head_timeout_s=1.0, body_timeout_s=1.0)
    front_ends = serve_with(limits=limits)
    sent, reason = REFUSED[what]
    host, _, port = front_ends.http_url.partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(sent)
        assert connection.recv(65536).startswith(b"HTTP/1.1 4" if reason != "unsupported" else b"HTTP/1.1 501 ")
    statistics = front_ends.data_plane.statistics
    ranker = statistics.find("ranker")[0]
    asks_it = sent.startswith(b"POST /v2/models/ranker/infer ")
    assert (ranker.refused if asks_it else statistics.refused) == {reason: 1}
    assert sum(model.refused.total() for model in (statistics, *statistics.find())) == 1


def test_that_a_server_is_not_ready_is_no_refusal(front_ends):
    front_ends.host.ready = False
    assert call(front_ends, "GET", "/v2/health/ready")[0] == 503
    assert not front_ends.data_plane.statistics.refused


def test_errors_quote_no_more_than_a_line_of_what_was_sent(front_ends):
    name = "\U0001f600" * 20_000
    for document in (
        with_input(name=name),
        with_input(name=name, datatype="BOGUS"),
        with_input(datatype=name),
        with_input(data=name),
        with_input(data=[name]),
        {"id": [name], **with_input()},
        {"outputs": [{"name": name}], **with_input()},
    ):
        answer = call(front_ends, "POST", "/v2/models/ranker/infer", document)
        assert 0 < len(error_of(answer, 400).encode()) <= 1000
    answer = call(front_ends, "POST", f"/v2/models/{'n' * 60_000}/infer", with_input())
    assert error_of(answer, 404).startswith("model 'nnnn")
    assert len(error_of(answer, 404)) <= 1000


def test_scores_that_json_cannot_say_are_an_error(front_ends):
    model = front_ends.host.models["ranker"]
    model.not_finite = {2: float("nan")}
    message = error_of(json_request(front_ends), 500)
    assert message.startswith("score nan of item 2 is not finite: the model's weights or rows are not")
    assert error_of(binary_request(front_ends), 500) == message
    large = DENSE.copy()
    large[2, 1] = -3e38
    message = error_of(binary_request(front_ends, {"user": USER, "history": HISTORY, "dense": large}), 400)
    assert message == (
        "input 'dense': value -3e+38 of item 2, column 1 is too large for the model: score nan of item 2 is not finite"
    )
    assert front_ends.data_plane.statistics.find("ranker")[0].refused == {"not_finite": 3}
    model.not_finite = {}
    assert json_request(front_ends)[0] == 200


def test_answers_are_compressed_if_asked_and_worthwhile(front_ends):
    many = {
        "inputs": [
            {"name": "user", "datatype": "INT64", "shape": [64, 1], "data": [1] * 64},
            {"name": "history", "datatype": "INT64", "shape": [64, 3], "data": [1] * 192},
            {"name": "dense", "datatype": "FP32", "shape": [64, 2], "data": [0.5] * 128},
        ]
    }
    path = "/v2/models/ranker/infer"
    _, plain_headers, plain = call(front_ends, "POST", path, many)
    assert "content-encoding" not in plain_headers
    for coding, unpack in (("gzip", gzip.decompress), ("deflate", zlib.decompress)):
        _, headers, body = call(front_ends, "POST", path, many, {"Accept-Encoding": coding})
        assert headers["content-encoding"] == coding
        assert json.loads(unpack(body)) == json.loads(plain)
        assert len(body) < len(plain)
    _, headers, _ = call(front_ends, "GET", "/v2", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in headers


def test_raw_scores_are_compressed_for_who_names_one_coding(front_ends, monkeypatch):
    """Libraries that add the header by themselves list all that they know, and raw scores hardly shrink."""
    monkeypatch.setattr("hebe.serving.http.routes.MIN_COMPRESS_BYTES", 256)
    keys = np.ones((64, 2), np.int64).tobytes()
    entry = {"name": "thing", "datatype": "INT64", "shape": [64, 2], "parameters": {"binary_data_size": len(keys)}}
    document = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    length = {"Inference-Header-Content-Length": str(len(document))}

    def answered(coding):
        headers = length | ({"Accept-Encoding": coding} if coding else {})
        status, headers, body = call(front_ends, "POST", "/v2/models/lone/infer", document + keys, headers)
        assert status == 200
        return headers.get("content-encoding"), headers["inference-header-content-length"], body

    coding, header_length, plain = answered(None)
    assert (coding, answered("gzip, deflate")) == (None, (None, header_length, plain))
    for coding, unpack in (("gzip", gzip.decompress), ("deflate", zlib.decompress)):
        told, told_length, body = answered(coding)
        assert (told, told_length, unpack(body)) == (coding, header_length, plain)
        assert len(body) < len(plain)


def test_statistics_count_what_happened(front_ends):
    json_request(front_ends)
    binary_request(front_ends)
    json_request(front_ends, {"inputs": [ONE]})
    (one,) = get(front_ends, "/v2/models/ranker/stats")["model_stats"]
    assert one["inference_count"] == 2 * ITEMS
    assert one["execution_count"] == 2
    assert one["inference_stats"]["success"]["count"] == 2
    assert one["inference_stats"]["fail"]["count"] == 1
    assert one["inference_stats"]["compute_infer"]["ns"] == 600_000
    assert one["batch_stats"][0]["batch_size"] == ITEMS
    assert get(front_ends, "/v2/models/ranker/versions/1/stats")["model_stats"][0]["name"] == "ranker"
    everything = get(front_ends, "/v2/models/stats")["model_stats"]
    assert sorted(stats["name"] for stats in everything) == ["lone", "ranker"]


def test_the_repository_can_be_listed_and_changed(front_ends):
    def index(body=None):
        status, _, answer = call(front_ends, "POST", "/v2/repository/index", body)
        assert status == 200, answer
        return [(entry["name"], entry["state"]) for entry in json.loads(answer)]

    assert index() == [("lone", "READY"), ("ranker", "READY")]
    assert call(front_ends, "POST", "/v2/repository/models/lone/unload", {})[0] == 200
    assert index() == [("lone", "UNAVAILABLE"), ("ranker", "READY")]
    assert index({"ready": True}) == [("ranker", "READY")]
    assert error_of(call(front_ends, "POST", "/v2/repository/models/lone/unload"), 404) == "model 'lone' is not loaded"
    assert call(front_ends, "POST", "/v2/repository/models/lone/load")[0] == 200
    assert call(front_ends, "POST", "/v2/repository/models/lone/load", {"parameters": {"version": "2"}})[0] == 200
    assert front_ends.host.loads == [("lone", None), ("lone", 2)]
    assert error_of(call(front_ends, "POST", "/v2/repository/models/none/load"), 404)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"parameters": {"files": "{}"}}, "parameter 'files' of load is not supported"),
        ({"parameters": {"config": "{}"}}, "parameter 'config': configuration: setting 'placement' is missing"),
        ({"parameters": {"version": 0}}, "parameter 'version' is 0"),
        ({"parameters": {"version": "x"}}, "parameter 'version' is 'x'"),
        ({"parameters": {"version": True}}, "parameter 'version' is True"),
        ({"parameters": [1]}, "field 'parameters' is a list"),
        ({"parameters": []}, "field 'parameters' is a list"),
        ({"parameters": False}, "field 'parameters' is False"),
        ({"version": 1}, "field 'version' of a load request is unknown; the one that there is, is 'parameters'"),
        ({"paramters": {"version": 1}}, "field 'paramters' of a load request is unknown"),
        (b"{", "is not JSON"),
    ],
)
def test_bad_load_requests(front_ends, body, message):
    assert message in error_of(call(front_ends, "POST", "/v2/repository/models/lone/load", body), 400)
    assert not front_ends.host.loads


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"version": 1}, "field 'version' of an unload request is unknown; the one that there is, is 'parameters'"),
        ({"parameters": 1}, "field 'parameters' is 1; it must be an object"),
        (b"not JSON", "is not JSON"),
    ],
)
def test_bad_unload_requests(front_ends, body, message):
    unload = "/v2/repository/models/lone/unload"
    assert message in error_of(call(front_ends, "POST", unload, body), 400)
    assert "lone" in front_ends.host.models
    assert call(front_ends, "POST", unload, {"parameters": {"unload_dependents": False}})[0] == 200


def test_an_index_request_must_make_sense(front_ends):
    assert error_of(call(front_ends, "POST", "/v2/repository/index", {"ready": 1}), 400)
    message = error_of(call(front_ends, "POST", "/v2/repository/index", {"redy": True}), 400)
    assert message == "field 'redy' of an index request is unknown; the one that there is, is 'ready'"


def test_settings_and_shared_memory_are_answered_cleanly(front_ends):
    assert get(front_ends, "/v2/logging")["log_info"] is True
    assert get(front_ends, "/v2/trace/setting")["trace_level"] == ["OFF"]
    assert get(front_ends, "/v2/models/ranker/trace/setting")["trace_level"] == ["OFF"]
    assert "'nobody' is not loaded" in error_of(call(front_ends, "GET", "/v2/models/nobody/trace/setting"), 404)
    for path in ("/v2/logging", "/v2/trace/setting", "/v2/models/ranker/trace/setting"):
        assert "fixed when the server starts" in error_of(call(front_ends, "POST", path, {}), 501)
    for kind in ("systemsharedmemory", "cudasharedmemory"):
        assert get(front_ends, f"/v2/{kind}/status") == []
        assert get(front_ends, f"/v2/{kind}/region/r/status") == []
        assert call(front_ends, "POST", f"/v2/{kind}/unregister")[0] == 200
        assert call(front_ends, "POST", f"/v2/{kind}/region/r/unregister")[0] == 200
        message = error_of(call(front_ends, "POST", f"/v2/{kind}/region/r/register", {}), 501)
        assert "shared memory is not supported" in message


def test_trace_settings_tell_whether_there_are_traces(serve_with):
    tracer = start_tracing(InMemorySpanExporter())
    assert get(serve_with(tracer=tracer), "/v2/trace/setting")["trace_level"] == ["TIMESTAMPS"]
    tracer.close()


def test_tokens_guard_everything_but_health(serve_with):
    front_ends = serve_with(gate=Gate(["secret"]))
    assert call(front_ends, "GET", "/v2/health/live")[0] == 200
    assert call(front_ends, "GET", "/v2/health/ready")[0] == 200
    for path in ("/v2", "/v2/models/ranker", "/v2/models/stats", "/v2/logging"):
        status, headers, _ = call(front_ends, "GET", path)
        assert status == 401
        assert headers["www-authenticate"] == "Bearer"
    assert json_request(front_ends)[0] == 401
    assert json_request(front_ends, headers={"Authorization": "Bearer wrong"})[0] == 401
    assert json_request(front_ends, headers={"Authorization": "Bearer secret"})[0] == 200
    statistics = front_ends.data_plane.statistics
    assert statistics.refused["unauthenticated"] == 6
    assert not statistics.find("ranker")[0].refused, "who has no token does not speak for a model's clients"


def test_rates_are_limited(serve_with, monkeypatch):
    gate = Gate(rate_limit_per_s=2.0)
    monkeypatch.setattr(gate, "admit", lambda token, _now, admit=gate.admit: admit(token, 0.0))  # all at the same time
    front_ends = serve_with(gate=gate)
    statuses = [call(front_ends, "GET", "/v2")[0] for _ in range(4)]
    assert statuses[:2] == [200, 200]
    status, headers, _ = call(front_ends, "GET", "/v2")
    assert status == 429
    assert headers["retry-after"] == "1"
    assert call(front_ends, "GET", "/v2/health/live")[0] == 200
    for model in ("ranker", "invented"):
        assert call(front_ends, "POST", f"/v2/models/{model}/infer", {})[0] == 429
    counters = front_ends.data_plane.statistics
    assert (counters.refused, counters.find("ranker")[0].refused) == ({"rate_limited": 4}, {"rate_limited": 1})
    assert [model.name for model in counters.find()] == ["lone", "ranker"]


def test_a_client_that_goes_away_withdraws_its_query(front_ends):
    model = front_ends.host.models["ranker"]
    model.delay_s = 10.0
    with ThreadPoolExecutor(1) as pool:
        connection = http.client.HTTPConnection(front_ends.http_url, timeout=10)
        body = {"inputs": [
            {"name": "user", "datatype": "INT64", "shape": [1, 1], "data": [1]},
            {"name": "history", "datatype": "INT64", "shape": [1, 3], "data": [1, 2, 3]},
            {"name": "dense", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]},
        ]}  # fmt: skip
        pool.submit(connection.request, "POST", "/v2/models/ranker/infer", json.dumps(body)).result()
        wait_until(lambda: len(model.queries) == 1)
        connection.close()
        wait_until(lambda: model.cancelled == 1)
    statistics = front_ends.data_plane.statistics.find("ranker")[0]
    wait_until(lambda: statistics.refused["cancelled"] == 1)


def wait_until(condition):
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s, "did not happen within a minute"
        time.sleep(0.005)


def test_limits_reach_the_connection(serve_with):
    front_ends = serve_with(limits=HttpLimits(max_request_bytes=200))
    assert json_request(front_ends)[0] == 413
    assert get(front_ends, "/v2")["name"] == "hebe"
