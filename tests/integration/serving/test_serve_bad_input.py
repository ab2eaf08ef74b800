"""Whatever comes in over a socket: an error that says what is wrong, or an end; and the next good query unharmed."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from timeit import timeit
from typing import Any

import grpc as grpc_core
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc import service_pb2, service_pb2_grpc

from hebe.serving.grpc.infer_codec import split_raw_contents
from tests.examples.http2_messages import HalfMessages
from tests.integration.conftest import Served

from .served import (
    PATIENCE_S,
    TOLERANCE,
    Dripping,
    Inputs,
    Metrics,
    address,
    binary_body,
    draw,
    error_of,
    eventually,
    post,
    read_to_end,
    request_bytes,
    small_dlrm,
    triton_inputs,
)

MAX_ITEMS = 1500
MAX_REQUEST_BYTES = 12 << 20
INFER = "/v2/models/ranker/infer"
GOOD = draw(small_dlrm("ranker"), 4, np.random.default_rng(1))
"""A query that the served model `ranker` answers."""


@pytest.fixture(autouse=True)
def the_next_query_is_answered(served: Served) -> Iterator[None]:
    """After each test a good query over each protocol gets its scores, and nothing is left waiting."""
    yield
    wanted = served.references["ranker"].scores(GOOD)
    for module, url in ((tritonclient.http, served.http), (tritonclient.grpc, served.grpc)):
        with module.InferenceServerClient(url) as client:
            scores = client.infer("ranker", triton_inputs(module, GOOD)).as_numpy("score")
            np.testing.assert_allclose(scores, wanted, rtol=0, atol=TOLERANCE)
    eventually(lambda: Metrics(served.process.metrics_url).value("hebe_queue_depth") == 0, "nothing waits")


@pytest.fixture(scope="module", autouse=True)
def slow_clients(served: Served) -> Iterator[tuple[Dripping, Dripping]]:
    """One that takes its time over the head of a request, one over the body, beside all these tests."""
    body, header_length = binary_body(GOOD)
    whole = request_bytes("ranker", body, header_length)
    clients = Dripping(served.http, b"", whole), Dripping(served.http, whole[: -len(body)], body)
    yield clients
    for client in clients:
        client.thread.join()


def test_the_good_query_is_the_models(served: Served):
    assert served.spec("ranker") == small_dlrm("ranker")


def changed(**arrays: np.ndarray | None) -> Inputs:
    """The good query with some inputs replaced, added, or (None) left out; `__` in a name stands for a dot."""
    named = {name.replace("__", "."): array for name, array in arrays.items()}
    return Inputs(GOOD.items, {name: array for name, array in (GOOD.arrays | named).items() if array is not None})


def keys(*values: int) -> np.ndarray:
    return np.array(values, np.int64).reshape(4, 1)


def jagged(values: int, lengths: list[int]) -> Inputs:
    return changed(history=None, history__values=np.zeros(values, np.int64), history__lengths=np.array(lengths))


TENSORS: dict[str, tuple[Inputs, str]] = {
    "negative key": (changed(user=keys(0, 1, -7, 2)), "input 'user': key -7 of item 2 is out of range; keys must lie"),
    "key too large": (changed(user=keys(0, 1000, 1, 2)), "key 1000 of item 1 is out of range; keys must lie in 0..999"),
    "largest key": (changed(user=keys(0, 0, 0, 2**63 - 1)), "key 9223372036854775807 of item 3 is out of range"),
    "wrong name": (changed(user=None, usr=keys(1, 2, 3, 4)), "input 'usr' is unknown to model ranker; its inputs are"),
    "wrong datatype": (changed(user=np.ones((4, 1), np.float32)), "input 'user': datatype is FP32; it must be INT64"),
    "wrong shape": (changed(ad=np.zeros((4, 3), np.int64)), "input 'ad': shape is [4, 3]; it must be [items, 2]"),
    "missing": (changed(ad=None), "input(s) missing: ad"),
    "items differ": (changed(ad=np.zeros((5, 2), np.int64)), "input 'ad': has 5 item(s); input 'user' has 4"),
    "zero items": (
        Inputs(0, {name: array[:0] for name, array in GOOD.arrays.items()}),
        "input 'user': has no items; a query needs at least 1",
    ),
    "too many items": (
        draw(small_dlrm("ranker"), MAX_ITEMS + 1, np.random.default_rng(2)),
        "input 'user': has 1501 items; a query may have at most 1500",
    ),
    "not a number": (
        changed(dense=np.full((4, 4), np.nan, np.float32)),
        "input 'dense': value nan of item 0, column 0",
    ),
    "infinity": (
        changed(dense=np.diag([1, 1, np.inf, 1]).astype(np.float32)),
        "value inf of item 2, column 2; every value must be finite",
    ),
    "lengths too short": (
        jagged(7, [2, 2, 2, 0]),
        "'history.lengths': lengths sum to 6; 'history.values' has 7 key(s)",
    ),
    "lengths too long": (jagged(3, [1, 1, 1, 1]), "'history.lengths': lengths sum to 4; 'history.values' has 3 key(s)"),
    "negative length": (jagged(4, [2, 3, -1, 0]), "length -1 of item 2 is out of range; it must lie in 0..5"),
    "too many lookups": (jagged(6, [0, 6, 0, 0]), "length 6 of item 1 is out of range; it must lie in 0..5"),
    "values alone": (changed(history=None, history__values=keys(1, 2, 3, 4)[:, 0]), "'history.lengths' is missing"),
    "both forms": (
        changed(history__values=np.zeros(2, np.int64), history__lengths=np.array([1, 1, 0, 0])),
        "input 'history' is given both fixed and as .values and .lengths",
    ),
    "key of a jagged feature": (
        changed(history=None, history__values=np.array([1, 500]), history__lengths=np.array([1, 0, 0, 1])),
        "input 'history.values': key 500 of item 3 is out of range; keys must lie in 0..499",
    ),
}


@pytest.mark.parametrize("what", TENSORS)
def test_tensors_that_do_not_fit(served: Served, what: str):
    """Over HTTP in binary and over gRPC, with one message."""
    inputs, says = TENSORS[what]
    body, header_length = binary_body(inputs)
    headers = {"Inference-Header-Content-Length": str(header_length)}
    message = error_of(post(served.http, INFER, body, headers), 400)
    assert says in message
    with tritonclient.grpc.InferenceServerClient(served.grpc) as client:
        with pytest.raises(tritonclient.utils.InferenceServerException) as caught:
            client.infer("ranker", triton_inputs(tritonclient.grpc, inputs))
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert caught.value.message() == message


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_query_too_large_for_floats_harms_none_that_it_shares_a_batch_with(served: Served, protocol: str):
    """Many at once, so that they are fused; those of which a dense value leaves float32's range are told so."""
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[protocol]
    rng = np.random.default_rng(7)
    rows = np.array(list(itertools.product([3e38, -3e38, 0], repeat=4)), np.float32)
    every = draw(small_dlrm("ranker"), len(rows), rng)
    every.arrays["dense"][:] = rows
    too_large = rows[np.isnan(served.references["ranker"].scores(every)[:, 0])][0]
    queries = [draw(small_dlrm("ranker"), 5, rng) for _ in range(40)]
    overflowing = set(range(0, 40, 4))
    for number in overflowing:
        queries[number].arrays["dense"][2] = too_large
    before = Metrics(served.process.metrics_url).value("hebe_queries_refused_total", reason="not_finite")
    with ThreadPoolExecutor(len(queries)) as pool, ExitStack() as clients:
        client = [clients.enter_context(module.InferenceServerClient(getattr(served, protocol))) for _ in queries]
        asked = [
            pool.submit(each.infer, "ranker", triton_inputs(module, query))
            for each, query in zip(client, queries, strict=True)
        ]
        for number, (future, query) in enumerate(zip(asked, queries, strict=True)):
            if number not in overflowing:
                scores = future.result().as_numpy("score")
                wanted = served.references["ranker"].scores(query)
                np.testing.assert_allclose(scores, wanted, rtol=0, atol=TOLERANCE)
                continue
            with pytest.raises(tritonclient.utils.InferenceServerException) as caught:
                future.result()
            assert caught.value.status() == {"http": "400", "grpc": "StatusCode.INVALID_ARGUMENT"}[protocol]
            assert "3e+38 of item 2, column " in caught.value.message()
            assert "is too large for the model: score nan of item 2 is not finite" in caught.value.message()
    after = Metrics(served.process.metrics_url).value("hebe_queries_refused_total", reason="not_finite")
    assert after - before == len(overflowing)


