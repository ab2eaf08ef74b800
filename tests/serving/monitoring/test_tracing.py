from __future__ import annotations

import asyncio
import http.client
import json
import sys

import numpy as np
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from hebe.query import KeyCounts, QueryResult
from hebe.serving.access.auth import Gate
from hebe.serving.data_plane import DataPlane
from hebe.serving.http1.messages import HttpLimits
from hebe.serving.monitoring.tracing import start_tracing
from hebe.serving.requests.errors import ServeError
from hebe.serving.requests.infer_request import InferRequest
from hebe.serving.requests.tensors import WireTensor
from hebe.serving.statistics import Statistics
from tests.serving.grpc_calls import Client, infer_request, refused

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
RESULT = QueryResult(1, np.zeros((5, 1), np.float32), 0.010, 0.004, 0.002, 0.003, KeyCounts(10, 1))


def spans_of(trace):
    exporter = InMemorySpanExporter()
    tracer = start_tracing(exporter)
    trace(tracer)
    tracer.close()
    return {span.name: span for span in exporter.get_finished_spans()}


def test_an_answered_request_is_a_span_with_its_parts():
    request = InferRequest("ranker", "", "q7", [], 0.0)
    spans = spans_of(lambda tracer: tracer.answered(request, 3, 5, RESULT))
    infer, queue, compute = spans["infer"], spans["queue"], spans["compute"]
    assert infer.attributes["hebe.model"] == "ranker"
    assert infer.attributes["hebe.model.version"] == 3
    assert infer.attributes["hebe.items"] == 5
    assert infer.attributes["hebe.request_id"] == "q7"
    assert infer.attributes["hebe.defaulted_keys"] == 1
    assert infer.end_time - infer.start_time == 10_000_000
    assert queue.end_time - queue.start_time == 4_000_000
    assert (compute.start_time, compute.end_time) == (queue.end_time, infer.end_time)
    assert queue.parent.span_id == compute.parent.span_id == infer.context.span_id
    assert infer.parent is None


def test_the_clients_span_is_the_parent():
    request = InferRequest("ranker", "", "", [], 0.0, trace_parent=PARENT)
    infer = spans_of(lambda tracer: tracer.answered(request, 1, 5, RESULT))["infer"]
    assert f"{infer.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert f"{infer.parent.span_id:016x}" == "b7ad6b7169203331"


@pytest.mark.parametrize("parent", ["", "nonsense", "00-0-0-0", "\x00" * 100])
def test_a_malformed_parent_is_none(parent):
    request = InferRequest("ranker", "", "", [], 0.0, trace_parent=parent)
    assert spans_of(lambda tracer: tracer.answered(request, 1, 5, RESULT))["infer"].parent is None


def test_a_refused_request_is_a_span_in_error():
    request = InferRequest("ranker", "", "", [], 0.0)
    infer = spans_of(lambda tracer: tracer.refused(request, "invalid", "bad key", 0.002))["infer"]
    assert infer.status.status_code is StatusCode.ERROR
    assert infer.status.description == "bad key"
    assert infer.attributes["hebe.reason"] == "invalid"
    assert infer.end_time - infer.start_time == 2_000_000


def test_of_what_a_client_calls_things_a_span_has_so_much():
    request = InferRequest("m" * 10_000, "", "q" * 10_000, [], 0.0)
    infer = spans_of(lambda tracer: tracer.refused(request, "invalid", "bad key", 0.002))["infer"]
    assert {name: len(infer.attributes[name]) for name in ("hebe.model", "hebe.request_id")} == {
        "hebe.model": 200,
        "hebe.request_id": 200,
    }


def test_the_environment_names_the_service(monkeypatch):
    def resource_of(tracer):
        return {key: tracer._provider.resource.attributes.get(key) for key in ("service.name", "zone")}

    assert resource_of(start_tracing(InMemorySpanExporter())) == {"service.name": "hebe", "zone": None}
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "zone=b,service.name=ads")
    assert resource_of(start_tracing(InMemorySpanExporter())) == {"service.name": "ads", "zone": "b"}
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ranking")
    assert resource_of(start_tracing(InMemorySpanExporter())) == {"service.name": "ranking", "zone": "b"}


def test_without_opentelemetry_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ServeError, match=r"pip install 'hebe-serve\[otel\]', or start without --otel"):
        start_tracing()


