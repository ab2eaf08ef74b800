"""Calls over gRPC, against grpcio's server on loopback, and against servers that fail in ways of their own."""

import asyncio
import socket
import ssl
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from hebe.load_generator.error import LoadError
from hebe.load_generator.senders.grpc import grpc_sender
from hebe.load_generator.senders.grpc import http2_frames as frames
from hebe.load_generator.senders.grpc.grpc_sender import CONNECTIONS, GrpcSender
from hebe.load_generator.senders.grpc.http2_frames import ErrorCode, Setting
from hebe.load_generator.senders.sender import Outcome
from hebe.load_generator.target import Target, parse_endpoint
from tests.load_generator.senders.sender_listener import Listener
from tests.servers.certificates import self_signed

PATIENCE_S = 20.0
ANSWERED = (Outcome.ANSWERED, "", "")


class Body:
    """Requests of a few bytes that tell the query's size, in two buffers; larger ones by `tensor_bytes`."""

    tensor = b""

    def parts(self, items, offset):
        return [f"{items:02}".encode(), f"{offset:02}".encode(), memoryview(self.tensor)]


class Server(grpc.GenericRpcHandler):
    """Answers each call as `answers` says by its request: with the status code there; None never comes."""

    def __init__(self):
        self.answers = {}
        self.requests = []
        self.metadata = []
        self.methods = set()
        self.cancelled = 0

    def service(self, call):
        self.methods.add(call.method)
        return grpc.unary_unary_rpc_method_handler(self.infer)

    async def infer(self, request, context):
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        code = self.answers.get(request[:4], grpc.StatusCode.OK)
        if code is None:
            try:
                await asyncio.sleep(2 * PATIENCE_S)
            finally:
                self.cancelled += 1
        if code is not grpc.StatusCode.OK:
            await context.abort(code, f"it is {code.name}: 100% ü")
        return b"scores"


async def until(condition):
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.002)


async def start_server(handler, port=0, options=(), credentials=None):
    """A server of grpcio, and its port."""
    server = grpc.aio.server(handlers=[handler], options=[("grpc.so_reuseport", 0), *options])
    address = f"127.0.0.1:{port}"
    if credentials is None:
        port = server.add_insecure_port(address)
    else:
        port = server.add_secure_port(address, credentials)
    await server.start()
    return server, port


@asynccontextmanager
async def sending(most_bytes=1000, options=(), tensor=b"", **target):
    handler, body = Server(), Body()
    body.tensor = tensor
    server, port = await start_server(handler, options=[("grpc.max_receive_message_length", most_bytes), *options])
    sender = GrpcSender(Target(parse_endpoint(f"grpc://127.0.0.1:{port}"), "m", **target), body)
    await sender.open()
    try:
        yield sender, Listener(sender, PATIENCE_S), handler
    finally:
        await sender.close()
        await server.stop(None)


async def test_every_query_is_sent_whole_and_answered_once():
    async with sending(api_token="secret") as (sender, listener, server):
        assert sender.connections == CONNECTIONS
        for index in range(20):
            sender.send(index, index, 20 - index)
        assert listener.sent == list(range(20))
        await listener.wait(20)
        assert set(listener.done.values()) == {ANSWERED}
        assert sorted(server.requests) == [f"{index:02}{20 - index:02}".encode() for index in range(20)]
        assert {each["authorization"] for each in server.metadata} == {"Bearer secret"}
        assert all(each["user-agent"].startswith("hebe/") for each in server.metadata)
        assert server.methods == {"/inference.GRPCInferenceService/ModelInfer"}


