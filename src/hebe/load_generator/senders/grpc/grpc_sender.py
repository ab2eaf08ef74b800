"""gRPC for the open loop: many calls at once on a few HTTP/2 connections, with messages that are bytes already.

    send -> a call -> a stream of one of the connections, in turn -> frames -> transport
                                                          status  <- events <- transport

A call beyond the target's bound waits for an answer. One within it goes to a connection at once, or is lined up while
there is none: until one is open, or until the server takes another stream. A connection that is lost or that its
server no longer wants is opened again for the calls that come.
Specification: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import cast

from hebe._version import __version__
from hebe.load_generator.discovery import GRPC_SERVICE, call_metadata
from hebe.load_generator.error import LoadError
from hebe.load_generator.queries.request_body import RequestBody
from hebe.load_generator.senders.grpc.connection import NOT_HTTP2, OK, GrpcCall, GrpcConnection, GrpcStatus, NotHttp2
from hebe.load_generator.senders.grpc.http2_headers import Headers
from hebe.load_generator.senders.sender import OnDone, OnSent, Outcome, ignore_done, ignore_sent, not_connected_kind
from hebe.load_generator.target import Target

REFUSALS = frozenset(("DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAVAILABLE"))
"""A server that answers these declines the query: out of time, over a limit, overloaded."""

_TOO_LARGE = ("larger than max", "exceeds maximum size")
"""What gRPC's libraries say, with RESOURCE_EXHAUSTED, of a message that is larger than the server takes."""

CONNECTIONS = 8
"""HTTP/2 carries any number of calls on a connection, but each connection is written and read in order."""

OPEN_TIMEOUT_S = 10.0
_AGAIN_AFTER_S = 1.0
"""A lost connection that could not be opened again is tried so much later, as long as there are others."""


