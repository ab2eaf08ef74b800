"""Whatever is sent over HTTP: an answer or a close in time, never a 500, and the next query unharmed.

A request that ever broke something belongs into `corpus/http`, whole and raw; all files there are replayed.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hebe.serving.http.infer_codec import announce_infer, decode_infer, parse_header_length, parse_infer_document
from hebe.serving.http1.messages import HttpLimits
from hebe.serving.requests.errors import RequestError

CORPUS = sorted((Path(__file__).parent / "corpus" / "http").iterdir())


def fuzz(examples: int) -> settings:
    """Settings for `examples` of whatever size and time."""
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))


USER = np.array([[1], [2]])
HISTORY = np.array([[1, 2, 3], [4, 5, 6]])
DENSE = np.array([[0.5, 1.0], [1.5, 2.0]], np.float32)
BINARY = USER.tobytes() + HISTORY.tobytes() + DENSE.tobytes()
JSON_DOCUMENT = {
    "id": "1",
    "parameters": {"timeout": 1_000_000, "priority": 1},
    "inputs": [
        {"name": "user", "datatype": "INT64", "shape": [2, 1], "data": USER.tolist()},
        {"name": "history.values", "datatype": "INT64", "shape": [6], "data": HISTORY.reshape(-1).tolist()},
        {"name": "history.lengths", "datatype": "INT32", "shape": [2], "data": [3, 3]},
        {"name": "dense", "datatype": "FP32", "shape": [2, 2], "data": DENSE.tolist()},
    ],
    "outputs": [{"name": "score", "parameters": {"binary_data": False}}],
}
BINARY_DOCUMENT = {
    "parameters": {"binary_data_output": True},
    "inputs": [
        {"name": "user", "datatype": "INT64", "shape": [2, 1], "parameters": {"binary_data_size": 16}},
        {"name": "history", "datatype": "INT64", "shape": [2, 3], "parameters": {"binary_data_size": 48}},
        {"name": "dense", "datatype": "FP32", "shape": [2, 2], "parameters": {"binary_data_size": 16}},
    ],
}

WORDS = st.sampled_from(
    [
        "user",
        "history",
        "history.values",
        "history.lengths",
        "dense",
        "score",
        "INT64",
        "INT32",
        "FP32",
        "BYTES",
        "BOOL",
    ]
)
NUMBERS = st.sampled_from(
    [-1, 0, 1, 2, 3, 6, 16, 48, 64, 65, 1000, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**30, 10**4000]
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.integers() | st.floats() | WORDS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def places(value, path=()):
    """Paths to every node of a JSON value."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for position, entry in enumerate(value):
            yield from places(entry, (*path, position))


@st.composite
def mutated(draw, document):
    """`document` with one to three of its nodes replaced, removed or doubled."""
    document = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(document))))
        if not path:
            return draw(VALUES)
        holder = document
        for step in path[:-1]:
            holder = holder[step]
        match draw(st.sampled_from(["replace", "replace", "remove", "double"])):
            case "replace":
                holder[path[-1]] = draw(VALUES)
            case "remove":
                del holder[path[-1]]
            case "double" if isinstance(holder, list):
                holder.append(holder[path[-1]])
    return document


