"""Opening ports, with errors that say which port and what to do; TLS material for both protocols."""

from __future__ import annotations

import errno
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from hebe.serving.errors import ServeError


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
            if not path.is_file():
                raise ServeError(f"TLS {what} {path}: no such file")
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


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def open_port(what: str, host: str, port: int) -> socket.socket:
    """A listening socket on `host`:`port` (0: any free port). Raises `ServeError` naming `what` and the port."""
    if not 0 <= port <= 65535:
        raise ServeError(f"{what} port {port}: must lie in 0..65535")
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # A name such as localhost may mean several addresses: IPv4 is what clients try first.
        family, kind, proto, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    except socket.gaierror as fault:
        raise ServeError(f"{what} host {host!r}: {fault.strerror}; use an address of this machine") from None
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(MOST_UNACCEPTED)
    except OSError as fault:
        listener.close()
        raise ServeError(f"{what} port {port} on {host}: {_advice(fault, what)}") from None
    listener.setblocking(False)
    return listener


def _advice(fault: OSError, what: str) -> str:
    option = f"--{what.lower()}-port"
    if fault.errno == errno.EADDRINUSE:
        return f"already in use; stop what listens there, or choose another with {option}"
    if fault.errno == errno.EACCES:
        return f"not permitted; ports below 1024 need privileges, choose a higher one with {option}"
    if fault.errno == errno.EADDRNOTAVAIL:
        return "not an address of this machine; choose another with --host"
    return str(fault.strerror)