@pytest.mark.parametrize("connections", [1, 64])
async def test_many_large_messages_share_the_windows_of_connections(connections):
    tensor = bytes(range(250)) * 4001
    async with sending(-1, tensor=tensor, connections=connections) as (sender, listener, server):
        for index in range(30):
            sender.send(index, index, 0)
        await listener.wait(30)
        assert set(listener.done.values()) == {ANSWERED}
        assert sorted(server.requests) == [f"{index:02}00".encode() + tensor for index in range(30)]


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (grpc.StatusCode.UNAVAILABLE, Outcome.REFUSED),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Outcome.REFUSED),
        (grpc.StatusCode.DEADLINE_EXCEEDED, Outcome.REFUSED),
        (grpc.StatusCode.INTERNAL, Outcome.FAILED),
        (grpc.StatusCode.INVALID_ARGUMENT, Outcome.FAILED),
        (grpc.StatusCode.CANCELLED, Outcome.FAILED),
    ],
)
async def test_what_a_server_says_is_a_refusal_or_a_failure(code, outcome):
    async with sending(connections=1) as (sender, listener, server):
        server.answers[b"0100"] = code
        sender.send(5, 1, 0)
        await listener.wait(1)
        assert listener.done == {5: (outcome, code.name, f"it is {code.name}: 100% ü")}


@pytest.mark.parametrize("tensor", [b"", bytes(10_000_000)])
async def test_a_message_that_is_too_large_is_told_from_a_used_up_rate(tensor):
    async with sending(most_bytes=3, tensor=tensor, connections=1) as (sender, listener, server):
        for index in (5, 6):
            sender.send(index, 1, 0)
        await listener.wait(2)
        for outcome, kind, message in listener.done.values():
            assert (outcome, kind) == (Outcome.REFUSED, "message too large")
            assert f"larger than max ({4 + len(tensor)} vs. 3)" in message
        assert server.requests == []


async def test_no_more_calls_than_allowed_are_under_way_and_the_others_follow_in_order():
    async with sending(connections=2) as (sender, listener, server):
        assert sender.connections == 2
        server.answers = {b"0000": None, b"0100": None}
        for index in range(5):
            assert sender.full == (index >= 2)
            sender.send(index, index, 0)
        assert listener.sent == [0, 1]
        await until(lambda: len(server.requests) == 2)
        sender.give_up(3)
        sender.give_up(0)
        assert listener.sent == [0, 1, 2], "in the place of the one that was given up"
        await listener.wait(2)
        assert list(listener.done) == [2, 4]
        await until(lambda: server.cancelled == 1)


async def test_calls_beyond_what_a_server_takes_at_once_are_lined_up():
    options = [("grpc.max_concurrent_streams", 1)]
    async with sending(options=options, connections=9) as (sender, listener, server):
        assert sender.connections == CONNECTIONS
        server.answers = {b"0000": None}
        for index in range(30):
            sender.send(index, min(index, 1), 0)
        await listener.wait(29)
        assert set(listener.done) == set(range(1, 30))
        assert set(listener.done.values()) == {ANSWERED}


async def test_closing_cancels_what_is_under_way_and_starts_nothing_more():
    async with sending(connections=1) as (sender, listener, server):
        server.answers[b"0000"] = None
        for index in range(3):
            sender.send(index, index, 0)
        await until(lambda: server.requests)
        await sender.close()
        await until(lambda: server.cancelled)
        assert (listener.sent, listener.done, sender.connections) == ([0], {}, 0)


async def test_a_query_sent_upon_an_answer_does_not_overtake_those_that_wait():
    async with sending(connections=1) as (sender, listener, _):
        told = sender.on_done

        def again(index, *rest):
            told(index, *rest)
            if index == 0:
                sender.send(9, 9, 0)

        sender.on_done = again
        for index in range(3):
            sender.send(index, index, 0)
        await listener.wait(4)
        assert listener.sent == [0, 1, 2, 9]