def test_the_data_plane_traces_what_it_answers_and_refuses(serve_with):
    exporter = InMemorySpanExporter()
    tracer = start_tracing(exporter)
    front_ends = serve_with(tracer=tracer)
    connection = http.client.HTTPConnection(front_ends.http_url, timeout=10)
    for keys in ([1, 2], [1, 99]):
        thing = {"name": "thing", "datatype": "INT64", "shape": [1, 2], "data": keys}
        body = json.dumps({"id": str(keys[1]), "inputs": [thing]})
        connection.request("POST", "/v2/models/lone/infer", body, {"traceparent": PARENT})
        connection.getresponse().read()
    connection.close()
    tracer.close()
    spans = {span.attributes["hebe.request_id"]: span for span in exporter.get_finished_spans() if span.name == "infer"}
    assert spans["2"].status.status_code is StatusCode.UNSET
    assert spans["99"].attributes["hebe.reason"] == "invalid"
    assert f"{spans['2'].parent.span_id:016x}" == "b7ad6b7169203331"


@pytest.fixture
def traced(serve_with):
    """Front ends where each token is good for one request, and their spans in short, once they are asked for."""
    exporter = InMemorySpanExporter()
    tracer = start_tracing(exporter)
    tokens = [f"token{number}" for number in range(9)]
    limits = HttpLimits(max_request_bytes=10_000)
    front_ends = serve_with(tracer=tracer, gate=Gate(tokens, rate_limit_per_s=1e-6), limits=limits)

    def spans():
        tracer.close()
        found = exporter.get_finished_spans()
        assert {f"{span.parent.span_id:016x}" for span in found} == {"b7ad6b7169203331"}
        return [(span.attributes.get("hebe.model"), span.attributes["hebe.reason"]) for span in found]

    return front_ends, spans


def test_what_http_refuses_before_it_is_a_query_is_traced(traced):
    front_ends, spans = traced
    for number, path, status, options in (
        (0, "models/lone/infer", 400, {}),
        (0, "models/lone/infer", 429, {}),
        (1, "models/nobody/infer", 404, {}),
        (2, "models/lone/infer", 413, {"Content-Length": "10001"}),
        (3, "models/lone/infer", 415, {"Content-Encoding": "br"}),
        (99, "models/lone/infer", 401, {}),
        (4, "models/nobody/prefetch", 404, {}),
        (5, "repository/models/nobody/unload", 404, {}),
    ):
        connection = http.client.HTTPConnection(front_ends.http_url, timeout=10)
        headers = {"traceparent": PARENT, "Authorization": f"Bearer token{number}", **options}
        connection.request("POST", f"/v2/{path}", b"no JSON" if status == 400 else b"{}", headers)
        assert connection.getresponse().status == status, path
        connection.close()
    assert spans() == [
        ("lone", "invalid"),
        ("lone", "rate_limited"),
        ("nobody", "not_found"),
        ("lone", "too_large"),
        ("lone", "wrong_coding"),
    ]


def test_what_grpc_refuses_before_it_is_a_query_is_traced(traced):
    front_ends, spans = traced

    def client(number):
        return Client(front_ends.grpc_url, (("traceparent", PARENT), ("authorization", f"Bearer token{number}")))

    clients = [client(number) for number in range(5)]
    refused(clients[0], "ModelInfer", infer_request(model="nobody"))
    refused(clients[0], "ModelInfer", infer_request())
    refused(clients[1], "ModelInfer", data=b"\xff")
    refused(clients[2], "ModelInfer", infer_request({}))
    assert next(clients[3].stream([infer_request(model="nobody")])).error_message
    refused(clients[4], "ModelMetadata")
    refused(without := client(99), "ModelInfer", infer_request())
    for each in (*clients, without):
        each.channel.close()
    assert spans() == [
        ("nobody", "not_found"),
        (None, "rate_limited"),
        (None, "invalid"),
        ("ranker", "invalid"),
        ("nobody", "not_found"),
    ]


async def test_a_request_whose_client_has_gone_is_a_span_in_error(fake_host):
    exporter = InMemorySpanExporter()
    tracer = start_tracing(exporter)
    plane = DataPlane(fake_host, Statistics(), tracer)
    fake_host.models["lone"].delay_s = 60.0
    tensors = [WireTensor("thing", "INT64", (1, 2), np.array([1, 2]))]
    asked = asyncio.ensure_future(plane.infer(InferRequest("lone", "", "q7", tensors, plane.clock())))
    await asyncio.sleep(0)
    asked.cancel()
    await asyncio.wait({asked})
    tracer.close()
    (span,) = exporter.get_finished_spans()
    assert (span.attributes["hebe.request_id"], span.attributes["hebe.reason"]) == ("q7", "cancelled")
    assert span.status.status_code is StatusCode.ERROR
