"""Connections whose client is left alone for a while after a refusal."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from hebe.serving.http1.connection import _State

from .echo_http import LIMITS, serving

REST_S = 0.3
REFUSED = b"GET /refused HTTP/1.1\r\n\r\n"
NEXT = b"GET /next HTTP/1.1\r\n\r\n"
REFUSED_BY_ITS_START = b"POST /a HTTP/1.1\r\nInference-Header-Content-Length: 6\r\nContent-Length: 90\r\n\r\nrefuse"


@pytest.fixture(params=["body_that_comes", "whole"])
def refused(request):
    """What is refused, and what is sent of it after the answer."""
    return (REFUSED_BY_ITS_START, bytes(84)) if request.param == "body_that_comes" else (REFUSED, b"")


async def test_who_was_refused_is_told_at_once_and_listened_to_later(refused):
    now = asyncio.get_running_loop().time
    start, rest = refused
    async with serving() as (echo, connect, _server):
        echo.rest_s = REST_S
        client, other = await connect(), await connect()
        await client.send(start)
        assert (await client.response())[0] in (403, 503)
        told_s = now()
        await client.send(rest + NEXT)
        await other.send(NEXT)
        assert (await other.response())[0] == 200
        assert len(echo.bodies) == 1, "others do not wait for it"
        assert (await client.response())[2] == b"GET /next? "
        assert now() - told_s >= REST_S - 0.05


async def test_what_was_pipelined_behind_a_refusal_waits_for_its_turn():
    now = asyncio.get_running_loop().time
    async with serving() as (echo, connect, _server):
        echo.rest_s = REST_S
        client = await connect()
        await client.send(REFUSED + NEXT + NEXT)
        assert (await client.response())[0] == 403
        told_s = now()
        for _ in range(2):
            assert (await client.response())[2] == b"GET /next? "
        assert now() - told_s >= REST_S - 0.05


async def test_of_who_is_left_alone_no_more_is_kept_than_of_others():
    async with serving() as (echo, connect, _server):
        echo.rest_s = REST_S
        client = await connect()
        await client.send(REFUSED)
        assert (await client.response())[0] == 403
        body = bytes(90_000)
        for number in range(5):
            await client.send(b"POST /%d HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (number, len(body), body))
        for number in range(5):
            assert (await client.response())[2] == b"POST /%d? " % number + body


async def test_a_client_that_goes_while_it_is_left_alone_leaves_nothing(refused):
    async with serving() as (echo, connect, server):
        echo.rest_s = REST_S
        client = await connect()
        await client.send(refused[0])
        await client.response()
        (connection,) = server._connections.open
        client.writer.transport.abort()
        for _ in range(200):
            if connection._state is _State.CLOSED:
                break
            await asyncio.sleep(0.01)
        assert connection._state is _State.CLOSED
        assert not server._connections.open
        await asyncio.sleep(REST_S)


async def test_a_server_that_stops_does_not_wait_for_who_is_left_alone(refused):
    now = asyncio.get_running_loop().time
    async with serving(replace(LIMITS, linger_s=0.3)) as (echo, connect, server):
        echo.rest_s = 60.0
        client = await connect()
        await client.send(refused[0])
        await client.response()
        await client.send(refused[1])
        began_s = now()
        await server.stop(30.0)
        assert now() - began_s < 10.0
        assert await client.closed()
