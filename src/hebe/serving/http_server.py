"""Starting and stopping an HTTP server on the running event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from email.utils import formatdate

from hebe.serving.http_connection import HttpConnection
from hebe.serving.http_message import Handler, HttpLimits
from hebe.serving.listening import TlsFiles, open_port

_READ_BYTES = 64 * 1024


class HttpConnections:
    """The connections of one server: what they share, and the timer that ends those that take too long."""

    def __init__(self, handler: Handler, limits: HttpLimits, clock: Callable[[], float]) -> None:
        self.handler = handler
        self.limits = limits
        self.clock = clock
        self.open: set[HttpConnection] = set()
        self.stopping = False
        self.date_header = b""
        self.scratch = memoryview(bytearray(_READ_BYTES))
        """Where heads are read to. One for all: reading and taking are one step of the event loop."""
        self._sweeper: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin watching the time; needs a running loop."""
        self._sweep()

    def _sweep(self) -> None:
        now = self.clock()
        self.date_header = b"date: " + formatdate(time.time(), usegmt=True).encode() + b"\r\n"
        for connection in list(self.open):
            if now >= connection.give_up_s:
                connection.out_of_time()
        self._sweeper = asyncio.get_running_loop().call_later(0.25, self._sweep)

    async def stop(self, grace_s: float) -> None:
        """Let requests under way finish for at most `grace_s`, then close everything."""
        self.stopping = True
        for connection in list(self.open):
            connection.finish()
        end_s = self.clock() + grace_s
        while self.open and self.clock() < end_s:
            await asyncio.sleep(0.02)
        for connection in list(self.open):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()


class HttpServer:
    """A listening HTTP server; made by `start_http`."""

    def __init__(self, connections: HttpConnections, listener: asyncio.Server, port: int) -> None:
        self._connections = connections
        self._listener = listener
        self.port = port
        """The port it listens on, which is the operating system's choice if 0 was asked for."""

    async def stop(self, grace_s: float = 5.0) -> None:
        """Take no further connection, let requests under way finish for at most `grace_s`, close the rest."""
        self._listener.close()
        await self._connections.stop(grace_s)


async def start_http(
    handler: Handler,
    host: str,
    port: int,
    *,
    clock: Callable[[], float],
    tls: TlsFiles | None = None,
    limits: HttpLimits | None = None,
    what: str = "HTTP",
) -> HttpServer:
    """Serve `handler` on `host`:`port`; `clock` is that of `Query.arrival_s`.

    Raises `ServeError` if the port is taken or not permitted, or the TLS files are not usable.
    """
    context = tls.context() if tls is not None else None
    connections = HttpConnections(handler, limits or HttpLimits(), clock)
    listener = open_port(what, host, port)
    server = await asyncio.get_running_loop().create_server(
        lambda: HttpConnection(connections), sock=listener, ssl=context
    )
    connections.start()
    return HttpServer(connections, server, listener.getsockname()[1])