async def test_a_server_that_vanishes_fails_all_calls_and_is_found_again_when_it_comes_back():
    handler = Server()
    server, port = await start_server(handler)
    sender = GrpcSender(Target(parse_endpoint(f"grpc://127.0.0.1:{port}"), "m", connections=4), Body())
    await sender.open()
    listener = Listener(sender, PATIENCE_S)
    sender.send(0, 0, 0)
    await listener.wait(1)
    await server.stop(None)
    await until(lambda: not sender.connections)
    for index in range(1, 20):
        sender.send(index, 1, 0)
    await listener.wait(20)
    assert {listener.done[index][:2] for index in range(1, 20)} == {(Outcome.FAILED, "connection refused")}
    server, _ = await start_server(handler, port)
    sender.send(20, 1, 0)
    await listener.wait(21)
    assert listener.done[20] == ANSWERED
    await sender.close()
    await server.stop(None)


@pytest.mark.parametrize("calls", [1, 3])
async def test_a_server_that_stops_lets_calls_end_and_is_left(calls):
    handler = Server()
    server, port = await start_server(handler)
    sender = GrpcSender(Target(parse_endpoint(f"grpc://127.0.0.1:{port}"), "m", connections=calls), Body())
    await sender.open()
    listener = Listener(sender, PATIENCE_S)
    handler.answers = {b"0000": None}
    for index in range(calls):
        sender.send(index, 0, 0)
    await until(lambda: len(handler.requests) == calls)
    await server.stop(0.05)
    await listener.wait(calls)
    kinds = {(outcome, kind) for outcome, kind, _ in listener.done.values()}
    assert kinds <= {
        (Outcome.REFUSED, "UNAVAILABLE"),
        (Outcome.FAILED, "CANCELLED"),
        (Outcome.FAILED, "connection closed"),
    }
    await sender.close()


async def test_over_tls_with_the_servers_certificate_and_no_other(tmp_path):
    certificate, key = self_signed(tmp_path)
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    handler, body = Server(), Body()
    body.tensor = bytes(1_000_000)
    server, port = await start_server(handler, credentials=credentials)
    endpoint = parse_endpoint(f"grpcs://127.0.0.1:{port}")
    sender = GrpcSender(Target(endpoint, "m", connections=2, ca_file=certificate), body)
    await sender.open()
    listener = Listener(sender, PATIENCE_S)
    for index in range(10):
        sender.send(index, index, 0)
    await listener.wait(10)
    assert set(listener.done.values()) == {ANSWERED}
    assert {request[4:] for request in handler.requests} == {body.tensor}
    await sender.close()
    untrusting = GrpcSender(Target(endpoint, "m", connections=2), body)
    with pytest.raises(LoadError, match=r"cannot be reached over gRPC: .*certificate verify failed"):
        await untrusting.open()
    await untrusting.close()
    await server.stop(None)


# -- servers of a few bytes