class GrpcSender:
    """Sends the requests of `body` to `target`."""

    def __init__(self, target: Target, body: RequestBody) -> None:
        self._target = target
        self._body = body
        self._headers = _request_headers(target)
        self._ssl = target.ssl_context()
        if self._ssl is not None:
            self._ssl.set_alpn_protocols(["h2"])
        self._most = min(CONNECTIONS, target.connections)
        self._open: list[GrpcConnection] = []
        self._retired: set[GrpcConnection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._again_s = 0.0
        self._next = 0
        self._busy: dict[int, GrpcCall] = {}
        self._lined_up: OrderedDict[int, GrpcCall] = OrderedDict()
        self._waiting: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self.on_sent: OnSent = ignore_sent
        self.on_done: OnDone = ignore_done

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._open) + len(self._retired)

    @property
    def full(self) -> bool:
        """Whether no further call may be started."""
        return len(self._busy) >= self._target.connections

    async def open(self) -> None:
        """Open the connections, until the server has told its settings on each.

        Raises `LoadError` if it cannot be reached, does not speak HTTP/2, or takes too long.
        """
        unreached = f"{self._target.endpoint.url} cannot be reached over gRPC"
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                for _ in range(self._most):
                    await self._connect()
        except TimeoutError:
            raise LoadError(f"{unreached} within {OPEN_TIMEOUT_S:g} s") from None
        except OSError as fault:
            raise LoadError(f"{unreached}: {fault}") from None

    def send(self, index: int, items: int, offset: int) -> None:
        """Start the call, or line it up if as many as allowed are under way."""
        if self.full:
            self._waiting[index] = (items, offset)
        else:
            self._start(index, items, offset)

    def give_up(self, index: int) -> None:
        """Cancel the call."""
        call = self._busy.pop(index, None)
        if call is None:
            self._waiting.pop(index, None)
            return
        self._lined_up.pop(index, None)
        if call.connection is not None:
            call.connection.cancel(call)
        self._follow()

    async def close(self) -> None:
        """Cancel what is under way and close all connections."""
        for task in list(self._connecting):
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        for calls in (self._busy, self._lined_up, self._waiting):
            calls.clear()
        connections = [*self._open, *self._retired]
        for connection in connections:
            connection.say_goodbye()
        await asyncio.gather(*(connection.lost for connection in connections))

    # -- calls

    def _start(self, index: int, items: int, offset: int) -> None:
        call = self._busy[index] = GrpcCall(index, items, offset)
        self.on_sent(index)
        if len(self._open) < self._most:
            self._reconnect()
        if self._lined_up or not self._place(call):
            self._lined_up[index] = call

    def _place(self, call: GrpcCall) -> bool:
        """Begin the call on the next connection that has room for it; False if none has."""
        for _ in range(len(self._open)):
            self._next = (self._next + 1) % len(self._open)
            connection = self._open[self._next]
            if connection.room:
                connection.begin(call, self._body.parts(call.items, call.offset))
                return True
        return False

    def _follow(self) -> None:
        """A place may be free: take the calls that are lined up, and those that wait."""
        while self._lined_up and self._place(next(iter(self._lined_up.values()))):
            self._lined_up.popitem(last=False)
        while self._waiting and not self.full:
            index, (items, offset) = self._waiting.popitem(last=False)
            self._start(index, items, offset)

    def _reconnect(self) -> None:
        """Open a connection in place of one that is gone: at once if it was the last, else when it is time."""
        if len(self._open) + len(self._connecting) >= self._most:
            return
        loop = asyncio.get_running_loop()
        if not self._open or loop.time() >= self._again_s:
            self._connecting.add(loop.create_task(self._try_connect()))

    async def _try_connect(self) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await self._connect()
        except OSError as fault:
            self._again_s = asyncio.get_running_loop().time() + _AGAIN_AFTER_S
            self._connecting.discard(task)
            if not self._open:
                # All that are lined up, so that a vanished server is not asked for ever.
                kind = NOT_HTTP2 if isinstance(fault, NotHttp2) else not_connected_kind(fault)
                for call in list(self._lined_up.values()):
                    self.failed(call, kind, str(fault) or f"not within {OPEN_TIMEOUT_S:g} s")
        finally:
            self._connecting.discard(task)
        if self._lined_up:
            self._reconnect()

    async def _connect(self) -> None:
        """Open a connection and wait until it is ready. Raises OSError."""
        endpoint = self._target.endpoint
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: GrpcConnection(self, self._headers),
            endpoint.host,
            endpoint.port,
            ssl=self._ssl,
            server_hostname=endpoint.host if self._ssl is not None else None,
        )
        try:
            await connection.settled
        except asyncio.CancelledError:
            connection.transport.abort()
            raise

    # -- a connection's side

    def ready(self, connection: GrpcConnection) -> None:
        """Calls may begin on a connection, or more than before."""
        if connection not in self._open and connection not in self._retired:
            self._open.append(connection)
        self._follow()

    def answered(self, call: GrpcCall, status: GrpcStatus) -> None:
        """The server has ended the call."""
        code, message = status
        if code == OK:
            self._end(call, Outcome.ANSWERED, "", "")
        elif code == "RESOURCE_EXHAUSTED" and any(words in message for words in _TOO_LARGE):
            self._end(call, Outcome.REFUSED, "message too large", message)
        else:
            self._end(call, Outcome.REFUSED if code in REFUSALS else Outcome.FAILED, code, message)

    def failed(self, call: GrpcCall, kind: str, message: str) -> None:
        """There will be no answer to the call."""
        self._end(call, Outcome.FAILED, kind, message)

    def retired(self, connection: GrpcConnection) -> None:
        """No further calls can begin on a connection; it ends with those that are under way."""
        if connection in self._open:
            self._open.remove(connection)
            self._retired.add(connection)
            if self._lined_up:
                self._reconnect()

    def gone(self, connection: GrpcConnection) -> None:
        """A connection is closed."""
        self._retired.discard(connection)
        if connection in self._open:
            self._open.remove(connection)
        if self._lined_up:
            self._reconnect()

    def _end(self, call: GrpcCall, outcome: Outcome, kind: str, message: str) -> None:
        if self._busy.pop(call.index, None) is not None:
            self._lined_up.pop(call.index, None)
            # First the place, then the news: whoever hears it may send the next query at once.
            self._follow()
            self.on_done(call.index, outcome, kind, message)


def _request_headers(target: Target) -> Headers:
    """Those of every call, in the order that gRPC asks for."""
    headers = {
        ":method": "POST",
        ":scheme": "https" if target.endpoint.tls else "http",
        ":path": GRPC_SERVICE + "ModelInfer",
        ":authority": target.endpoint.address,
        "te": "trailers",
        "content-type": "application/grpc",
        "user-agent": f"hebe/{__version__}",
        **dict(call_metadata(target)),
    }
    return tuple((name.encode(), value.encode()) for name, value in headers.items())