def json_body(**user: Any) -> bytes:
    """A JSON request whose input `user` has the given fields."""
    others = [
        {"name": name, "datatype": "FP32" if name == "dense" else "INT64", "shape": array.shape, "data": array.tolist()}
        for name, array in GOOD.arrays.items()
        if name != "user"
    ]
    whole = {"name": "user", "datatype": "INT64", "shape": [4, 1], "data": [1, 2, 3, 4]} | user
    return json.dumps({"inputs": [whole, *others]}).encode()


def framed(body: bytes, length: object) -> tuple[bytes, dict[str, str]]:
    return body, {"Inference-Header-Content-Length": str(length)}


BODY, JSON_BYTES = binary_body(GOOD)
BOMB = gzip.compress(bytes(MAX_REQUEST_BYTES + 1))

BODIES: dict[str, tuple[tuple[bytes, dict[str, str]], int, str]] = {
    "empty": ((b"", {}), 400, "field 'inputs' is missing or empty"),
    "not JSON": ((b'{"inputs": [', {}), 400, "the request's body is not JSON: "),
    "not an object": ((b"[1, 2]", {}), 400, "is a JSON list; it must be an object"),
    "not UTF-8": ((b'{"id": "\xff"}', {}), 400, "is not JSON: "),
    "nested without end": ((b"[" * 200_000, {}), 400, "is not JSON: "),
    "inputs of another kind": ((b'{"inputs": {"user": [1]}}', {}), 400, "field 'inputs' is missing or empty"),
    "header longer than the body": (framed(BODY, len(BODY) + 1), 400, "the body has only "),
    "header length not a number": (framed(BODY, "many"), 400, "must be a whole number of bytes"),
    "header length negative": (framed(BODY, -1), 400, "must be a whole number of bytes"),
    "header cut short": (framed(BODY, JSON_BYTES - 3), 400, "the request's JSON header is not JSON"),
    "header too long": (framed(BODY, JSON_BYTES + 3), 400, "the request's JSON header is not JSON"),
    "no header length": ((BODY, {}), 400, "is not JSON"),
    "binary cut short": (framed(BODY[:-1], JSON_BYTES), 400, "input 'dense': binary_data_size is 64; only 63 bytes"),
    "binary too long": (framed(BODY + b"12345", JSON_BYTES), 400, "the body has 5 bytes more than its inputs'"),
    "raw body for many inputs": (framed(b"12345678", 0), 400, "model ranker has 4 inputs, so send a JSON header"),
    "strings for keys": ((json_body(data=["1", "2", "3", "4"]), {}), 400, "data must be whole numbers for INT64"),
    "fractions for keys": ((json_body(data=[1.5, 2, 3, 4]), {}), 400, "data must be whole numbers for INT64"),
    "too few data": ((json_body(data=[1, 2]), {}), 400, "data has 2 element(s)"),
    "ragged data": ((json_body(data=[[1], [2, 3], [4]]), {}), 400, "ragged"),
    "huge numbers": ((json_body(data=[10**30, 2, 3, 4]), {}), 400, "input 'user': "),
    "huge shape": ((json_body(shape=[10**18, 10**18]), {}), 400, "input 'user': "),
    "negative shape": ((json_body(shape=[-4, -1]), {}), 400, "sizes must be whole numbers, not negative"),
    "many dimensions": ((json_body(shape=[1] * 1000), {}), 400, "at most 8 are allowed"),
    "no such datatype": ((json_body(datatype="KEYS"), {}), 400, "datatype 'KEYS' is not supported"),
    "no data": ((json_body(data=None), {}), 400, "input 'user'"),
    "damaged gzip": ((b"\x1f\x8b\x08 not gzip", {"Content-Encoding": "gzip"}), 400, "gzip"),
    "gzip bomb": (
        (BOMB, {"Content-Encoding": "gzip", "Inference-Header-Content-Length": "100"}), 413, str(MAX_REQUEST_BYTES)
    ),
    "gzip bomb of JSON": ((BOMB, {"Content-Encoding": "gzip"}), 413, f"the maximum of {8 << 20} bytes; send tensors"),
    "unknown coding": ((BODY, {"Content-Encoding": "br"}), 415, "'br' is not supported; use gzip, deflate or identity"),
}  # fmt: skip


