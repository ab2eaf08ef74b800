"""Starting and stopping an HTTP server on the running event loop."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Callable
from email.utils import formatdate

from hebe.serving.byte_budget import REQUESTS_IN_BUDGET, ByteBudget
from hebe.serving.http_connection import HttpConnection
from hebe.serving.http_head import Heads
from hebe.serving.http_message import Handler, HttpLimits
from hebe.serving.listening import MOST_UNACCEPTED, ServerTls, open_port

_READ_BYTES = 64 * 1024
_NO_SOCKETS_PAUSE_S = 0.5
"""How long none is accepted where the system has no room for another."""
_UNDISTURBED_S = 1.0
"""How long a connection may always wait for its client, or shake hands."""


class HttpConnections:
    """The connections of one server: what they share, and the timer that ends those that take too long."""

    def __init__(self, handler: Handler, limits: HttpLimits, clock: Callable[[], float], budget: ByteBudget) -> None:
        self.handler = handler
        self.limits = limits
        self.clock = clock
        self.budget = budget
        self.heads = Heads()
        self.open: set[HttpConnection] = set()
        self.turned_away: set[HttpConnection] = set()
        """Of those that are open, who was told on arrival that there is no place, and has time to read it."""
        self.handshakes: dict[asyncio.Task[None], float] = {}
        """Of connections that are not open yet, where there is TLS, and since when, in this order."""
        self.stopping = False
        self.date_header = b""
        self.scratch = memoryview(bytearray(_READ_BYTES))
        """Where heads are read to. One for all: reading and taking are one step of the event loop."""
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        """Connections that are open, or are being opened."""
        return len(self.open) + len(self.handshakes)

    def free_place(self) -> bool:
        """Where all places are taken, end what has waited longest for its client, if anything has for a while.

        Else whoever opens connections and does nothing with them would keep everybody out.
        """
        longest = min(self.open, key=lambda connection: connection.waits_since_s, default=None)
        since_s = math.inf if longest is None else longest.waits_since_s
        handshake, begun_s = next(iter(self.handshakes.items()), (None, math.inf))
        if self.clock() - min(since_s, begun_s) < _UNDISTURBED_S:
            return False
        if handshake is not None and begun_s < since_s:
            del self.handshakes[handshake]
            handshake.cancel()
        elif longest is not None:
            longest.give_place()
        return True

    def shaken(self, handshake: asyncio.Task[None]) -> None:
        """A handshake is over, well or not."""
        self.handshakes.pop(handshake, None)

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
        handshakes = list(self.handshakes)
        for handshake in handshakes:
            handshake.cancel()
        if handshakes:
            await asyncio.wait(handshakes)
        for connection in list(self.open):
            connection.finish()
        end_s = self.clock() + grace_s
        while self.open and self.clock() < end_s:
            await asyncio.sleep(0.02)
        for connection in list(self.open):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()


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
