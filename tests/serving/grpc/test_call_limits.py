"""What calls over gRPC may cost: sizes, fields, places, time, memory, and what comes of those that want more.

Places for calls are tested on a clock of the test's own, and then with gRPC itself.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hebe.serving.access.auth import Gate
from hebe.serving.access.byte_budget import ByteBudget
from hebe.serving.grpc import service as grpc_server
from hebe.serving.grpc.call_limits import CallPlaces, GrpcLimits
from hebe.serving.grpc.protocol import SERVICE, message
from hebe.serving.http1.messages import HttpLimits
from hebe.serving.requests.errors import ErrorKind, RequestError
from tests.examples.http2_messages import HalfMessages, UnreadAnswers
from tests.serving.grpc_calls import ARRAYS, Client, Code, infer_request, refused, wait_until

PATIENCE_S = 60.0


class Call:
    """A call whose message comes when the test says so, or which is ended."""

    def __init__(self):
        self.coming = asyncio.get_running_loop().create_future()

    async def read(self):
        return await self.coming


class Places(CallPlaces):
    def __init__(self, most=2, most_receiving=None, patience_s=30.0):
        self.now = 0.0
        self.ended: list[tuple[Call, RequestError]] = []
        super().__init__("calls", most, patience_s, lambda: self.now, self.end, most_receiving, most_bytes=1 << 26)

    async def end(self, call, error):
        self.ended.append((call, error))
        call.coming.set_exception(grpc.aio.AbortError("ended"))
        raise grpc.aio.AbortError("ended")


async def begin(places) -> tuple[Call, asyncio.Task]:
    """A call that has a place and waits for its message."""
    call = Call()

    async def wait():
        places.take()
        try:
            return await places.message(call)
        finally:
            places.give()

    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    return call, task


async def test_a_place_is_taken_until_it_is_given_back():
    places = Places()
    places.take()
    places.take()
    with pytest.raises(RequestError) as error:
        places.take()
    assert (error.value.kind, error.value.reason) == (ErrorKind.RATE_LIMITED, "calls")
    assert error.value.message == "2 calls are under way, as many as may be; end some, or try again later"
    places.give()
    places.take()


async def test_a_message_in_time_reaches_its_call():
    places = Places()
    call, task = await begin(places)
    places.now = 29.9
    places.end_late()
    call.coming.set_result(b"hello")
    assert await task == b"hello"
    places.now = 100.0
    places.end_late()
    assert (places.ended, places.taken) == ([], 0)


async def test_a_late_message_ends_its_call():
    places = Places()
    late, late_task = await begin(places)
    places.now = 10.0
    _, task = await begin(places)
    places.now = 30.0
    places.end_late()
    with pytest.raises(grpc.aio.AbortError):
        await asyncio.wait_for(late_task, PATIENCE_S)
    ((ended, error),) = places.ended
    assert (ended, error.kind) == (late, ErrorKind.TIMED_OUT)
    assert error.message == "no message came within 30 s"
    assert places.taken == 1
    task.cancel()


async def test_the_call_that_has_waited_longest_makes_room_once_its_message_might_have_come():
    places = Places()
    first, first_task = await begin(places)
    places.now = 0.5
    _, second_task = await begin(places)
    places.now = 0.9
    with pytest.raises(RequestError):
        places.take()
    places.now = 1.1
    places.take()
    with pytest.raises(RequestError):
        places.take()
    with pytest.raises(grpc.aio.AbortError):
        await asyncio.wait_for(first_task, PATIENCE_S)
    assert [call for call, _ in places.ended] == [first]
    assert places.taken == 2
    second_task.cancel()


async def test_calls_that_are_being_answered_make_no_room():
    places = Places(most=1)
    places.take()
    places.now = 100.0
    with pytest.raises(RequestError):
        places.take()


async def settled():
    """Until all that can go on has gone on."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_only_so_many_messages_are_received_at_once_and_the_others_in_turn():
    places = Places(10, most_receiving=2)
    calls = [await begin(places) for _ in range(6)]
    assert list(places._waiting) == [calls[0][0], calls[1][0]]
    calls[3][1].cancel()
    calls[1][0].coming.set_result(b"one")
    assert await calls[1][1] == b"one"
    await settled()
    assert list(places._waiting) == [calls[0][0], calls[2][0]]
    calls[0][0].coming.set_exception(grpc.aio.AbortError("gone"))
    calls[2][0].coming.set_result(b"two")
    await settled()
    assert list(places._waiting) == [calls[4][0], calls[5][0]]
    for call, task in calls[4:]:
        call.coming.set_result(b"last")
        assert await task == b"last"
    with pytest.raises(grpc.aio.AbortError):
        await calls[0][1]
    _, task = await begin(places)
    assert len(places._waiting) == 1, "every turn was given back"
    task.cancel()


