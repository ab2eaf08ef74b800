"""HTTP/1.1 for the open loop: one request at a time on each of as many connections as it takes.

A query goes out on the connection that was used last (it is the warmest); if none is idle, a new one is opened, up to
the target's bound, beyond which queries wait for the next answer. Answers are parsed by llhttp (`httptools`), and
their bodies are dropped unless they tell of an error.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections import OrderedDict
from typing import cast

import httptools

from hebe.load_generator.error import LoadError
from hebe.load_generator.queries.request_body import RequestBody
from hebe.load_generator.senders.sender import OnDone, OnSent, Outcome, ignore_done, ignore_sent, not_connected_kind
from hebe.load_generator.target import Target

REFUSALS = frozenset((408, 413, 429, 503))
"""A server that answers these is well and declines the query: out of time, too large, over the rate limit, overloaded.
"""

SEND_BUFFER_BYTES = 4 << 20
"""A query of a megabyte should leave in one system call, not in a dozen rounds of the loop."""

_MOST_MESSAGE = 2000
_FIRST_CONNECTIONS = 8


class HttpSender:
    """Sends the requests of `body` to `target`."""

    def __init__(self, target: Target, body: RequestBody) -> None:
        self._target = target
        self._body = body
        self._ssl: ssl.SSLContext | None = target.ssl_context()
        self._open: set[_Connection] = set()
        self._idle: list[_Connection] = []
        self._waiting: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self._busy: dict[int, _Connection] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self.on_sent: OnSent = ignore_sent
        self.on_done: OnDone = ignore_done

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._open)

    @property
    def full(self) -> bool:
        """Whether no further connection may be opened."""
        return len(self._open) + len(self._connecting) >= self._target.connections

    async def open(self) -> None:
        """Open the first connections. Raises `LoadError` if the server cannot be reached."""
        for _ in range(min(_FIRST_CONNECTIONS, self._target.connections)):
            try:
                await self._connect()
            except (OSError, ssl.SSLError) as fault:
                raise LoadError(f"{self._target.endpoint.url} cannot be reached: {fault}") from None

    def send(self, index: int, items: int, offset: int) -> None:
        """Send the query, or line it up and see that there will be a connection for it."""
        if self._idle and not self._waiting:
            self._transmit(self._idle.pop(), index, items, offset)
            return
        self._waiting[index] = (items, offset)
        self._grow()

    def give_up(self, index: int) -> None:
        """Close the connection that the query is on: its answer must not be taken for another's."""
        connection = self._busy.pop(index, None)
        if connection is not None:
            connection.index = -1
            connection.transport.abort()
        else:
            self._waiting.pop(index, None)

    async def close(self) -> None:
        """Close all connections."""
        for task in list(self._connecting):
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        for connection in list(self._open):
            connection.transport.abort()
        await asyncio.sleep(0)

    def _transmit(self, connection: _Connection, index: int, items: int, offset: int) -> None:
        self._busy[index] = connection
        connection.index = index
        self.on_sent(index)
        connection.transport.writelines(self._body.parts(items, offset))

    def _grow(self) -> None:
        """Open connections for the queries that wait and are not provided for, within the bound."""
        if len(self._connecting) < len(self._waiting) and not self.full:
            task = asyncio.get_running_loop().create_task(self._try_connect())
            self._connecting.add(task)

    async def _try_connect(self) -> None:
        try:
            await self._connect()
        except (OSError, ssl.SSLError) as fault:
            # One query fails with each connection that does, so that a vanished server is not asked for ever.
            if self._waiting:
                index, _ = self._waiting.popitem(last=False)
                self.on_done(index, Outcome.FAILED, not_connected_kind(fault), str(fault))
        self._connecting.discard(cast("asyncio.Task[None]", asyncio.current_task()))
        self._grow()

    async def _connect(self) -> None:
        endpoint = self._target.endpoint
        await asyncio.get_running_loop().create_connection(
            lambda: _Connection(self),
            endpoint.host,
            endpoint.port,
            ssl=self._ssl,
            server_hostname=endpoint.host if self._ssl is not None else None,
        )

    # -- a connection's side

    def connected(self, connection: _Connection) -> None:
        """A connection is ready."""
        self._open.add(connection)
        self.free(connection)

    def free(self, connection: _Connection) -> None:
        """A connection can take the next query."""
        if self._waiting:
            index, (items, offset) = self._waiting.popitem(last=False)
            self._transmit(connection, index, items, offset)
        else:
            self._idle.append(connection)

    def answered(self, connection: _Connection, status: int, body: bytes, reusable: bool) -> None:
        """An answer is complete."""
        outcome = Outcome.ANSWERED if status == 200 else Outcome.REFUSED if status in REFUSALS else Outcome.FAILED
        index = self._release(connection)
        # First the connection, then the news: whoever hears it may send the next query at once.
        if reusable:
            self.free(connection)
        if index >= 0:
            answered = outcome is Outcome.ANSWERED
            self.on_done(index, outcome, "" if answered else str(status), "" if answered else _message(body))

    def broken(self, connection: _Connection, kind: str, message: str) -> None:
        """A connection cannot go on; whatever it waits for will not come."""
        index = self._release(connection)
        if index >= 0:
            self.on_done(index, Outcome.FAILED, kind, message)

    def lost(self, connection: _Connection) -> None:
        """A connection is gone."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._grow()

    def _release(self, connection: _Connection) -> int:
        """The query that the connection waited for, -1 if none; it waits no more."""
        index, connection.index = connection.index, -1
        self._busy.pop(index, None)
        return index


class _Connection(asyncio.Protocol):
    """One connection; `index` is the query it waits for, -1 if none."""

    def __init__(self, sender: HttpSender) -> None:
        self._sender = sender
        self.transport: asyncio.Transport
        self.index = -1
        self._parser = httptools.HttpResponseParser(self)
        self._error_body = b""
        self._complete = False
        self._reusable = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._sender.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._sender.broken(self, "connection closed", str(exc or ""))
        self._sender.lost(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as fault:
            self._sender.broken(self, "not HTTP", str(fault))
            self.transport.abort()
            return
        if self._complete:
            # Not from within the parser, which would take a fault of ours for one of the server's.
            self._complete = False
            body, self._error_body = self._error_body, b""
            self._sender.answered(self, self._parser.get_status_code(), body, self._reusable)
            if not self._reusable:
                self.transport.close()

    def on_body(self, body: bytes) -> None:
        if self._parser.get_status_code() != 200 and len(self._error_body) < _MOST_MESSAGE:
            self._error_body += body

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200:
            self._complete = True
            # An answer that nobody asked for is a server's last word on an idle connection.
            self._reusable = self._parser.should_keep_alive() and self.index >= 0


def _message(body: bytes) -> str:
    """The `error` of a JSON answer, or the start of whatever it is."""
    text = body[:_MOST_MESSAGE].decode("utf-8", "replace")
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text.strip()[:200]