@pytest.mark.parametrize("what", BODIES)
def test_bodies_that_are_no_request(served: Served, what: str):
    (body, headers), status, says = BODIES[what]
    assert says in error_of(post(served.http, INFER, body, headers), status)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/v2/models/nobody/infer", "model 'nobody' is not loaded; loaded: "),
        ("/v2/models/ranker/versions/9/infer", "model ranker has no version '9' loaded; loaded: 1"),
        ("/v2/models/..%2f..%2fetc/infer", "model '../../etc' is not loaded"),
        ("/v2/modells/ranker/infer", "is not part of the protocol as served here"),
        ("/", "is not part of the protocol as served here"),
    ],
)
def test_what_is_not_there(served: Served, path: str, says: str):
    body, header_length = binary_body(GOOD)
    headers = {"Inference-Header-Content-Length": str(header_length)}
    assert says in error_of(post(served.http, path, body, headers), 404)


HEADS: dict[str, tuple[bytes, int, str]] = {
    "a body announced too large": (
        b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000000\r\n\r\n" % INFER.encode(),
        413,
        f"a body of 1000000000000 bytes exceeds the maximum request size of {MAX_REQUEST_BYTES} bytes",
    ),
    "a length that is no number": (b"POST %s HTTP/1.1\r\nContent-Length: 1e3\r\n\r\n" % INFER.encode(), 400, "HTTP"),
    "a negative length": (b"POST %s HTTP/1.1\r\nContent-Length: -5\r\n\r\n" % INFER.encode(), 400, "HTTP"),
    "two lengths": (b"POST %s HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n" % INFER.encode(), 400, ""),
    "a length and chunks": (
        b"POST %s HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % INFER.encode(),
        400,
        "",
    ),
    "no length": (b"POST %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % INFER.encode(), 411, "needs a body with header"),
    "a broken chunk": (
        b"POST %s HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" % INFER.encode(),
        400,
        "malformed chunked body",
    ),
    "another method": (b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % INFER.encode(), 405, "use POST"),
    "a head without end": (b"GET /v2 HTTP/1.1\r\n" + b"X-Filler: abcdefgh\r\n" * 10_000, 431, "exceed 65536 bytes"),
    "no HTTP": (b"\x00\xff\x13garbage\r\n\r\n", 400, "not an HTTP/1.1 request"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(64)) + b"\r\n\r\n", 400, "not an HTTP/1.1"),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), 400, "gRPC has a port of its own"),
}


