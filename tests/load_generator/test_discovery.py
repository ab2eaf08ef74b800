"""What a server tells about a model, and what is said of one that cannot be driven."""

import contextlib
import json
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import pytest

from hebe.load_generator import discovery
from hebe.load_generator.discovery import discover, get_json
from hebe.load_generator.error import LoadError
from hebe.load_generator.protobuf_wire import delimited, varint
from hebe.load_generator.target import Target, parse_endpoint
from hebe.spec import SlaTarget
from tests.servers.certificates import self_signed

PARAMETERS = {"rows.user": "1000", "sla_ms": "20", "sla_percentile": "99"}
INPUTS = [("user", "INT64", 3), ("dense", "FP32", 4)]
SERVICE = "/inference.GRPCInferenceService/"


def http_pages(parameters=PARAMETERS, max_batch_size=64):
    metadata = {"inputs": [{"name": name, "datatype": kind, "shape": [-1, width]} for name, kind, width in INPUTS]}
    told = {name: {"string_value": value} for name, value in parameters.items()}
    config = {"parameters": told | {"odd": "no object", "other": {"int_value": 3}}, "max_batch_size": max_batch_size}
    return {"/v2/models/m": (200, metadata), "/v2/models/m/config": (200, config)}


def grpc_answers():
    """The same in the messages of the protocol."""
    inputs = [
        delimited(4, delimited(1, name) + delimited(2, kind) + delimited(3, varint(-1) + varint(width)))
        for name, kind, width in INPUTS
    ]
    told = [delimited(14, delimited(1, n) + delimited(2, delimited(1, value))) for n, value in PARAMETERS.items()]
    config = delimited(1, "m") + b"\x20" + varint(64) + b"".join(told)
    return {"ModelMetadata": delimited(1, "m") + b"".join(inputs), "ModelConfig": delimited(1, config)}


@pytest.fixture
def serve_http():
    """Serves pages, by path, which a test may change; gives the target, the pages and the headers of what was asked."""
    pages, asked = {}, []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.headers)
            status, page = pages.get(self.path, (404, {"error": "model 'm' is not loaded"}))
            body = page if isinstance(page, bytes) else json.dumps(page).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield Target(parse_endpoint(f"http://127.0.0.1:{server.server_address[1]}"), "m"), pages, asked
        server.shutdown()
        thread.join()


@pytest.fixture
def serve_grpc():
    """Answers calls, by method: with bytes, or with an error that is a status code, or one and its words."""
    answers, asked = {}, []

    class Handler(grpc.GenericRpcHandler):
        def service(self, call):
            def act(_request, context):
                asked.append(dict(call.invocation_metadata))
                answer = answers.get(call.method.removeprefix(SERVICE), grpc.StatusCode.NOT_FOUND)
                if isinstance(answer, tuple):
                    context.abort(*answer)
                if isinstance(answer, grpc.StatusCode):
                    context.abort(answer, "model 'm' is not loaded")
                return answer

            return grpc.unary_unary_rpc_method_handler(act)

    server = grpc.server(ThreadPoolExecutor(1), handlers=[Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield Target(parse_endpoint(f"grpc://127.0.0.1:{port}"), "m"), answers, asked
    server.stop(None).wait()


def test_both_protocols_tell_the_same_about_a_model(serve_http, serve_grpc):
    (over_http, pages, _), (over_grpc, answers, _) = serve_http, serve_grpc
    pages.update(http_pages())
    answers.update(grpc_answers())
    found = discover(over_http)
    assert found == discover(over_grpc)
    assert [(i.name, i.columns, i.rows) for i in found.inputs] == [("user", (3,), 1000), ("dense", (4,), None)]
    assert (found.sla, found.max_items) == (SlaTarget(20.0, 99.0), 64)


def test_a_version_and_a_name_of_any_letters_are_asked_for_where_they_are(serve_http):
    target, pages, _ = serve_http
    pages.update({path.replace("/models/m", "/models/a%2Fb/versions/3"): page for path, page in http_pages().items()})
    assert discover(replace(target, model="a/b", version="3")).max_items == 64
    with pytest.raises(LoadError, match="has no model a/b 4: it answers 404"):
        discover(replace(target, model="a/b", version="4"))


def test_a_server_without_a_configuration_tells_what_it_can(serve_http, serve_grpc):
    (over_http, pages, _), (over_grpc, answers, _) = serve_http, serve_grpc
    pages.update(http_pages() | {"/v2/models/m/config": (404, {})})
    answers.update(grpc_answers() | {"ModelConfig": grpc.StatusCode.UNIMPLEMENTED})
    for target in (over_http, over_grpc):
        with pytest.raises(LoadError, match="give --max-key"):
            discover(target)
        found = discover(replace(target, max_key=9))
        assert ([tensor.rows for tensor in found.inputs], found.sla, found.max_items) == ([10, None], None, None)


def test_a_token_goes_with_every_question(serve_http, serve_grpc):
    (over_http, pages, http_asked), (over_grpc, answers, grpc_asked) = serve_http, serve_grpc
    pages.update(http_pages())
    answers.update(grpc_answers())
    discover(replace(over_http, api_token="secret"))
    discover(replace(over_grpc, api_token="secret"))
    assert [headers["authorization"] for headers in http_asked] == ["Bearer secret"] * 2
    assert [metadata["authorization"] for metadata in grpc_asked] == ["Bearer secret"] * 2


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (404, grpc.StatusCode.NOT_FOUND, "has no model m: it answers .*'m' is not loaded"),
        (401, grpc.StatusCode.UNAUTHENTICATED, "an API token, or another one .*: give --api-token-file or --api-token"),
        (
            403,
            grpc.StatusCode.PERMISSION_DENIED,
            "an API token, or another one .*: give --api-token-file or --api-token",
        ),
    ],
)
def test_what_the_server_refuses_is_told_in_the_same_words(serve_http, serve_grpc, status, code, words):
    (over_http, pages, _), (over_grpc, answers, _) = serve_http, serve_grpc
    pages["/v2/models/m"] = (status, {"error": "model 'm' is not loaded"})
    answers["ModelMetadata"] = code
    for target in (over_http, over_grpc):
        with pytest.raises(LoadError, match=words):
            discover(target)


