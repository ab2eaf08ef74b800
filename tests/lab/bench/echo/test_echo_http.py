"""What the echo answers over HTTP, byte by byte; that a load generator understands it, integration tests hold."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from hebe_lab.bench.echo.echo_server import EchoModel, EchoServer

PATIENCE_S = 10.0
INFER = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


@asynccontextmanager
async def connected(**model):
    """A server, and the two ends of a connection to it."""
    server = EchoServer(EchoModel(**model))
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.http_port)
    try:
        yield server, reader, writer
    finally:
        writer.close()
        await writer.wait_closed()
        await server.stop()


async def answer(reader):
    """(status, body) of the next answer."""
    async with asyncio.timeout(PATIENCE_S):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().split("content-length:")[1].split()[0])
        return int(head.split()[1]), await reader.readexactly(length)


async def test_a_model_is_described_as_it_is_told():
    async with connected(features=2, lookups=3, dense_dim=4, rows=50, sla_ms=7.5) as (_, reader, writer):
        writer.write(b"GET /v2/models/echo HTTP/1.1\r\n\r\n")
        status, page = await answer(reader)
        inputs = [(each["name"], each["datatype"], each["shape"]) for each in json.loads(page)["inputs"]]
        assert status == 200
        assert inputs == [("feature_0", "INT64", [-1, 3]), ("feature_1", "INT64", [-1, 3]), ("dense", "FP32", [-1, 4])]
        writer.write(b"GET /v2/models/echo/config HTTP/1.1\r\n\r\n")
        parameters = json.loads((await answer(reader))[1])["parameters"]
        assert {name: value["string_value"] for name, value in parameters.items()} == {
            "sla_ms": "7.5",
            "sla_percentile": "95",
            "rows.feature_0": "50",
            "rows.feature_1": "50",
        }
        writer.write(b"GET /v2/models/other HTTP/1.1\r\n\r\n")
        assert await answer(reader) == (404, b'{"error": "unknown path /v2/models/other"}')


@pytest.mark.parametrize("body_bytes", [0, 1, 4096, 9 << 20])
async def test_a_query_is_answered_once_its_body_has_come(body_bytes):
    async with connected() as (server, reader, writer):
        request = INFER % body_bytes + b"\r\n" * (body_bytes // 2) + b"x" * (body_bytes % 2)
        for count in (1, 2):  # the connection stays
            writer.write(request[:-1])
            await writer.drain()
            if body_bytes:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(reader.readexactly(1), 0.02)
                assert server.answered == count - 1
            writer.write(request[-1:])
            status, scores = await answer(reader)
            assert (status, server.answered) == (200, count)
            assert scores == bytes(1024)


async def test_a_head_may_come_in_pieces_and_in_any_case():
    async with connected() as (_, reader, writer):
        for piece in (b"POST / HTTP/1.1\r\nCONTENT-length:", b" 5\r\n\r", b"\n12", b"345"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.002)
        assert (await answer(reader))[0] == 200


async def test_a_server_may_refuse_every_query_and_still_describe_its_model():
    async with connected(status=503) as (server, reader, writer):
        writer.write(INFER % 3 + b"abc")
        assert await answer(reader) == (503, b'{"error": "refused by request"}')
        assert server.answered == 1
        writer.write(b"GET /v2/models/echo HTTP/1.1\r\n\r\n")
        assert (await answer(reader))[0] == 200


@pytest.mark.parametrize("sent", [b"", b"POST / HT", INFER % 10 + b"12"])
async def test_a_client_that_hangs_up_is_let_go(sent):
    async with connected() as (server, _, writer):
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", server.http_port)
        other_writer.write(sent)
        other_writer.write_eof()
        async with asyncio.timeout(PATIENCE_S):
            assert await other_reader.read() == b"", "it hangs up as well, without an answer"
        other_writer.close()
        await other_writer.wait_closed()
        assert server.answered == 0
        assert not writer.is_closing()
