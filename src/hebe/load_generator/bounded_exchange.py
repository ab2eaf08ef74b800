"""What bounds an exchange with another server: a deadline for all of it, and text from it that is fit to be shown.

A socket's time-out begins again with each byte, so `http.client` gets a socket whose whole exchange has one deadline.
Text that another server sent may move a terminal's cursor, or be no Unicode at all (`printable`).
"""

from __future__ import annotations

import io
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class BoundedSocket:
    """What `http.client` needs of a connected `socket`, each call of which raises TimeoutError once it is `deadline_s`
    by the monotonic clock. Whoever made the socket closes it.
    """

    def __init__(self, connected: socket.socket, deadline_s: float) -> None:
        self._connected = connected
        self._deadline_s = deadline_s

    def sendall(self, data: bytes) -> None:
        """Send all of it."""
        self._connected.settimeout(_left_s(self._deadline_s))
        self._connected.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """A file to read the answer from; it may outlive `close`."""
        return io.BufferedReader(_Received(self._connected, self._deadline_s))

    def close(self) -> None:
        """Nothing: `http.client` closes at the end of headers what the answer is yet to be read from."""


class _Received(io.RawIOBase):
    def __init__(self, connected: socket.socket, deadline_s: float) -> None:
        self._connected = connected
        self._deadline_s = deadline_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # as BufferedReader calls it
        self._connected.settimeout(_left_s(self._deadline_s))
        return self._connected.recv_into(buffer)


@contextmanager
def connected_by(
    deadline_s: float, host: str, port: int, context: ssl.SSLContext | None = None
) -> Iterator[BoundedSocket]:
    """A connection, by TLS if there is a `context`, that is closed at the end. Raises OSError, or TimeoutError where
    it is too late.
    """
    connected = _connected(deadline_s, host, port)
    try:
        if context is not None:
            connected.settimeout(_left_s(deadline_s))
            connected = context.wrap_socket(connected, server_hostname=host)
        yield BoundedSocket(connected, deadline_s)
    finally:
        connected.close()


def _connected(deadline_s: float, host: str, port: int) -> socket.socket:
    """To the first of the host's addresses that takes it."""
    failed: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        connected = None
        try:
            connected = socket.socket(family, kind, protocol)
            connected.settimeout(_left_s(deadline_s))
            connected.connect(address)
        except OSError as fault:
            if connected is not None:
                connected.close()
            failed = fault
        else:
            return connected
    raise failed or OSError(f"{host} has no address")


def _left_s(deadline_s: float) -> float:
    """Seconds until then by the monotonic clock; raises TimeoutError if there are none."""
    seconds = deadline_s - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return seconds


_MOST_NESTED = 64


def printable(text: str) -> str:
    r"""`text` on one line: line breaks become spaces, what cannot be shown its escape, such as \x1b."""
    return "".join(" " if each.isspace() else each if each.isprintable() else _escape(each) for each in text)


def printable_json(value: Any) -> Any:
    """A copy of JSON `value` with all its strings `printable`. Raises `ValueError` where it is nested too deep."""
    return _printable_json(value, _MOST_NESTED)


def _printable_json(value: Any, levels: int) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict | list) and not levels:
        raise ValueError("it is nested too deep")
    if isinstance(value, dict):
        return {printable(name): _printable_json(inner, levels - 1) for name, inner in value.items()}
    if isinstance(value, list):
        return [_printable_json(inner, levels - 1) for inner in value]
    return value


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()