async def test_a_call_that_is_cancelled_as_its_turn_comes_gives_it_to_the_next():
    places = Places(10, most_receiving=1)
    calls = [await begin(places) for _ in range(3)]
    calls[0][1].cancel()
    await asyncio.sleep(0)
    calls[1][1].cancel()
    await settled()
    assert list(places._waiting) == [calls[2][0]]
    calls[2][1].cancel()


async def test_a_call_that_gets_no_turn_is_told_to_come_again():
    places = Places(10, most_receiving=1, patience_s=0.01)
    _, first = await begin(places)
    _, second = await begin(places)
    with pytest.raises(RequestError) as error:
        await asyncio.wait_for(second, PATIENCE_S)
    assert (error.value.kind, error.value.reason) == (ErrorKind.OVERLOADED, "bytes_in_flight")
    assert error.value.message.startswith("the messages of 1 other calls are being received")
    assert places.taken == 1
    first.cancel()


async def test_where_no_turn_comes_free_for_a_second_the_longest_one_ends():
    """One a second; as long as messages come, however slowly, none does."""
    places = Places(10, most_receiving=2)
    calls = [await begin(places) for _ in range(2)]
    places.now = 20.0
    places.end_late()
    assert not places.ended, "nobody waits"
    calls += [await begin(places) for _ in range(3)]
    places.now = 20.9
    places.end_late()
    calls[1][0].coming.set_result(b"slow")
    await settled()
    places.now = 21.8
    places.end_late()
    await settled()
    assert not places.ended
    places.now = 21.9
    places.end_late()
    places.end_late()
    await settled()
    ((ended, error),) = places.ended
    assert (ended, error.kind) == (calls[0][0], ErrorKind.TIMED_OUT)
    assert error.message == "the message did not come within 21.9 s, and others wait to send theirs"
    assert list(places._waiting) == [calls[2][0], calls[3][0]]
    places.now = 22.8
    places.end_late()
    assert len(places.ended) == 1
    for _, task in calls:
        task.cancel()
    await asyncio.gather(*(task for _, task in calls), return_exceptions=True)


async def test_a_call_without_a_message():
    places = Places()
    call, task = await begin(places)
    call.coming.set_result(grpc.aio.EOF)
    with pytest.raises(RequestError) as error:
        await task
    assert (error.value.kind, error.value.reason) == (ErrorKind.INVALID, "no_message")
    assert "one beyond the limit of 67,108,864 bytes" in error.value.message
    assert "--max-request-bytes raises" in error.value.message
    stream = Call()
    stream.coming.set_result(grpc.aio.EOF)
    assert await places.next_message(stream) is None


@pytest.fixture
def client(front_ends):
    client = Client(front_ends.grpc_url)
    yield client
    client.channel.close()


def test_oversized_messages(serve_with):
    front_ends = serve_with(limits=HttpLimits(max_request_bytes=1000))
    client = Client(front_ends.grpc_url)
    for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
        code, _ = refused(client, "ModelInfer", data=bytes(3_000_000), compression=compression)
        assert code is Code.RESOURCE_EXHAUSTED
    assert client("ServerLive").live
    client.channel.close()


