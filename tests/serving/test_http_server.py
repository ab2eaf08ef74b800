"""Connections before they are open: those that shake hands, those that never do, and those that never say goodbye."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl

import pytest
import uvloop

from hebe.serving.http_message import HttpLimits, HttpResponse
from hebe.serving.http_server import HttpServer, start_http
from hebe.serving.listening import ServerTls

from .test_listening import certificate

PATIENCE_S = 60.0
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


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request):
    """Runs a coroutine on each of the two event loops."""
    factory = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}[request.param]

    def run(coroutine):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(coroutine)

    return run


@pytest.mark.parametrize("secure", [True, False])
def test_many_connections_may_come_at_once(run, tls, secure):
    """While the event loop is busy: where the system has no room for one, its client tries again a second later."""

    async def main():
        server = await start(tls if secure else None)
        address = "127.0.0.1", server.port
        try:
            with contextlib.ExitStack() as clients:
                for _ in range(300):
                    clients.enter_context(socket.create_connection(address, timeout=0.5))
            await until(lambda: server._connections.count == 0)
        finally:
            await server.stop(1.0)

    run(main())


def test_connections_count_from_when_they_are_accepted(run, tls):
    async def main():
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

    run(main())


def test_who_does_not_shake_hands_or_does_not_ask_keeps_nobody_out(run, tls):
    async def main():
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

    run(main())


def test_who_never_shakes_hands_is_cut_off(run, tls):
    async def main():
        server = await start(tls, head_timeout_s=0.3)
        reader, writer = await connect(server)
        await until(lambda: server._connections.count == 1)
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        await until(lambda: server._connections.count == 0)
        writer.close()
        await server.stop(1.0)

    run(main())


def test_as_many_as_may_be_open_are_answered(run, tls):
    async def main():
        server = await start(tls)
        clients = [await connect(server, tls) for _ in range(MOST)]
        for reader, writer in clients:
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await asyncio.wait_for(reader.readline(), PATIENCE_S) == b"HTTP/1.1 200 OK\r\n"
        for _, writer in clients:
            writer.close()
        await server.stop(1.0)

    run(main())


def test_who_does_not_say_goodbye_is_left(run, tls):
    """An idle client that goes on holding its socket, but answers nothing: TLS waits for its goodbye."""

    async def main():
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

    run(main())


def test_stopping_does_not_wait_for_handshakes(run, tls):
    async def main():
        server = await start(tls)
        _, writer = await connect(server)
        await until(lambda: server._connections.count == 1)
        await asyncio.wait_for(server.stop(PATIENCE_S), PATIENCE_S / 2)
        assert server._connections.count == 0
        with pytest.raises(ConnectionError):
            await connect(server)
        writer.close()

    run(main())
