"""One HTTP/1.1 connection of the echo server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import Callable, Mapping

from hebe_lab.bench.echo.echo_model import REFUSAL, SCORES, EchoModel

_HEAD_BYTES = 4096
_SCRATCH = bytearray(1 << 22)
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class HttpEcho:
    """One connection: drops bodies, answers at their end, `delay_s()` seconds later.

    On the bare socket, since the kernel can drop the bytes of a TCP stream without copying them (MSG_TRUNC).
    """

    def __init__(
        self, connection: socket.socket, model: EchoModel, pages: Mapping[str, bytes], delay_s: Callable[[], float]
    ) -> None:
        self._socket = connection
        self._model, self._pages, self._delay_s = model, pages, delay_s
        self._head = b""
        self._missing = 0
        self._loop = asyncio.get_running_loop()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop.add_reader(connection, self._readable)

    def _readable(self) -> None:
        try:
            if self._missing:
                dropped = self._socket.recv_into(_SCRATCH, min(self._missing, len(_SCRATCH)), socket.MSG_TRUNC)
                self._missing -= dropped
                if not dropped:
                    self.close()
                elif not self._missing:
                    self._answer_inference()
                return
            received = self._socket.recv(_HEAD_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        self._head += received
        end = self._head.find(b"\r\n\r\n")
        if not received:
            self.close()
        elif end >= 0:
            head, rest, self._head = self._head[:end], len(self._head) - end - 4, b""
            if head.startswith(b"GET "):
                self._answer_page(head.split(b" ", 2)[1].decode())
                return
            length = _CONTENT_LENGTH.search(head)
            self._missing = max(int(length.group(1)) - rest, 0) if length else 0
            if not self._missing:
                self._answer_inference()

    def close(self) -> None:
        """Hang up."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def _answer_page(self, path: str) -> None:
        page = self._pages.get(path)
        if page is None:
            self._write(404, json.dumps({"error": f"unknown path {path}"}).encode())
        else:
            self._write(200, page)

    def _answer_inference(self) -> None:
        delay_s = self._delay_s()
        if delay_s > 0:
            self._loop.call_later(delay_s, self._write_scores)
        else:
            self._write_scores()

    def _write_scores(self) -> None:
        status = self._model.status
        self._write(status, SCORES if status == 200 else json.dumps({"error": REFUSAL}).encode())

    def _write(self, status: int, body: bytes) -> None:
        # A kilobyte always fits into the socket of a client that waits for it.
        with contextlib.suppress(OSError):
            self._socket.send(b"HTTP/1.1 %d -\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
