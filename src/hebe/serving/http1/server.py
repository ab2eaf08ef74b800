"""Starting and stopping an HTTP server on the running event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from hebe.serving.access.byte_budget import REQUESTS_IN_BUDGET, ByteBudget
from hebe.serving.access.listening import MOST_UNACCEPTED, ServerTls, open_port
from hebe.serving.http1.connection import HttpConnection
from hebe.serving.http1.connections import HttpConnections
from hebe.serving.http1.messages import Handler, HttpLimits

_NO_SOCKETS_PAUSE_S = 0.5
"""How long none is accepted where the system has no room for another."""


class _TlsConnection(HttpConnection):
    """Counts as a handshake until it is open, and as open from then on, never as both."""

    def __init__(self, shared: HttpConnections, handshake: asyncio.Task[None]) -> None:
        super().__init__(shared)
        self._handshake = handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is over."""
        self._shared.shaken(self._handshake)
        super().connection_made(transport)


class _TlsListener:
    """Accepts connections itself, since asyncio's server tells of them only after the handshake: those that never shake
    hands would not be counted.
    """

    def __init__(self, connections: HttpConnections, listener: socket.socket, tls: ServerTls) -> None:
        self._connections = connections
        self._listener = listener
        self._tls = tls
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        connections = self._connections
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listener)
            except ConnectionError:  # gone before it was accepted
                continue
            except OSError:
                await asyncio.sleep(_NO_SOCKETS_PAUSE_S)
                continue
            if connections.count >= connections.limits.max_connections and not connections.free_place():
                accepted.close()  # nothing can be said before the handshake
                continue
            handshake = loop.create_task(self._shake_hands(accepted))
            connections.handshakes[handshake] = connections.clock()
            handshake.add_done_callback(connections.shaken)

    async def _shake_hands(self, accepted: socket.socket) -> None:
        limits = self._connections.limits
        this = asyncio.current_task()
        assert this is not None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _TlsConnection(self._connections, this),
                accepted,
                ssl=self._tls.context,
                ssl_handshake_timeout=limits.head_timeout_s,
                ssl_shutdown_timeout=limits.linger_s,
            )
        except OSError:  # no TLS, too slow, or gone; ssl's errors are among them
            accepted.close()
        except asyncio.CancelledError:  # another needs its place, or the server stops
            accepted.close()
            raise

    async def close(self) -> None:
        """Accept no more."""
        self._accepting.cancel()
        await asyncio.wait([self._accepting])
        self._listener.close()


class HttpServer:
    """A listening HTTP server; made by `start_http`."""

    def __init__(self, connections: HttpConnections, listener: asyncio.Server | _TlsListener, port: int) -> None:
        self._connections = connections
        self._listener = listener
        self.port = port
        """The port it listens on, which is the operating system's choice if 0 was asked for."""

    async def stop(self, grace_s: float = 5.0) -> None:
        """Take no further connection, let requests under way finish for at most `grace_s`, close the rest."""
        if isinstance(self._listener, _TlsListener):
            await self._listener.close()
        else:
            self._listener.close()
        await self._connections.stop(grace_s)


async def start_http(
    handler: Handler,
    host: str,
    port: int,
    *,
    clock: Callable[[], float],
    tls: ServerTls | None = None,
    limits: HttpLimits | None = None,
    budget: ByteBudget | None = None,
    what: str = "HTTP",
) -> HttpServer:
    """Serve `handler` on `host`:`port`; `clock` is that of `Query.arrival_s`, `budget` what all servers share.

    Raises `ServeError` if the port is taken or not permitted.
    """
    limits = limits or HttpLimits()
    budget = budget or ByteBudget(REQUESTS_IN_BUDGET * limits.max_request_bytes)
    connections = HttpConnections(handler, limits, clock, budget)
    listener = open_port(what, host, port)
    bound = int(listener.getsockname()[1])
    server: asyncio.Server | _TlsListener
    if tls is not None:
        server = _TlsListener(connections, listener, tls)
    else:
        loop = asyncio.get_running_loop()
        # It listens anew, by default for a hundred.
        server = await loop.create_server(lambda: HttpConnection(connections), sock=listener, backlog=MOST_UNACCEPTED)
    connections.start()
    return HttpServer(connections, server, bound)
