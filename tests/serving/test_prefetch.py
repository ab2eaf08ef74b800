"""`POST /v2/models/NAME/prefetch`: keys as an inference request has them, brought into level 1."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tritonclient.http

from hebe.serving.http1.messages import HttpLimits

from .http_requests import DENSE, HISTORY, ONE, USER, binary_request, call, error_of, json_request

PATH = "/v2/models/ranker/prefetch"


def prefetched(front_ends, model="ranker"):
    (keys,) = front_ends.host.models[model].prefetched
    return {table: np.sort(values).tolist() for table, values in keys.items()}


def keys(array):
    return sorted(array.reshape(-1).tolist())


@pytest.mark.parametrize("request_of", [json_request, binary_request])
def test_a_whole_inference_request_will_do(front_ends, request_of):
    status, _, body = request_of(front_ends, path=PATH)
    assert (status, json.loads(body)) == (200, {"accepted": True})
    assert prefetched(front_ends) == {"users": keys(USER), "ads": keys(HISTORY)}
    assert not front_ends.host.models["ranker"].queries


def test_requests_that_repeat_themselves(front_ends):
    for _ in range(4):
        assert binary_request(front_ends, path=PATH)[0] == 200
    asked = front_ends.host.models["ranker"].prefetched
    assert [keys(each["users"]) + keys(each["ads"]) for each in asked] == [keys(USER) + keys(HISTORY)] * 4


def test_the_keys_of_some_features_are_enough(front_ends):
    assert binary_request(front_ends, {"history": HISTORY}, path=PATH)[0] == 200
    assert prefetched(front_ends) == {"ads": keys(HISTORY)}


def test_jagged_keys(front_ends):
    arrays = {"history.values": np.array([4, 2, 4]), "history.lengths": np.array([2, 0, 1])}
    assert binary_request(front_ends, arrays, path=PATH)[0] == 200
    assert prefetched(front_ends) == {"ads": [2, 4, 4]}


def test_a_raw_body_of_a_model_with_one_input(front_ends):
    body = np.array([[1, 2], [3, 4]]).tobytes()
    status, _, answer = call(
        front_ends, "POST", "/v2/models/lone/prefetch", body, {"Inference-Header-Content-Length": "0"}
    )
    assert (status, json.loads(answer)) == (200, {"accepted": True})
    assert prefetched(front_ends, "lone") == {"things": [1, 2, 3, 4]}


def test_it_says_when_there_is_too_much_to_do(front_ends):
    front_ends.host.models["ranker"].has_room = False
    assert json.loads(json_request(front_ends, path=PATH)[2]) == {"accepted": False}


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"history": HISTORY + 50}, "is out of range"),
        ({"history.values": HISTORY[0]}, "input 'history.lengths' is missing"),
        ({"dense": DENSE}, "there are no keys to prefetch; give those of a feature of model ranker"),
        ({"nothing": HISTORY}, "input 'nothing' is unknown to model ranker"),
        ({"user": np.zeros((65, 1), np.int64)}, "has 65 items; a query may have at most 64"),
    ],
)
def test_what_is_wrong_is_said_as_for_inference(front_ends, arrays, says):
    assert says in error_of(binary_request(front_ends, arrays, path=PATH), 400)
    assert not front_ends.host.models["ranker"].prefetched
    assert front_ends.data_plane.statistics.refused["invalid"] == 1
    (counted,) = front_ends.data_plane.statistics.find("ranker")
    assert not counted.refused, "it was no query"


def test_limits_are_those_of_inference(serve_with):
    front_ends = serve_with(limits=HttpLimits(max_request_bytes=4096, max_json_bytes=256))
    large = {"inputs": [ONE | {"shape": [60, 1], "data": [[1]] * 60}]}
    assert call(front_ends, "POST", PATH, large)[0] == 413
    assert binary_request(front_ends, {"user": np.zeros((600, 1), np.int64)}, path=PATH)[0] == 413
    assert call(front_ends, "GET", PATH)[0] == 405
    assert call(front_ends, "POST", "/v2/models/nobody/prefetch", {"inputs": [ONE]})[0] == 404


def test_tritonclient_makes_the_body(front_ends):
    """Its static method that makes a request's body needs no more than the key inputs."""
    tensor = tritonclient.http.InferInput("history", list(HISTORY.shape), "INT64")
    tensor.set_data_from_numpy(HISTORY)
    body, header_length = tritonclient.http.InferenceServerClient.generate_request_body([tensor])
    headers = {"Inference-Header-Content-Length": str(header_length)}
    assert json.loads(call(front_ends, "POST", PATH, body, headers)[2]) == {"accepted": True}
    assert prefetched(front_ends) == {"ads": keys(HISTORY)}