def test_calls_too_many_are_refused_and_the_rest_answered(serve_with):
    front_ends = serve_with(limits=HttpLimits(max_connections=2))
    front_ends.host.models["ranker"].delay_s = 0.3
    client = Client(front_ends.grpc_url)
    infer = client.channel.unary_unary(f"/{SERVICE}/ModelInfer")
    calls = [infer.future(infer_request().SerializeToString(), timeout=10) for _ in range(6)]
    codes = [call.code() for call in calls]
    assert set(codes) == {Code.OK, Code.RESOURCE_EXHAUSTED}
    assert client("ServerLive").live
    client.channel.close()


def flood(field):
    """A request with far more fields than any model's inputs need, and no field at its end."""
    return infer_request().SerializeToString() + field * 300_000 + b"\xff"


@pytest.mark.parametrize("field", [b"\x3a\x00", b"\x2a\x00", b"\xa0\x06\x00"])
def test_requests_of_a_great_many_fields_are_refused_at_once(client, front_ends, field):
    """Before the rest of them is read, else what is no field would be told."""
    code, text = refused(client, "ModelInfer", data=flood(field))
    assert (code, "the message has more than 74 fields" in text) == (Code.INVALID_ARGUMENT, True)
    assert front_ends.data_plane.statistics.refused == {"invalid": 1}
    (answer,) = client.stream([flood(field)])
    assert answer.error_message == text


def test_what_is_not_a_raw_tensor_is_bounded_as_json_is(serve_with):
    front_ends = serve_with(limits=HttpLimits(max_json_bytes=1000))
    client = Client(front_ends.grpc_url)
    arrays = {"user": np.zeros((60, 1), np.int64), "history": np.zeros((60, 3), np.int64)}
    arrays["dense"] = np.zeros((60, 2), np.float32)
    assert infer_request(arrays).ByteSize() > 2000
    client("ModelInfer", infer_request(arrays))
    arrays["history"] += 2**62
    for method, request in (
        ("ModelInfer", infer_request(arrays, raw=False)),
        ("ModelInfer", infer_request(id="x" * 1000)),
        ("ModelMetadata", message("ModelMetadataRequest")(name="x" * 1000)),
    ):
        code, text = refused(client, method, request)
        assert code is Code.RESOURCE_EXHAUSTED
        assert "without raw tensors exceed the maximum of 1000" in text
    code, _ = refused(client, "ServerLive", data=b"\xfa\x01\x00" * 2000)
    assert code is Code.RESOURCE_EXHAUSTED, "what needs no token has a tighter bound"
    assert front_ends.data_plane.statistics.refused == {"too_large": 4}
    client.channel.close()


def test_more_elements_than_a_query_can_have_are_refused_unread(client):
    arrays = ARRAYS | {"user": np.zeros((193, 1), np.int64)}
    code, text = refused(client, "ModelInfer", infer_request(arrays, raw=False))
    assert (code, "at most 192 are taken" in text) == (Code.INVALID_ARGUMENT, True)


def never(event):
    """Requests of which none comes before `event`."""
    event.wait()
    yield from ()


@pytest.fixture
def silence():
    event = threading.Event()
    yield lambda: never(event)
    event.set()


def open_calls(client, method, count, silence):
    """So many calls whose message does not come, under way."""
    call = client.channel.stream_unary(method)
    return [call.future(silence(), timeout=60, metadata=client.metadata) for _ in range(count)]


def test_a_message_that_does_not_come_ends_its_call(serve_with, silence):
    front_ends = serve_with(grpc_limits=GrpcLimits(1 << 20, message_timeout_s=0.2, health_timeout_s=0.2))
    client = Client(front_ends.grpc_url)
    methods_ = [f"/{SERVICE}/ModelInfer", f"/{SERVICE}/ServerLive", "/grpc.health.v1.Health/Watch"]
    calls = [open_calls(client, method, 1, silence)[0] for method in methods_]
    for call in calls:
        assert call.code() is Code.DEADLINE_EXCEEDED
        assert call.details() == "no message came within 0.2 s"
    assert front_ends.data_plane.statistics.refused == {"timed_out": 3}
    client("ModelInfer", infer_request())
    client.channel.close()