@pytest.mark.parametrize("state", ["being loaded", "unavailable: table ads: no space left"])
def test_a_model_that_is_not_ready_is_told_as_one_that_the_server_has(serve_http, serve_grpc, state):
    (over_http, pages, _), (over_grpc, answers, _) = serve_http, serve_grpc
    pages["/v2/models/m"] = (503, {"error": f"model m is {state}"})
    answers["ModelMetadata"] = (grpc.StatusCode.UNAVAILABLE, f"model m is {state}")
    for target in (over_http, over_grpc):
        with pytest.raises(LoadError) as told:
            discover(target)
        assert str(told.value) == f"{target.endpoint.url} has model m, but it is not ready: it is {state}"


def test_a_server_that_is_unavailable_as_a_whole_is_not_said_to_have_the_model(serve_http):
    target, pages, _ = serve_http
    pages["/v2/models/m"] = (503, {"error": "no healthy upstream"})
    with pytest.raises(LoadError, match=r"does not tell about model m now: it answers 503 \(no healthy upstream\)"):
        discover(target)


def test_what_is_not_the_protocol_is_told(serve_http, serve_grpc):
    (over_http, pages, _), (over_grpc, answers, _) = serve_http, serve_grpc
    pages["/v2/models/m"] = (200, b"<html>")
    with pytest.raises(LoadError, match="has no model m: it answers 200"):
        discover(over_http)
    pages["/v2/models/m"] = (200, {"inputs": "none"})
    with pytest.raises(LoadError, match="lists no inputs"):
        discover(over_http)
    answers["ModelMetadata"] = b"\xff"
    with pytest.raises(LoadError, match="ModelMetadata cannot be read"):
        discover(over_grpc)
    answers["ModelMetadata"] = grpc.StatusCode.INTERNAL
    with pytest.raises(LoadError, match="does not tell about model m: it answers INTERNAL"):
        discover(over_grpc)


def test_the_wrong_protocol_is_told_with_the_right_one(serve_http, serve_grpc):
    for (target, _, _), other in ((serve_http, "grpc"), (serve_grpc, "http")):
        swapped = replace(target, endpoint=replace(target.endpoint, protocol=other))
        with pytest.raises(LoadError, match=f"--protocol {target.endpoint.protocol}"):
            discover(swapped)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_nobody_at_home_is_told(protocol):
    with pytest.raises(LoadError, match=r"127\.0\.0\.1:1 cannot be reached"):
        discover(Target(parse_endpoint(f"{protocol}://127.0.0.1:1"), "m"))


def test_a_page_is_asked_for_behind_the_address_s_own_path(serve_http):
    target, pages, _ = serve_http
    behind = replace(target, endpoint=replace(target.endpoint, prefix="/proxy"))
    pages.update({"/proxy/v2/status": (503, {"live": False}), "/proxy/page": (200, b"\xff")})
    assert get_json(behind, "/v2/status", "try another") == (503, {"live": False})
    assert get_json(behind, "/page", "try another") == (200, None)


def test_an_answer_that_does_not_come_in_time_is_told(serve_http, monkeypatch):
    target, pages, _ = serve_http
    pages["/v2/status"] = (200, {})
    monkeypatch.setattr(discovery, "ASK_TIMEOUT_S", -1.0)
    with pytest.raises(LoadError, match="has not answered in full after -1 s: try again"):
        get_json(target, "/v2/status", "try another")


def test_over_tls_with_the_servers_certificate_and_no_other(tmp_path):
    certificate, key = self_signed(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    def answer(connection):
        with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as served:
            served.recv(1000)
            served.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n[1,2,3]")

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
        target = Target(parse_endpoint(f"https://127.0.0.1:{listening.getsockname()[1]}"), "m", ca_file=certificate)
        pool.submit(lambda: [answer(listening.accept()[0]) for _ in range(2)])
        assert get_json(target, "/page", "try another") == (200, [1, 2, 3])
        with pytest.raises(LoadError, match=r"is not trusted: .*; give the certificates to trust with --ca-file"):
            get_json(replace(target, ca_file=None), "/page", "try another")


def test_what_is_nested_too_deep_is_no_json(serve_http):
    target, pages, _ = serve_http
    pages["/page"] = (200, b"[" * 100_000 + b"]" * 100_000)
    assert get_json(target, "/page", "try another") == (200, None)


@pytest.mark.parametrize("status", [404, 503])
def test_what_a_refusal_says_is_fit_to_be_shown(serve_http, status):
    target, pages, _ = serve_http
    for said, shown in (("\x1b[2J\ud800", r" \(\\x1b\[2J\\ud800\)$"), ({"not": "words"}, f"answers {status}$")):
        pages["/v2/models/m"] = (status, {"error": said})
        with pytest.raises(LoadError, match=shown):
            discover(target)
