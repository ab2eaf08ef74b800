import json

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from hebe.load_generator.queries.model_inputs import ModelInput, ModelInputs
from hebe.load_generator.queries.query_pool import QueryPool
from hebe.load_generator.queries.request_body import BinaryHttpRequests, GrpcRequests, JsonHttpRequests, request_body
from hebe.load_generator.target import Target, parse_endpoint
from hebe.workload.key_skew import UniformKeys

MODEL = ModelInputs((ModelInput("user", "INT64", (4,), 1000), ModelInput("dense", "FP32", (3,), None)))


@pytest.fixture
def pool():
    return QueryPool(MODEL, UniformKeys(), 20, np.random.default_rng(1), pool_bytes=4400)


def target(url="http://h:8000", **options):
    return Target(parse_endpoint(url), "my model", **options)


def split(parts):
    """Headers (lower case) and body of an HTTP request."""
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    line, *headers = head.decode().split("\r\n")
    return line, {name.lower(): value for name, value in (header.split(": ", 1) for header in headers)}, body


def test_binary_requests(pool):
    body = BinaryHttpRequests(target(timeout_ms=50, priority=2, api_token="secret"), pool)
    line, headers, content = split(body.parts(7, 11))
    assert line == "POST /v2/models/my%20model/infer HTTP/1.1"
    assert headers["host"] == "h:8000"
    assert headers["authorization"] == "Bearer secret"
    assert int(headers["content-length"]) == len(content)
    header_bytes = int(headers["inference-header-content-length"])
    assert header_bytes % 8 == 0
    described = json.loads(content[:header_bytes])
    assert described["parameters"] == {"timeout": 50_000, "priority": 2, "binary_data_output": True}
    user, dense = described["inputs"]
    assert user == {
        "name": "user", "shape": [7, 4], "datatype": "INT64", "parameters": {"binary_data_size": 7 * 32},
    }  # fmt: skip
    assert dense["parameters"] == {"binary_data_size": 7 * 12}
    raw = content[header_bytes:]
    np.testing.assert_array_equal(np.frombuffer(raw[: 7 * 32], "<i8").reshape(7, 4), pool.arrays[0][11:18])
    np.testing.assert_array_equal(np.frombuffer(raw[7 * 32 :], "<f4").reshape(7, 3), pool.arrays[1][11:18])


def test_binary_requests_copy_no_tensor(pool):
    head, *tensors = BinaryHttpRequests(target(), pool).parts(5, 0)
    assert isinstance(head, bytes)
    for tensor, array in zip(tensors, pool.arrays, strict=True):
        assert np.shares_memory(np.frombuffer(tensor, np.uint8), array)


def test_heads_are_made_once_for_each_size(pool):
    body = BinaryHttpRequests(target(), pool)
    assert body.parts(5, 0)[0] is body.parts(5, 9)[0]
    assert body.parts(5, 0)[0] is not body.parts(6, 0)[0]


@pytest.mark.parametrize(("items", "offset"), [(1, 0), (7, 11), (20, 80), (1, 99)])
def test_json_requests(pool, items, offset):
    body = JsonHttpRequests(target("http://h/front", encoding="json", version="3", priority=1), pool)
    line, headers, content = split(body.parts(items, offset))
    assert line == "POST /front/v2/models/my%20model/versions/3/infer HTTP/1.1"
    assert int(headers["content-length"]) == len(content)
    described = json.loads(content)
    assert described["parameters"] == {"priority": 1}
    user, dense = described["inputs"]
    assert (user["name"], user["shape"], user["datatype"]) == ("user", [items, 4], "INT64")
    np.testing.assert_array_equal(np.reshape(user["data"], (items, 4)), pool.arrays[0][offset : offset + items])
    np.testing.assert_array_equal(
        np.reshape(dense["data"], (items, 3)).astype("<f4"), pool.arrays[1][offset : offset + items]
    )


def test_grpc_requests(pool):
    body = GrpcRequests(target("grpc://h", version="2", timeout_ms=1), pool)
    request = service_pb2.ModelInferRequest.FromString(b"".join(body.parts(7, 11)))
    assert (request.model_name, request.model_version) == ("my model", "2")
    assert request.parameters["timeout"].int64_param == 1000
    assert [(t.name, t.datatype, list(t.shape)) for t in request.inputs] == [
        ("user", "INT64", [7, 4]),
        ("dense", "FP32", [7, 3]),
    ]
    for raw, array in zip(request.raw_input_contents, pool.arrays, strict=True):
        assert raw == array[11:18].tobytes()


def test_the_target_picks_the_kind(pool):
    assert isinstance(request_body(target(), pool), BinaryHttpRequests)
    assert isinstance(request_body(target(encoding="json"), pool), JsonHttpRequests)
    assert isinstance(request_body(target("grpc://h"), pool), GrpcRequests)