def test_calls_without_a_message_keep_nobody_out(serve_with, silence):
    front_ends = serve_with(grpc_limits=GrpcLimits(1 << 20, max_calls=4, max_health_calls=2))
    client = Client(front_ends.grpc_url)
    idle = open_calls(client, f"/{SERVICE}/ModelInfer", 4, silence)
    checks = open_calls(client, "/grpc.health.v1.Health/Check", 2, silence)

    def answered():
        try:
            client("ModelInfer", infer_request())
            return client("ServerLive").live
        except grpc.RpcError:
            return False

    wait_until(answered)
    for calls in (idle, checks):
        wait_until(lambda calls=calls: any(call.done() for call in calls))
        (ended,) = (call for call in calls if call.done())
        assert ended.code() is Code.DEADLINE_EXCEEDED
        assert "others need its place" in ended.details()
    client.channel.close()


def test_health_has_places_of_its_own(serve_with):
    front_ends = serve_with(grpc_limits=GrpcLimits(1 << 20, max_calls=2))
    front_ends.host.models["ranker"].delay_s = 30.0
    client = Client(front_ends.grpc_url)
    infer = client.channel.unary_unary(f"/{SERVICE}/ModelInfer")
    calls = [infer.future(infer_request().SerializeToString()) for _ in range(2)]
    wait_until(lambda: len(front_ends.host.models["ranker"].queries) == 2)
    code, text = refused(client, "ServerMetadata")
    assert (code, text) == (
        Code.RESOURCE_EXHAUSTED,
        "2 calls are under way, as many as may be; end some, or try again later",
    )
    assert client("ServerReady").ready
    assert health_pb2_grpc.HealthStub(client.channel).Check(health_pb2.HealthCheckRequest()).status
    for call in calls:
        call.cancel()
    wait_until(lambda: front_ends.host.models["ranker"].cancelled == 2)
    assert client("ServerMetadata").name == "hebe"
    client.channel.close()


def test_watches_are_few_and_end(serve_with):
    limits = GrpcLimits(1 << 20, max_watches=2, watch_age_s=1.0)
    front_ends = serve_with(gate=Gate(["secret"]), grpc_limits=limits)
    stranger = Client(front_ends.grpc_url)
    health = health_pb2_grpc.HealthStub(stranger.channel)
    watches = [health.Watch(health_pb2.HealthCheckRequest(), timeout=60) for _ in range(2)]
    for watch in watches:
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    code, text = refused(next, health.Watch(health_pb2.HealthCheckRequest()))
    assert (code, "2 watches without a token are under way" in text) == (Code.RESOURCE_EXHAUSTED, True)
    known = health.Watch(health_pb2.HealthCheckRequest(), metadata=[("authorization", "Bearer secret")])
    assert next(known).status == health_pb2.HealthCheckResponse.SERVING
    for watch in watches:
        assert list(watch) == []
        assert watch.code() is Code.OK
    watch = health.Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()
    stranger.channel.close()


def test_streams_leave_room_for_calls_and_end_when_idle(serve_with, silence):
    front_ends = serve_with(grpc_limits=GrpcLimits(1 << 20, max_streams=1, stream_idle_s=3.0))
    client = Client(front_ends.grpc_url)
    call = client.channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
    idle = call(itertools.chain([infer_request().SerializeToString()], silence()), timeout=60)
    next(idle)  # answered: it has the place
    code, text = refused(lambda: list(client.stream([infer_request()])))
    assert (code, "1 streams are under way" in text) == (Code.RESOURCE_EXHAUSTED, True)
    client("ModelInfer", infer_request())
    assert refused(next, idle) == (Code.DEADLINE_EXCEEDED, "no message came within 3 s")
    (answer,) = client.stream([infer_request()])
    assert not answer.error_message
    client.channel.close()


