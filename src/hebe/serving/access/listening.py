"""Opening ports, with errors that say which port and what to do; TLS material for both protocols."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import stat
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import structlog

from hebe.serving.requests.errors import ServeError

log = structlog.get_logger("hebe.server")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of the server's certificate chain and private key."""

    certificate: Path
    key: Path

    def read(self) -> tuple[bytes, bytes]:
        """(certificate chain, key). Raises `ServeError` naming the file that cannot be read."""
        contents = []
        for what, path in (("certificate", self.certificate), ("key", self.key)):
            try:
                contents.append(path.read_bytes())
            except OSError as fault:
                raise ServeError(f"TLS {what} {path}: {fault.strerror}") from None
        self.context()
        return contents[0], contents[1]

    def context(self) -> ssl.SSLContext:
        """The server's TLS context. Raises `ServeError` if the two files are not a certificate and its key."""
        for what, path in (("certificate", self.certificate), ("key", self.key)):
            try:
                is_file = stat.S_ISREG(path.stat().st_mode)
            except OSError as fault:  # it is not there, or a directory above it may not be searched
                raise ServeError(f"TLS {what} {path}: {fault.strerror}") from None
            if not is_file:
                raise ServeError(f"TLS {what} {path}: is not a file")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except (ssl.SSLError, OSError, ValueError) as fault:
            raise ServeError(
                f"TLS certificate {self.certificate} and key {self.key}: not a PEM certificate and its unencrypted "
                f"key ({getattr(fault, 'reason', None) or fault})"
            ) from None
        return context


MOST_UNACCEPTED = 2048
"""Connections that the system may hold for a listening socket. Of those that come beyond it, while the event loop is at
something else, each would try again after a second only."""


class ServerTls:
    """What the server shows of `files`, read again once they have changed: certificates are renewed while it runs.

    Raises as `TlsFiles`. `context` and `pem`, (certificate chain, key), are of those that were last good together.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._loaded = self._seen = self._stamp()
        self._refused: tuple[_Stamp, str] | None = None
        self.context = files.context()
        self.pem = files.read()

    def look(self) -> None:
        """Take what the files hold now, if it is new and was the same when they were looked at before: who writes one
        after the other is left to finish. What is no certificate and its key is told in the log, once, and tried again
        at each look: it may be that only its permissions were missing.
        """
        stamp, before = self._stamp(), self._seen
        self._seen = stamp
        if stamp != before or stamp == self._loaded:
            return
        try:
            pem, context = self._files.read(), self._files.context()
        except ServeError as fault:
            if (refused := (stamp, str(fault))) != self._refused:
                self._refused = refused
                log.error("the new certificate is not taken, the one before stays", reason=str(fault))
            return
        self.pem, self.context, self._loaded = pem, context, stamp
        log.info("new connections get the new certificate", certificate=str(self._files.certificate))

    async def watch(self) -> None:
        """Look every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self.look()

    def _stamp(self) -> _Stamp:
        stamps: list[tuple[int, int, int] | None] = []
        for path in (self._files.certificate, self._files.key):
            try:
                found = path.stat()
            except OSError:
                stamps.append(None)
            else:
                stamps.append((found.st_ino, found.st_mtime_ns, found.st_size))
        return tuple(stamps)


_Stamp = tuple[tuple[int, int, int] | None, ...]
"""Of both files, what changes where one is written or replaced; None of one that is not there."""
_LOOK_S = 5.0


_OTHER_FILES = 256
"""Files that a server may have open beside connections: of stores, of models that are being loaded."""
_CONNECTIONS = 2048
"""Of all front ends together, of which HTTP has half, the metrics an eighth, and gRPC the rest."""


@dataclass(frozen=True, slots=True)
class ConnectionRoom:
    """How many connections each port may have, since the system allows only so many open files.

    `needed` is the limit of open files from which on it decides nothing.
    """

    http: int
    metrics: int
    grpc: int
    needed: int

    @staticmethod
    def within(most_files: float, open_files: int) -> ConnectionRoom:
        """Where `most_files` (`inf` if there is no limit) may be open, of which `open_files` are."""
        left = int(min(max(most_files - open_files, 0), _OTHER_FILES + _CONNECTIONS))
        for_connections = left - min(_OTHER_FILES, left // 4)
        http, metrics = max(for_connections // 2, 4), max(for_connections // 8, 2)
        return ConnectionRoom(
            http,
            metrics,
            grpc=max(for_connections - http - metrics, 4),
            needed=open_files + _OTHER_FILES + _CONNECTIONS,
        )


def open_files() -> int:
    """How many files and sockets this process has open."""
    for directory in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            return len(os.listdir(directory))
    return _OTHER_FILES


def bare_host(host: str) -> str:
    """`host` without the brackets in which URLs write an IPv6 address."""
    return host[1:-1] if host[:1] == "[" and host[-1:] == "]" and ":" in host else host


def on_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches what listens on `host`; False of what cannot be listened on."""
    try:
        address = _first_address(host, 0)[4][0]
    except (OSError, UnicodeError):
        return False
    return ip_address(str(address).partition("%")[0]).is_loopback


def _first_address(host: str, port: int) -> tuple[Any, ...]:
    """What `getaddrinfo` finds, and raises. A name such as localhost may mean several addresses: IPv4 is what clients
    try first.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return min(found, key=lambda entry: entry[0] != socket.AF_INET)


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def open_port(what: str, host: str, port: int) -> socket.socket:
    """A listening socket on `host`:`port` (0: any free port). Raises `ServeError` naming `what` and the port."""
    if not 0 <= port <= 65535:
        raise ServeError(f"{what} port {port}: must lie in 0..65535")
    try:
        family, kind, proto, _, address = _first_address(host, port)
    except socket.gaierror as fault:
        raise ServeError(f"{what} host {host!r}: {fault.strerror}; use an address of this machine") from None
    except UnicodeError:  # a part of a name that is empty or too long
        raise ServeError(f"{what} host {host!r}: is no name of a host; use an address of this machine") from None
    try:
        listener = socket.socket(family, kind, proto)  # which raises where there is no IPv6, or no file left for it
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(MOST_UNACCEPTED)
        except OSError:
            listener.close()
            raise
    except OSError as fault:
        raise ServeError(f"{what} port {port} on {host}: {_advice(fault, what)}") from None
    listener.setblocking(False)
    return listener


def _advice(fault: OSError, what: str) -> str:
    option = f"--{what.lower()}-port"
    if fault.errno == errno.EADDRINUSE:
        return f"already in use; stop what listens there, or choose another with {option}"
    if fault.errno == errno.EACCES:
        return f"not permitted; ports below 1024 need privileges, choose a higher one with {option}"
    if fault.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
        return "not an address of this machine; choose another with --host"
    return str(fault.strerror)