@asynccontextmanager
async def scripted(*scripts, **options):
    """A sender whose connections are served by `scripts` in turn, by the last one again and again."""
    connections = []

    async def serve(reader, writer):
        script = scripts[min(len(connections), len(scripts) - 1)]
        connections.append(writer)
        try:
            await script(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    endpoint = parse_endpoint(f"grpc://127.0.0.1:{port}")
    sender = GrpcSender(Target(endpoint, "m", **{"connections": 1, **options}), Body())
    try:
        yield sender, Listener(sender, PATIENCE_S), connections
    finally:
        await sender.close()
        server.close()
        await server.wait_closed()


async def next_request(reader):
    """The stream of the next request once it is whole."""
    while True:
        head = frames.parse_frame_head(await reader.readexactly(frames.HEAD_BYTES))
        await reader.readexactly(head.size_bytes)
        if head.kind == frames.DATA and head.flags & frames.END_STREAM:
            return head.stream


def answering(*answers, settings=None):
    """A server that says in turn what `answers` make of the streams of requests; None closes the connection."""

    async def serve(reader, writer):
        await reader.readexactly(len(frames.PREFACE))
        writer.write(frames.settings_frame(settings or {}))
        for answer in answers:
            stream = await next_request(reader)
            if answer is None:
                return
            writer.write(answer(stream))
        await reader.read()

    return serve


def status(number):
    """Trailers alone, spelled out: `:status` 200 and `grpc-status`."""
    block = b"\x88\x00\x0bgrpc-status" + bytes([len(number)]) + number
    return lambda stream: frames.header_frames(stream, block, True)


def last_data(stream):
    return frames.frame(frames.DATA, frames.END_STREAM, stream, b"x")


OK = status(b"0")


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (OK, ANSWERED),
        (status(b"14"), (Outcome.REFUSED, "UNAVAILABLE", "")),
        (lambda stream: frames.header_frames(stream, b"\x08\x03503", True),
         (Outcome.REFUSED, "UNAVAILABLE", "HTTP status 503 and no gRPC status")),
        (lambda stream: frames.header_frames(stream, b"\x08\x03404", False) + last_data(stream),
         (Outcome.FAILED, "UNIMPLEMENTED", "HTTP status 404 and no gRPC status")),
        (lambda stream: frames.header_frames(stream, b"\x08\x03100", False) + OK(stream), ANSWERED),
        (lambda stream: frames.rst_stream(stream, ErrorCode.REFUSED_STREAM),
         (Outcome.REFUSED, "UNAVAILABLE", "stream reset: REFUSED_STREAM")),
        (lambda stream: frames.rst_stream(stream, ErrorCode.CANCEL),
         (Outcome.FAILED, "CANCELLED", "stream reset: CANCEL")),
    ],
)  # fmt: skip
async def test_answers(answer, outcome):
    async with scripted(answering(answer, OK)) as (sender, listener, connections):
        await sender.open()
        sender.send(0, 1, 1)
        await listener.wait(1)
        assert listener.done[0] == outcome
        sender.send(1, 1, 1)
        await listener.wait(2)
        assert listener.done[1] == ANSWERED
        assert len(connections) == 1


async def test_a_connection_that_is_lost_is_opened_again_for_the_next_call():
    async with scripted(answering(None), answering(OK, OK)) as (sender, listener, connections):
        await sender.open()
        for index in range(3):
            sender.send(index, 1, 1)
        await listener.wait(3)
        assert listener.done[0][:2] == (Outcome.FAILED, "connection closed")
        assert listener.done[1] == listener.done[2] == ANSWERED
        assert (len(connections), sender.connections) == (2, 1)


async def test_of_several_connections_a_lost_one_is_opened_again():
    async with scripted(answering(None), *[answering(*[OK] * 9)] * 3, connections=3) as (sender, listener, connections):
        await sender.open()
        for index in range(3):
            sender.send(index, 1, 1)
        await listener.wait(3)
        assert sorted(kind for _, kind, _ in listener.done.values()) == ["", "", "connection closed"]
        sender.send(3, 1, 1)
        await until(lambda: sender.connections == 3)
        assert len(connections) == 4


async def test_a_server_that_goes_away_gets_no_further_call():
    def goodbye(stream):
        return frames.goaway(stream - 2, ErrorCode.NO_ERROR, "enough")

    async with scripted(answering(OK, goodbye), answering(OK), connections=1) as (sender, listener, connections):
        await sender.open()
        for index in range(3):
            sender.send(index, 1, 1)
        await listener.wait(3)
        assert listener.done == {0: ANSWERED, 1: (Outcome.FAILED, "connection closed", "enough"), 2: ANSWERED}
        assert len(connections) == 2


async def test_what_was_begun_ends_after_a_goodbye():
    def goodbye(stream):
        return frames.goaway(2**31 - 1, ErrorCode.NO_ERROR) + OK(stream)

    async with scripted(answering(goodbye), answering(OK), connections=1) as (sender, listener, connections):
        await sender.open()
        for index in range(2):
            sender.send(index, 1, 1)
        await listener.wait(2)
        assert set(listener.done.values()) == {ANSWERED}
        await until(lambda: sender.connections == 1)
        assert len(connections) == 2