def test_answers_that_nobody_reads_are_no_more_than_there_are_places(serve_with):
    """Of one connection; gRPC keeps them after their calls have given back their places."""
    few = GrpcLimits(1 << 20, max_calls=3, max_streams=2, max_health_calls=2, max_watches=1)
    front_ends = serve_with(grpc_limits=few)
    with UnreadAnswers(front_ends.grpc_url) as unread:
        assert [unread.ask(f"/{SERVICE}/ServerLive") for _ in range(11)] == [True] * 9 + [False] * 2
        client = Client(front_ends.grpc_url)
        assert client("ServerLive").live
        client.channel.close()


def test_who_does_not_read_loses_the_place(serve_with):
    limits = GrpcLimits(1 << 20, max_streams=1, max_watches=1, write_timeout_s=0.5, stream_idle_s=60.0)
    front_ends = serve_with(grpc_limits=limits)
    client = Client(front_ends.grpc_url)
    health = health_pb2_grpc.HealthStub(client.channel)
    with UnreadAnswers(front_ends.grpc_url) as unread:
        assert unread.ask(f"/{SERVICE}/ModelStreamInfer", infer_request().SerializeToString())
        assert unread.ask("/grpc.health.v1.Health/Watch")
        wait_until(lambda: front_ends.data_plane.statistics.refused["timed_out"] == 2)
        (answer,) = client.stream([infer_request()])
        assert not answer.error_message
        assert next(health.Watch(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
    client.channel.close()


def test_connections_are_bounded_too(serve_with):
    front_ends = serve_with(grpc_limits=GrpcLimits(1 << 20, max_connections=2, handshake_timeout_s=0.5))
    host, port = front_ends.grpc_url.split(":")
    with UnreadAnswers(front_ends.grpc_url) as first, UnreadAnswers(front_ends.grpc_url) as second:
        assert first.ask(f"/{SERVICE}/ServerLive")
        assert second.ask(f"/{SERVICE}/ServerLive")
        with UnreadAnswers(front_ends.grpc_url) as third, pytest.raises((EOFError, ConnectionError)):
            third.ask(f"/{SERVICE}/ServerLive")
    with socket.create_connection((host, int(port))), socket.create_connection((host, int(port))) as silent:
        silent.settimeout(60)
        while silent.recv(1000):  # until it is closed
            pass
    client = Client(front_ends.grpc_url)
    assert client("ServerLive", wait_for_ready=True).live
    client.channel.close()


@pytest.mark.parametrize("calls", [0, 1])
def test_who_has_gone_without_a_word_loses_the_connection(serve_with, monkeypatch, calls):
    """With and without a call under way."""
    monkeypatch.setattr(grpc_server, "_PING_EVERY_MS", 1000)
    monkeypatch.setattr(grpc_server, "_PING_TIMEOUT_MS", 300)
    front_ends = serve_with()
    with UnreadAnswers(front_ends.grpc_url, answers_pings=False) as gone:
        for _ in range(calls):
            assert gone.ask(f"/{SERVICE}/ServerLive")
        with pytest.raises((EOFError, ConnectionError)):
            gone.wait()


def test_nothing_is_received_from_who_has_no_token(serve_with):
    budget = ByteBudget(16 << 20)
    front_ends = serve_with(gate=Gate(["secret"]), budget=budget)
    stranger = Client(front_ends.grpc_url)
    budget.held_bytes = 16 << 20
    assert refused(stranger, "ModelInfer", infer_request())[0] is Code.UNAUTHENTICATED
    friend = Client(front_ends.grpc_url, [("authorization", "Bearer secret")])
    code, text = refused(friend, "ModelInfer", infer_request())
    assert (code, f"take {16 << 20} of at most {16 << 20} bytes" in text) == (Code.UNAVAILABLE, True)
    (answer,) = friend.stream([infer_request()])
    assert "of at most" in answer.error_message
    budget.held_bytes = 0
    friend("ModelInfer", infer_request())
    (answer,) = friend.stream([infer_request()])
    assert not answer.error_message
    assert budget.held_bytes == 0
    for client in (stranger, friend):
        client.channel.close()


MESSAGE_BYTES = 1 << 20


WINDOW_BYTES = 256 << 10
"""Of a call that is not read."""


def serve_few(serve_with):
    """Front ends with memory for two of the largest messages."""
    limits, calls = HttpLimits(MESSAGE_BYTES), GrpcLimits(MESSAGE_BYTES)
    return serve_with(limits=limits, budget=ByteBudget(2 * MESSAGE_BYTES), grpc_limits=calls)


@pytest.mark.parametrize(("method", "at_once"), [(f"/{SERVICE}/ModelInfer", 2), ("/grpc.health.v1.Health/Check", 1)])
def test_half_messages_take_no_more_memory_than_there_is_for_them(serve_with, method, at_once):
    """The rest wait for their turn, which those lose that do not go on; who sends a whole one has it in turn."""
    front_ends = serve_few(serve_with)
    client = Client(front_ends.grpc_url)
    # What an ended call sent is freed by the server before it says so, or just after.
    most_bytes = 30 * WINDOW_BYTES + (at_once + 1) * MESSAGE_BYTES
    with HalfMessages(front_ends.grpc_url, MESSAGE_BYTES - 100) as half:
        half.begin(method, 30)

        def turns_went_on():
            assert sum(half.sent.values()) <= most_bytes
            read = sum(sent > WINDOW_BYTES for sent in half.sent_ever.values())
            return half.ended >= 2 and read > at_once

        half.go_on_until(turns_went_on)
    client("ModelInfer", infer_request())
    assert client("ServerLive").live
    client.channel.close()


def test_no_more_streams_are_read_than_there_is_memory_for(serve_with):
    """One that has waited for its message makes room, be the message none or a half."""
    front_ends = serve_few(serve_with)
    with HalfMessages(front_ends.grpc_url, MESSAGE_BYTES - 100) as half:
        half.begin(f"/{SERVICE}/ModelStreamInfer", 30)
        half.go_on_until(lambda: half.ended == 22 and min(half.sent.values()) == MESSAGE_BYTES - 96)
        client = Client(front_ends.grpc_url)

        def answered():
            half.go_on()
            try:
                (answer,) = client.stream([infer_request()])
                return not answer.error_message
            except grpc.RpcError as error:
                if error.code() is not Code.RESOURCE_EXHAUSTED:
                    raise
                return False

        wait_until(answered)
        half.go_on_until(lambda: half.ended == 23)
        client.channel.close()


def test_calls_that_do_not_go_on_hold_up_the_others_for_a_second(serve_with, silence):
    front_ends = serve_few(serve_with)
    client = Client(front_ends.grpc_url)
    idle = open_calls(client, f"/{SERVICE}/ModelInfer", 2, silence)
    infer = client.channel.unary_unary(f"/{SERVICE}/ModelInfer")
    calls = [infer.future(infer_request().SerializeToString(), timeout=60) for _ in range(50)]
    assert {call.code() for call in calls} == {Code.OK}
    (ended,) = (call for call in idle if call.done())
    assert ended.code() is Code.DEADLINE_EXCEEDED
    assert "others wait to send theirs" in ended.details()
    client.channel.close()


def test_rates_are_limited_on_streams_too(serve_with, monkeypatch):
    gate = Gate(rate_limit_per_s=1.0)
    monkeypatch.setattr(gate, "admit", lambda token, _now, admit=gate.admit: admit(token, 0.0))  # all at the same time
    front_ends = serve_with(gate=gate)
    client = Client(front_ends.grpc_url)
    errors = [r.error_message for r in client.stream([infer_request()] * 3)]
    assert not errors[0]
    assert all("limit of 1 requests a second" in error for error in errors[1:])
    code, _ = refused(client, "ServerMetadata")
    assert code is Code.RESOURCE_EXHAUSTED
    client.channel.close()
