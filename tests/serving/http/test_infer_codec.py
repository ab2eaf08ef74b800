"""Inference over HTTP: every form that tensors and scores come in, and what is wrong with those that are not."""

from __future__ import annotations

import gc
import json

import numpy as np
import pytest

from hebe.serving.http.infer_codec import parse_json_object
from hebe.serving.requests.errors import ErrorKind, InvalidInput, RequestError
from tests.serving.http_requests import (
    DENSE,
    HISTORY,
    ITEMS,
    USER,
    binary_input,
    binary_request,
    call,
    error_of,
    expected,
    json_request,
    with_input,
)


@pytest.mark.parametrize("coding", [None, "gzip", "deflate"])
def test_binary_in_and_out(front_ends, scores_of, coding):
    status, headers, body = binary_request(
        front_ends, coding=coding, id='a "b"\n', parameters={"binary_data_output": True}
    )
    assert status == 200, body
    assert headers["content-type"] == "application/octet-stream"
    length = int(headers["inference-header-content-length"])
    document = json.loads(body[:length])
    assert document == {
        "model_name": "ranker",
        "model_version": "1",
        "id": 'a "b"\n',
        "outputs": [
            {"name": "score", "datatype": "FP32", "shape": [ITEMS, 1], "parameters": {"binary_data_size": 4 * ITEMS}}
        ],
    }
    np.testing.assert_array_equal(np.frombuffer(body[length:], np.float32)[:, None], expected(front_ends, scores_of))
    query = front_ends.host.models["ranker"].queries[-1]
    assert query.items == ITEMS
    assert query.deadline_s == float("inf")
    np.testing.assert_array_equal(query.features["history"], HISTORY)
    np.testing.assert_array_equal(query.dense, DENSE)


