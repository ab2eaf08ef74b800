"""Starting and stopping an HTTP server on the running event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hebe.serving.http_connection import Handler, HttpConnection, HttpConnections, HttpLimits
from hebe.serving.listening import TlsFiles, open_port


class HttpServer:
    """A listening HTTP server; made by `start_http`."""

    def __init__(self, connections: HttpConnections, listener: asyncio.Server, port: int) -> None:
        self._connections = connections
        self._listener = listener
        self.port = port
        """The port it listens on, which is the operating system's choice if 0 was asked for."""

    async def stop(self, grace_s: float = 5.0) -> None:
        """Take no further connection, let requests under way finish for at most `grace_s`, close the rest."""
        self._listener.close()
        await self._connections.stop(grace_s)


async def start_http(
    handler: Handler,
    host: str,
    port: int,
    *,
    clock: Callable[[], float],
    tls: TlsFiles | None = None,
    limits: HttpLimits | None = None,
    what: str = "HTTP",
) -> HttpServer:
    """Serve `handler` on `host`:`port`; `clock` is that of `Query.arrival_s`.

    Raises `ServeError` if the port is taken or not permitted, or the TLS files are not usable.
    """
    context = tls.context() if tls is not None else None
    connections = HttpConnections(handler, limits or HttpLimits(), clock)
    listener = open_port(what, host, port)
    server = await asyncio.get_running_loop().create_server(
        lambda: HttpConnection(connections), sock=listener, ssl=context
    )
    connections.start()
    return HttpServer(connections, server, listener.getsockname()[1])