@pytest.mark.parametrize("what", HEADS)
def test_heads_that_are_answered_before_a_body_comes(served: Served, what: str):
    """The answer is there although the client has not sent what it announced."""
    sent, status, says = HEADS[what]
    with socket.create_connection(address(served.http), timeout=PATIENCE_S) as connection:
        connection.sendall(sent)
        answer = connection.recv(65536)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status), answer
        assert says in json.loads(body)["error"]


def test_chunks_that_grow_too_large(served: Served):
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" % INFER.encode()
    chunk = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
    with socket.create_connection(address(served.http), timeout=PATIENCE_S) as connection:
        try:
            connection.sendall(head)
            for _ in range(MAX_REQUEST_BYTES // (1 << 20) + 1):
                connection.sendall(chunk)
        except (BrokenPipeError, ConnectionResetError):
            pass
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"a chunked body exceeds the maximum request size" in answer


def test_a_connection_goes_on_after_an_error(served: Served):
    """Bad, good, bad, good on one connection, sent at once: four answers in order."""
    body, header_length = binary_body(GOOD, id="kept")
    good = request_bytes("ranker", body, header_length)
    bad = request_bytes("ranker", b"{}")
    last = request_bytes("ranker", body, header_length, "Connection: close\r\n")
    with socket.create_connection(address(served.http), timeout=PATIENCE_S) as connection:
        connection.sendall(bad + good + bad + last)
        answers = read_to_end(connection)
    statuses = [part.split(b" ", 1)[0] for part in answers.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"400", b"200", b"400", b"200"]
    assert answers.count(b'"id":"kept"') == 2


# gRPC


def infer_over(served: Served, request: bytes | service_pb2.ModelInferRequest) -> grpc_core.RpcError:
    """The error with which a request, perhaps not even a message, is answered."""
    data = request if isinstance(request, bytes) else request.SerializeToString()
    with grpc_core.insecure_channel(served.grpc) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc_core.RpcError) as caught:
            call(data, timeout=PATIENCE_S)
    return caught.value


