"""What the echo answers over gRPC: to the `h2` library, which takes it at its word, and to grpcio."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import grpc.aio
import h2.config
import h2.connection
import h2.events
import pytest

from hebe.load_generator.discovery import GRPC_SERVICE
from hebe.load_generator.protobuf_wire import model_request
from hebe.load_generator.senders.grpc import http2_frames as frames
from hebe.load_generator.senders.grpc.http2_frames import MOST_MAX_FRAME_BYTES, MOST_WINDOW_BYTES
from hebe_lab.bench.echo import echo_grpc
from hebe_lab.bench.echo.echo_model import EchoModel
from hebe_lab.bench.echo.echo_server import EchoServer

PATIENCE_S = 10.0
PATH = GRPC_SERVICE + "ModelInfer"


class Client:
    """A connection by the `h2` library; answers are collected by stream."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.answers = {}
        self.settings = set()

    async def flush(self):
        self.writer.write(self.h2.data_to_send())
        await self.writer.drain()

    def ask(self, path=PATH, ends=False):
        stream = self.h2.get_next_available_stream_id()
        headers = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "h"), ("te", "trailers")]
        self.h2.send_headers(stream, headers, end_stream=ends)
        self.answers[stream] = SimpleNamespace(headers={}, body=b"", ended=False)
        return stream

    async def hear(self):
        """The next bytes, which there must be."""
        async with asyncio.timeout(PATIENCE_S):
            data = await self.reader.read(1 << 16)
        assert data
        for event in self.h2.receive_data(data):
            answer = self.answers.get(getattr(event, "stream_id", None))
            if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                answer.headers |= dict(event.headers)
            elif isinstance(event, h2.events.DataReceived):
                answer.body += event.data
            elif isinstance(event, h2.events.StreamEnded):
                answer.ended = True
            elif isinstance(event, h2.events.RemoteSettingsChanged | h2.events.SettingsAcknowledged):
                self.settings.add(type(event))
        await self.flush()

    async def answered(self, stream):
        while not self.answers[stream].ended:
            await self.hear()
        answer = self.answers[stream]
        assert answer.headers[":status"] == "200"
        return answer.headers["grpc-status"], answer.headers["grpc-message"], answer.body[5:]

    async def send_body(self, stream, body, frame_bytes=None):
        """All of it, the stream's end with it, in frames as large as allowed."""
        at = 0
        while at < len(body):
            size = min(self.h2.local_flow_control_window(stream), frame_bytes or self.h2.max_outbound_frame_size)
            if size == 0:
                await self.hear()
                continue
            self.h2.send_data(stream, body[at : at + size], end_stream=at + size >= len(body))
            at += size
            await self.flush()


@asynccontextmanager
async def connected(max_frame_bytes=MOST_MAX_FRAME_BYTES, **model):
    server = EchoServer(EchoModel(**model), max_frame_bytes)
    await server.start()
    client = Client(*await asyncio.open_connection("127.0.0.1", server.grpc_port))
    await client.flush()
    while len(client.settings) < 2 or client.h2.outbound_flow_control_window < MOST_WINDOW_BYTES:
        await client.hear()
    try:
        yield server, client
    finally:
        client.writer.close()
        await client.writer.wait_closed()
        await server.stop()


@pytest.mark.parametrize("frame_bytes", [None, 1000, 16384])
@pytest.mark.parametrize("body_bytes", [1, 4096, 5 << 20])
async def test_a_query_is_answered_once_its_message_has_come(body_bytes, frame_bytes):
    async with connected() as (server, client):
        for count in (1, 2):
            stream = client.ask()
            body = frames.PREFACE * (body_bytes // 24) + bytes(body_bytes % 24)
            await client.send_body(stream, body, frame_bytes)
            assert await client.answered(stream) == ("0", "", server.model.infer_message())
            assert server.answered == count


async def test_nothing_is_answered_before_the_last_byte():
    async with connected() as (server, client):
        first, second = client.ask(), client.ask()
        client.h2.send_data(first, bytes(200_000))
        client.h2.send_data(second, bytes(100_000))
        client.h2.send_data(second, bytes(100_000), end_stream=True)
        data = client.h2.data_to_send()
        client.writer.write(data[:-1])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.reader.readexactly(1), 0.02)
        client.writer.write(data[-1:])
        assert (await client.answered(second))[0] == "0"
        assert server.answered == 1
        client.h2.send_data(first, b"", end_stream=True)
        await client.flush()
        assert (await client.answered(first))[0] == "0"