async def test_when_the_numbers_of_streams_are_used_up_another_connection_is_opened():
    async with scripted(answering(OK, OK), connections=1) as (sender, listener, connections):
        await sender.open()
        sender._open[0]._http2._next_stream = frames.MOST_STREAM
        for index in range(3):
            sender.send(index, 1, 1)
        await listener.wait(3)
        assert set(listener.done.values()) == {ANSWERED}
        assert len(connections) == 2


async def test_garbage_fails_what_is_under_way_and_closes_the_connection():
    def garbage(stream):
        return frames.frame(frames.PUSH_PROMISE, 4, stream, bytes(4))

    async with scripted(answering(garbage), answering(OK), connections=1) as (sender, listener, connections):
        await sender.open()
        for index in range(2):
            sender.send(index, 1, 1)
        await listener.wait(2)
        assert listener.done[0] == (Outcome.FAILED, "not HTTP/2", "a push, which the settings forbid")
        assert listener.done[1] == ANSWERED
        assert len(connections) == 2


async def test_a_call_given_up_while_it_is_lined_up_is_never_sent():
    async with scripted(answering(OK, settings={Setting.MAX_CONCURRENT_STREAMS: 1}), connections=3) as (
        sender,
        listener,
        _,
    ):
        await sender.open()
        sender._open[1:] = []
        sender._most = 1
        for index in range(3):
            sender.send(index, 1, 1)
        assert listener.sent == [0, 1, 2], "by the server's bound, not by ours"
        sender.give_up(1)
        sender.give_up(2)
        await listener.wait(1)
        assert (listener.done, sender.full) == ({0: ANSWERED}, False)


# -- opening


async def test_nobody_listens():
    sender = GrpcSender(Target(parse_endpoint("grpc://127.0.0.1:1"), "m", connections=1), Body())
    with pytest.raises(
        LoadError, match=r"grpc://127.0.0.1:1 cannot be reached over gRPC: .*refused|Connect call failed"
    ):
        await sender.open()
    await sender.close()


async def test_a_server_that_says_nothing_is_told(monkeypatch):
    monkeypatch.setattr(grpc_sender, "OPEN_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"grpc://127.0.0.1:{silent.getsockname()[1]}"
        sender = GrpcSender(Target(parse_endpoint(url), "m", connections=1), Body())
        with pytest.raises(LoadError, match=rf"{url} cannot be reached over gRPC within 0\.05 s"):
            await sender.open()
        # A call would wait as long.
        listener = Listener(sender, PATIENCE_S)
        sender.send(0, 1, 1)
        await listener.wait(1)
        assert listener.done == {0: (Outcome.FAILED, "cannot connect", "not within 0.05 s")}
        await sender.close()


async def test_a_server_of_another_protocol_is_told():
    async def http1(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()

    async with scripted(http1) as (sender, listener, _):
        with pytest.raises(LoadError, match=r"cannot be reached over gRPC: a frame of .* bytes"):
            await sender.open()
        sender.send(0, 1, 1)
        await listener.wait(1)
        assert listener.done[0][:2] == (Outcome.FAILED, "not HTTP/2")


async def test_a_server_that_hangs_up_at_once():
    async def deaf(_reader, _writer):
        pass

    async with scripted(deaf) as (sender, listener, _):
        with pytest.raises(LoadError, match="cannot be reached over gRPC: connection closed"):
            await sender.open()
        sender.send(0, 1, 1)
        await listener.wait(1)
        assert listener.done[0][:2] == (Outcome.FAILED, "cannot connect")


async def test_a_tls_server_without_http2(tmp_path):
    certificate, key = self_signed(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def serve(reader, writer):
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    url = f"grpcs://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    sender = GrpcSender(Target(parse_endpoint(url), "m", connections=1, ca_file=certificate), Body())
    with pytest.raises(LoadError, match="does not speak HTTP/2 over TLS"):
        await sender.open()
    await sender.close()
    server.close()
    await server.wait_closed()
