"""Connections as their server counts them: before they are open, when too many come, and when it stops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from dataclasses import replace

import pytest

from hebe.serving.access.listening import ServerTls
from hebe.serving.http1.connection import HttpConnection, _State
from hebe.serving.http1.messages import HttpLimits, HttpResponse
from hebe.serving.http1.server import HttpServer, start_http
from tests.serving.access.test_listening import certificate

from .echo_http import LIMITS, PATIENCE_S, serving

MOST = 3


class Hello:
    def screen(self, head):  # noqa: ARG002
        return HttpResponse(200, b"hello")


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    return certificate(tmp_path_factory.mktemp("tls"), "server")


async def start(tls, clock=None, **limits) -> HttpServer:
    clock = clock or asyncio.get_running_loop().time
    options = HttpLimits(max_connections=MOST, **limits)
    return await start_http(
        Hello(), "127.0.0.1", 0, clock=clock, tls=None if tls is None else ServerTls(tls), limits=options
    )


async def connect(server, tls=None):
    context = None if tls is None else ssl.create_default_context(cafile=tls.certificate)
    return await asyncio.open_connection("127.0.0.1", server.port, ssl=context)


async def until(condition):
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


def sockets() -> int:
    """How many this process has."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return found


async def ask(server, tls) -> bytes:
    """The status line of an answer; empty if the connection was closed before."""
    try:
        reader, writer = await connect(server, tls)
    except OSError:
        return b""
    writer.write(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
    try:
        return await asyncio.wait_for(reader.readline(), PATIENCE_S)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("secure", [True, False])
async def test_many_connections_may_come_at_once(tls, secure):
    """While the event loop is busy: where the system has no room for one, its client tries again a second later."""

    server = await start(tls if secure else None)
    address = "127.0.0.1", server.port
    try:
        with contextlib.ExitStack() as clients:
            for _ in range(300):
                clients.enter_context(socket.create_connection(address, timeout=0.5))
        await until(lambda: server._connections.count == 0)
    finally:
        await server.stop(1.0)


async def test_connections_count_from_when_they_are_accepted(tls):
    server = await start(tls, clock=lambda: 0.0)
    before = sockets()
    silent = [await connect(server) for _ in range(MOST)]
    await until(lambda: len(server._connections.handshakes) == MOST)
    assert await ask(server, tls) == b"", "there is no room for another"
    silent[0][1].close()
    await until(lambda: len(server._connections.handshakes) < MOST)
    assert await ask(server, tls) == b"HTTP/1.1 200 OK\r\n"
    for _, writer in silent:
        writer.close()
    await until(lambda: server._connections.count == 0)
    await until(lambda: sockets() <= before)
    await server.stop(1.0)


async def test_who_does_not_shake_hands_or_does_not_ask_keeps_nobody_out(tls):
    now_s = 0.0
    server = await start(tls, clock=lambda: now_s)
    before = sockets()
    _, idle = await connect(server, tls)
    await until(lambda: server._connections.open)
    now_s = 1.0
    silent = [await connect(server) for _ in range(MOST - 1)]
    await until(lambda: len(server._connections.handshakes) == MOST - 1)
    now_s = 3.0
    kept = []
    for left in (MOST - 1, MOST - 2, 0):
        reader, writer = await connect(server, tls)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await asyncio.wait_for(reader.readline(), PATIENCE_S) == b"HTTP/1.1 200 OK\r\n"
        kept.append(writer)
        assert len(server._connections.handshakes) == left
    assert await ask(server, tls) == b"", "none has waited for a second"
    for writer in (idle, *(each for _, each in silent), *kept):
        writer.close()
    await until(lambda: server._connections.count == 0)
    await until(lambda: sockets() <= before)
    await server.stop(1.0)


async def test_who_never_shakes_hands_is_cut_off(tls):
    server = await start(tls, head_timeout_s=0.3)
    reader, writer = await connect(server)
    await until(lambda: server._connections.count == 1)
    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
    await until(lambda: server._connections.count == 0)
    writer.close()
    await server.stop(1.0)


async def test_as_many_as_may_be_open_are_answered(tls):
    server = await start(tls)
    clients = [await connect(server, tls) for _ in range(MOST)]
    for reader, writer in clients:
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await asyncio.wait_for(reader.readline(), PATIENCE_S) == b"HTTP/1.1 200 OK\r\n"
    for _, writer in clients:
        writer.close()
    await server.stop(1.0)


async def test_who_does_not_say_goodbye_is_left(tls):
    """An idle client that goes on holding its socket, but answers nothing: TLS waits for its goodbye."""

    server = await start(tls, idle_timeout_s=0.3, linger_s=0.3)
    raw = await connect(server)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=tls.certificate)
    client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    while True:
        try:
            client.do_handshake()
            break
        except ssl.SSLWantReadError:
            raw[1].write(outgoing.read())
            incoming.write(await raw[0].read(65536))
    client.write(b"GET / HTTP/1.1\r\n\r\n")
    raw[1].write(outgoing.read())
    await until(lambda: server._connections.open)
    await until(lambda: not server._connections.open)
    raw[1].close()
    await server.stop(1.0)


async def test_stopping_does_not_wait_for_handshakes(tls):
    server = await start(tls)
    _, writer = await connect(server)
    await until(lambda: server._connections.count == 1)
    await asyncio.wait_for(server.stop(PATIENCE_S), PATIENCE_S / 2)
    assert server._connections.count == 0
    with pytest.raises(ConnectionError):
        await connect(server)
    writer.close()