def good_message() -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name="ranker")
    for name, array in GOOD.arrays.items():
        datatype = "FP32" if name == "dense" else "INT64"
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return request


def _typed_in_the_wrong_field(request: service_pb2.ModelInferRequest) -> None:
    del request.raw_input_contents[:]
    request.inputs[0].contents.int_contents.extend([1, 2, 3, 4])


def _without_tensors(request: service_pb2.ModelInferRequest) -> None:
    del request.inputs[:]
    del request.raw_input_contents[:]


MESSAGES: dict[str, tuple[Callable[[service_pb2.ModelInferRequest], object], str, str]] = {
    "raw contents missing": (
        lambda r: r.raw_input_contents.pop(),
        "INVALID_ARGUMENT",
        "field 'raw_input_contents' has 3 element(s); there are 4 inputs",
    ),
    "raw contents cut short": (
        lambda r: r.raw_input_contents.__setitem__(0, r.raw_input_contents[0][:-1]),
        "INVALID_ARGUMENT",
        "input 'user': has 31 bytes of data; INT64 of shape [4, 1] needs 32",
    ),
    "both kinds of contents": (
        lambda r: r.inputs[0].contents.int64_contents.append(1),
        "INVALID_ARGUMENT",
        "input 'user': has both contents and raw_input_contents",
    ),
    "typed in the wrong field": (_typed_in_the_wrong_field, "INVALID_ARGUMENT", "INT64 belongs in int64_contents"),
    "no inputs": (_without_tensors, "INVALID_ARGUMENT", "field 'inputs' is empty"),
    "nothing": (lambda r: r.Clear(), "NOT_FOUND", "model '' is not loaded"),
    "unknown model": (lambda r: setattr(r, "model_name", "nobody"), "NOT_FOUND", "model 'nobody' is not loaded"),
    "unknown version": (lambda r: setattr(r, "model_version", "9"), "NOT_FOUND", "has no version '9' loaded"),
    "negative shape": (
        lambda r: r.inputs[0].shape.__setitem__(0, -4),
        "INVALID_ARGUMENT",
        "sizes must be whole numbers, not negative",
    ),
}


@pytest.mark.parametrize("what", MESSAGES)
def test_grpc_messages_that_are_no_request(served: Served, what: str):
    change, code, says = MESSAGES[what]
    request = good_message()
    change(request)
    error = infer_over(served, request)
    assert error.code().name == code
    assert says in error.details()


