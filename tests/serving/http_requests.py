"""Requests over HTTP to a fake `ranker`, as a client without a library of its own would write them."""

from __future__ import annotations

import gzip
import http.client
import json
import zlib

import numpy as np


def call(front_ends, method, path, body=None, headers=None):
    """(status, headers in lower case, body) of one request."""
    connection = http.client.HTTPConnection(front_ends.http_url, timeout=10)
    try:
        if isinstance(body, dict | list):
            body = json.dumps(body)
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
    finally:
        connection.close()


def get(front_ends, path):
    status, _, body = call(front_ends, "GET", path)
    assert status == 200, body
    return json.loads(body)


ITEMS = 4
USER = np.arange(ITEMS)[:, None] * 11
HISTORY = np.arange(3 * ITEMS).reshape(ITEMS, 3)
DENSE = np.linspace(0, 1, 2 * ITEMS, dtype=np.float32).reshape(ITEMS, 2)


def binary_input(name, array):
    datatype = {"int64": "INT64", "int32": "INT32", "float32": "FP32"}[array.dtype.name]
    return {
        "name": name,
        "datatype": datatype,
        "shape": list(array.shape),
        "parameters": {"binary_data_size": array.nbytes},
    }


def binary_request(front_ends, arrays=None, *, path="/v2/models/ranker/infer", headers=None, coding=None, **fields):
    """Send `arrays` (by input name) as binary tensors; (status, headers, body)."""
    if arrays is None:
        arrays = {"user": USER, "history": HISTORY, "dense": DENSE}
    head = json.dumps({"inputs": [binary_input(name, a) for name, a in arrays.items()], **fields}).encode()
    body = head + b"".join(a.tobytes() for a in arrays.values())
    headers = {"Inference-Header-Content-Length": str(len(head)), **(headers or {})}
    if coding is not None:
        body = (gzip.compress if coding == "gzip" else zlib.compress)(body)
        headers["Content-Encoding"] = coding
    return call(front_ends, "POST", path, body, headers)


class HalfSent:
    """A binary request of which only the head and the JSON have been sent yet."""

    def __init__(self, front_ends, **fields):
        arrays = {"user": USER, "history": HISTORY, "dense": DENSE}
        text = json.dumps({"inputs": [binary_input(name, a) for name, a in arrays.items()], **fields}).encode()
        self.rest = b"".join(a.tobytes() for a in arrays.values())
        self.connection = http.client.HTTPConnection(front_ends.http_url, timeout=10)
        self.connection.putrequest("POST", "/v2/models/ranker/infer")
        self.connection.putheader("Content-Length", str(len(text) + len(self.rest)))
        self.connection.putheader("Inference-Header-Content-Length", str(len(text)))
        self.connection.endheaders(text)

    def answer(self):
        response = self.connection.getresponse()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()


def json_request(front_ends, fields=None, path="/v2/models/ranker/infer", headers=None):
    document = {
        "inputs": [
            {"name": "user", "datatype": "INT64", "shape": [ITEMS, 1], "data": USER.tolist()},
            {"name": "history", "datatype": "INT64", "shape": [ITEMS, 3], "data": HISTORY.reshape(-1).tolist()},
            {"name": "dense", "datatype": "FP32", "shape": [ITEMS, 2], "data": DENSE.tolist()},
        ]
    }
    document.update(fields or {})
    return call(front_ends, "POST", path, document, headers)


def expected(front_ends, scores_of):
    model = front_ends.host.models["ranker"]
    return scores_of(model.spec, model.queries[-1])


def error_of(answer, status):
    got, _, body = answer
    message = json.loads(body)["error"]
    assert got == status, message
    return message


ONE = {"name": "user", "datatype": "INT64", "shape": [1, 1], "data": [1]}


def with_input(**changed):
    """A document whose one input is `ONE`, changed; `...` leaves a field out."""
    entry = {k: v for k, v in (ONE | changed).items() if v is not ...}
    return {"inputs": [entry]}
