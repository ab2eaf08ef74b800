"""Connections of redis-py that keep one deadline: that of the exchange which the calling thread is carrying out.

redis-py takes one time-out for each wait for a server. An exchange waits for several servers, several times: for a free
connection, for TLS, for the login, for each reply.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hebe.embeddings.redis.connection import NEEDS_REDIS, RedisAccess, RedisAddress
from hebe.embeddings.redis.errors import HandshakeTimeout
from hebe.embeddings.store import StoreError

try:
    import redis
    from redis.connection import AbstractConnection
except ImportError as fault:
    raise StoreError(NEEDS_REDIS) from fault

_pack_command: Callable[[Any], bytes] | None
try:
    from hiredis import pack_command as _pack_command
except ImportError:
    _pack_command = None  # slower, but all is there

_NOT_YET = object()
_SHORTEST_S = 0.001
_READ_BYTES = 1 << 18
_PIECE_BYTES = 1 << 16


class _Exchange(threading.local):
    end_s = 0.0
    share = 1.0


_exchange = _Exchange()


@contextlib.contextmanager
def deadline(end_s: float, share: float = 1.0) -> Iterator[None]:
    """Within: this thread waits no longer than until `end_s` (`time.monotonic`), each time for `share` of what is left.

    A server that sends, but so slowly that each of its pieces comes in time, may take longer.
    """
    before = _exchange.end_s, _exchange.share
    _exchange.end_s, _exchange.share = end_s, share
    try:
        yield
    finally:
        _exchange.end_s, _exchange.share = before


def _wait_s() -> float:
    return max((_exchange.end_s - time.monotonic()) * _exchange.share, _SHORTEST_S)


class _Timed(AbstractConnection):
    """Mixed into a kind of connection: its time-outs are what is left of the exchange."""

    @property
    def socket_timeout(self) -> float:
        return _wait_s()

    @socket_timeout.setter
    def socket_timeout(self, value: float | None) -> None:
        """redis-py's constructors set it."""

    @property
    def socket_connect_timeout(self) -> float:
        return _wait_s()

    @socket_connect_timeout.setter
    def socket_connect_timeout(self, value: float | None) -> None:
        """As above."""

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        self.update_current_socket_timeout(_wait_s())
        super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        self.update_current_socket_timeout(_wait_s())
        return super().read_response(*arguments, **options)

    def next_reply(self) -> Any:
        """`read_response`, but for errors that a server answers with, which are returned.

        Most of hundreds of replies come with the first one: hiredis is asked for those itself, at a tenth of the cost.
        """
        reader = getattr(self._parser, "_reader", None)
        reply = reader.gets() if reader is not None else _NOT_YET
        if reply is None or isinstance(reply, (bytes, int, list, redis.ResponseError)):
            return reply
        if isinstance(reply, Exception):
            raise reply
        try:
            return self.read_response()
        except redis.ResponseError as refused:
            return refused


class _TcpConnection(_Timed, redis.Connection):
    pass


class _UnixConnection(_Timed, redis.UnixDomainSocketConnection):
    pass


class _TlsConnection(_Timed, redis.SSLConnection):
    """With a context that was made once, and for a server's name other than its address, which redis-py cannot."""

    def __init__(self, *, context: ssl.SSLContext, server_name: str | None, **options: Any) -> None:
        super().__init__(**options)
        self._context, self._server_name = context, server_name

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
        try:
            return self._context.wrap_socket(sock, server_hostname=self._server_name or self.host)
        except TimeoutError:
            raise HandshakeTimeout("Timeout in the TLS handshake") from None

    def can_read(self, timeout: float = 0) -> bool:
        """Whether there is something of Redis' to read, which the pool takes for a connection that cannot be used.

        What comes after the handshake is not: TLS' session tickets, for which redis-py with hiredis takes new
        connections to be unusable, where they come before it looks.
        """
        readable = super().can_read(timeout)
        reader = getattr(self._parser, "_reader", None)
        if not readable or reader is None or reader.has_data():
            return readable
        tls: Any = self._sock
        before_s = tls.gettimeout()
        tls.settimeout(0.0)
        try:
            if not tls.recv(1):  # what is read is lost, with the connection
                raise redis.ConnectionError("Connection closed by server.")
        except ssl.SSLWantReadError:
            return False
        except OSError as fault:
            raise redis.ConnectionError(str(fault)) from None
        finally:
            tls.settimeout(before_s)
        return True


class TimedPool(redis.BlockingConnectionPool):
    """The connections to one server; who finds all in use waits for one until the deadline."""

    @property
    def timeout(self) -> float:
        """How long to wait for a connection."""
        return _wait_s()

    @timeout.setter
    def timeout(self, value: float) -> None:
        """redis-py's constructor sets it."""


def connection_options(access: RedisAccess) -> dict[str, Any]:
    """What pools of connections over TCP are given, beside the address. Raises ValueError for files of TLS."""
    context = access.tls_context()
    kind: Any = _TcpConnection
    if context is not None:
        kind = functools.partial(_TlsConnection, context=context, server_name=access.tls_server_name_identification)
    return {
        "connection_class": kind,
        "max_connections": access.num_node_connections,
        "username": None if access.user_name == "default" else access.user_name,
        "password": access.password or None,
        "protocol": 2,
        "driver_info": None,  # nothing is to be told to the server beside what is asked
        "socket_read_size": _READ_BYTES,
    }


def pool_of(address: RedisAddress, options: dict[str, Any]) -> TimedPool:
    """The pool of a server that is reached at `address`."""
    if address.port:
        return TimedPool(host=address.host, port=address.port, **options)
    return TimedPool(path=address.host, **{**options, "connection_class": _UnixConnection})


def packed(connection: AbstractConnection, requests: Sequence[tuple[bytes, ...]]) -> Iterable[bytes]:
    """Commands as they go over the wire, in pieces: the server works on the first ones while the next are written."""
    if _pack_command is None:
        yield from connection.pack_commands(requests)
        return
    # Not redis-py's way to the same function, which looks at the type of each of thousands of rows.
    piece: list[bytes] = []
    size_bytes = 0
    for request in requests:
        piece.append(_pack_command(request))
        size_bytes += len(piece[-1])
        if size_bytes >= _PIECE_BYTES:
            yield b"".join(piece)
            piece, size_bytes = [], 0
    yield b"".join(piece)
