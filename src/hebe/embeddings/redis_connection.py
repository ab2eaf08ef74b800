"""Connections to one Redis server: TLS, user and password, a pool of them, and a deadline over every wait."""

from __future__ import annotations

import contextlib
import math
import select
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hebe.embeddings.redis_protocol import Command, ErrorReply, ProtocolError, Reply, ReplyReader, command
from hebe.embeddings.store import StoreError, StoreUnavailable

CLIENT_MESSAGE = "the volatile store of embedding rows is not available"
_UNIX = "unix:"


@dataclass(frozen=True, slots=True, order=True)
class RedisAddress:
    """A server's host and TCP port, or the path of its Unix socket and port 0."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> RedisAddress:
        """Of `HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`. Raises ValueError."""
        if text.startswith(_UNIX) and len(text) > len(_UNIX):
            return cls(text.removeprefix(_UNIX), 0)
        host, _, port = text.strip().rpartition(":")
        if not host or not (port.isascii() and port.isdigit()) or not 1 <= int(port) <= 65535:
            raise ValueError(f"address is {text!r}: must be HOST:PORT or unix:PATH")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    def __str__(self) -> str:
        if not self.port:
            return f"{_UNIX}{self.host}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(addresses: str | Sequence[str]) -> tuple[RedisAddress, ...]:
    """Of a list, or of one string in which commas or semicolons part them. Raises ValueError."""
    texts = addresses.replace(";", ",").split(",") if isinstance(addresses, str) else list(addresses)
    if not texts:
        raise ValueError("address is empty: must name a Redis server")
    return tuple(dict.fromkeys(RedisAddress.parse(text) for text in texts))


@dataclass(frozen=True, slots=True)
class RedisAccess:
    """How servers are reached; names and defaults, but for the time-out, are those of HPS' `volatile_db` block.

    `num_node_connections` is the most connections to each server. `timeout_s` is the longest that one exchange of
    commands and replies with all servers concerned may take, connecting and waiting for a connection included; only
    the system's resolver, where addresses are names, has time-outs of its own. With
    `enable_tls` the server's certificate must be signed by an authority of `tls_ca_certificate` (None: those of the
    system) and be for `tls_server_name_identification` (None: the address). Raises ValueError naming a field.
    """

    user_name: str = "default"
    password: str = field(default="", repr=False)
    num_node_connections: int = 5
    timeout_s: float = 1.0
    enable_tls: bool = False
    tls_ca_certificate: Path | None = None
    tls_client_certificate: Path | None = None
    tls_client_key: Path | None = None
    tls_server_name_identification: str | None = None

    def __post_init__(self) -> None:
        if self.num_node_connections < 1:
            raise ValueError(f"num_node_connections is {self.num_node_connections}: must be at least 1")
        if not 0 < self.timeout_s < math.inf:
            raise ValueError(f"timeout_s is {self.timeout_s}: must be above 0")
        if (self.tls_client_certificate is None) != (self.tls_client_key is None):
            raise ValueError("tls_client_certificate and tls_client_key go together")

    def tls_context(self) -> ssl.SSLContext | None:
        """None without TLS. Raises ValueError for files that cannot be used."""
        if not self.enable_tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca_certificate)
        except OSError as fault:
            raise ValueError(f"tls_ca_certificate {self.tls_ca_certificate}: {fault}") from None
        if self.tls_client_certificate is not None:
            try:
                context.load_cert_chain(self.tls_client_certificate, self.tls_client_key)
            except OSError as fault:
                files = f"{self.tls_client_certificate} and tls_client_key {self.tls_client_key}"
                raise ValueError(f"tls_client_certificate {files}: {fault}") from None
        return context


class RedisConnection:
    """One open connection, used by one thread at a time. Deadlines are times of `time.monotonic`."""

    def __init__(
        self, address: RedisAddress, access: RedisAccess, context: ssl.SSLContext | None, deadline_s: float
    ) -> None:
        self.address = address
        self._deadline_s = deadline_s
        self._socket = _connect(address, deadline_s)
        try:
            if context is not None:
                self._socket.settimeout(_remaining_s(deadline_s))
                name = access.tls_server_name_identification or address.host
                self._socket = context.wrap_socket(self._socket, server_hostname=name)
            self._reader = ReplyReader(self._receive)
            self._log_in(access)
        except BaseException:
            self.close()
            raise

    @property
    def usable(self) -> bool:
        """Whether the server has kept it open, as far as is known here, and nothing has come unasked."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return self._reader.empty and not poll.poll(0)

    def send(self, commands: Sequence[bytes], deadline_s: float) -> None:
        """Send commands; so many replies are then to be read. Raises OSError, TimeoutError among them."""
        self._deadline_s = deadline_s
        self._socket.settimeout(_remaining_s(deadline_s))
        self._socket.sendall(b"".join(commands))

    def receive(self, sent: Command) -> Reply:
        """The reply to the oldest command whose reply has not been read. Raises as `ReplyReader.reply` does."""
        return self._reader.reply() if sent.sink is None else self._reader.rows(sent.sink)

    def close(self) -> None:
        """Close it. Harmless twice."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def _receive(self, view: memoryview) -> int:
        self._socket.settimeout(_remaining_s(self._deadline_s))
        return self._socket.recv_into(view)

    def _log_in(self, access: RedisAccess) -> None:
        if access.user_name != "default":
            request = command(b"AUTH", access.user_name.encode(), access.password.encode())
        elif access.password:
            request = command(b"AUTH", access.password.encode())
        else:
            return
        self.send([request], self._deadline_s)
        reply = self._reader.reply()
        if isinstance(reply, ErrorReply):
            # Its code only: what follows might say again what was sent.
            raise error_of(self.address, ErrorReply(reply.code, f"(user_name {access.user_name} and password refused)"))


class ConnectionPool:
    """The connections to one server, at most `num_node_connections`, kept open between uses."""

    def __init__(self, address: RedisAddress, access: RedisAccess, context: ssl.SSLContext | None) -> None:
        self.address = address
        self._access, self._context = access, context
        self._free = threading.BoundedSemaphore(access.num_node_connections)
        self._idle: list[RedisConnection] = []
        self._closed = False

    def take(self, deadline_s: float) -> RedisConnection:
        """An open connection, for the caller alone until it is given back or dropped.

        Raises OSError, or `StoreUnavailable` when all are in use until the deadline.
        """
        if not self._free.acquire(timeout=max(0.0, deadline_s - time.monotonic())):
            what = f"Redis {self.address}: all {self._access.num_node_connections} connections are in use"
            raise StoreUnavailable(what, CLIENT_MESSAGE)
        try:
            while self._idle:
                with contextlib.suppress(IndexError):  # another thread was faster
                    connection = self._idle.pop()
                    if connection.usable:
                        return connection
                    connection.close()
            return RedisConnection(self.address, self._access, self._context, deadline_s)
        except BaseException:
            self._free.release()
            raise

    def give_back(self, connection: RedisConnection) -> None:
        """The caller has read all replies."""
        self._idle.append(connection)
        self._free.release()
        if self._closed:
            self.close()

    def drop(self, connection: RedisConnection) -> None:
        """The connection is broken, or has replies left that nobody will read."""
        connection.close()
        self._free.release()

    def close(self) -> None:
        """Close those that are not in use; the others when they are given back."""
        self._closed = True
        while self._idle:
            with contextlib.suppress(IndexError):
                self._idle.pop().close()


_UNAVAILABLE = {"LOADING", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "TRYAGAIN", "MOVED", "ASK", "BUSY", "NOREPLICAS"}


def error_of(address: RedisAddress, reply: ErrorReply) -> StoreError:
    """The exception for what a server said: `StoreUnavailable` where it may heal by itself."""
    what = f"Redis {address}: {reply.code} {reply.text[:200]}"
    if reply.code in _UNAVAILABLE:
        return StoreUnavailable(what, CLIENT_MESSAGE)
    if reply.code == "OOM" or "-OOM" in reply.text:
        what = (
            f"Redis {address} has no memory left: raise its maxmemory, or set a smaller overflow_margin ({reply.code})"
        )
    return StoreError(what, CLIENT_MESSAGE)


def fault_of(address: RedisAddress, fault: Exception, timeout_s: float) -> StoreError:
    """The exception for what happened to a connection."""
    if isinstance(fault, TimeoutError):
        return StoreUnavailable(f"Redis {address} has not answered within {timeout_s:g} s", CLIENT_MESSAGE)
    if isinstance(fault, ssl.SSLCertVerificationError):
        return StoreError(f"Redis {address}: its certificate is not accepted: {fault.verify_message}", CLIENT_MESSAGE)
    if isinstance(fault, ProtocolError):
        return StoreError(f"Redis {address}: {fault or 'what it answers is not the Redis protocol'}", CLIENT_MESSAGE)
    if isinstance(fault, EOFError):
        return StoreUnavailable(f"Redis {address} has closed the connection", CLIENT_MESSAGE)
    return StoreUnavailable(f"Redis {address} cannot be reached: {fault}", CLIENT_MESSAGE)


def _connect(address: RedisAddress, deadline_s: float) -> socket.socket:
    if not address.port:
        return _connected(socket.AF_UNIX, address.host, deadline_s)
    fault: OSError = OSError("no such host")
    for family, _, _, _, where in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
        try:
            return _connected(family, where, deadline_s)
        except TimeoutError:
            raise
        except OSError as failed:
            fault = failed
    raise fault


def _connected(family: int, where: object, deadline_s: float) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.settimeout(_remaining_s(deadline_s))
        made.connect(where)  # type: ignore[arg-type]
        if family != socket.AF_UNIX:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        made.close()
        raise
    return made


def _remaining_s(deadline_s: float) -> float:
    remaining_s = deadline_s - time.monotonic()
    if remaining_s <= 0:
        raise TimeoutError
    return remaining_s
