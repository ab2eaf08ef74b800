"""Requests made by schemathesis from a description of the protocol: good ones, bad ones, and answers as described."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

NAME = {"name": "model", "in": "path", "required": True, "schema": {"enum": ["ranker", "lone", "nothing", "x y"]}}
VERSION = {"name": "version", "in": "path", "required": True, "schema": {"enum": ["1", "2", "x"]}}
TENSOR = {
    "type": "object",
    "required": ["name", "datatype", "shape"],
    "properties": {
        "name": {"enum": ["user", "history", "history.values", "history.lengths", "dense", "thing"]},
        "datatype": {"enum": ["INT64", "INT32", "FP32", "BOOL"]},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 4}, "maxItems": 3},
        "data": {"type": "array", "items": {"type": "number"}, "maxItems": 8},
        "parameters": {"type": "object", "properties": {"binary_data_size": {"type": "integer"}}},
    },
}
INFER_REQUEST = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "parameters": {"type": "object", "properties": {"timeout": {"type": "integer", "minimum": 0}}},
        "inputs": {"type": "array", "items": TENSOR, "maxItems": 4},
        "outputs": {"type": "array", "items": {"type": "object", "properties": {"name": {"const": "score"}}}},
    },
}
ERROR = {
    "description": "refused, with the reason",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["error"],
                "properties": {"error": {"type": "string", "minLength": 1}},
                "additionalProperties": False,
            }
        }
    },
}


def answer(required, **properties):
    schema = {"type": "object", "required": required, "properties": properties}
    return {"description": "answered", "content": {"application/json": {"schema": schema}}}


def operation(success, *, parameters=(), body=None, errors=("400", "404")):
    described = {
        "parameters": list(parameters),
        "responses": {"200": success, **dict.fromkeys((*errors, "405"), ERROR)},
    }
    if body is not None:
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return described


LIST = {"description": "answered", "content": {"application/json": {"schema": {"type": "array"}}}}
METADATA = answer(["name", "versions", "inputs", "outputs"], inputs={"type": "array", "minItems": 1})
STATISTICS = answer(["model_stats"], model_stats={"type": "array", "items": {"type": "object"}})
STATUS = answer(
    ["server", "degraded", "models", "models_left_out"],
    server={"type": "object", "required": ["version", "live", "ready", "uptime_s"]},
    degraded={"type": "array", "items": {"type": "object", "required": ["model", "what", "reason", "since_s"]}},
    models={"type": "array", "items": {"type": "object", "required": ["name", "version", "state", "ready", "reason"]}},
)
PREFETCH = operation(
    answer(["accepted"], accepted={"type": "boolean"}), parameters=[NAME], body=INFER_REQUEST, errors=("400", "404")
)
INFER = operation(
    answer(["model_name", "model_version", "outputs"], outputs={"type": "array", "minItems": 1, "maxItems": 1}),
    parameters=[NAME],
    body=INFER_REQUEST,
    errors=("400", "404", "408"),
)
PROTOCOL = {
    "openapi": "3.1.0",
    "info": {"title": "Open Inference Protocol", "version": "2"},
    "paths": {
        "/v2": {"get": operation(answer(["name", "version", "extensions"]))},
        "/v2/health/live": {"get": operation(answer(["live"], live={"const": True}))},
        "/v2/health/ready": {"get": operation(answer(["ready"], ready={"const": True}))},
        "/v2/models/stats": {"get": operation(STATISTICS)},
        "/v2/models/{model}": {"get": operation(METADATA, parameters=[NAME])},
        "/v2/models/{model}/versions/{version}": {"get": operation(METADATA, parameters=[NAME, VERSION])},
        "/v2/models/{model}/config": {"get": operation(answer(["max_batch_size"]), parameters=[NAME])},
        "/v2/models/{model}/ready": {"get": operation(answer(["ready"]), parameters=[NAME])},
        "/v2/models/{model}/stats": {"get": operation(STATISTICS, parameters=[NAME])},
        "/v2/models/{model}/infer": {"post": INFER},
        "/v2/models/{model}/prefetch": {"post": PREFETCH},
        "/v2/status": {"get": operation(STATUS)},
        "/v2/repository/index": {
            "post": operation(LIST, body={"type": "object", "properties": {"ready": {"type": "boolean"}}})
        },
        "/v2/repository/models/{model}/load": {
            "post": operation(answer([]), parameters=[NAME], body={"type": "object"})
        },
        "/v2/systemsharedmemory/status": {"get": operation(LIST)},
    },
}
CONFORMANCE = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
schema = schemathesis.openapi.from_dict(PROTOCOL)


@pytest.fixture(scope="module")
def served(serve_for_module):
    return serve_for_module()


@schema.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_answers_are_as_the_protocol_says(served, case):
    response = case.call(base_url=f"http://{served.http_url}")
    case.validate_response(response, checks=CONFORMANCE)