@pytest.mark.parametrize("field", [b"\x3a\x00", b"\x2a\x00"])
def test_grpc_messages_of_a_great_many_fields_hold_nobody_up(served: Served, field: bytes):
    """Four megabytes of them: nobody beside waits as long as it takes to read six quarters of that, one by one."""
    flood = b"\x0a\x06ranker" + field * (2 << 20)
    reading_s = timeit(lambda: split_raw_contents(flood[: len(flood) // 4], len(flood)), number=6)
    inputs = triton_inputs(tritonclient.http, GOOD)
    with ThreadPoolExecutor(1) as pool, tritonclient.http.InferenceServerClient(served.http) as client:
        floods = pool.submit(lambda: [infer_over(served, flood) for _ in range(3)])
        waits_s = [timeit(lambda: client.infer("ranker", inputs), number=1) for _ in iter(floods.done, True)]
    assert {error.code().name for error in floods.result()} == {"INVALID_ARGUMENT"}
    assert all("fields, as many as any model here could need" in error.details() for error in floods.result())
    assert sum(wait_s > reading_s for wait_s in waits_s) < 2, "each time: a busy machine may stand still once"


def test_grpc_bytes_that_are_no_message(served: Served):
    error = infer_over(served, b"\xff\xff\xff\xff\x07 what is this")
    assert error.code().name == "INVALID_ARGUMENT"
    assert "not a ModelInferRequest" in error.details()


def test_grpc_messages_that_are_too_large(served: Served):
    request = good_message()
    request.raw_input_contents.append(bytes(MAX_REQUEST_BYTES))
    error = infer_over(served, request)
    assert error.code().name == "RESOURCE_EXHAUSTED"
    assert str(MAX_REQUEST_BYTES) in error.details()


def test_grpc_methods_that_are_not_there(served: Served):
    with grpc_core.insecure_channel(served.grpc) as channel:
        with pytest.raises(grpc_core.RpcError) as caught:
            channel.unary_unary("/inference.GRPCInferenceService/ModelGuess")(b"", timeout=PATIENCE_S)
    assert caught.value.code().name == "UNIMPLEMENTED"


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /v2/health/ready HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01 hello",
        bytes(100_000),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 1000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">I", 16_777_215)[1:] + bytes(6),
    ],
)
def test_garbage_on_the_grpc_port(served: Served, sent: bytes):
    with socket.create_connection(address(served.grpc), timeout=PATIENCE_S) as connection:
        try:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        read_to_end(connection)


# Clients that vanish, hang about, or take their time


def open_files(served: Served) -> int:
    return len(os.listdir(f"/proc/{served.process.pid}/fd"))


def test_clients_that_vanish_amid_a_request(served: Served):
    body, header_length = binary_body(draw(small_dlrm("ranker"), 1000, np.random.default_rng(3)))
    whole = request_bytes("ranker", body, header_length)
    before = open_files(served)
    for cut in (1, 20, 100, len(whole) - len(body), len(whole) - 50_000, len(whole) - 1):
        connection = socket.create_connection(address(served.http), timeout=PATIENCE_S)
        connection.sendall(whole[:cut])
        connection.close()
    eventually(lambda: open_files(served) <= before, "their connections are closed")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_clients_that_vanish_amid_their_query(served: Served, protocol: str):
    """More work than two workers do at once; whoever asked last is gone before it would be done."""
    inputs = draw(served.spec("dlrm-rmc1"), 1200, np.random.default_rng(4))

    def cancelled() -> float:
        return Metrics(served.process.metrics_url).value("hebe_queries_refused_total", reason="cancelled")

    before, files = cancelled(), open_files(served)
    deadline_s = time.monotonic() + PATIENCE_S
    while cancelled() == before:
        assert time.monotonic() < deadline_s, "no query was withdrawn"
        with ExitStack() as gone:
            if protocol == "http":
                body, header_length = binary_body(inputs)
                for _ in range(6):
                    connection = gone.enter_context(socket.create_connection(address(served.http), timeout=PATIENCE_S))
                    connection.sendall(request_bytes("dlrm-rmc1", body, header_length))
            else:
                channel = gone.enter_context(grpc_core.insecure_channel(served.grpc))
                request = service_pb2.ModelInferRequest(model_name="dlrm-rmc1")
                for tensor in triton_inputs(tritonclient.grpc, inputs):
                    request.inputs.append(tensor._get_tensor())
                    request.raw_input_contents.append(tensor._get_content())
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                calls = [stub.ModelInfer.future(request) for _ in range(6)]
                while not any(call.done() for call in calls):
                    time.sleep(0.001)
                for call in calls:
                    call.cancel()
    eventually(lambda: Metrics(served.process.metrics_url).value("hebe_queue_depth") == 0, "none is left waiting")
    eventually(lambda: open_files(served) <= files, "their connections are closed")