async def test_bytes_may_come_one_by_one(monkeypatch):
    monkeypatch.setattr(echo_grpc, "_STRIDE_BYTES", 1)
    async with connected() as (_, client):
        stream = client.ask()
        await client.send_body(stream, bytes(300), 100)
        assert (await client.answered(stream))[0] == "0"


@pytest.mark.parametrize("max_frame_bytes", [1 << 14, 1 << 20])
async def test_frames_are_as_large_as_it_says(max_frame_bytes):
    async with connected(max_frame_bytes) as (_, client):
        assert client.h2.max_outbound_frame_size == max_frame_bytes
        client.writer.write(frames.frame_head(max_frame_bytes + 1, frames.DATA, 0, 1))
        async with asyncio.timeout(PATIENCE_S):
            rest = await client.reader.read()
        assert [each.kind for each in frames.FrameReader().feed(rest)] == [frames.GOAWAY]


async def test_a_server_may_refuse_every_query_and_still_describe_its_model():
    async with connected(status=503) as (server, client):
        stream = client.ask()
        await client.send_body(stream, b"abc")
        assert await client.answered(stream) == ("14", "refused by request", b"")
        stream = client.ask(GRPC_SERVICE + "ModelMetadata")
        await client.send_body(stream, b"\0\0\0\0\6" + model_request("echo", ""))
        assert await client.answered(stream) == ("0", "", server.model.metadata_message())


async def test_answers_wait_for_the_clients_window():
    async with connected() as (server, client):
        streams = [client.ask() for _ in range(100)]
        for stream in streams:
            client.h2.send_data(stream, b"x", end_stream=True)
        await client.flush()
        while sum(answer.ended for answer in client.answers.values()) < 65_535 // (
            5 + len(server.model.infer_message())
        ):
            await client.hear()
        assert client.h2.remote_flow_control_window(streams[-1]) < 1038
        client.h2.increment_flow_control_window(1 << 20)
        await client.flush()
        for stream in streams:
            assert (await client.answered(stream))[2] == server.model.infer_message()


async def test_pings_are_answered_and_calls_given_up_are_not():
    async with connected(service_s=0.02) as (server, client):
        stream, other = client.ask(), client.ask()
        for each in (stream, other):
            client.h2.send_data(each, b"x", end_stream=True)
        client.h2.reset_stream(stream)
        client.h2.ping(b"12345678")
        await client.flush()
        assert (await client.answered(other))[0] == "0"
        assert not client.answers[stream].ended
        assert server.answered == 2


async def test_who_does_not_speak_http2_is_let_go():
    server = EchoServer(EchoModel())
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.grpc_port)
    writer.write(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n")
    async with asyncio.timeout(PATIENCE_S):
        await reader.read()
    writer.close()
    await writer.wait_closed()
    await server.stop()


async def test_grpcio_understands_it():
    server = EchoServer(EchoModel(features=2000, dense_dim=0))
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        infer, metadata, config, other = (
            channel.unary_unary(GRPC_SERVICE + name) for name in ("ModelInfer", "ModelMetadata", "ModelConfig", "Other")
        )
        for _ in range(3):
            assert await infer(bytes(3_000_000), timeout=PATIENCE_S) == server.model.infer_message()
        request = model_request("echo", "")
        assert await metadata(request, timeout=PATIENCE_S) == server.model.metadata_message()
        assert await config(request, timeout=PATIENCE_S) == server.model.config_message()
        for call, code in ((metadata, grpc.StatusCode.NOT_FOUND), (other, grpc.StatusCode.UNIMPLEMENTED)):
            with pytest.raises(grpc.aio.AioRpcError) as fault:
                await call(model_request("another", ""), timeout=PATIENCE_S)
            assert fault.value.code() is code
    await server.stop()
