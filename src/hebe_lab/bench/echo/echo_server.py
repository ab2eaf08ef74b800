"""A server that speaks the Open Inference Protocol and computes nothing: what a load generator is measured against.

    python -m hebe_lab.bench.echo.echo_server --inputs 10x80 --dense 128 [--service-ms MS] [--status CODE] [--core N]
                                     [--max-frame-bytes BYTES]

It prints one JSON line with its ports once it listens, and ends when its standard input is closed, so that it
cannot outlive whoever started it. With `--service-ms` it answers as a server with one worker would that takes so long
for each query, without using the CPU for it: arrivals wait for those before them. Over gRPC it takes frames of 16 KiB,
as most servers do, unless `--max-frame-bytes` says otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import sys
from weakref import WeakSet

import uvloop

from hebe.load_generator.senders.grpc.http2_frames import DEFAULT_MAX_FRAME_BYTES
from hebe.machine.pinning import pin_thread
from hebe_lab.bench.echo.echo_grpc import GrpcEcho, grpc_answers
from hebe_lab.bench.echo.echo_http import HttpEcho
from hebe_lab.bench.echo.echo_model import EchoModel


class EchoServer:
    """HTTP and gRPC on loopback; ports are chosen by the system."""

    def __init__(self, model: EchoModel, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self.model = model
        self.answered = 0
        self.http_port = 0
        self.grpc_port = 0
        self._max_frame_bytes = max_frame_bytes
        self._free_s = 0.0
        self._pages = model.pages()
        self._messages = grpc_answers(model)
        self._connections: WeakSet[HttpEcho | GrpcEcho] = WeakSet()

    async def start(self) -> None:
        """Listen."""
        loop = asyncio.get_running_loop()
        self._http, self._grpc = (socket.create_server(("127.0.0.1", 0), backlog=1024) for _ in range(2))
        for listening, accept in ((self._http, self._accept_http), (self._grpc, self._accept_grpc)):
            listening.setblocking(False)
            loop.add_reader(listening, accept)
        self.http_port, self.grpc_port = self._http.getsockname()[1], self._grpc.getsockname()[1]

    async def stop(self) -> None:
        """Stop listening, and hang up."""
        for listening in (self._http, self._grpc):
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()
        for connection in list(self._connections):
            connection.close()

    def _accept_http(self) -> None:
        with contextlib.suppress(OSError):
            connection = self._http.accept()[0]
            self._connections.add(HttpEcho(connection, self.model, self._pages, self.delay_s))

    def _accept_grpc(self) -> None:
        with contextlib.suppress(OSError):
            connection = self._grpc.accept()[0]
            echo = GrpcEcho(connection, self.model, self._messages, self.delay_s, self._max_frame_bytes)
            self._connections.add(echo)

    def delay_s(self) -> float:
        """How long the query that has just arrived takes: its turn, and its own service time."""
        self.answered += 1
        if not self.model.service_s:
            return 0.0
        now = asyncio.get_running_loop().time()
        self._free_s = max(self._free_s, now) + self.model.service_s
        return self._free_s - now


async def _serve(model: EchoModel, max_frame_bytes: int) -> None:
    server = EchoServer(model, max_frame_bytes)
    await server.start()
    print(json.dumps({"http_port": server.http_port, "grpc_port": server.grpc_port}), flush=True)
    await asyncio.to_thread(sys.stdin.buffer.read)
    await server.stop()


def main() -> None:
    """The command line in the module's docstring."""
    parser = argparse.ArgumentParser(
        prog="python -m hebe_lab.bench.echo.echo_server", description="Answer without computing."
    )
    parser.add_argument("--inputs", default="10x80", help="FEATURESxLOOKUPS")
    parser.add_argument("--dense", type=int, default=128)
    parser.add_argument("--service-ms", type=float, default=0.0)
    parser.add_argument("--status", type=int, default=200)
    parser.add_argument("--core", type=int, help="the core to run on")
    parser.add_argument("--max-frame-bytes", type=int, default=DEFAULT_MAX_FRAME_BYTES, help="of an HTTP/2 frame")
    given = parser.parse_args()
    if given.core is not None:
        pin_thread([given.core])
    features, lookups = (int(part) for part in given.inputs.split("x"))
    model = EchoModel(
        features=features,
        lookups=lookups,
        dense_dim=given.dense,
        service_s=given.service_ms / 1e3,
        status=given.status,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(model, given.max_frame_bytes))


if __name__ == "__main__":
    main()