def test_json_in_and_out(front_ends, scores_of):
    status, headers, body = json_request(front_ends)
    assert status == 200, body
    assert "inference-header-content-length" not in headers
    (output,) = json.loads(body)["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("score", "FP32", [ITEMS, 1])
    np.testing.assert_array_equal(np.float32(output["data"])[:, None], expected(front_ends, scores_of))


@pytest.mark.parametrize(
    ("fields", "binary"),
    [
        ({}, False),
        ({"parameters": {"binary_data_output": True}}, True),
        ({"outputs": []}, False),
        ({"outputs": [{"name": "score"}]}, False),
        ({"outputs": [{"name": "score", "parameters": {"binary_data": True}}]}, True),
        ({"outputs": [{"name": "score", "parameters": {"binary_data": False}}],
          "parameters": {"binary_data_output": True}}, False),
        ({"outputs": [{"name": "score"}], "parameters": {"binary_data_output": True}}, True),
    ],
)  # fmt: skip
def test_which_form_the_scores_come_in(front_ends, fields, binary):
    for request in (json_request(front_ends, fields), binary_request(front_ends, **fields)):
        status, headers, _ = request
        assert status == 200
        assert ("inference-header-content-length" in headers) == binary


def test_inputs_may_mix_forms(front_ends, scores_of):
    document = {
        "inputs": [
            binary_input("user", USER),
            {"name": "dense", "datatype": "FP32", "shape": [ITEMS, 2], "data": DENSE.tolist()},
            binary_input("history.values", np.arange(5)),
            binary_input("history.lengths", np.array([0, 3, 0, 2], np.int32)),
        ]
    }
    head = json.dumps(document).encode()
    tail = USER.tobytes() + np.arange(5).tobytes() + np.array([0, 3, 0, 2], np.int32).tobytes()
    status, _, body = call(
        front_ends,
        "POST",
        "/v2/models/ranker/versions/1/infer",
        head + tail,
        {"Inference-Header-Content-Length": str(len(head))},
    )
    assert status == 200, body
    np.testing.assert_array_equal(
        np.float32(json.loads(body)["outputs"][0]["data"])[:, None], expected(front_ends, scores_of)
    )
    assert front_ends.host.models["ranker"].queries[-1].features["history"].offsets.tolist() == [0, 0, 3, 3, 5]


def test_a_raw_body_is_the_only_input(front_ends):
    keys = np.arange(6)
    headers = {"Inference-Header-Content-Length": "0"}
    status, answer, body = call(front_ends, "POST", "/v2/models/lone/infer", keys.tobytes(), headers)
    assert status == 200, body
    document = json.loads(body[: int(answer["inference-header-content-length"])])
    assert document["outputs"][0]["shape"] == [3, 3]
    np.testing.assert_array_equal(front_ends.host.models["lone"].queries[-1].features["thing"], keys.reshape(3, 2))

    def raw(model, data):
        return error_of(call(front_ends, "POST", f"/v2/models/{model}/infer", data, headers), 400)

    assert "must be a multiple of 16 (2 INT64 an item)" in raw("lone", keys.tobytes()[:-1])
    assert "has no items" in raw("lone", b"")
    assert "which means one raw input; model ranker has 3 inputs" in raw("ranker", keys.tobytes())


@pytest.mark.parametrize(
    "body", [b"[[]]," * 500_001, b'"a":1,' * 65_537, b"{}," * 1_000_001], ids=["lists", "members", "objects"]
)
def test_json_of_more_parts_than_any_query_is_not_read(body):
    """Reading it would keep all others waiting."""
    with pytest.raises(RequestError, match="has more than 1,000,000 lists and objects, or 65,536 members") as refused:
        parse_json_object(body, "the request's body")
    assert refused.value.kind is ErrorKind.TOO_LARGE
    assert "send tensors as binary data behind a JSON header" in refused.value.message


@pytest.mark.parametrize("collects", [True, False])
def test_large_json_is_read_without_the_garbage_collector(collects):
    collected = []
    gc.collect()
    (gc.enable if collects else gc.disable)()
    gc.callbacks.append(lambda *_: collected.append(0))
    try:
        assert len(parse_json_object(b'{"a": [' + b"[[]]," * 100_000 + b"0]}", "it")["a"]) == 100_001
        assert gc.isenabled() is collects
        with pytest.raises(InvalidInput, match="it is not JSON"):
            parse_json_object(b"[" * 100_000, "it")
        assert gc.isenabled() is collects
    finally:
        gc.callbacks.pop()
        gc.enable()
    assert len(collected) < 20, "as it is now and then, not with each 700 lists"


HEAD = "Inference-Header-Content-Length"


@pytest.mark.parametrize(
    ("body", "headers", "message"),
    [
        (b"", {}, "field 'inputs' is missing or empty"),
        (b"{", {}, "the request's body is not JSON"),
        (b"\xff\xfe", {}, "the request's body is not JSON"),
        (b"[" * 100_000, {}, "the request's body is not JSON"),
        (b'{"id": ' + b"9" * 10_000 + b"}", {}, "not JSON"),
        (b"[]", {}, "is a JSON list; it must be an object"),
        (b"null", {}, "is a JSON NoneType; it must be an object"),
        (b"{}", {HEAD: "-1"}, "header Inference-Header-Content-Length is '-1'"),
        (b"{}", {HEAD: "2x"}, "it must be a whole number of bytes"),
        (b"{}", {HEAD: "3"}, "is 3; the body has only 2 bytes"),
        (b'{"inputs": []}', {HEAD: "5"}, "the request's JSON header is not JSON"),
        ({"inputs": {}}, {}, "field 'inputs' is missing or empty"),
        ({"inputs": [3]}, {}, "inputs[0] is 3; it must be an object"),
        ({"inputs": [3] * 6}, {}, "field 'inputs' lists 6; the model has at most 5"),
        (with_input(name=[["user"]]), {}, "inputs[0]: field 'name' is a list; it must be a string"),
        (with_input(shape=[{"a": 1}, 1]), {}, "shape [an object, 1]: sizes must be whole numbers"),
        (with_input(data={"a": [1]}), {}, "data is an object; it must be a list"),
        (with_input() | {"parameters": {"priority": [1]}}, {}, "parameter 'priority' is a list"),
        (with_input(name=...), {}, "inputs[0]: field 'name' is None"),
        (with_input(name=7), {}, "inputs[0]: field 'name' is 7"),
        (with_input(datatype=...), {}, "input 'user': field 'datatype' is None"),
        (with_input(datatype="BYTES"), {}, "datatype 'BYTES' is not supported"),
        (with_input(shape=...), {}, "input 'user': field 'shape' is None"),
        (with_input(shape=[-1, 1]), {}, "sizes must be whole numbers"),
        (with_input(shape=[10**30]), {}, "of at most 9223372036854775807"),
        (with_input(data=...), {}, "has neither field 'data' nor parameter 'binary_data_size'"),
        (with_input(data=[1.5]), {}, "data must be whole numbers for INT64"),
        (with_input(parameters={"binary_data_size": 8}), {}, "has both field 'data' and parameter 'binary_data_size'"),
        (with_input(parameters={"binary_data_size": 8}, data=...), {}, "needs header Inference-Header-Content-Length"),
        (with_input(parameters={"binary_data_size": True}, data=...), {}, "'binary_data_size' is True"),
        (with_input(parameters={"binary_data_size": -8}, data=...), {}, "'binary_data_size' is -8"),
        (with_input(parameters={"shared_memory_region": "r"}), {}, "asks for shared memory, which is not supported"),
        (with_input(parameters=[1]), {}, "field 'parameters' of input 'user' is a list"),
        (with_input(parameters=None), {}, "input(s) missing: history, dense"),
        (with_input() | {"id": 4}, {}, "field 'id' is 4; it must be a string"),
        (with_input() | {"parameters": 4}, {}, "field 'parameters' of the request is 4"),
        (with_input() | {"parameters": {"timeout": "1"}}, {}, "parameter 'timeout' is '1'"),
        (with_input() | {"parameters": {"timeout": -1}}, {}, "parameter 'timeout' is -1"),
        (with_input() | {"parameters": {"timeout": 1.5}}, {}, "parameter 'timeout' is 1.5"),
        (with_input() | {"parameters": {"priority": True}}, {}, "parameter 'priority' is True"),
        (with_input() | {"parameters": {"sequence_id": 4}}, {}, "keep no state between requests"),
        (with_input() | {"parameters": {"binary_data_output": 1}}, {}, "'binary_data_output' of the request is 1"),
        (with_input() | {"parameters": {"max_defaulted_fraction": 2}}, {}, "'max_defaulted_fraction' is 2"),
        (with_input() | {"parameters": {"max_defaulted_fraction": False}}, {}, "'max_defaulted_fraction' is False"),
        (with_input() | {"outputs": "score"}, {}, "field 'outputs' is 'score'; it must be a list"),
        (with_input() | {"outputs": ["score"]}, {}, "outputs[0] is 'score'"),
        (with_input() | {"outputs": [3] * 9}, {}, "field 'outputs' lists 9; the only output is 'score'"),
        (with_input() | {"outputs": [{"name": "logit"}]}, {}, "output 'logit' is unknown; the only output is 'score'"),
        (with_input() | {"outputs": [{"name": "score"}] * 2}, {}, "requested 2 times"),
        (with_input() | {"outputs": [{"name": "score", "parameters": {"classification": 3}}]}, {}, "'classification'"),
        (with_input() | {"outputs": [{"name": "score", "parameters": {"binary_data": 3}}]}, {}, "'binary_data' of"),
        (with_input() | {"outputs": [{"name": "score", "parameters": {"shared_memory_region": ""}}]}, {}, "shared mem"),
        (b"{}", {"Content-Encoding": "gzip"}, "the gzip body is damaged"),
    ],
)  # fmt: skip
def test_malformed_requests_name_what_is_wrong(front_ends, body, headers, message):
    assert message in error_of(call(front_ends, "POST", "/v2/models/ranker/infer", body, headers), 400)
    assert json_request(front_ends)[0] == 200


def test_binary_sections_must_match_what_the_header_says(front_ends):
    document = {"inputs": [binary_input("user", USER), binary_input("dense", DENSE)]}
    head = json.dumps(document).encode()
    whole = head + USER.tobytes() + DENSE.tobytes()

    def send(body):
        headers = {HEAD: str(len(head))}
        return error_of(call(front_ends, "POST", "/v2/models/ranker/infer", body, headers), 400)

    assert "input 'dense': binary_data_size is 32; only 31 bytes of the body are left" in send(whole[:-1])
    assert "the body has 1 bytes more than its inputs' binary_data_size add up to" in send(whole + b"x")
    assert "input 'user': binary_data_size is 32; only 0 bytes" in send(head)