@st.composite
def bodies(draw):
    """(body, header length or None): a good request with something wrong in its JSON, its bytes or its lengths."""
    if draw(st.booleans()):
        return json.dumps(draw(mutated(JSON_DOCUMENT))).encode(), None
    head = json.dumps(draw(mutated(BINARY_DOCUMENT) | st.just(BINARY_DOCUMENT))).encode()
    body = bytearray(head + BINARY)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(body)))
        match draw(st.sampled_from(["flip", "cut", "insert"])):
            case "flip" if at < len(body):
                body[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del body[at : at + draw(st.integers(1, 40))]
            case "insert":
                body[at:at] = draw(st.binary(max_size=20))
    length = draw(st.one_of(st.just(len(head)), st.just(len(head)), st.integers(-1, len(body) + 2)))
    return bytes(body), length


@fuzz(400)
@given(bodies())
def test_decoding_raises_nothing_but_request_errors(body_and_length):
    body, length = body_and_length
    message = "fine"
    try:
        header_length = parse_header_length(None if length is None else str(length), len(body))
        document = parse_infer_document(memoryview(body), header_length)
        binary = None if header_length is None else memoryview(body)[header_length:]
        with contextlib.suppress(RequestError):
            assert announce_infer("ranker", "", document, 0.0)[1] >= 1
        decode_infer("ranker", "", document, binary, 0.0)
    except RequestError as error:
        message = error.message
    assert 0 < len(message) < 1000


@pytest.fixture(scope="module")
def served(serve_for_module):
    return serve_for_module(limits=HttpLimits(max_request_bytes=100_000, head_timeout_s=0.5, body_timeout_s=0.5))


def good_request():
    head = json.dumps(BINARY_DOCUMENT).encode()
    return (
        b"POST /v2/models/ranker/infer HTTP/1.1\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
        % (len(head), len(head) + len(BINARY))
        + head
        + BINARY
    )


def exchange(served, data, *, complete):
    """Every status that is answered to `data`, with its body; the connection is closed after `data` if not complete."""
    with socket.create_connection(("127.0.0.1", served.http.port), timeout=5) as connection:
        received = b""
        try:
            connection.sendall(data)
            if not complete:
                connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                received += piece
                if complete and answers(received):
                    break
        except ConnectionError:
            pass
        return answers(received)


def answers(received):
    """The whole responses in `received`."""
    found = []
    while (head_end := received.find(b"\r\n\r\n")) >= 0:
        head, rest = received[:head_end], received[head_end + 4 :]
        status = int(head.split()[1])
        length = re.search(rb"content-length: (\d+)", head)
        size = int(length.group(1)) if length else 0
        if len(rest) < size:
            break
        if status != 100:
            found.append((status, rest[:size]))
        received = rest[size:]
    return found


def check(served, data, *, complete):
    """`data` gets no 500 and no hang, and the next query is answered."""
    got = exchange(served, data, complete=complete)
    assert got or not complete or not data.strip(b"\r\n"), "no answer, though empty lines were not all"
    for status, body in got:
        assert status != 500, body
        if status >= 400 and body:
            assert json.loads(body)["error"]
    assert [status for status, _ in exchange(served, good_request(), complete=True)] == [200]


@fuzz(120)
@given(body_and_length=bodies(), sent=st.sampled_from(["length", "chunked"]), model=st.sampled_from(["ranker", "lone"]))
def test_malformed_bodies(served, body_and_length, sent, model):
    body, length = body_and_length
    head = b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: localhost\r\n" % model.encode()
    if length is not None:
        head += b"Inference-Header-Content-Length: %d\r\n" % length
    if sent == "length":
        data = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    else:
        data = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
        if not body:
            data = head + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    check(served, data, complete=True)


METHODS = st.sampled_from([b"GET", b"POST", b"HEAD", b"PUT", b"OPTIONS", b"CONNECT", b"TRACE", b"PRI", b"get", b""])
WORDS_OF_PATHS = """v2 models ranker versions 1 infer stats config ready health live repository index load trace
    setting systemsharedmemory region .. %00 %zz %e2%82 *"""
PARTS = st.sampled_from([*WORDS_OF_PATHS.split(), ""])
HEADERS = st.sampled_from(
    [
        b"Content-Length: 5",
        b"Content-Length: 99999999999999",
        b"Content-Length: -5",
        b"Content-Length: 5, 5",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: identity",
        b"Expect: 100-continue",
        b"Expect: x",
        b"Content-Encoding: gzip",
        b"Content-Encoding: \xff",
        b"Accept-Encoding: ;;,gzip;q=x",
        b"Connection: close, x",
        b"Connection: Upgrade\r\nUpgrade: websocket",
        b"Inference-Header-Content-Length: 0",
        b"Inference-Header-Content-Length: \xc2\xb2",
        b"Authorization: \xff",
        b"no colon",
        b": no name",
        b" folded",
        b"A: " + b"a" * 70_000,
    ]
)


@fuzz(120)
@given(
    method=METHODS,
    parts=st.lists(PARTS, max_size=7),
    headers=st.lists(HEADERS, max_size=4),
    body=st.binary(max_size=50) | st.just(b"{}"),
    version=st.sampled_from([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTCPCP/1.0", b""]),
)
def test_malformed_heads(served, method, parts, headers, body, version):
    head = b" ".join((method, b"/" + "/".join(parts).encode(), version))
    data = b"\r\n".join((head, *headers, b"", body))
    check(served, data, complete=False)


@fuzz(60)
@given(st.binary(max_size=300), st.integers(0, 400))
def test_noise_and_cut_requests(served, noise, cut):
    check(served, noise, complete=False)
    check(served, good_request()[:cut], complete=False)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_the_corpus(served, path):
    check(served, path.read_bytes(), complete=True)
