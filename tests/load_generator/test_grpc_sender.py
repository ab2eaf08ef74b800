"""Calls over gRPC, against a server of the test's own on loopback."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from hebe.load_generator import grpc_sender
from hebe.load_generator.error import LoadError
from hebe.load_generator.grpc_sender import CHANNELS, GrpcSender, _lost_connection
from hebe.load_generator.sender import Outcome
from hebe.load_generator.target import Target, parse_endpoint

from .sender_listener import Listener

PATIENCE_S = 20.0


class Body:
    """Requests of a few bytes that tell the query's size, in two buffers."""

    def parts(self, items, offset):
        return [f"{items:02}".encode(), f"{offset:02}".encode()]


class Server(grpc.GenericRpcHandler):
    """Answers each call as `answers` says by its request: with the status code there; None never comes."""

    def __init__(self):
        self.answers = {}
        self.requests = []
        self.metadata = []
        self.cancelled = 0

    def service(self, _call):
        return grpc.unary_unary_rpc_method_handler(self.infer)

    async def infer(self, request, context):
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        code = self.answers.get(request, grpc.StatusCode.OK)
        if code is None:
            try:
                await asyncio.sleep(2 * PATIENCE_S)
            finally:
                self.cancelled += 1
        if code is not grpc.StatusCode.OK:
            await context.abort(code, f"it is {code.name}")
        return b"scores"


async def until(condition):
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.002)


@asynccontextmanager
async def sending(most_bytes=1000, **options):
    handler = Server()
    server = grpc.aio.server(handlers=[handler], options=[("grpc.max_receive_message_length", most_bytes)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sender = GrpcSender(Target(parse_endpoint(f"grpc://127.0.0.1:{port}"), "m", **options), Body())
    await sender.open()
    try:
        yield sender, Listener(sender, PATIENCE_S), handler
    finally:
        await sender.close()
        await server.stop(None)


async def test_every_query_is_sent_whole_and_answered_once():
    async with sending(api_token="secret") as (sender, listener, server):
        assert sender.connections == CHANNELS
        for index in range(20):
            sender.send(index, index, 20 - index)
        assert listener.sent == list(range(20))
        await listener.wait(20)
        assert set(listener.done.values()) == {(Outcome.ANSWERED, "", "")}
        assert sorted(server.requests) == [f"{index:02}{20 - index:02}".encode() for index in range(20)]
        assert {each["authorization"] for each in server.metadata} == {"Bearer secret"}


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (grpc.StatusCode.UNAVAILABLE, Outcome.REFUSED),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Outcome.REFUSED),
        (grpc.StatusCode.DEADLINE_EXCEEDED, Outcome.REFUSED),
        (grpc.StatusCode.INTERNAL, Outcome.FAILED),
        (grpc.StatusCode.INVALID_ARGUMENT, Outcome.FAILED),
    ],
)
async def test_what_a_server_says_is_a_refusal_or_a_failure(code, outcome):
    async with sending(connections=1) as (sender, listener, server):
        server.answers[b"0100"] = code
        sender.send(5, 1, 0)
        await listener.wait(1)
        assert listener.done == {5: (outcome, code.name, f"it is {code.name}")}


async def test_a_message_that_is_too_large_is_told_from_a_used_up_rate():
    async with sending(most_bytes=3, connections=1) as (sender, listener, _):
        sender.send(5, 1, 0)
        await listener.wait(1)
        outcome, kind, message = listener.done[5]
        assert (outcome, kind) == (Outcome.REFUSED, "message too large")
        assert "larger than max (4 vs. 3)" in message


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


async def test_closing_cancels_what_is_under_way_and_starts_nothing_more():
    async with sending(connections=1) as (sender, listener, server):
        server.answers[b"0000"] = None
        for index in range(3):
            sender.send(index, index, 0)
        await until(lambda: server.requests)
        await sender.close()
        await until(lambda: server.cancelled)
        assert (listener.sent, listener.done, sender.connections) == ([0], {}, 0)


async def test_a_server_that_does_not_answer_the_connection_is_told(monkeypatch):
    monkeypatch.setattr(grpc_sender, "OPEN_TIMEOUT_S", 0.05)
    sender = GrpcSender(Target(parse_endpoint("grpc://127.0.0.1:1"), "m", connections=1), Body())
    with pytest.raises(LoadError, match=r"grpc://127.0.0.1:1 cannot be reached over gRPC within 0\.05 s"):
        await sender.open()
    await sender.close()


@pytest.mark.parametrize(
    ("message", "connected", "kind"),
    [
        ("the queue is full", True, ""),
        ("failed to connect to all addresses; last error: connection refused", False, "connection refused"),
        ("failed to connect to all addresses; last error: timeout", False, "cannot connect"),
        ("Socket closed", True, "connection closed"),
        ("the server is shutting down", False, "connection closed"),
    ],
)
def test_a_connection_that_is_lost_is_told_from_a_server_that_refuses(message, connected, kind):
    class Channel:
        def get_state(self):
            return grpc.ChannelConnectivity.READY if connected else grpc.ChannelConnectivity.IDLE

    assert _lost_connection(Channel(), message) == kind