@pytest.mark.parametrize("what", ["JSON that breaks off", "a key out of range", "gRPC", "clients that go"])
def test_large_bad_requests_leave_no_memory_behind(served: Served, what: str):
    """Each kind many times, ten megabytes a time: the process does not grow with their number."""
    inputs = draw(served.spec("dlrm-rmc1"), MAX_ITEMS, np.random.default_rng(5))
    inputs.arrays["feature9"][-1, -1] = -1
    body, header_length = binary_body(inputs)
    whole = request_bytes("dlrm-rmc1", body, header_length)

    def ask() -> None:
        if what == "gRPC":
            with tritonclient.grpc.InferenceServerClient(served.grpc) as client:
                with pytest.raises(tritonclient.utils.InferenceServerException):
                    client.infer("dlrm-rmc1", triton_inputs(tritonclient.grpc, inputs))
        elif what == "clients that go":
            with socket.create_connection(address(served.http), timeout=PATIENCE_S) as connection:
                connection.sendall(whole[:-1])
        elif what == "a key out of range":
            headers = {"Inference-Header-Content-Length": str(header_length)}
            assert "key -1 of item 1499" in error_of(
                post(served.http, "/v2/models/dlrm-rmc1/infer", body, headers), 400
            )
        else:
            assert "is not JSON" in error_of(post(served.http, INFER, b'{"inputs": [' + b"1," * 2_500_000), 400)

    for _ in range(4):
        ask()
    before = served.process.resident_bytes
    for _ in range(20):
        ask()
    assert served.process.resident_bytes < before + (80 << 20)


def test_half_messages_over_grpc_take_no_more_memory_than_is_meant_for_messages(served: Served):
    """Sixty that stop before their end: a window's length of each is there, and all of sixteen that are received."""
    before = served.process.resident_bytes
    most_bytes = 16 * MAX_REQUEST_BYTES + 60 * (256 << 10) + (80 << 20)
    with HalfMessages(served.grpc, MAX_REQUEST_BYTES - 1000) as half:
        half.begin("/inference.GRPCInferenceService/ModelInfer", 60)

        def turns_went_on() -> bool:
            assert served.process.resident_bytes < before + most_bytes
            return half.ended >= 3

        half.go_on_until(turns_went_on)
        assert sum(half.sent.values()) > 8 * MAX_REQUEST_BYTES


def test_idle_connections_disturb_nobody(served: Served):
    """Nor do they run into the usual soft limit of open files."""
    soft, hard = resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE)
    assert soft == resource.RLIM_INFINITY or soft >= min(hard, 65_536) or hard == resource.RLIM_INFINITY
    before = open_files(served)
    with ExitStack() as idle:
        for number in range(200):
            idle.enter_context(
                socket.create_connection(address((served.http, served.grpc)[number % 2]), timeout=PATIENCE_S)
            )
        inputs = draw(served.spec("ranker"), 30, np.random.default_rng(6))
        with tritonclient.http.InferenceServerClient(served.http) as client:
            scores = client.infer("ranker", triton_inputs(tritonclient.http, inputs)).as_numpy("score")
        np.testing.assert_allclose(scores, served.references["ranker"].scores(inputs), rtol=0, atol=TOLERANCE)
        with tritonclient.grpc.InferenceServerClient(served.grpc) as client:
            assert client.is_server_ready()
    eventually(lambda: open_files(served) <= before + 2, "their connections are closed")


def test_the_log_tells_of_refusals_without_a_traceback(served: Served):
    log = Path(served.repository.parent / "server.log").read_text()
    assert "request refused" in log
    assert "Traceback" not in log
    assert "internal error" not in log


def test_clients_that_take_their_time_are_cut_off(slow_clients: tuple[Dripping, Dripping]):
    """A head must come in ten seconds and a body in thirty, however busily its bytes drip in.

    The last test of this file, since these began with its first.
    """
    for client, answer, least_s in zip(
        slow_clients,
        (b"the request's head did not come within 10 s", b"the request's body did not come within 30 s"),
        (9, 29),
        strict=True,
    ):
        client.thread.join(2 * PATIENCE_S)
        assert client.answer.startswith(b"HTTP/1.1 408 ")
        assert answer in client.answer
        assert least_s < client.took_s < PATIENCE_S
