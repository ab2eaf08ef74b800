"""An HTTP server whose handler answers with what it got, and a client that sends it bytes."""

from __future__ import annotations

import asyncio
import contextlib
import re

from hebe.serving.access.byte_budget import ByteBudget
from hebe.serving.http1.messages import HttpLimits, HttpRequest, HttpResponse
from hebe.serving.http1.server import start_http
from hebe.serving.requests.errors import RequestError

LIMITS = HttpLimits(
    max_request_bytes=100_000,
    max_head_bytes=2000,
    max_connections=5,
    head_timeout_s=60.0,
    body_timeout_s=60.0,
    write_timeout_s=60.0,
    idle_timeout_s=60.0,
    linger_s=60.0,
)
PATIENCE_S = 60.0


class Echo:
    """Answers `METHOD path?query body`; /refused without reading the body, /slow after a while or on `go_on`. Who is
    refused rests for `rest_s`.
    """

    def __init__(self) -> None:
        self.rest_s = 0.0
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.bodies: list[memoryview] = []
        self.headers: list[dict[bytes, bytes]] = []

    def screen(self, head: HttpRequest) -> HttpResponse | None:
        if head.path == "/short":
            head.most_bytes = 10
        return HttpResponse(403, b"refused", rest_s=self.rest_s) if head.path == "/refused" else None

    def preview(self, request: HttpRequest, start: memoryview) -> HttpResponse | None:  # noqa: ARG002
        return HttpResponse(503, bytes(start), rest_s=self.rest_s) if start[:6] == b"refuse" else None

    async def answer(self, request: HttpRequest) -> HttpResponse:
        self.bodies.append(request.body)
        self.headers.append(dict(request.headers))
        if request.path == "/slow":
            self.started.set()
            try:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.go_on.wait(), float(request.query or 2 * PATIENCE_S))
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        if request.path == "/large":
            return HttpResponse(200, bytes(50_000_000))
        text = f"{request.method} {request.path}?{request.query} ".encode()
        return HttpResponse(200, text + bytes(request.body), b"text/plain", ((b"x-kind", b"echo"),))

    def refuse(self, error: RequestError, head: HttpRequest | None) -> HttpResponse:  # noqa: ARG002
        return HttpResponse(error.kind.http_status, error.message.encode(), b"text/plain")


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def response(self, *, head_only: bool = False) -> tuple[int, bytes, bytes]:
        """(status, head, body) of the next response."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        status = int(head.split()[1])
        if status == 100:
            return status, head, b""
        length = int(re.search(rb"content-length: (\d+)", head).group(1))
        body = b"" if head_only else await asyncio.wait_for(self.reader.readexactly(length), PATIENCE_S)
        return status, head, body

    async def closed(self) -> bool:
        """Whether the server closes without sending more."""
        try:
            return await asyncio.wait_for(self.reader.read(1), PATIENCE_S) == b""
        except ConnectionError:
            return True


@contextlib.asynccontextmanager
async def serving(limits: HttpLimits = LIMITS, budget: ByteBudget | None = None, clock=None):
    """An echo server and a function that connects to it."""
    echo = Echo()
    clock = clock or asyncio.get_running_loop().time
    server = await start_http(echo, "127.0.0.1", 0, clock=clock, limits=limits, budget=budget)
    writers = []

    async def connect() -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writers.append(writer)
        return Client(reader, writer)

    try:
        yield echo, connect, server
    finally:
        for writer in writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        await server.stop(1.0)
