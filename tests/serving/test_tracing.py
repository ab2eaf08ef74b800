from __future__ import annotations

import sys

import numpy as np
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from hebe.query import KeyCounts, QueryResult
from hebe.serving.errors import InvalidInput, ServeError
from hebe.serving.infer_request import InferRequest
from hebe.serving.tracing import start_tracing

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
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    request = InferRequest("ranker", "", "", [], 0.0, trace_parent=parent)
    infer = spans_of(lambda tracer: tracer.answered(request, 1, 5, RESULT))["infer"]
    assert f"{infer.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert f"{infer.parent.span_id:016x}" == "b7ad6b7169203331"


@pytest.mark.parametrize("parent", ["", "nonsense", "00-0-0-0", "\x00" * 100])
def test_a_malformed_parent_is_none(parent):
    request = InferRequest("ranker", "", "", [], 0.0, trace_parent=parent)
    assert spans_of(lambda tracer: tracer.answered(request, 1, 5, RESULT))["infer"].parent is None


def test_a_refused_request_is_a_span_in_error():
    request = InferRequest("ranker", "", "", [], 0.0)
    infer = spans_of(lambda tracer: tracer.refused(request, InvalidInput("bad key"), 0.002))["infer"]
    assert infer.status.status_code is StatusCode.ERROR
    assert infer.status.description == "bad key"
    assert infer.attributes["hebe.reason"] == "invalid"
    assert infer.end_time - infer.start_time == 2_000_000


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
    import http.client
    import json

    exporter = InMemorySpanExporter()
    tracer = start_tracing(exporter)
    front_ends = serve_with(tracer=tracer)
    connection = http.client.HTTPConnection(front_ends.http_url, timeout=10)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for keys in ([1, 2], [1, 99]):
        thing = {"name": "thing", "datatype": "INT64", "shape": [1, 2], "data": keys}
        body = json.dumps({"id": str(keys[1]), "inputs": [thing]})
        connection.request("POST", "/v2/models/lone/infer", body, {"traceparent": parent})
        connection.getresponse().read()
    connection.close()
    tracer.close()
    spans = {span.attributes["hebe.request_id"]: span for span in exporter.get_finished_spans() if span.name == "infer"}
    assert spans["2"].status.status_code is StatusCode.UNSET
    assert spans["99"].attributes["hebe.reason"] == "invalid"
    assert f"{spans['2'].parent.span_id:016x}" == "b7ad6b7169203331"