async def test_a_part_of_a_body_is_acknowledged_at_once(monkeypatch):
    """Who has not set TCP_NODELAY waits for that with the last part, 40 ms where the system takes its time."""
    parts = []
    monkeypatch.setattr(HttpConnection, "_acknowledge", lambda connection: parts.append(connection._filled))
    async with serving() as (_, connect, _server):
        client = await connect()
        await client.send(b"POST /a HTTP/1.1\r\nContent-Length: 5\r\n\r\n")
        await until(lambda: parts == [0])
        await client.send(b"abc")
        await until(lambda: parts == [0, 3])
        await client.send(b"de")
        assert (await client.response())[0] == 200
    assert parts == [0, 3]


async def test_stopping_does_not_wait_for_a_body_that_was_refused():
    async with serving(replace(LIMITS, linger_s=0.3)) as (_, connect, server):
        client = await connect()
        await client.send(b"POST /a HTTP/1.1\r\nInference-Header-Content-Length: 6\r\nContent-Length: 90\r\n\r\nrefuse")
        assert (await client.response())[0] == 503
        await asyncio.wait_for(server.stop(2 * PATIENCE_S), PATIENCE_S)
        assert await client.closed()


async def test_a_client_too_many_is_told_so():
    async with serving(clock=lambda: 0.0) as (_, connect, _server):
        clients = [await connect() for _ in range(LIMITS.max_connections)]
        for client in clients:
            await client.send(b"GET / HTTP/1.1\r\n\r\n")
            await client.response()
        status, _, body = await (await connect()).response()
        assert status == 503
        assert b"more than 5 connections" in body
        await clients[0].send(b"GET /still HTTP/1.1\r\n\r\n")
        assert (await clients[0].response())[2] == b"GET /still? "


async def test_a_flood_of_clients_too_many_takes_no_files():
    limits = replace(LIMITS, max_connections=32)
    async with serving(limits, clock=lambda: 0.0) as (_, connect, server):
        connections = server._connections
        for _ in range(limits.max_connections):
            await (await connect()).send(b"GET /slow HTTP/1.1\r\n\r\n")
        turned_away = [await connect() for _ in range(10)]
        for client in turned_away:
            assert (await client.response())[0] == 503
            assert await client.closed()
        await until(lambda: len(connections.open) == 34)
        assert len(connections.turned_away) == limits.max_turned_away == 2
        turned_away[0].writer.close()
        await until(lambda: len(connections.turned_away) == 1)
        assert (await (await connect()).response())[0] == 503
        assert len(connections.turned_away) == 2, "a place among those who linger is free again"
        for connection in list(connections.open):
            connection.abort()


async def test_connections_that_wait_for_their_client_keep_nobody_out():
    """Who has waited longest goes first; who is being answered, or sends a body, stays."""
    now_s = 0.0
    async with serving(clock=lambda: now_s) as (echo, connect, server):
        busy, sending, silent, idle, begun = [await connect() for _ in range(LIMITS.max_connections)]
        await busy.send(b"GET /slow?60 HTTP/1.1\r\n\r\n")
        await asyncio.wait_for(echo.started.wait(), PATIENCE_S)
        await sending.send(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\na")
        now_s = 1.0
        await idle.send(b"GET / HTTP/1.1\r\n\r\n")
        await idle.response()
        now_s = 2.0
        await begun.send(b"GET / HT")
        states = {_State.ANSWERING, _State.BODY, _State.IDLE, _State.HEAD}
        async with asyncio.timeout(PATIENCE_S):
            while {connection._state for connection in server._connections.open} != states:
                await asyncio.sleep(0.005)
        now_s = 4.0
        for ended in (silent, idle, begun):
            newcomer = await connect()
            await newcomer.send(b"GET / HTTP/1.1\r\n\r\n")
            assert (await newcomer.response())[0] == 200
            if ended is begun:
                status, _, body = await ended.response()
                assert (status, b"others need this connection's place" in body) == (408, True)
            assert await ended.closed()
        assert (await (await connect()).response())[0] == 503, "none has waited for a second"
        await sending.send(b"bc")
        assert (await sending.response())[2] == b"POST /? abc"
        assert _State.ANSWERING in {connection._state for connection in server._connections.open}
        for connection in list(server._connections.open):  # for which a clock that stands still would have it wait
            connection.abort()


async def test_stopping_lets_what_is_under_way_finish():
    async with serving() as (echo, connect, server):
        busy, idle = await connect(), await connect()
        await idle.send(b"GET / HTTP/1.1\r\n\r\n")
        await idle.response()
        await busy.send(b"GET /slow?0.2 HTTP/1.1\r\n\r\n")
        await asyncio.wait_for(echo.started.wait(), PATIENCE_S)
        stopping = asyncio.ensure_future(server.stop(PATIENCE_S))
        assert await idle.closed()
        status, head, _ = await busy.response()
        assert status == 200
        assert b"connection: close" in head
        assert await busy.closed()
        busy.writer.close()
        await stopping
        with pytest.raises(ConnectionError):
            await connect()


async def test_stopping_does_not_wait_longer_than_asked():
    async with serving() as (echo, connect, server):
        client = await connect()
        await client.send(b"GET /slow HTTP/1.1\r\n\r\n")
        await asyncio.wait_for(echo.started.wait(), PATIENCE_S)
        await asyncio.wait_for(server.stop(0.1), PATIENCE_S)
        await asyncio.wait_for(echo.cancelled.wait(), PATIENCE_S)
